"""A QLDB journal as it becomes known, batch by batch, and what can be said of it.

::

    decoded batch ─► add ─┐
    decoded batch ─► add ─┼─► facts (each once) + counts ─► checked() ─► anomalies, pending
    decoded batch ─► add ─┘

The step function of verification: adding in any order, any cut, with any repeats, ends in the same answer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.journal_check import check_documents, check_gaps, check_slice
from headpond.changes.journal_facts import BLOCK, REVISION, JournalFacts, journal_facts, once

if TYPE_CHECKING:
    from headpond.formats.qldb_batch import DecodedQldb

COMPACT_ROWS = 200_000
"""Facts added before those that are there twice are dropped."""
SLICE_BLOCKS = 50_000
"""Blocks that are checked in one go; bounds the memory of the joins."""


class Checked(NamedTuple):
    """What a journal's facts say."""

    anomalies: pa.Table
    """`journal_check.ANOMALIES`, sorted by strand, block, document, version and kind."""
    pending: dict[str, int]
    """What waits for records that may still come: revisions without their block; unless closed also listed
    revisions that are absent, and blocks missing between others."""


@dataclass(slots=True)
class Journal:
    """Facts of a journal, its records counted."""

    facts: JournalFacts = field(default_factory=JournalFacts.none)
    counts: Counter[str] = field(default_factory=Counter)
    """`records`, `control`, `block_summary`, `revision_details`, and malformed ones by verdict."""
    completed: bool = False
    """A control record said that the stream has ended."""
    _fresh: list[JournalFacts] = field(default_factory=list)

    def add(self, decoded: DecodedQldb) -> None:
        """Take in a batch that was decoded with `verify`."""
        self.counts.update(
            records=decoded.verdicts.num_rows,
            control=decoded.controls.num_rows,
            block_summary=decoded.blocks.num_rows,
            revision_details=decoded.revisions.num_rows,
        )
        verdicts = decoded.verdicts["verdict"]
        for one in pc.value_counts(verdicts.filter(pc.not_equal(verdicts, "ok"))).to_pylist():
            self.counts[f"malformed.{one['values']}"] += one["counts"]
        self.completed |= bool(
            pc.any(pc.equal(decoded.controls["control_record_type"], "COMPLETED"), min_count=0).as_py()
        )
        self.add_facts(journal_facts(decoded.blocks, decoded.revisions))

    def absorb(self, other: Journal) -> None:
        """Take in what another one has read."""
        self.counts.update(other.counts)
        self.completed |= other.completed
        other._compact()
        self.add_facts(other.facts)

    def add_facts(self, facts: JournalFacts) -> None:
        """Take in facts without counting records."""
        self._fresh.append(facts)
        if sum(part.blocks.num_rows + part.revisions.num_rows for part in self._fresh) >= COMPACT_ROWS:
            self._compact()

    def _compact(self) -> None:
        self.facts = JournalFacts.together([self.facts, *self._fresh]).once()
        self._fresh.clear()

    def distinct(self) -> dict[str, int]:
        """Count what is there once: blocks and revisions by identity, and repeats of equal content."""
        self._compact()
        blocks, revisions = self.facts.blocks, self.facts.revisions
        contents = (
            once(blocks, [*BLOCK, "block_hash"]).num_rows,
            once(revisions, [*REVISION, "hash"]).num_rows,
        )
        return {
            "distinct_blocks": once(blocks, BLOCK).num_rows,
            "distinct_revisions": once(revisions, REVISION).num_rows,
            "duplicate_blocks": self.counts["block_summary"] - contents[0],
            "duplicate_revisions": self.counts["revision_details"] - contents[1],
        }

    def checked(self, *, closed: bool = True, deletes: bool = True) -> Checked:
        """Check everything known.

        Args:
            closed: nothing more will come: what is absent is missing, not pending.
            deletes: check the hash of deletes.
        """
        self._compact()
        found, waiting, gaps = [check_documents(self.facts.revisions)], 0, []
        for strand in pc.unique(pa.chunked_array([*_strands(self.facts)], pa.string())).to_pylist():
            here = self.facts.where(partial(_of_strand, strand))
            numbers = _numbers(here)
            for at in range(0, len(numbers), SLICE_BLOCKS):
                # By count, not by distance: a hostile number far away must not cost an empty walk.
                first, last = numbers[at], numbers[min(at + SLICE_BLOCKS, len(numbers)) - 1]
                before = here.blocks.filter(pc.equal(here.blocks["sequence_no"], first - 1))
                inside = here.where(partial(_between, first, last))
                checked = check_slice(inside, before, closed=closed, deletes=deletes)
                found.append(checked.anomalies)
                waiting += checked.waiting.num_rows
            known = here.blocks["sequence_no"].to_numpy()
            gaps.append(check_gaps(strand, known, reach=int(numbers[-1]) if self.completed else None))
        pending = {"revisions_without_block": waiting}
        if closed:
            found += gaps
        else:
            absent = self.checked(closed=True, deletes=deletes).anomalies["kind"]
            pending["revisions"] = pc.sum(pc.equal(absent, "revision_missing"), min_count=0).as_py()
            pending["blocks"] = sum(
                pc.sum(pc.add(pc.subtract(gap["last"], gap["first"]), 1), min_count=0).as_py() for gap in gaps
            )
        keys = ["strand_id", "sequence_no", "first", "document_id", "version", "kind"]
        anomalies = pa.concat_tables(found).sort_by([(key, "ascending") for key in keys])
        return Checked(anomalies, pending)


def _strands(facts: JournalFacts) -> list[pa.Array]:
    return [chunk for table in (facts.blocks, facts.revisions) for chunk in table["strand_id"].chunks]


def _of_strand(strand: str, table: pa.Table) -> pa.ChunkedArray:
    return pc.equal(table["strand_id"], strand)


def _numbers(facts: JournalFacts) -> np.ndarray:
    """The sequence numbers that blocks have and revisions claim, each once, in order."""
    return np.unique(
        np.concatenate([part["sequence_no"].to_numpy() for part in (facts.blocks, facts.revisions)])
    )


def _between(first: int, last: int, table: pa.Table) -> pa.ChunkedArray:
    number = table["sequence_no"]
    return pc.and_(pc.greater_equal(number, first), pc.less_equal(number, last))
