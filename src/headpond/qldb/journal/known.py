"""A QLDB journal as it becomes known, batch by batch: what can be said of it, and its figures.

::

    decoded batch ─► add ─┐
    decoded batch ─► add ─┼─► facts (each once) + counts ─┬► checked() ─► anomalies, pending
    decoded batch ─► add ─┘                               └► summarize ─► strands, days, tables

    added facts (any order, repeats)       strand ├─ range ─┼─ range ─┼─ range ─┤   no number in two ranges
            └── compact: sorted, cut at the ranges' firsts ─►└ merged, each once, cut again when it has grown

The step function of verification: adding in any order, any cut, with any repeats, ends in the same answer.
What is checked against each other has one sequence number, or the one after it: a range is checked by itself.
Journals are read more or less in order, so compacting touches few ranges; where it touches all, what is added
between grows with what is there, so that the work per fact stays.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import Ints, distinct
from headpond.qldb.batch import DecodedQldb
from headpond.qldb.journal.check import check_documents, check_gaps, check_slice
from headpond.qldb.journal.facts import BLOCK, REVISION, JournalFacts, count_contents, journal_facts, once

COMPACT_ROWS = 100_000
"""Facts added before those that are there twice are dropped; more where there are many."""
SLICE_BLOCKS = 20_000
"""Blocks that are checked in one go, up to twice as many; bounds the memory of the joins."""


MAX_FRESH_ROWS = 4_000_000
"""Facts that are held uncompacted at most, however many there are."""


class Checked(NamedTuple):
    """What a journal's facts say."""

    anomalies: pa.Table
    """`journal_check.ANOMALIES`, sorted by strand, block, document, version and kind."""
    pending: dict[str, int]
    """What waits for records that may still come: revisions without their block; unless closed also listed
    revisions that are absent, and blocks missing between others."""


@dataclass(slots=True)
class Journal:
    """Facts of a journal by strand and range, its records counted."""

    counts: Counter[str] = field(default_factory=Counter)
    """`records`, `control`, `block_summary`, `revision_details`, and malformed ones by verdict."""
    completed: bool = False
    """A control record said that the stream has ended."""
    compact_rows: int = COMPACT_ROWS
    """Blocks and revisions added before they are compacted; more, if compacting last touched more."""
    slice_blocks: int = SLICE_BLOCKS
    """Sequence numbers of a range; it is cut when it has twice as many."""
    _strands: dict[str, list[JournalFacts]] = field(default_factory=dict)
    """Strand → ranges in order, once compacted."""
    _fresh: list[JournalFacts] = field(default_factory=list)
    _fresh_rows: int = 0
    _touched: int = 0
    """Blocks and revisions of the ranges that the last compaction changed."""

    @property
    def facts(self) -> JournalFacts:
        """All facts, each once."""
        self._compact()
        return JournalFacts.together(self._parts())

    def add(self, decoded: DecodedQldb) -> None:
        """Add a batch that was decoded with `verify`."""
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
        """Add what another one has read."""
        self.counts.update(other.counts)
        self.completed |= other.completed
        for facts in other._parts():
            self.add_facts(facts)

    def add_facts(self, facts: JournalFacts) -> None:
        """Add facts without counting records; repeats do no harm."""
        self._fresh.append(facts)
        self._fresh_rows += _rows(facts)
        if self._fresh_rows >= min(max(self.compact_rows, self._touched // 2), MAX_FRESH_ROWS):
            self._compact()

    def distinct(self) -> dict[str, int]:
        """Count what is there once: blocks and revisions by identity, and repeats of equal content."""
        facts = self.facts
        blocks = [count_contents(part.blocks, BLOCK, "block_hash") for part in self._parts()]
        revisions = count_contents(facts.revisions, REVISION, "hash")
        return {
            "distinct_blocks": sum(some.identities for some in blocks),
            "distinct_revisions": revisions.identities,
            "duplicate_blocks": self.counts["block_summary"] - sum(some.contents for some in blocks),
            "duplicate_revisions": self.counts["revision_details"] - revisions.contents,
        }

    def checked(self, *, closed: bool = True, deletes: bool = True) -> Checked:
        """Check everything known.

        Args:
            closed: nothing more will come: what is absent is missing, not pending.
            deletes: check the hash of deletes.
        """
        found, waiting, gaps = [check_documents(self.facts.revisions)], 0, []
        for strand, ranges in self._strands.items():
            before, known, last = None, [], 0
            for facts in ranges:
                checked = check_slice(facts, before, deletes=deletes)
                found.append(checked.anomalies)
                waiting += checked.waiting.num_rows
                known.append(facts.blocks["sequence_no"].to_numpy())
                last = int(numbers_of(facts)[-1])
                before = facts.blocks.filter(pc.equal(facts.blocks["sequence_no"], last))
            gaps.append(check_gaps(strand, np.concatenate(known), reach=last if self.completed else None))
        anomalies, pending = pa.concat_tables(found), {"revisions_without_block": waiting}
        if closed:
            anomalies = pa.concat_tables([anomalies, *gaps])
        else:
            absent = pc.equal(anomalies["kind"], "revision_missing")
            anomalies = anomalies.filter(pc.invert(absent))
            pending["revisions"] = pc.sum(absent, min_count=0).as_py()
            pending["blocks"] = sum(
                pc.sum(pc.add(pc.subtract(gap["last"], gap["first"]), 1), min_count=0).as_py() for gap in gaps
            )
        keys = ["strand_id", "sequence_no", "first", "document_id", "version", "kind"]
        return Checked(anomalies.sort_by([(key, "ascending") for key in keys]), pending)

    def _parts(self) -> Iterator[JournalFacts]:
        """Yield all facts in parts, those that are not compacted too."""
        for ranges in self._strands.values():
            yield from ranges
        yield from self._fresh

    def _compact(self) -> None:
        """Bring all facts into ranges, each once."""
        fresh = JournalFacts.together(self._fresh)
        self._fresh.clear()
        self._fresh_rows = self._touched = 0
        known = [chunk for table in (fresh.blocks, fresh.revisions) for chunk in table["strand_id"].chunks]
        strands = pc.unique(pa.chunked_array(known, pa.string())).to_pylist()
        for strand in strands:
            here = fresh
            if len(strands) > 1:
                here = JournalFacts(*(table.filter(pc.equal(table["strand_id"], strand)) for table in fresh))
            self._place(self._strands.setdefault(strand, []), here)
        pa.default_memory_pool().release_unused()

    def _place(self, ranges: list[JournalFacts], facts: JournalFacts) -> None:
        if not ranges:
            ranges.append(JournalFacts.none())
        pieces = cut(facts, [_first(one) for one in ranges[1:]])
        for at in reversed(range(len(ranges))):
            if any(table.num_rows for table in pieces[at]):
                whole = JournalFacts.together([ranges[at], pieces[at]])
                self._touched += _rows(ranges[at])
                parts = self._parted(whole)
                # Let go of before it is there once more.
                whole = pieces[at] = ranges[at] = JournalFacts.none()
                for number, part in enumerate(parts):
                    parts[number] = part.once()
                    pa.default_memory_pool().release_unused()
                ranges[at : at + 1] = parts

    def _parted(self, facts: JournalFacts) -> list[JournalFacts]:
        # By count, not by distance: a hostile number far away must not cost an empty walk.
        numbers = numbers_of(facts)
        if len(numbers) <= 2 * self.slice_blocks:
            return [facts]
        return cut(facts, numbers[self.slice_blocks :: self.slice_blocks].tolist())


def numbers_of(facts: JournalFacts) -> Ints:
    """Return the sequence numbers that blocks have and revisions claim, each once, in order."""
    return distinct(
        np.concatenate([part["sequence_no"].to_numpy() for part in (facts.blocks, facts.revisions)])
    )


def _rows(facts: JournalFacts) -> int:
    return int(facts.blocks.num_rows + facts.revisions.num_rows)


def _first(facts: JournalFacts) -> int:
    firsts = [pc.min(part["sequence_no"]).as_py() for part in (facts.blocks, facts.revisions)]
    return min(int(first) for first in firsts if first is not None)


def cut(facts: JournalFacts, firsts: Sequence[int]) -> list[JournalFacts]:
    """Cut facts before these sequence numbers; what is cut is copied, so that each can be freed alone."""
    if not firsts:
        return [facts]
    pieces = []
    for table in facts:
        numbers = table["sequence_no"].to_numpy()
        order = np.argsort(numbers, kind="stable")
        pieces.append(
            [table.take(pa.array(some)) for some in np.split(order, numbers[order].searchsorted(firsts))]
        )
    return [JournalFacts(*tables) for tables in zip(*pieces, strict=True)]


def ranges_of(numbers: Ints) -> list[tuple[int, int]]:
    """Return first and last of each range without a gap among ascending numbers."""
    breaks = np.flatnonzero(np.diff(numbers) > 1)
    return [(int(part[0]), int(part[-1])) for part in np.split(numbers, breaks + 1) if len(part)]


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
    """Return the figures of a journal's facts."""
    blocks = once(facts.blocks, [*BLOCK, "day"])
    counted = pc.value_counts(once(blocks.drop_null(), [*BLOCK, "day"])["day"])
    days = sorted((one["values"], one["counts"]) for one in counted.to_pylist())
    ids = pc.unique(blocks["strand_id"]).sort().to_pylist()
    return Summary(tuple(_strand(blocks, strand) for strand in ids), tuple(days), _tables(facts.revisions))


def _strand(blocks: pa.Table, strand_id: str) -> Strand:
    numbers = distinct(blocks.filter(pc.equal(blocks["strand_id"], strand_id))["sequence_no"].to_numpy())
    ranges = ranges_of(numbers)
    return Strand(strand_id, ranges[0][0], ranges[-1][1], tuple(ranges))


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
