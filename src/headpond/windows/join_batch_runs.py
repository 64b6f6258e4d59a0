"""Sorted runs of records, and finding the partners of many records in one at once.

::

    rows    order of arrival:      sequence number ↑
    run     hash ↑, timestamp ↑, sequence number ↑        `order`: place in the run → row
            └─ group: one hash ─┘
    place   group x span + (timestamp - smallest timestamp)       one number per row, ascending

A probe asks for the rows of one hash whose timestamps lie between two bounds: with its group known, that is
two binary searches among the places. Probes come sorted by hash, so that searches walk through memory. Equal
hashes are not equal keys: whoever asked compares the keys of what was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]

_PLACE_LIMIT = 1 << 62
_NONE: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True)
class Rows:
    """Records of one side in order of arrival, keys and values not null.

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
        """Give some of the rows; `rows` ascending."""
        if len(rows) == len(self):
            return self
        return Rows(self.records.take(pa.array(rows)), self.ts[rows], self.seq[rows], self.hashes[rows])

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
    distinct_ts: Int64 | None  # where span x groups exceeds 64 bits, times are told by their rank

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

    def find(self, probes: Probes) -> tuple[Int64, Int64]:
        """Find all rows that the probes ask for: the probes' numbers and the rows, pair by pair."""
        if not len(self.order) or not len(probes.first):
            return _NONE, _NONE
        group = np.searchsorted(self.groups, probes.distinct)
        known = group < len(self.groups)
        known[known] = self.groups[group[known]] == probes.distinct[known]
        known_probes = known[probes.group]
        if not known_probes.any():
            return _NONE, _NONE
        asking = np.flatnonzero(known_probes)
        base = group[probes.group[asking]] * self.span
        first, last = probes.first[asking], probes.last[asking]
        if self.distinct_ts is None:
            low = np.clip(first - self.first_ts, 0, self.span)
            high = np.clip(last - self.first_ts + 1, 0, self.span)
        else:
            low = np.searchsorted(self.distinct_ts, first)
            high = np.searchsorted(self.distinct_ts, last, side="right")
        start = np.searchsorted(self.places, base + low)
        counts = np.maximum(np.searchsorted(self.places, base + high) - start, 0)
        total = int(counts.sum())
        if not total:
            return _NONE, _NONE
        ends = np.cumsum(counts)
        at = np.arange(total) - np.repeat(ends - counts - start, counts)
        return np.repeat(asking, counts), self.order[at]


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
    """Give an upper bound of a row's size in bytes: the longest value, and the mean of all else."""
    if not records.num_rows:
        return 0
    value = records.column("value")
    _, offsets, _ = value.buffers()
    sizes = np.diff(np.frombuffer(offsets, np.int32)[value.offset : value.offset + len(value) + 1])
    return int(sizes.max()) + int(records.nbytes) // int(records.num_rows)
