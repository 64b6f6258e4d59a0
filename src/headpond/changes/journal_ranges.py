"""A journal's facts in memory: ranges of sequence numbers, each fact once.

::

    added facts (any order, repeats)       strand ├─ range ─┼─ range ─┼─ range ─┤   no number in two ranges
            └── settle: sorted, cut at the ranges' firsts ──►└ merged, each once, cut again when it has grown

What is checked against each other has one sequence number, or the one after it: a range is checked by itself.
Journals are read more or less in order, so settling touches few ranges; where it touches all, what is added
between grows with what is there, so that the work per fact stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.journal_facts import JournalFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

MAX_FRESH_ROWS = 4_000_000
"""Facts that are held unsettled at most, however many there are."""


@dataclass(slots=True)
class FactRanges:
    """Facts by strand and range."""

    settle_rows: int
    """Blocks and revisions added before they are settled; more, if settling them last touched more."""
    range_blocks: int
    """Sequence numbers of a range; it is cut when it has twice as many."""
    strands: dict[str, list[JournalFacts]] = field(default_factory=dict)
    """Strand → ranges in order; call `settle` first."""
    _fresh: list[JournalFacts] = field(default_factory=list)
    _fresh_rows: int = 0
    _touched: int = 0
    """Blocks and revisions of the ranges that the last settling changed."""

    def add(self, facts: JournalFacts) -> None:
        """Take in facts; repeats do no harm."""
        self._fresh.append(facts)
        self._fresh_rows += _rows(facts)
        if self._fresh_rows >= min(max(self.settle_rows, self._touched // 2), MAX_FRESH_ROWS):
            self.settle()

    def absorb(self, other: FactRanges) -> None:
        """Take in what another one holds."""
        for facts in other:
            self.add(facts)

    def __iter__(self) -> Iterator[JournalFacts]:
        """All facts in parts, those that are not settled too."""
        for ranges in self.strands.values():
            yield from ranges
        yield from self._fresh

    def settle(self) -> None:
        """Bring all facts into ranges, each once."""
        fresh = JournalFacts.together(self._fresh)
        self._fresh.clear()
        self._fresh_rows = self._touched = 0
        known = [chunk for table in (fresh.blocks, fresh.revisions) for chunk in table["strand_id"].chunks]
        strands = pc.unique(pa.chunked_array(known, pa.string())).to_pylist()
        for strand in strands:
            here = fresh if len(strands) == 1 else JournalFacts(*(_of(strand, table) for table in fresh))
            self._place(self.strands.setdefault(strand, []), here)
        pa.default_memory_pool().release_unused()

    def _place(self, ranges: list[JournalFacts], facts: JournalFacts) -> None:
        if not ranges:
            ranges.append(JournalFacts.none())
        pieces = _cut(facts, [_first(one) for one in ranges[1:]])
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
        if len(numbers) <= 2 * self.range_blocks:
            return [facts]
        return _cut(facts, numbers[self.range_blocks :: self.range_blocks].tolist())


def numbers_of(facts: JournalFacts) -> Ints:
    """The sequence numbers that blocks have and revisions claim, each once, in order."""
    return np.unique(
        np.concatenate([part["sequence_no"].to_numpy() for part in (facts.blocks, facts.revisions)])
    )


def _rows(facts: JournalFacts) -> int:
    return int(facts.blocks.num_rows + facts.revisions.num_rows)


def _first(facts: JournalFacts) -> int:
    firsts = [pc.min(part["sequence_no"]).as_py() for part in (facts.blocks, facts.revisions)]
    return min(int(first) for first in firsts if first is not None)


def _of(strand: str, table: pa.Table) -> pa.Table:
    return table.filter(pc.equal(table["strand_id"], strand))


def _cut(facts: JournalFacts, firsts: Sequence[int]) -> list[JournalFacts]:
    """Cut facts before these sequence numbers; what is cut is copied, so that each can be freed alone."""
    if not firsts:
        return [facts]
    cut = []
    for table in facts:
        numbers = table["sequence_no"].to_numpy()
        order = np.argsort(numbers, kind="stable")
        cut.append(
            [table.take(pa.array(some)) for some in np.split(order, numbers[order].searchsorted(firsts))]
        )
    return [JournalFacts(*tables) for tables in zip(*cut, strict=True)]
