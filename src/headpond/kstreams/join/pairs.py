"""The pairs of a batch: each new record and the records of the other side that its window holds.

::

    probes of one side ─► runs of the other side, by hash and time
        ├─ chunks of the state    rows before the batch
        └─ the batch itself       partners that arrived before their trigger
    hashes that meet are compared by their keys

    rows    order of arrival:      sequence number ↑
    run     hash ↑, timestamp ↑, sequence number ↑        `order`: place in the run → row
            └─ group: one hash ─┘
    place   group x span + (timestamp - smallest timestamp)       one number per row, ascending

A probe asks for the rows of one hash whose timestamps lie between two bounds: with its group known, that is
two binary searches among the places. Probes come sorted by hash, so that searches walk through memory. Where
they are few beside the groups, most of their hashes are in few chunks only: a bitmap of the hashes' first
bits, small enough to stay in the processor's cache, tells most of the others. Equal hashes are not equal
keys: whoever asked compares the keys of what was found.
Source: spec "window store", section 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import int64_array, offsets_of
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.rules import OTHER_SIDE, Emit, JoinRules, JoinType

if TYPE_CHECKING:
    from headpond.kstreams.join.arrivals import Arranged
    from headpond.kstreams.join.chunks import Chunk, TaskState
    from headpond.kstreams.join.results import ResultRows

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]

MAX_PAIRS = 1_000_000
"""How many candidates for pairs are held at once, some 300 bytes each; a batch with more goes in parts."""
MAX_CANDIDATES = 1_000_000_000
"""A batch with more of them on a side is refused: it would not end in hours."""
_PLACE_LIMIT = 1 << 62
_FILTER_BITS = 3  # from 8 to 16 bits a hash: at most one in eight of those that are not there seems to be
_FEW = 8  # times as many groups as probes make a bitmap worth its making


@dataclass(frozen=True)
class Rows:
    """Records of one side in order of arrival, with keys and values.

    Attributes:
        records: key, headers (headersBytes), value, and further columns.
        ts: timestamps, ms.
        seq: numbers in order of arrival, ascending.
        hashes: `hash_keys` of the keys.
    """

    records: pa.RecordBatch
    ts: Int64
    seq: Int64
    hashes: UInt64

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, rows: Int64) -> Rows:
        """Return some of the rows; `rows` ascending."""
        if len(rows) == len(self):
            return self
        return Rows(self.records.take(int64_array(rows)), self.ts[rows], self.seq[rows], self.hashes[rows])

    @classmethod
    def in_order(cls, parts: Sequence[Rows]) -> tuple[Rows, Int64]:
        """Return the rows of several parts in order of arrival, and where each stood, part after part."""
        order = np.argsort(np.concatenate([part.seq for part in parts]), kind="stable")
        records = pa.Table.from_batches([part.records for part in parts]).combine_chunks().to_batches()[0]
        if (np.diff(order) != 1).any():
            records = records.take(int64_array(order))
        ts, seq = (np.concatenate([getattr(part, name) for part in parts])[order] for name in ("ts", "seq"))
        return cls(records, ts, seq, np.concatenate([part.hashes for part in parts])[order]), order

    @cached_property
    def run(self) -> Run:
        """The rows as a sorted run."""
        return Run.of(self.hashes, self.ts)


@dataclass(frozen=True)
class Run:
    """An index over rows; see the picture above."""

    order: Int64
    groups: UInt64  # the distinct hashes, ascending
    places: Int64
    span: int
    first_ts: int
    distinct_ts: Int64 | None  # where span x groups exceeds 64 bits, times are their ranks

    @classmethod
    def of(cls, hashes: UInt64, ts: Int64) -> Run:
        """Sort rows that are in order of arrival."""
        order = np.lexsort((ts, hashes))
        sorted_hashes = hashes[order]
        fresh = np.empty(len(order), np.bool_)
        fresh[:1] = True
        np.not_equal(sorted_hashes[1:], sorted_hashes[:-1], out=fresh[1:])
        group = np.cumsum(fresh) - 1
        first = int(ts.min()) if len(ts) else 0
        span = int(ts.max()) - first + 1 if len(ts) else 1
        distinct = None
        times = ts[order] - first
        if (len(ts) + 1) * span >= _PLACE_LIMIT:
            distinct, times = np.unique(ts[order], return_inverse=True)
            span = len(distinct) + 1
        return cls(order, sorted_hashes[fresh], group * span + times, span, first, distinct)

    @cached_property
    def _bitmap(self) -> tuple[npt.NDArray[np.uint8], np.uint64]:
        """A bit for each beginning of a hash, set where a group has it; how far a hash is shifted to it."""
        bits = len(self.groups).bit_length() + _FILTER_BITS
        shift = np.uint64(64 - bits)
        flags = np.zeros(1 << bits, np.bool_)
        flags[self.groups >> shift] = True
        return np.packbits(flags, bitorder="little"), shift

    def _likely(self, hashes: UInt64) -> Int64 | slice:
        """Return the places of hashes that may be among the groups."""
        if not len(self.groups):
            return np.empty(0, np.int64)
        if len(hashes) * _FEW > len(self.groups):
            return slice(None)
        bitmap, shift = self._bitmap
        begins = (hashes >> shift).view(np.int64)
        return np.flatnonzero(bitmap[begins >> 3] >> (begins & 7).astype(np.uint8) & 1)

    def ranges(self, probes: Probes) -> Ranges:
        """Find where the rows are that the probes ask for, without making them."""
        likely = self._likely(probes.distinct)
        group = np.searchsorted(self.groups, probes.distinct[likely])
        group[group == len(self.groups)] = -1
        group[self.groups[group] != probes.distinct[likely]] = -1
        groups = np.full(len(probes.distinct), -1, np.int64)
        groups[likely] = group
        asking = np.flatnonzero(groups[probes.group] >= 0)
        base = groups[probes.group[asking]] * self.span
        first, last = probes.first[asking], probes.last[asking]
        if self.distinct_ts is None:
            low = np.minimum(np.maximum(first - self.first_ts, 0), self.span)
            high = np.minimum(np.maximum(last - self.first_ts + 1, 0), self.span)
        else:
            low = np.searchsorted(self.distinct_ts, first)
            high = np.searchsorted(self.distinct_ts, last, side="right")
        start = np.searchsorted(self.places, base + low)
        counts = np.searchsorted(self.places, base + high) - start
        some = counts > 0
        return Ranges(probes.number[asking[some]], start[some], counts[some], self.order)


class Ranges(NamedTuple):
    """Rows of a run that were asked for: of each asker's number `counts` places from `start` on."""

    number: Int64
    start: Int64
    counts: Int64
    order: Int64

    def pairs(self) -> tuple[Int64, Int64]:
        """Return the askers' numbers and the rows, pair by pair."""
        ends = np.cumsum(self.counts)
        total = int(ends[-1]) if len(ends) else 0
        at = np.arange(total) - np.repeat(ends - self.counts - self.start, self.counts)
        return np.repeat(self.number, self.counts), self.order[at]


class Probes(NamedTuple):
    """Questions sorted by hash: which rows of this hash have timestamps in [first, last]?"""

    distinct: UInt64
    group: Int64  # probe → its hash's place among the distinct ones
    first: Int64
    last: Int64
    number: Int64  # probe → who asked

    @classmethod
    def of(cls, hashes: UInt64, first: Int64, last: Int64) -> Probes:
        """Sort questions, without those that ask for nothing; `number` is their place in the arguments."""
        asking = np.flatnonzero(first <= last)
        order = asking[np.argsort(hashes[asking], kind="stable")]
        distinct, group = np.unique(hashes[order], return_inverse=True)
        return cls(distinct, group.reshape(-1), first[order], last[order], order)

    def within(self, earliest: int, latest: int) -> Probes:
        """Leave out the questions that cannot be answered by rows of these times."""
        reach = (self.last >= earliest) & (self.first <= latest)
        if reach.all():
            return self
        distinct, group = np.unique(self.distinct[self.group[reach]], return_inverse=True)
        return Probes(distinct, group.reshape(-1), self.first[reach], self.last[reach], self.number[reach])


def longest_row(records: pa.RecordBatch) -> int:
    """Return an upper bound of a row's size in bytes: the longest value, and the mean of all else."""
    if not records.num_rows:
        return 0
    value = records.column("value")
    return int(np.diff(offsets_of(value)).max()) + int(records.nbytes) // int(records.num_rows)


@dataclass(frozen=True)
class Pairs:
    """Pairs; `trigger` is a place in the order of arrival, `partner` a global row of the other side."""

    trigger: Int64
    partner: Int64
    partner_ts: Int64
    partner_seq: Int64


class TooManyPairs(Exception):
    """A batch has more candidates for pairs than are to be held at once: how many, and the key with most."""

    def __init__(self, candidates: int, key: bytes, of_key: int) -> None:
        super().__init__(candidates)
        self.candidates, self.key, self.of_key = candidates, key, of_key


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
        mine, theirs = batch.incoming[side], batch.incoming[other]
        keys = mine.records.column("key")
        base = 0
        asked: list[tuple[int, Chunk | None, Ranges]] = []
        for chunk, _ in state.sides[other]:
            within = probes.within(chunk.min_ts, chunk.max_ts)
            if len(within.first):
                asked.append((base, chunk, chunk.data.run.ranges(within)))
            base += chunk.rows
        if len(theirs):
            asked.append((base, None, theirs.run.ranges(probes)))
        self._check([ranges for *_, ranges in asked], mine, count)
        for first, of_chunk, ranges in asked:
            if not len(ranges.number):
                continue
            number, rows = ranges.pairs()
            if of_chunk is not None:
                data = of_chunk.data
                number, rows = _same_keys(keys, number, data, rows)
                found.append(Pairs(mine.seq[number], first + rows, data.ts[rows], data.seq[rows]))
                continue
            earlier = theirs.seq[rows] < mine.seq[number]
            number, rows = _same_keys(keys, number[earlier], theirs, rows[earlier])
            seq = theirs.seq[rows]
            found.append(
                Pairs(mine.seq[number], first + batch.row[seq], theirs.ts[rows], seq + state.next_seq)
            )
        return _together(found)

    def _check(self, asked: list[Ranges], mine: Rows, count: int) -> None:
        candidates = sum(int(ranges.counts.sum()) for ranges in asked)
        if candidates <= self._max_pairs or count <= 1:
            return
        each = np.zeros(len(mine), np.int64)
        for ranges in asked:
            np.add.at(each, ranges.number, ranges.counts)
        _, first, group = np.unique(mine.hashes, return_index=True, return_inverse=True)
        by_key = np.bincount(group.reshape(-1), each)
        hot = int(by_key.argmax())
        key = mine.records.column("key")[int(first[hot])].as_py()
        raise TooManyPairs(candidates, key, int(by_key[hot]))

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
    equal = pc.equal(keys.take(int64_array(number)), rows.records.column("key").take(int64_array(found)))
    same: Bool = np.asarray(equal)
    return (number, found) if same.all() else (number[same], found[same])
