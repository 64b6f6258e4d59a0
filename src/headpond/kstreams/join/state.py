"""What join tasks keep, as Arrow tables and numbers: handed from one engine to another, and to other tasks.

::

    records     side    0 right, 1 left
                key
                timestamp   ms
                seq         row number; per side, key and timestamp the order of insertion
                payload     headersSize | headersBytes | value      (plain+headers)
                buffered    waits in the buffer of unmatched records
    clock       stream time, observed time per side, smallest time in the buffer, end of the throttle

Rows are in the order in which the buffer would let them go: timestamp, right side before left, key, then
insertion. There are only rows that still matter: those that a later record can read, and those that wait.
A row that waits may be too old to be read.

One such state is one partition's. Tasks get the records of their keys, in the order in which they arrived::

    task 0 of 2: keys 0 2 4 6 …   ─┬─► task 0 of 3        a key's task is its hash modulo the tasks
    task 1 of 2: keys 1 3 5 7 …   ─┴─► …

and of all old tasks whose keys may have come to them the greatest stream time and observed times, as if they
had been one task: what was too late for one of them is too late for the new one. With as many tasks as there
were partitions, and keys partitioned as Kafka does it, each task continues its own partition's state.
Source: spec "window store", sections 4.4, 8 and 8.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import int64_array
from headpond.core.errors import UsageError
from headpond.kstreams.bytes.headers import decode_prefix, encode_prefix, prefix_bounds
from headpond.kstreams.bytes.headers_arrow import canonical_headers, split_prefix
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.bytes.window_values_arrow import column_of, numbers_of
from headpond.kstreams.join.alignment import dealt
from headpond.kstreams.join.chunks import Numbers, SideState, TaskState, cut
from headpond.kstreams.join.keys import hash_keys, task_of
from headpond.kstreams.join.pairs import Rows
from headpond.kstreams.join.rules import JoinClock, JoinType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from headpond.kstreams.join.by_record import StreamJoin
    from headpond.kstreams.join.pairs import Bool
    from headpond.kstreams.join.rules import JoinRules
    from headpond.kstreams.join.stores import JoinStores, Waiting

STATE_SCHEMA = pa.schema(
    [
        pa.field("side", pa.int8(), nullable=False),
        pa.field("key", pa.large_binary(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("payload", pa.large_binary(), nullable=False),
        pa.field("buffered", pa.bool_(), nullable=False),
    ]
)
RECORD_SCHEMA = pa.schema([(name, pa.binary()) for name in ("key", "headers", "value")])
_WORK_SCHEMA = pa.schema([("order" if each.name == "seq" else each.name, each.type) for each in STATE_SCHEMA])
_EMPTY = _WORK_SCHEMA.empty_table()
_ORDER_STEP = 1 << 20  # room between two stored entries for waiting ones that the store lost


@dataclass(frozen=True, slots=True)
class JoinState:
    """A join task's state.

    Args:
        fingerprint: `JoinRules.fingerprint` of the join that it belongs to.
        records: Rows of `STATE_SCHEMA`.
        clock: The task's times.
    """

    fingerprint: str
    records: pa.Table
    clock: JoinClock = field(default_factory=JoinClock)

    @property
    def next_seq(self) -> int:
        """The first number that no row has."""
        return len(self.records)

    def check(self, rules: JoinRules) -> None:
        """Raise if another join is to continue it.

        Raises:
            UsageError: The join has another type, other windows or another emission.
        """
        if self.fingerprint != rules.fingerprint:
            raise UsageError(
                f"The state is that of the join {self.fingerprint}, and this one is {rules.fingerprint}.",
                next_step="Continue it with the same type, windows and emission.",
            )


class Stored(NamedTuple):
    """Entries of one side's window store: columns of one length, in any order.

    `seqnums` order the entries of one key and timestamp; `payloads` are plain+headers.
    """

    side: Side
    keys: pa.Array
    timestamps: pa.Array
    seqnums: pa.Array
    payloads: pa.Array


class Unmatched(NamedTuple):
    """A list of the buffer."""

    timestamp: int
    side: Side
    key: bytes
    waiting: list[Waiting]


def state_from(
    rules: JoinRules, stored: Iterable[Stored], unmatched: Iterable[Unmatched], clock: JoinClock
) -> JoinState:
    """Put a state together from what window stores and buffer hold.

    A waiting record is the entry of its side's store with its key, timestamp and value. It keeps the headers
    of whichever of the two has any. One that the store has not (any more) becomes a row of its own.

    Args:
        rules: What the join is.
        stored: Entries per side; expired ones are left out here.
        unmatched: The buffer's lists.
        clock: The task's times.
    """
    table = _table(stored)
    lists = list(unmatched)
    if lists:
        table = _with_buffer(table, lists)
    sides = table["side"].combine_chunks()
    left = np.frombuffer(sides.buffers()[1], np.int8)[sides.offset :][: len(sides)] == Side.LEFT.value
    observed = np.where(left, clock.observed[Side.LEFT], clock.observed[Side.RIGHT])
    readable = numbers_of(table["timestamp"].combine_chunks()) >= observed - (rules.retention_ms - 1)
    table = table.filter(pc.or_(_flags(readable), table["buffered"]))
    table = table.sort_by([(name, "ascending") for name in ("timestamp", "side", "key", "order")])
    columns = {name: table[name].combine_chunks() for name in STATE_SCHEMA.names if name != "seq"}
    columns["seq"] = int64_array(np.arange(len(table), dtype=np.int64))
    ordered = [columns[name] for name in STATE_SCHEMA.names]
    return JoinState(rules.fingerprint, pa.table(ordered, schema=STATE_SCHEMA), clock)


def state_of(join: StreamJoin) -> JoinState:
    """Return what a scalar engine holds now; the engine may continue."""
    stored = []
    for side in Side:
        entries = list(join.stores.of(side).inner.all())
        stored.append(
            Stored(
                side,
                column_of([key.key for key, _ in entries]),
                int64_array(np.array([key.timestamp for key, _ in entries], np.int64)),
                int64_array(np.array([key.seqnum for key, _ in entries], np.int64)),
                column_of([payload for _, payload in entries]),
            )
        )
        if join.rules.type is JoinType.SELF:
            stored[-1] = stored[-1]._replace(side=Side.LEFT)
            break
    unmatched = []
    if join.stores.buffer is not None:
        unmatched = [Unmatched(*key, waiting) for key, waiting in join.stores.buffer.walk()]
    return state_from(join.rules, stored, unmatched, join.clock)


def fill_stores(state: JoinState, rules: JoinRules, stores: JoinStores) -> None:
    """Put a state into empty stores; the scalar engine then continues with `state.clock`.

    Raises:
        UsageError: The state is another join's.
    """
    state.check(rules)
    for batch in state.records.to_batches():
        for row in batch.to_pylist():
            side = Side(row["side"])
            timestamp, key, payload = row["timestamp"], row["key"], row["payload"]
            # What no record can read any more is not put: the store would only count it as expired.
            if timestamp > state.clock.observed[side] - rules.retention_ms:
                stores.of(side).inner.put(key, payload, timestamp)
            if row["buffered"]:
                assert stores.buffer is not None
                headers, at = decode_prefix(payload)
                stores.buffer.append(timestamp, side, key, payload[at:], headers)


def _table(stored: Iterable[Stored]) -> pa.Table:
    tables = [_EMPTY]
    for each in stored:
        count = len(each.keys)
        order = numbers_of(each.seqnums) * _ORDER_STEP
        side = pa.repeat(pa.scalar(each.side.value, pa.int8()), count)
        buffered = pa.repeat(pa.scalar(value=False), count)
        keys, payloads = (column.cast(pa.large_binary()) for column in (each.keys, each.payloads))
        columns = [side, keys, each.timestamps, int64_array(order), payloads, buffered]
        tables.append(pa.table(columns, schema=_WORK_SCHEMA))
    return pa.concat_tables(tables).combine_chunks()


class _Row(NamedTuple):
    """A stored entry that may be a waiting record."""

    number: int
    order: int
    payload: bytes


def _with_buffer(table: pa.Table, lists: list[Unmatched]) -> pa.Table:
    """Mark the rows that wait, and add a row for each waiting record that is in no store."""
    times = pa.array({each.timestamp for each in lists}, pa.int64())
    chosen = pc.indices_nonzero(pc.is_in(table["timestamp"].combine_chunks(), times))
    groups: dict[tuple[int, int, bytes], list[_Row]] = {}
    for number, row in zip(chosen.to_pylist(), table.take(chosen).to_pylist(), strict=True):
        at = (row["timestamp"], row["side"], row["key"])
        groups.setdefault(at, []).append(_Row(number, row["order"], row["payload"]))
    waits = np.zeros(len(table), dtype=np.bool_)
    replaced: dict[int, bytes] = {}
    added: list[dict[str, object]] = []
    for each in lists:
        rows = sorted(groups.get((each.timestamp, each.side.value, each.key), ()), key=lambda row: row.order)
        # From the end, so that one without an entry gets its place just before its successor's.
        order = _ORDER_STEP * (_ORDER_STEP << 12)
        for waiting, row in reversed(_paired(each.waiting, rows)):
            if row is None:
                order -= 1
                added.append(
                    {
                        "side": each.side.value,
                        "key": each.key,
                        "timestamp": each.timestamp,
                        "order": order,
                        "payload": encode_prefix(waiting.headers) + waiting.value,
                        "buffered": True,
                    }
                )
                continue
            order = row.order
            waits[row.number] = True
            if waiting.headers and row.payload[:1] == b"\x00":
                replaced[row.number] = encode_prefix(waiting.headers) + waiting.value
    table = table.set_column(table.column_names.index("buffered"), "buffered", _flags(waits))
    if replaced:
        payloads = table["payload"].to_pylist()
        for number, payload in replaced.items():
            payloads[number] = payload
        table = table.set_column(table.column_names.index("payload"), "payload", column_of(payloads))
    if added:
        table = pa.concat_tables([table, pa.Table.from_pylist(added, schema=_WORK_SCHEMA)])
    return table.combine_chunks()


def _paired(waiting: list[Waiting], rows: list[_Row]) -> list[tuple[Waiting, _Row | None]]:
    """Find for each waiting record its stored entry: the next one with its value."""
    paired: list[tuple[Waiting, _Row | None]] = []
    at = 0
    for each in waiting:
        found = next(
            (
                number
                for number in range(at, len(rows))
                if rows[number].payload[prefix_bounds(rows[number].payload)[1] :] == each.value
            ),
            None,
        )
        paired.append((each, None if found is None else rows[found]))
        at = at if found is None else found + 1
    return paired


def _flags(flags: npt.NDArray[np.bool_]) -> pa.Array:
    bits = pa.py_buffer(np.packbits(flags, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, bits])


def adopted(states: Sequence[JoinState], tasks: int, rules: JoinRules) -> list[TaskState]:
    """Make task states of handed-over ones, in the order of their partitions.

    Raises:
        UsageError: There is none, or one belongs to another join.
        SerializationError: The headers of a record are damaged.
    """
    if not states:
        raise UsageError("There is no initial state to start from.", next_step="Leave initial_state out.")
    for state in states:
        state.check(rules)
    each = [_task_state(state, rules) for state in states]
    return each if len(each) == tasks == 1 else rescaled(each, tasks, rules)


def _task_state(state: JoinState, rules: JoinRules) -> TaskState:
    sides = (Side.LEFT,) if rules.type is JoinType.SELF else (Side.LEFT, Side.RIGHT)
    numbers = Numbers(0)
    found = {}
    for side in sides:
        mine = state.records.filter(pa.array(np.asarray(state.records.column("side")) == side.value))
        mine = mine.sort_by("seq")
        keys = _binary(mine.column("key"))
        blocks, values = split_prefix(_binary(mine.column("payload")))
        records = pa.RecordBatch.from_arrays([keys, canonical_headers(blocks), values], schema=RECORD_SCHEMA)
        rows = Rows(
            records,
            np.asarray(mine.column("timestamp"), np.int64),
            np.asarray(mine.column("seq"), np.int64),
            hash_keys(keys),
        )
        waiting = np.asarray(mine.column("buffered"), np.bool_)
        found[side] = SideState.of(cut(rows, waiting, rules.retention_ms, numbers))
    clock = state.clock
    observed = {side: clock.observed[side] for side in sides}
    times = JoinClock(clock.stream_time, observed, clock.min_time, clock.next_emit_ms)
    return TaskState(times, state.next_seq, numbers.following, found)


def _binary(column: pa.ChunkedArray) -> pa.Array:
    cast = column.cast(pa.binary())
    return cast.combine_chunks() if cast.num_chunks != 1 else cast.chunk(0)


def rescaled(states: Sequence[TaskState], tasks: int, rules: JoinRules) -> list[TaskState]:
    """Deal the states of all tasks out among `tasks` new ones."""
    old = len(states)
    step = gcd(old, tasks)
    next_seq = max(state.next_seq for state in states) * old + old
    sides = tuple(states[0].sides)
    shares = {side: _shares(states, side, tasks) for side in sides}
    found = []
    inputs = dealt(states, tasks)
    for task in range(tasks):
        clock = _clock([states[each] for each in range(task % step, old, step)])
        numbers = Numbers(0)
        state = {side: _side(shares[side][task], clock.observed[side], rules, numbers) for side in sides}
        held = {
            each_side: tuple(
                replace(each, chunk=replace(each.chunk, number=numbers.take())) for each in chunks
            )
            for each_side, chunks in inputs[task].held.items()
        }
        mine = replace(inputs[task], held=held)
        # Numbers of results go on above those of all tasks: none of a task's comes twice.
        results = max(each.results for each in states)
        found.append(TaskState(clock, next_seq, numbers.following, state, mine, results))
    return found


def _shares(states: Sequence[TaskState], side: Side, tasks: int) -> list[list[tuple[Rows, Bool]]]:
    """Return one side's records, and which of them wait, by new task."""
    shares: list[list[tuple[Rows, Bool]]] = [[] for _ in range(tasks)]
    for number, state in enumerate(states):
        kept = state.sides[side]
        for chunk, waiting in zip(kept.chunks, kept.waiting, strict=True):
            rows = chunk.data
            flags = np.zeros(len(rows), np.bool_)
            flags[waiting] = True
            moved = Rows(rows.records, rows.ts, rows.seq * len(states) + number, rows.hashes)
            where = task_of(rows.records.column("key"), tasks)
            for task in np.unique(where):
                chosen = np.flatnonzero(where == task)
                shares[task].append((moved.take(chosen), flags[chosen]))
    return shares


def _side(parts: list[tuple[Rows, Bool]], observed: int, rules: JoinRules, numbers: Numbers) -> SideState:
    if not parts:
        return SideState()
    rows, order = Rows.in_order([rows for rows, _ in parts])
    waiting = np.concatenate([flags for _, flags in parts])[order]
    matters = np.flatnonzero((rows.ts >= observed - rules.retention_ms + 1) | waiting)
    return SideState.of(cut(rows.take(matters), waiting[matters], rules.retention_ms, numbers))


def _clock(states: list[TaskState]) -> JoinClock:
    clocks = [state.clock for state in states]
    return JoinClock(
        max(clock.stream_time for clock in clocks),
        {side: max(clock.observed[side] for clock in clocks) for side in clocks[0].observed},
        min(clock.min_time for clock in clocks),
        max(clock.next_emit_ms for clock in clocks),
    )
