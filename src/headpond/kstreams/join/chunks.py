"""What a join task keeps between batches: immutable chunks of records, and which of their rows still wait.

::

    TaskState   clock · next number of arrival · next chunk number
      side      chunk 7 │ chunk 9 │ chunk 10 …      a chunk: records of one side and one slice of time,
      waiting   rows    │ rows    │ rows            in order of arrival; never changed, only dropped

A slice is a quarter of the retention, so at most one slice's worth of what is kept is out of reach. Small
chunks of one slice are put together eight at a time, each record about once per factor of eight.
A state is a value: a step makes a new one, and both stay usable.

A worker has chunks at hand without asking the state, in its memory and in files of its machine::

    <folder>/<uid>.arrow     Arrow IPC file, uncompressed and mapped into memory: records, ts, seq, hash

A chunk's bytes never change and every attempt makes fresh uids, so that what is found here may be useless and
is never wrong. All of it may be gone at any moment: the state holds everything. A file is written under
another name and renamed; what the manifest just read does not name is deleted. So a state may be larger than
a worker's memory: of the chunks that lie in files and state those read last stay in memory, up to a bound.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from headpond.kstreams.join.keys import HASH_VERSION
from headpond.kstreams.join.pairs import Bool, Int64, Rows, longest_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headpond.kstreams.bytes.join_buffer import Side
    from headpond.kstreams.join.rules import JoinClock

MAX_CHUNK_BYTES = 4 << 20
"""A chunk's records are cut before they exceed this, uncompressed."""
SLICES = 4
FAN = 8
"""So many chunks of like size in one slice become one."""
MAX_TASKS = 64
"""So many tasks' states stay in a worker's memory, the latest used."""
MAX_AT_HAND_BYTES = 1 << 30
"""So many bytes of stored chunks stay in a worker's memory."""
_NUMBERS = ("ts", "seq", "hashes")
_INDEX_BYTES = 48  # a row's numbers, and its places in the index by hash and time
_TIER_ROWS = 256
_EMPTY: Int64 = np.empty(0, np.int64)


@dataclass(slots=True, eq=False, weakref_slot=True)
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
        load: Reads the records from where they are stored; None: they are nowhere but here.
        stored_bytes: Size of what the state holds; 0 until it is stored.
    """

    number: int
    uid: bytes
    rows: int
    min_ts: int
    max_ts: int
    time_slice: int
    longest: int
    load: Callable[[], Rows] | None
    stored_bytes: int = 0
    _data: Rows | None = None

    @classmethod
    def of(cls, number: int, rows: Rows, time_slice: int) -> Chunk:
        """Make a chunk of records at hand."""
        first, last, longest = int(rows.ts.min()), int(rows.ts.max()), longest_row(rows.records)
        uid = uuid.uuid4().bytes
        return cls(number, uid, len(rows), first, last, time_slice, longest, None, _data=rows)

    @property
    def data(self) -> Rows:
        """The records; loaded now if they are not at hand."""
        if self._data is None:
            assert self.load is not None
            self._data = self.load()
            AT_HAND.add(self)
        return self._data

    def stored(self, load: Callable[[], Rows]) -> None:
        """Note from where the records can be read; they need not stay in memory."""
        self.load = load
        if self._data is not None:
            AT_HAND.add(self)

    def forget(self) -> None:
        """Let the records go; they are read again when they are asked for."""
        self._data = None

    @property
    def loaded(self) -> bool:
        """Whether the records are at hand."""
        return self._data is not None

    @property
    def bytes(self) -> int:
        """Its size as the state holds it, or in memory until it is stored."""
        return self.stored_bytes or int(self.records.nbytes)

    @property
    def records(self) -> pa.RecordBatch:
        """The columns of the records."""
        return self.data.records


class AtHand:
    """The stored chunks whose records this process has in memory: those read or written last."""

    def __init__(self, max_bytes: int = MAX_AT_HAND_BYTES) -> None:
        self.max_bytes = max_bytes
        self._sizes: WeakKeyDictionary[Chunk, int] = WeakKeyDictionary()

    @property
    def bytes(self) -> int:
        """About how many bytes they take."""
        return sum(self._sizes.values())

    def add(self, chunk: Chunk) -> None:
        """Add a chunk; others are forgotten where there would be too many bytes, the oldest first."""
        if chunk in self._sizes:
            return
        self._sizes[chunk] = int(chunk.records.nbytes) + _INDEX_BYTES * chunk.rows
        beyond = self.bytes - self.max_bytes
        for each in list(self._sizes)[:-1] if beyond > 0 else ():
            each.forget()
            beyond -= self._sizes.pop(each)
            if beyond <= 0:
                return


AT_HAND = AtHand()


@dataclass(frozen=True)
class SideState:
    """What is kept of one side; `waiting` has the waiting rows of each chunk, ascending."""

    chunks: tuple[Chunk, ...] = ()
    waiting: tuple[Int64, ...] = ()

    @classmethod
    def of(cls, pairs: Iterable[tuple[Chunk, Int64]]) -> SideState:
        """Make it of chunks, each with its waiting rows."""
        each = list(pairs)
        return cls(tuple(chunk for chunk, _ in each), tuple(rows for _, rows in each))

    @property
    def rows(self) -> int:
        """How many records are kept."""
        return sum(chunk.rows for chunk in self.chunks)


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
    sides: dict[Side, SideState]
    inputs: Inputs = field(default_factory=Inputs)
    results: int = 0  # how many have come out so far

    def chunks(self) -> Iterator[tuple[Side, Chunk]]:
        """Yield all chunks with their sides."""
        for side, state in self.sides.items():
            for chunk in state.chunks:
                yield side, chunk

    def held(self) -> Iterator[tuple[Side, HeldChunk]]:
        """Yield all held chunks with their sides."""
        for side, chunks in self.inputs.held.items():
            for chunk in chunks:
                yield side, chunk


def slice_width(retention_ms: int) -> int:
    """Return the width of a slice in ms."""
    return max(1, -(-max(0, retention_ms) // SLICES))


def next_side_state(
    old: SideState,
    new: Rows,
    new_rows: Int64,
    gone: Int64,
    waiting: Int64,
    *,
    readable_from: int,
    retention_ms: int,
    numbers: Iterator[int],
) -> SideState:
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
    chunks: list[Chunk] = []
    waits: list[Int64] = []
    base = 0
    for chunk, before in zip(old.chunks, old.waiting, strict=True):
        start, stop = np.searchsorted(gone, (base, base + chunk.rows))
        rows = before
        if stop > start:
            rows = without(before, gone[start:stop] - base)
        if chunk.max_ts >= readable_from or len(rows):
            chunks.append(chunk)
            waits.append(rows)
        base += chunk.rows
    if len(new):
        still: Bool = np.isin(new_rows, waiting, assume_unique=True)
        kept = np.flatnonzero((new.ts >= readable_from) | still)
        for chunk, rows in cut(new.take(kept), still[kept], retention_ms, numbers):
            chunks.append(chunk)
            waits.append(rows)
    return compacted(SideState(tuple(chunks), tuple(waits)), numbers)


def among(some: Int64, rows: Int64) -> Bool:
    """Return which of some numbers are among others, both ascending: searched for, so few cost little."""
    if not len(rows):
        return np.zeros(len(some), np.bool_)
    found: Bool = rows[np.minimum(np.searchsorted(rows, some), len(rows) - 1)] == some
    return found


def without(rows: Int64, gone: Int64) -> Int64:
    """Return numbers without others, both ascending."""
    keep = np.ones(len(rows), np.bool_)
    keep[np.searchsorted(rows, gone[among(gone, rows)])] = False
    return rows[keep]


def cut(
    rows: Rows, waiting: Bool, retention_ms: int, numbers: Iterator[int]
) -> Iterator[tuple[Chunk, Int64]]:
    """Cut records in order of arrival into chunks; each with its waiting rows."""
    if not len(rows):
        return
    width = slice_width(retention_ms)
    slices = rows.ts // width
    # What waits beyond the retention, or lies far ahead, does not get a chunk for every slice.
    np.maximum(slices, int(slices.max()) - SLICES, out=slices)
    per_row = max(1, rows.records.nbytes // len(rows))
    most = max(1, MAX_CHUNK_BYTES // per_row)
    for time_slice in np.unique(slices):
        chosen = np.flatnonzero(slices == time_slice)
        for start in range(0, len(chosen), most):
            part = chosen[start : start + most]
            chunk = Chunk.of(next(numbers), rows.take(part), int(time_slice))
            yield chunk, np.flatnonzero(waiting[part])


def compacted(state: SideState, numbers: Iterator[int]) -> SideState:
    """Put small chunks of one slice together, FAN of like size at a time."""
    groups: dict[tuple[int, int], list[int]] = {}
    for place, chunk in enumerate(state.chunks):
        # At most an eighth of the largest chunk that such rows make.
        if chunk.rows * FAN <= MAX_CHUNK_BYTES * chunk.rows // max(1, chunk.bytes):
            groups.setdefault((chunk.time_slice, _tier(chunk.rows)), []).append(place)
    merged = [places for places in groups.values() if len(places) >= FAN]
    if not merged:
        return state
    gone = {place for places in merged for place in places}
    keep = [place for place in range(len(state.chunks)) if place not in gone]
    chunks = [state.chunks[place] for place in keep]
    waits = [state.waiting[place] for place in keep]
    for places in merged:
        chunk, rows = _together(
            [state.chunks[p] for p in places], [state.waiting[p] for p in places], numbers
        )
        chunks.append(chunk)
        waits.append(rows)
    return compacted(replace(state, chunks=tuple(chunks), waiting=tuple(waits)), numbers)


def _tier(rows: int) -> int:
    tier = 0
    while rows > _TIER_ROWS:
        rows //= FAN
        tier += 1
    return tier


def _together(chunks: list[Chunk], waits: list[Int64], numbers: Iterator[int]) -> tuple[Chunk, Int64]:
    rows, order = Rows.in_order([chunk.data for chunk in chunks])
    flags = np.zeros(len(rows), np.bool_)
    base = 0
    for chunk, waiting in zip(chunks, waits, strict=True):
        flags[base + waiting] = True
        base += chunk.rows
    return Chunk.of(next(numbers), rows, chunks[0].time_slice), np.flatnonzero(flags[order])


class MemoryCache:
    """The states of tasks by their name, each valid for exactly one manifest."""

    def __init__(self, max_tasks: int = MAX_TASKS) -> None:
        self._states: OrderedDict[str, tuple[bytes, TaskState]] = OrderedDict()
        self._max_tasks = max_tasks

    def get(self, task: str, manifest: bytes) -> TaskState | None:
        """Return the state that was kept with this manifest."""
        found = self._states.get(task)
        return found[1] if found is not None and found[0] == manifest else None

    def chunks(self, task: str) -> dict[bytes, Rows]:
        """Return the chunks at hand of whatever state was kept last, by uid."""
        found = self._states.get(task)
        if found is None:
            return {}
        each = [chunk for _, chunk in found[1].chunks()] + [held.chunk for _, held in found[1].held()]
        return {chunk.uid: chunk.data for chunk in each if chunk.loaded}

    def put(self, task: str, manifest: bytes, state: TaskState) -> None:
        """Keep a state."""
        self._states[task] = manifest, state
        self._states.move_to_end(task)
        while len(self._states) > self._max_tasks:
            self._states.popitem(last=False)


class FileCache:
    """One task's chunks in files.

    Args:
        folder: made when first written to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, uid: bytes) -> Path:
        return self._folder / f"{uid.hex()}.v{HASH_VERSION}.arrow"

    def put(self, uid: bytes, rows: Rows) -> None:
        """Write a chunk; a disk that is full or gone is not a failure."""
        columns = [*rows.records.columns, *(pa.array(getattr(rows, name)) for name in _NUMBERS)]
        names = [*(f"x.{name}" for name in rows.records.schema.names), *_NUMBERS]
        batch = pa.RecordBatch.from_arrays(columns, names=names)
        path = self._path(uid)
        passing = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(str(passing), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write_batch(batch)
            passing.replace(path)

    def get(self, uid: bytes, schema: pa.Schema) -> Rows | None:
        """Map a chunk into memory; None where there is none, or none with these columns."""
        try:
            with pa.memory_map(str(self._path(uid))) as source:
                batch = pa.ipc.open_file(source).get_batch(0)
            columns = [batch.column(f"x.{field.name}") for field in schema]
            numbers = [batch.column(name).to_numpy() for name in _NUMBERS]
            records = pa.RecordBatch.from_arrays(columns, schema=schema)
        except (OSError, KeyError, pa.ArrowException):
            return None
        return Rows(records, numbers[0], numbers[1], numbers[2].astype(np.uint64, copy=False))

    def keep_only(self, uids: set[bytes]) -> None:
        """Delete all other chunks."""
        names = {self._path(uid).name for uid in uids}
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                if entry.name not in names:
                    Path(entry.path).unlink(missing_ok=True)
