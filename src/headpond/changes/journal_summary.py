"""What a journal holds, in figures: ranges of blocks, transactions per day, revisions per table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.journal_facts import BLOCK, REVISION, once

if TYPE_CHECKING:
    import datetime as dt

    from headpond.changes.journal_facts import JournalFacts

KINDS = ("insert", "update", "delete", "redacted")


@dataclass(frozen=True, slots=True)
class Strand:
    """One strand of a journal."""

    strand_id: str
    first: int
    last: int
    ranges: tuple[tuple[int, int], ...]
    """Sequence numbers without a gap, first and last of each range, in order."""

    @property
    def blocks(self) -> int:
        """How many blocks are there."""
        return sum(last - first + 1 for first, last in self.ranges)


@dataclass(frozen=True, slots=True)
class TableFigures:
    """One table of a ledger; two that bore one name one after the other are two."""

    name: str | None
    table_id: str | None
    documents: int
    revisions: dict[str, int] = field(default_factory=dict)
    """Kind → how many."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A journal in figures; everything counts once, however often it came."""

    strands: tuple[Strand, ...]
    days: tuple[tuple[dt.date, int], ...]
    """Days that have transactions, in order, and how many."""
    tables: tuple[TableFigures, ...]


def summarize(facts: JournalFacts) -> Summary:
    """Give the figures of a journal's facts."""
    blocks = once(facts.blocks, [*BLOCK, "day"])
    counted = pc.value_counts(once(blocks.drop_null(), [*BLOCK, "day"])["day"])
    days = sorted((one["values"], one["counts"]) for one in counted.to_pylist())
    ids = pc.unique(blocks["strand_id"]).sort().to_pylist()
    return Summary(tuple(_strand(blocks, strand) for strand in ids), tuple(days), _tables(facts.revisions))


def _strand(blocks: pa.Table, strand_id: str) -> Strand:
    numbers = np.unique(blocks.filter(pc.equal(blocks["strand_id"], strand_id))["sequence_no"].to_numpy())
    breaks = np.flatnonzero(np.diff(numbers) > 1)
    firsts = numbers[np.concatenate([[0], breaks + 1])].tolist()
    lasts = numbers[np.concatenate([breaks, [len(numbers) - 1]])].tolist()
    return Strand(strand_id, firsts[0], lasts[-1], tuple(zip(firsts, lasts, strict=True)))


def _tables(revisions: pa.Table) -> tuple[TableFigures, ...]:
    table = ["table_name", "table_id"]
    kinds = (
        once(revisions, [*table, *REVISION, "kind"]).group_by([*table, "kind"]).aggregate([([], "count_all")])
    )
    documents = once(revisions, [*table, "document_id"]).group_by(table).aggregate([([], "count_all")])
    found = {
        (row["table_name"], row["table_id"]): TableFigures(
            row["table_name"], row["table_id"], row["count_all"]
        )
        for row in documents.to_pylist()
    }
    for row in kinds.to_pylist():
        found[row["table_name"], row["table_id"]].revisions[row["kind"]] = row["count_all"]
    return tuple(sorted(found.values(), key=lambda one: (one.name or "", one.table_id or "")))
