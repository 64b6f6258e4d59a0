"""What a join task keeps between batches: immutable chunks of records, and which of their rows still wait.

::

    TaskState   clock · next number of arrival · next chunk number
      side      chunk 7 │ chunk 9 │ chunk 10 …      a chunk: records of one side and one slice of time,
                waits   │ waits   │ waits           in order of arrival; never changed, only dropped

A slice is a quarter of the retention, so at most one slice's worth of what is kept is out of reach. Small
chunks of one slice are put together eight at a time, each record about once per factor of eight.
A state is a value: a step makes a new one, and both stay usable. Its chunks are read when they are asked for,
and are not kept in it: a state may be larger than memory (`headpond.spark.join.at_hand`).
"""

from __future__ import annotations

import base64
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headpond.core.arrow import distinct
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.pairs import Bool, Int64, Rows, longest_row
from headpond.kstreams.join.rules import JoinClock

if TYPE_CHECKING:
    import pyarrow as pa

MAX_CHUNK_BYTES = 16 << 20
"""A chunk's records are cut before they exceed this, uncompressed."""
SLICES = 4
FAN = 8
"""How many chunks of similar size in one slice are merged into one."""
_TIER_ROWS = 256


@dataclass(slots=True, eq=False)
class Chunk:
    """Records of one side and slice.

    Attributes:
        number: The task's number for it, under which the state holds its bytes.
        uid: 16 random bytes, fresh for each attempt: two chunks of one uid are the same chunk.
        rows: How many records.
        min_ts: Smallest timestamp, ms.
        max_ts: Greatest timestamp, ms.
        time_slice: timestamp // slice width.
        longest: An upper bound of a row's size in bytes.
        bytes: Its size as the state holds it; in memory until it is stored.
        load: Reads the records.
    """

    number: int
    uid: bytes
    rows: int
    min_ts: int
    max_ts: int
    time_slice: int
    longest: int
    bytes: int
    load: Callable[[], Rows]

    @classmethod
    def of(cls, number: int, rows: Rows, time_slice: int) -> Chunk:
        """Make a chunk of records at hand."""
        first, last, longest = int(rows.ts.min()), int(rows.ts.max()), longest_row(rows.records)
        uid, size = uuid.uuid4().bytes, int(rows.records.nbytes)
        return cls(number, uid, len(rows), first, last, time_slice, longest, size, lambda: rows)

    @property
    def data(self) -> Rows:
        """The records."""
        return self.load()

    @property
    def records(self) -> pa.RecordBatch:
        """The columns of the records."""
        return self.load().records


class Waits:
    """Which rows of a chunk wait for a partner.

    They are flags, or the bitmap that a manifest has of them (zlib, base64), each made of the other when it
    is asked for: in chunks that no batch has to do with, neither is.
    """

    def __init__(self, rows: int, count: int) -> None:
        self.rows = rows
        self.count = count

    @classmethod
    def of(cls, flags: Bool) -> Waits:
        """Make it of a flag for each row."""
        made = cls(len(flags), int(np.count_nonzero(flags)))
        made.flags = flags
        return made

    @classmethod
    def read(cls, bitmap: str, rows: int, count: int) -> Waits:
        """Make it of what a manifest has."""
        made = cls(rows, count)
        made.bitmap = bitmap
        return made

    @cached_property
    def flags(self) -> Bool:
        """A flag for each row."""
        if not self.count:
            return np.zeros(self.rows, np.bool_)
        raw = np.frombuffer(zlib.decompress(base64.b64decode(self.bitmap)), np.uint8)
        return np.unpackbits(raw, count=self.rows, bitorder="little").view(np.bool_)

    @cached_property
    def bitmap(self) -> str:
        """The same as a manifest has it."""
        bits = np.packbits(self.flags, bitorder="little").tobytes()
        return base64.b64encode(zlib.compress(bits, 1)).decode()

    def without(self, rows: Int64) -> Waits:
        """Return them without some rows, which may be none of them."""
        if not len(rows) or not self.count:
            return self
        flags = self.flags.copy()
        flags[rows] = False
        return Waits.of(flags)


class Kept(NamedTuple):
    """A chunk, and which of its rows wait."""

    chunk: Chunk
    waits: Waits


Partition = tuple[str | int | None, ...]
"""What a source partition is called: topic and partition, stream and shard."""


class Reached(NamedTuple):
    """How far a source partition has come: its greatest timestamp; when its last record came, wall clock."""

    head: int
    seen_ms: int


@dataclass(frozen=True)
class HeldChunk:
    """Records that wait for a slower input, in order (`alignment`).

    Attributes:
        chunk: them, and before them those that were released already; its times are heads.
        partitions: names that its rows refer to.
        taken: how many rows were released.
        from_head: head of the first row that was not.
    """

    chunk: Chunk
    partitions: tuple[Partition, ...]
    taken: int
    from_head: int

    @property
    def rows(self) -> int:
        """How many records wait."""
        return self.chunk.rows - self.taken

    @property
    def bytes(self) -> int:
        """About how many bytes those take."""
        return self.chunk.bytes * self.rows // self.chunk.rows


@dataclass(frozen=True)
class Inputs:
    """What a task knows of the inputs.

    Attributes:
        reached: how far each source partition has come.
        held: records that wait for a slower one.
        since_ms: wall-clock time of the first batch.
        pieces: greater than the numbers of all pieces so far.
    """

    reached: dict[Side, dict[Partition, Reached]] = field(default_factory=dict)
    held: dict[Side, tuple[HeldChunk, ...]] = field(default_factory=dict)
    since_ms: int | None = None
    pieces: int = 0


@dataclass(frozen=True)
class TaskState:
    """All that a join task keeps between batches."""

    clock: JoinClock
    next_seq: int
    next_chunk: int
    sides: dict[Side, tuple[Kept, ...]]
    inputs: Inputs = field(default_factory=Inputs)
    results: int = 0  # how many have come out so far

    def chunks(self) -> Iterator[tuple[Side, Chunk]]:
        """Yield all chunks with their sides."""
        for side, each in self.sides.items():
            for kept in each:
                yield side, kept.chunk

    def held(self) -> Iterator[tuple[Side, HeldChunk]]:
        """Yield all held chunks with their sides."""
        for side, chunks in self.inputs.held.items():
            for chunk in chunks:
                yield side, chunk


def slice_width(retention_ms: int) -> int:
    """Return the width of a slice in ms."""
    return max(1, -(-max(0, retention_ms) // SLICES))


def bounds_of(kept: Sequence[Kept]) -> Int64:
    """Return the first global row of each chunk, and of what comes behind them."""
    return np.cumsum(np.array([0, *(chunk.rows for chunk, _ in kept)], np.int64))


def next_kept(
    old: tuple[Kept, ...],
    new: Rows,
    new_rows: Int64,
    gone: Int64,
    waiting: Int64,
    *,
    readable_from: int,
    retention_ms: int,
    numbers: Iterator[int],
) -> tuple[Kept, ...]:
    """Drop what is out of reach, and keep of the new records what is not.

    Args:
        old: the side before the batch.
        new: the batch's records with key and value, in order of arrival.
        new_rows: their global rows.
        gone: the global rows, of old ones, that no longer wait; ascending.
        waiting: those of new ones that do; ascending.
        readable_from: the smallest timestamp that a later record can still reach.
        retention_ms: of the join.
        numbers: gives the new chunks theirs.
    """
    kept: list[Kept] = []
    bounds = bounds_of(old)
    cuts = np.searchsorted(gone, bounds)
    for place, (chunk, before) in enumerate(old):
        waits = before.without(gone[cuts[place] : cuts[place + 1]] - bounds[place])
        if chunk.max_ts >= readable_from or waits.count:
            kept.append(Kept(chunk, waits))
    if len(new):
        still: Bool = np.isin(new_rows, waiting, assume_unique=True)
        matters = np.flatnonzero((new.ts >= readable_from) | still)
        kept += cut(new.take(matters), still[matters], retention_ms, numbers)
    return compacted(kept, numbers)


def cut(rows: Rows, waiting: Bool, retention_ms: int, numbers: Iterator[int]) -> Iterator[Kept]:
    """Cut records in order of arrival into chunks."""
    if not len(rows):
        return
    width = slice_width(retention_ms)
    slices = rows.ts // width
    # What waits beyond the retention, or lies far ahead, does not get a chunk for every slice.
    np.maximum(slices, int(slices.max()) - SLICES, out=slices)
    per_row = max(1, rows.records.nbytes // len(rows))
    most = max(1, MAX_CHUNK_BYTES // per_row)
    for time_slice in distinct(slices):
        chosen = np.flatnonzero(slices == time_slice)
        for start in range(0, len(chosen), most):
            part = chosen[start : start + most]
            chunk = Chunk.of(next(numbers), rows.take(part), int(time_slice))
            yield Kept(chunk, Waits.of(waiting[part]))


def compacted(kept: Sequence[Kept], numbers: Iterator[int]) -> tuple[Kept, ...]:
    """Put small chunks of one slice together, FAN of like size at a time."""
    groups: dict[tuple[int, int], list[Kept]] = {}
    for each in kept:
        if each.chunk.bytes * FAN <= MAX_CHUNK_BYTES:
            groups.setdefault((each.chunk.time_slice, _tier(each.chunk.rows)), []).append(each)
    merged = [group for group in groups.values() if len(group) >= FAN]
    if not merged:
        return tuple(kept)
    gone = {each.chunk.number for group in merged for each in group}
    stay = [each for each in kept if each.chunk.number not in gone]
    return compacted([*stay, *(_together(group, numbers) for group in merged)], numbers)


def _tier(rows: int) -> int:
    tier = 0
    while rows > _TIER_ROWS:
        rows //= FAN
        tier += 1
    return tier


def _together(group: list[Kept], numbers: Iterator[int]) -> Kept:
    rows, order = Rows.in_order([chunk.data for chunk, _ in group])
    flags = np.concatenate([waits.flags for _, waits in group])[order]
    return Kept(Chunk.of(next(numbers), rows, group[0].chunk.time_slice), Waits.of(flags))
