"""The pairs of a batch: each new record and the records of the other side that its window holds.

::

    probes of one side ─► runs of the other side, by hash and time
        ├─ chunks of the state    rows before the batch
        └─ the batch itself       partners that arrived before their trigger
    hashes that meet are compared by their keys

Source: spec "window store", section 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.formats.outer_join_buffer import Side
from headpond.windows.join_batch_results import Pairs, ResultRows
from headpond.windows.join_batch_runs import Bool, Int64, Probes, Rows
from headpond.windows.rules import OTHER_SIDE, Emit, JoinRules, JoinType

if TYPE_CHECKING:
    from headpond.windows.join_batch_arranged import Arranged
    from headpond.windows.join_chunks import TaskState

MAX_PAIRS = 4_000_000
"""How many pairs are held at once; a batch that has more is worked off in parts. Some 50 bytes each."""


class TooManyPairs(Exception):
    """A batch has more pairs than are to be held at once."""


class PairFinder:
    """Finds the pairs of a task's batches.

    Args:
        rules: what the join does.
        max_pairs: see MAX_PAIRS.
    """

    def __init__(self, rules: JoinRules, max_pairs: int) -> None:
        self.rules = rules
        self._max_pairs = max_pairs
        self._self_join = rules.type is JoinType.SELF

    def pairs(self, state: TaskState, batch: Arranged, side: Side, count: int, rows: ResultRows) -> Pairs:
        """Find the partners of one side's new records.

        Args:
            state: the task's state before the batch.
            batch: the batch.
            side: whose new records look for partners.
            count: records of the batch; a batch of one is never too large.
            rows: takes a result for each pair.

        Raises:
            TooManyPairs: the batch has more than `max_pairs`.
        """
        rules, mine = self.rules, batch.incoming[side]
        other = side if self._self_join else OTHER_SIDE[side]
        bounds = [(rules.before_ms(side), rules.after_ms(side))]
        if self._self_join:
            bounds.append((rules.windows.after_ms, rules.windows.before_ms))
        found: list[Pairs] = []
        for phase, (before, after) in enumerate(bounds):
            first = np.maximum(mine.ts - before, 0)
            np.maximum(first, batch.observed[other][mine.seq] - rules.retention_ms + 1, out=first)
            if rules.emit is Emit.FINAL and not self._self_join and rules.is_outer(other):
                closed = rules.after_ms(other) + rules.windows.grace_ms
                np.maximum(first, batch.stream[mine.seq] - closed, out=first)
            probes = Probes.of(mine.hashes, first, np.maximum(mine.ts + after, 0))
            some = self._partners(state, batch, side, other, probes=probes, count=count)
            own = batch.base[side] + batch.row[some.trigger]
            rows.add_joined(side, phase, some, own, batch.ts[some.trigger])
            found.append(some)
        return _together(found)

    def _partners(
        self, state: TaskState, batch: Arranged, side: Side, other: Side, *, probes: Probes, count: int
    ) -> Pairs:
        found = []
        mine = batch.incoming[side]
        keys = mine.records.column("key")
        total = base = 0
        for chunk in state.sides[other].chunks:
            asked = probes.within(chunk.min_ts, chunk.max_ts)
            if len(asked.first):
                number, rows = chunk.data.run.find(asked)
                number, rows = _same_keys(keys, asked.number[number], chunk.data, rows)
                found.append(Pairs(mine.seq[number], base + rows, chunk.data.ts[rows], chunk.data.seq[rows]))
                total += len(rows)
                self._bounded(total, count)
            base += chunk.rows
        theirs = batch.incoming[other]
        if len(theirs):
            number, rows = theirs.run.find(probes)
            number = probes.number[number]
            earlier = theirs.seq[rows] < mine.seq[number]
            number, rows = number[earlier], rows[earlier]
            self._bounded(total + len(rows), count)
            number, rows = _same_keys(keys, number, theirs, rows)
            seq = theirs.seq[rows]
            found.append(
                Pairs(mine.seq[number], base + batch.row[seq], theirs.ts[rows], seq + state.next_seq)
            )
        return _together(found)

    def _bounded(self, pairs: int, count: int) -> None:
        if pairs > self._max_pairs and count > 1:
            raise TooManyPairs

    def with_itself(self, batch: Arranged, rows: ResultRows) -> int:
        """Add the result of each record with itself, at its place among its pairs."""
        mine = batch.incoming[Side.LEFT]
        joins = mine.ts > batch.stream[mine.seq] - self.rules.retention_ms + 1
        at = mine.seq[joins]
        own = batch.base[Side.LEFT] + batch.row[at]
        rows.add_self(at, own, batch.ts[at])
        return len(at)


def _together(found: list[Pairs]) -> Pairs:
    if len(found) == 1:
        return found[0]
    names = ("trigger", "partner", "partner_ts", "partner_seq")
    empty = [np.empty(0, np.int64)]
    return Pairs(*(np.concatenate([getattr(each, name) for each in found] or empty) for name in names))


def _same_keys(keys: pa.Array, number: Int64, rows: Rows, found: Int64) -> tuple[Int64, Int64]:
    """Drop pairs whose hashes are equal and whose keys are not."""
    if not len(found):
        return number, found
    equal = pc.equal(keys.take(pa.array(number)), rows.records.column("key").take(pa.array(found)))
    same: Bool = np.asarray(equal)
    return (number, found) if same.all() else (number[same], found[same])
