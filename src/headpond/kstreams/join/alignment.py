"""Which of the records that have come may be processed: those that nothing can come before any more.

::

    partition          records so far, by time                  head: greatest timestamp so far
    left  0            ●──●──●──●─────────●                     120
    left  1            ●─────●──●                                80   ◄ slowest live partition
    right 0            ●──●──●──●──●──●──●──●──●──●             300
                       └─ processed now ─┘└─ held ──┘

A task takes, of the next records of all source partitions, always the oldest one; a record behind its
predecessor follows it at once. That is the order by (head, side: left first, partition, position), where a
record's head is the greatest timestamp of its partition up to it. A micro-batch brings more of one partition
than of another. So what lies behind the slowest live partition in that order is processed, and the rest is
**held** in the state until that partition has caught up. Results are then the same however a stream is cut.

A partition is *live* in a batch that has records of it, and for `max_idle_ms` after. This is Kafka Streams'
`max.task.idle.ms`: by 0, what the sources have already is put in order, and nobody waits for records that are
not there yet; with -1 nothing is held at all. Heads are those of whole partitions, not of a task's share of
their keys: every task learns of all records.

Held chunks are sorted in that order, so that what is released is always their beginning::

    ts = head · seq = piece · key · headers · value · further columns · _ts · _source

`_source` is the place in `partitions`, times 4; 1 more without a key, 2 without a value.

Source: KIP-695; spec "join on Spark", section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import int64_array
from headpond.core.errors import UsageError
from headpond.core.hashes import hash_keys, task_of
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.arrivals import Arrivals
from headpond.kstreams.join.chunks import (
    MAX_CHUNK_BYTES,
    Chunk,
    HeldChunk,
    Inputs,
    Partition,
    Reached,
    TaskState,
)
from headpond.kstreams.join.pairs import Int64, Rows
from headpond.kstreams.join.rules import NO_TIME, OTHER_SIDE

MAX_HELD_BYTES = 4 << 30
"""The most bytes of held records that a task may have."""
NEVER_IDLE = -1
"""As `max_idle_ms`: nothing is held."""
RELEASED_ROWS = 200_000
RELEASED_BYTES = 256 << 20
"""About how many records and bytes are released at once."""
MAX_PARTITIONS = 1_000
"""How many partitions' heads are kept a side; of more, those seen last."""
TIME, SOURCE = "_ts", "_source"
_NULLABLE = ((1, "key"), (2, "value"))
_SIDES = (Side.LEFT, Side.RIGHT)


class Piece(NamedTuple):
    """Records of one source partition, one after the other: the position of the first, the greatest time."""

    partition: Partition
    first: tuple[int, ...]
    head: int


@dataclass(frozen=True)
class Delivered:
    """New records of one side, by partition and position.

    Attributes:
        records: `key`, `headers`, `value`, further columns; a task's share of the pieces' records.
        ts: their timestamps, ms.
        head: greatest timestamp of the piece up to each of them, other tasks' records included.
        piece: the place of each one's piece in `pieces`.
        pieces: what they are from.
    """

    records: pa.RecordBatch
    ts: Int64
    head: Int64
    piece: Int64
    pieces: Sequence[Piece]


class Released(NamedTuple):
    """Records to process, and the query's stream time after them."""

    arrivals: dict[Side, Arrivals]
    time: int


class _Bound(NamedTuple):
    """The last place in the order that is released: head, side, rank of the partition."""

    head: int
    side: int
    rank: int


@dataclass
class Alignment:
    """One batch of a task: takes in what was delivered, releases what is due, keeps the rest.

    Args:
        inputs: what was held and known before.
        schemas: of the records per side.
        now_ms: the batch's wall-clock time.
        max_idle_ms: how long a partition without records is waited for; -1: nothing is held.
        max_held_bytes: more is an error.
    """

    inputs: Inputs
    schemas: Mapping[Side, pa.Schema]
    now_ms: int
    max_idle_ms: int
    max_held_bytes: int = MAX_HELD_BYTES
    _pieces: int = 0
    _fresh: dict[Side, set[Partition]] = field(default_factory=dict)
    _held: dict[Side, list[HeldChunk]] = field(default_factory=dict)
    _reached: dict[Side, dict[Partition, Reached]] = field(default_factory=dict)
    _ranks: dict[Side, dict[Partition, int]] = field(default_factory=dict)

    def take(self, delivered: Mapping[Side, Sequence[Delivered]]) -> None:
        """Take new records in."""
        for side in self.schemas:
            self._held[side] = list(self.inputs.held.get(side, ()))
            reached = self._reached[side] = dict(self.inputs.reached.get(side, {}))
            flushes = delivered.get(side, ())
            before = self._heads_before(side, flushes)
            names = sorted(reached, key=_by_value)
            ranks = self._ranks[side] = {name: rank for rank, name in enumerate(names)}
            for some in _grouped(flushes, before):
                self._held[side].append(_fresh(some, self.inputs.pieces, ranks, names, self.schemas[side]))

    def _heads_before(self, side: Side, flushes: Sequence[Delivered]) -> list[Int64]:
        """Advance the partitions; return for each piece of each flush the head and the order before it."""
        reached = self._reached[side]
        by_partition: dict[Partition, list[tuple[tuple[int, ...], int, int, int]]] = {}
        for number, flush in enumerate(flushes):
            for place, piece in enumerate(flush.pieces):
                by_partition.setdefault(piece.partition, []).append((piece.first, number, place, piece.head))
        found = [np.zeros((len(flush.pieces), 2), np.int64) for flush in flushes]
        for partition, pieces in by_partition.items():
            head = reached[partition].head if partition in reached else NO_TIME
            self._pieces = max(self._pieces, len(pieces))
            for order, (_, number, place, top) in enumerate(sorted(pieces)):
                found[number][place] = head, order
                head = max(head, top)
            reached[partition] = Reached(head, self.now_ms)
        self._fresh[side] = set(by_partition)
        return found

    def released(self, limit: int = RELEASED_ROWS) -> Iterator[Released]:
        """Yield what is due, in order, about `limit` records at a time; at least once."""
        frontier = self._frontier()
        heads = [each.head for known in self._reached.values() for each in known.values()]
        everything = max(heads, default=NO_TIME)
        end = everything if frontier is None else frontier.head
        while True:
            chosen, bound = self._next(frontier, limit)
            parts = {side: self._taken(side, places, bound) for side, places in chosen.items()}
            last = bound == frontier
            yield Released(_in_order(parts), end if bound is None or last else bound.head)
            if last:
                return

    def _frontier(self) -> _Bound | None:
        """Return the place in the order that every live partition has reached; None: all is due."""
        if self.max_idle_ms == NEVER_IDLE:
            return None
        if self._waits(self.inputs.since_ms) and not all(self._reached.values()):
            return _Bound(NO_TIME, 0, 0)  # an input that has had no record yet
        live = [
            _Bound(self._reached[side][name].head, _rank(side), self._ranks[side][name])
            for side, name in self._live()
        ]
        return min(live, default=None)

    def _live(self) -> Iterator[tuple[Side, Partition]]:
        for side, known in self._reached.items():
            for name, each in known.items():
                if name in self._fresh[side] or self._waits(each.seen_ms):
                    yield side, name

    def _waits(self, since_ms: int | None) -> bool:
        # A clock that was set back makes nobody wait.
        return 0 <= self.now_ms - (self.now_ms if since_ms is None else since_ms) < self.max_idle_ms

    def _next(self, frontier: _Bound | None, limit: int) -> tuple[dict[Side, list[int]], _Bound | None]:
        """Choose chunks that hold about `limit` records which are due, and up to where they are."""
        due = [
            (side, place, each)
            for side, chunks in self._held.items()
            for place, each in enumerate(chunks)
            if frontier is None or each.from_head <= frontier.head
        ]
        # How large each is, as a share of what is released at once: by its records, or by its bytes.
        shares = np.array([max(each.rows / limit, each.bytes / RELEASED_BYTES) for *_, each in due])
        bound = frontier
        if shares.sum() > 1:
            begins = np.array([each.from_head for *_, each in due], np.int64)
            order = np.argsort(begins)
            reached = np.cumsum(shares[order])
            some = (
                _head_after(each, each.rows / share) for (*_, each), share in zip(due, shares, strict=True)
            )
            ends = np.sort(np.fromiter(some, np.int64))
            within = reached[np.searchsorted(begins[order], ends, side="right") - 1] <= 1
            head = int(ends[max(0, int(np.argmin(within)) - 1)])
            if frontier is None or head < frontier.head:
                bound = _Bound(head, len(_SIDES), 0)
                due = [each for each in due if each[2].from_head <= head]
        chosen: dict[Side, list[int]] = {}
        for side, place, _ in due:
            chosen.setdefault(side, []).append(place)
        return chosen, bound

    def _taken(self, side: Side, places: list[int], bound: _Bound | None) -> list[tuple[Rows, Int64]]:
        """Take the due beginnings of chunks; return their rows and partitions' ranks."""
        found = []
        for place in sorted(places):
            each = self._held[side][place]
            data, start = each.chunk.data, each.taken
            ranks = np.array([self._ranks[side].get(name, -1) for name in each.partitions], np.int64)
            rank = ranks[data.records.column(SOURCE).to_numpy() >> 2]
            stop = len(data) if bound is None else max(start, _within(data.ts, rank, side, bound))
            if stop > start:
                part = slice(start, stop)
                rows = Rows(data.records[part], data.ts[part], data.seq[part], data.hashes[part])
                found.append((rows, rank[part]))
            from_head = int(data.ts[stop]) if stop < len(data) else 0
            self._held[side][place] = replace(each, taken=stop, from_head=from_head)
        self._held[side] = [each for each in self._held[side] if each.rows]
        return found

    def kept(self, state: TaskState) -> TaskState:
        """Return the task's state with what is held and known after the batch.

        Raises:
            UsageError: more is held than may be.
        """
        numbers = count(state.next_chunk)
        held = {side: tuple(self._stored(chunks, numbers)) for side, chunks in self._held.items()}
        size = sum(each.bytes for chunks in held.values() for each in chunks)
        if size > self.max_held_bytes:
            raise self._too_many(size)
        since_ms = self.now_ms if self.inputs.since_ms is None else self.inputs.since_ms
        reached = {side: self._pruned(side) for side in self._reached}
        inputs = Inputs(reached, held, since_ms, self.inputs.pieces + self._pieces)
        return replace(state, next_chunk=next(numbers), inputs=inputs)

    def _stored(self, chunks: list[HeldChunk], numbers: Iterator[int]) -> Iterator[HeldChunk]:
        for each in chunks:
            if each.chunk.number >= 0:
                yield each
                continue
            # Records of this batch: what is left of them is cut into chunks of its own.
            data = each.chunk.data
            most = max(1, MAX_CHUNK_BYTES * len(data) // max(1, int(data.records.nbytes)))
            for start in range(each.taken, len(data), most):
                part = slice(start, start + most)
                records = data.records[part]
                some = Rows(records, data.ts[part], data.seq[part], hash_keys(records.column("key")))
                chunk = Chunk.of(next(numbers), some, 0)
                yield HeldChunk(chunk, each.partitions, 0, chunk.min_ts)

    def _pruned(self, side: Side) -> dict[Partition, Reached]:
        reached = self._reached[side]
        if len(reached) <= MAX_PARTITIONS:
            return reached
        latest = sorted(
            reached, key=lambda name: (-reached[name].seen_ms, -reached[name].head, _by_value(name))
        )
        return {name: reached[name] for name in latest[:MAX_PARTITIONS]}

    def _too_many(self, size: int) -> UsageError:
        heads = {(side, name): self._reached[side][name].head for side, name in self._live()}
        side, name = min(heads, key=lambda each: heads[each])
        behind_ms = max(heads.values()) - heads[side, name]
        return UsageError(
            f"A join task holds {size} bytes of records, more than {self.max_held_bytes}: they wait for "
            f"partition {'/'.join(map(str, name))} of the {side.name.lower()} input, {behind_ms} ms behind.",
            next_step="Let the slower input read more a batch (maxBytesPerTrigger, maxOffsetsPerTrigger) or "
            "the faster one less, or raise max_held_bytes.",
            held_bytes=size,
            behind_ms=behind_ms,
        )


def _rank(side: Side) -> int:
    return _SIDES.index(side)


def _by_value(partition: Partition) -> tuple[tuple[bool, str | int], ...]:
    return tuple((each is None, 0 if each is None else each) for each in partition)


def _within(head: Int64, rank: Int64, side: Side, bound: _Bound) -> int:
    """Return how many rows, which are in order, are not behind the bound."""
    first = int(np.searchsorted(head, bound.head, side="left"))
    last = int(np.searchsorted(head, bound.head, side="right"))
    if _rank(side) != bound.side:
        return last if _rank(side) < bound.side else first
    return first + int(np.searchsorted(rank[first:last], bound.rank, side="right"))


def _grouped(
    flushes: Sequence[Delivered], before: Sequence[Int64]
) -> Iterator[list[tuple[Delivered, Int64]]]:
    """Put flushes with records together, as far as they fit into one batch of Arrow's."""
    group: list[tuple[Delivered, Int64]] = []
    size = 0
    for flush, base in zip(flushes, before, strict=True):
        if not len(flush.ts):
            continue
        if group and size + flush.records.nbytes > RELEASED_BYTES:
            yield group
            group, size = [], 0
        group.append((flush, base))
        size += flush.records.nbytes
    if group:
        yield group


def _fresh(
    some: list[tuple[Delivered, Int64]],
    pieces: int,
    ranks: dict[Partition, int],
    names: list[Partition],
    schema: pa.Schema,
) -> HeldChunk:
    """Put new records of one side into order, as a chunk that is not stored yet."""
    head = np.concatenate([np.maximum(flush.head, base[flush.piece, 0]) for flush, base in some])
    piece = np.concatenate([base[flush.piece, 1] for flush, base in some]) + pieces
    rank = np.concatenate(
        [np.array([ranks[p.partition] for p in flush.pieces], np.int64)[flush.piece] for flush, _ in some]
    )
    ts = np.concatenate([flush.ts for flush, _ in some])
    records = _concatenated([flush.records for flush, _ in some])
    # Stable: within a piece rows stay as they came, which is by position.
    order = np.lexsort((piece, rank, head))
    if (np.diff(order) != 1).any():
        records, ts, head = records.take(int64_array(order)), ts[order], head[order]
        rank, piece = rank[order], piece[order]
    source = rank << 2
    columns = list(records.columns)
    for bit, name in _NULLABLE:
        column = records.column(name)
        if column.null_count:
            source += bit * np.asarray(column.is_null())
            columns[records.schema.get_field_index(name)] = pc.fill_null(column, b"")
    columns += [int64_array(ts), int64_array(source)]
    records = pa.RecordBatch.from_arrays(columns, schema=held_schema(schema))
    rows = Rows(records, head, piece, np.zeros(len(head), np.uint64))
    return HeldChunk(Chunk.of(-1, rows, 0), tuple(names), 0, int(head[0]))


def _head_after(each: HeldChunk, rows: float) -> int:
    """Return the head of a chunk's last waiting record, or of the one that is this many behind the first."""
    if each.rows <= rows:
        return each.chunk.max_ts
    return int(each.chunk.data.ts[each.taken + max(1, int(rows)) - 1])


def _concatenated(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def dealt(states: Sequence[TaskState], tasks: int) -> list[Inputs]:
    """Distribute what tasks hold among `tasks` new ones; each knows what all of them knew."""
    reached: dict[Side, dict[Partition, Reached]] = {}
    held: list[dict[Side, tuple[HeldChunk, ...]]] = [{} for _ in range(tasks)]
    for number, state in enumerate(states):
        for side, known in state.inputs.reached.items():
            for name, each in known.items():
                before = reached.setdefault(side, {}).setdefault(name, each)
                reached[side][name] = Reached(max(before.head, each.head), max(before.seen_ms, each.seen_ms))
        for side, each_held in state.held():
            data = each_held.chunk.data
            keys = data.records.column("key")
            where = task_of(keys, tasks)
            # A record without a key belongs to no task by it.
            where[data.records.column(SOURCE).to_numpy() & 1 != 0] = number % tasks
            where[: each_held.taken] = -1
            for task in range(tasks):
                rows = np.flatnonzero(where == task)
                if len(rows):
                    chunk = Chunk.of(-1, data.take(rows), 0)
                    moved = HeldChunk(chunk, each_held.partitions, 0, chunk.min_ts)
                    held[task][side] = (*held[task].get(side, ()), moved)
    began = [state.inputs.since_ms for state in states if state.inputs.since_ms is not None]
    pieces = max(state.inputs.pieces for state in states)
    return [Inputs(reached, each, min(began, default=None), pieces) for each in held]


def held_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of held records."""
    return schema.append(pa.field(TIME, pa.int64())).append(pa.field(SOURCE, pa.int64()))


def _in_order(parts: Mapping[Side, list[tuple[Rows, Int64]]]) -> dict[Side, Arrivals]:
    """Put released rows of both sides into one order of arrival."""
    sides = {side: _of_side(each) for side, each in parts.items() if each}
    found = {}
    for side, (records, heads) in sides.items():
        other = sides.get(OTHER_SIDE[side])
        # Of one head, left records come first.
        tie: Literal["left", "right"] = "left" if side is Side.LEFT else "right"
        before = 0 if other is None else np.searchsorted(other[1], heads, tie)
        ts = records.column(TIME).to_numpy()
        found[side] = Arrivals(_as_they_came(records), ts, np.arange(len(heads)) + before, heads)
    return found


def _as_they_came(held: pa.RecordBatch) -> pa.RecordBatch:
    """Return records without what was added to hold them, and with their nulls again."""
    source = held.column(SOURCE).to_numpy()
    records = held.drop_columns([TIME, SOURCE])
    for bit, name in _NULLABLE:
        missing = source & bit != 0
        if missing.any():
            column = pc.if_else(pa.array(missing), None, records.column(name))
            records = records.set_column(records.schema.get_field_index(name), name, column)
    return records


def _of_side(parts: list[tuple[Rows, Int64]]) -> tuple[pa.RecordBatch, Int64]:
    """Put rows of one side, each part of them in order, into one order; return records and heads."""
    records = _concatenated([rows.records for rows, _ in parts])
    head, piece = (np.concatenate([getattr(rows, name) for rows, _ in parts]) for name in ("ts", "seq"))
    order = np.lexsort((piece, np.concatenate([rank for _, rank in parts]), head))
    if (np.diff(order) != 1).any():
        records, head = records.take(int64_array(order)), head[order]
    return records, head
