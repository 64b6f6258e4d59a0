"""Continuing where a Kafka Streams application stopped: a join's state from directories or changelogs.

::

    <state directory>/<application>/<task>/
        <join>-this-join-store/, …-other-join-store/    window stores, in any format
        rocksdb/<join>-…-shared-join-store/             the buffer of unmatched records

A task's directory is one task's state, and so is one partition of the changelog topics. What neither holds
are numbers that lived in memory: each is taken from the records as well as it can be, or given by the caller.

The smallest time in the buffer is one of them: every round of emission sets it to the last entry that the
round looked at, and it decides when the next round is due; so it depends on what came before. The records
that are still there, expired ones included, are joined again in the order in which they must have come: each
side in the order of its sequence numbers, the two sides merged by the smaller time.
Source: spec "window store", sections 4, 7 and 8.
"""

from __future__ import annotations

import gzip
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count, repeat
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.errors import InvalidData, UsageError
from headpond.core.hashes import hash_keys
from headpond.kstreams.bytes.headers import Header, encode_headers
from headpond.kstreams.bytes.join_buffer import BufferFormat, Side
from headpond.kstreams.bytes.window_keys import WindowKey, decode_store_key
from headpond.kstreams.join.by_record import JoinRecord, StreamJoin
from headpond.kstreams.join.chunks import TaskState, cut
from headpond.kstreams.join.pairs import Bool, Int64, Rows
from headpond.kstreams.join.rules import NO_MIN_TIME, NO_TIME, HeadersOf, JoinClock, JoinRules, JoinType
from headpond.kstreams.join.state import JoinState
from headpond.kstreams.join.stores import (
    JoinStoreNames,
    JoinStores,
    MemoryPairs,
    OuterJoinBuffer,
    RocksPairs,
    Waiting,
)
from headpond.kstreams.migration.directory import StoreDirectory
from headpond.kstreams.stores.contract import ChangelogRecord, NotAStore, read_export
from headpond.kstreams.stores.rocks import is_database, require_directory
from headpond.kstreams.stores.segments import check_start

REPLAYED_RECORDS = 5_000
"""How many records of each side are replayed at most: the last ones."""
PHASES = 4
"""Times at which the first round may have been, except at once: over the time between two rounds."""
PART_BYTES = 256 << 20
"""About how many bytes of records are made into chunks at once."""
_ORDER_STEP = 1 << 20  # room between two stored entries for waiting ones that the store lost
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class TaskStores:
    """Where the stores of one join lie in a task's directory; None: that join has no such store."""

    left: Path
    right: Path | None = None
    buffer: Path | None = None


def find_task_stores(rules: JoinRules, task: Path | str, join: str | None = None) -> TaskStores:
    """Find a join's stores in a Kafka Streams task's directory by the names that Kafka Streams gives them.

    Args:
        rules: What the join is.
        task: The task's directory, `<state directory>/<application>/<task>`.
        join: The join's name, if the task has several.

    Raises:
        NotAStore: There is no join of that type (and name), there are several, or a store is missing.
    """
    task = Path(task)
    require_directory(task)
    left_end, right_end, buffer_end = JoinStoreNames.of(rules, "")
    names = sorted(
        each.name.removesuffix(left_end)
        for each in task.iterdir()
        if each.is_dir() and each.name.endswith(left_end)
    )
    if rules.type is not JoinType.OUTER:
        names = [each for each in names if not each.endswith("-outer")]
    found = [each for each in names if join in (None, each)]
    if len(found) != 1:
        shown = ", ".join(names) or "none"
        raise NotAStore(
            f"{task} has {len(found)} joins of type {rules.type}"
            + (f" called {join}" if join is not None else "")
            + f"; there is {shown}.",
            next_step="Check the type, name the join, or give the paths of its stores one by one.",
            path=str(task),
        )
    stores = TaskStores(
        task / f"{found[0]}{left_end}",
        None if right_end is None else task / f"{found[0]}{right_end}",
        None if buffer_end is None else task / "rocksdb" / f"{found[0]}{buffer_end}",
    )
    for each in (stores.right, stores.buffer):
        if each is not None and not each.is_dir():
            raise NotAStore(
                f"The join {found[0]} of type {rules.type} has no store at {each}.",
                next_step="Check the join's type; a store with a name of its own is given by its path.",
                path=str(each),
            )
    return stores


Source = Path | str | Iterable[ChangelogRecord]
"""A store's directory, a changelog export (JSON Lines, gzip allowed), or the changelog's records in order."""


def read_initial_state(
    rules: JoinRules,
    *,
    left: Source,
    right: Source | None = None,
    buffer: Source | None = None,
    stream_time: int | None = None,
    min_time: int | None = None,
    next_emit_ms: int = 0,
) -> JoinState:
    """Read what a stopped application's join task held.

    Nothing is changed on disk; the application must be stopped, or the stores copies. Entries that have
    expired and are still on disk are left out.

    Args:
        rules: The join; the same type, windows and grace as the application's.
        left: The left side's window store.
        right: The right side's; none in a self-join.
        buffer: The buffer of unmatched records, for left and outer joins.
        stream_time: The greatest timestamp that the task has seen. Without it: the greatest of all entries,
            which is lower if the newest record had no key or no value.
        min_time: The smallest timestamp in the buffer, as the application last knew it. Without it: what a
            replay of the stored records gives, else that of the buffer's first entry. Where it differs from
            the application's, the first expired records leave a few records of input earlier or later.
        next_emit_ms: Wall-clock time until which the throttle holds expired records back.

    Raises:
        UsageError: A source is missing or not one of this join.
        NotAStore: A path leads to no store.
        InvalidData: An entry is damaged, or contradicts another.
    """
    sources = {Side.LEFT: left, Side.RIGHT: right}
    _need(rules, "right", right, needed=rules.type is not JoinType.SELF)
    _need(rules, "buffer", buffer, needed=rules.buffers)
    stored = {side: _read_window(source, rules) for side, source in sources.items() if source is not None}
    unmatched = [] if buffer is None else _read_buffer(buffer)
    for each in unmatched:
        if not rules.is_outer(each.side):
            raise InvalidData(
                f"The buffer holds a record of the {each.side.name.lower()} side, whose records do not wait "
                f"in a join of type {rules.type}.",
                next_step="Check the join's type and which store is the buffer.",
                reason="bad_side",
            )
    observed = {side: int(each.ts.max(initial=NO_TIME)) for side, each in stored.items()}
    seen = max(NO_TIME, *observed.values(), *(each.timestamp for each in unmatched))
    if stream_time is not None and stream_time < seen:
        raise UsageError(
            f"stream_time is {stream_time}, and the stores hold a record of {seen}.",
            next_step="Pass the greatest timestamp that the task has seen, or none.",
            stream_time=stream_time,
            greatest=seen,
        )
    if min_time is None and rules.buffers:
        min_time = replayed_min_time(rules, stored, unmatched)
    if min_time is None:
        min_time = min((each.timestamp for each in unmatched), default=NO_MIN_TIME)
    clock = JoinClock(seen if stream_time is None else stream_time, observed, min_time, next_emit_ms)
    numbers, next_seq = count(0), 0
    sides = {}
    for side, entries in stored.items():
        rows, waiting = _together(entries, [each for each in unmatched if each.side is side])
        kept = np.flatnonzero((rows.ts >= observed[side] - rules.retention_ms + 1) | waiting)
        size = max(1, PART_BYTES * len(rows) // max(1, int(rows.records.nbytes)))
        parts = [kept[start : start + size] for start in range(0, len(kept), size)]
        sides[side] = tuple(
            each
            for part in parts
            for each in cut(_narrow(rows.take(part)), waiting[part], rules.retention_ms, numbers)
        )
        next_seq = max(next_seq, len(rows))
    return JoinState(rules.fingerprint, TaskState(clock, next_seq, next(numbers), sides))


def _need(rules: JoinRules, name: str, source: object, *, needed: bool) -> None:
    if needed is not (source is not None):
        raise UsageError(
            f"A join of type {rules.type} {'needs a' if needed else 'has no'} {name} store, and "
            f"{'none' if source is None else 'one'} is given.",
            next_step="Check the join's type, or give the stores that it has.",
            option=name,
        )


class Stored(NamedTuple):
    """Entries of one side's window store, in any order; `order` is that of a key's entries of one time."""

    keys: pa.Array
    headers: pa.Array
    values: pa.Array
    ts: Int64
    order: Int64


class Unmatched(NamedTuple):
    """A list of the buffer."""

    timestamp: int
    side: Side
    key: bytes
    waiting: list[Waiting]


def _read_window(source: Source, rules: JoinRules) -> Stored:
    if isinstance(source, str | Path) and Path(source).is_dir():
        return _window_of_directory(Path(source), rules)
    # Of one key the last record counts; a value of None deletes.
    latest = {record.key: record for record in _records(source)}
    return _stored(
        (decode_store_key(key), each.headers, each.value)
        for key, each in latest.items()
        if each.value is not None
    )


def _window_of_directory(path: Path, rules: JoinRules) -> Stored:
    if not any(path.iterdir()):
        return _stored(())  # a side that has had no record yet has no segments
    store = StoreDirectory(path)
    for segment in store.segments:
        if not segment.name.legacy:
            check_start(segment.path, segment.name.start_ms, rules.retention_ms)
    return _stored((each.key, each.headers, each.value) for each in store.entries())


def _stored(entries: Iterable[tuple[WindowKey, Sequence[Header], bytes]]) -> Stored:
    found = [(*key, encode_headers(headers), value) for key, headers, value in entries]
    keys, ts, order, blocks, values = ([row[column] for row in found] for column in range(5))
    keys, blocks, values = (pa.array(each, pa.large_binary()) for each in (keys, blocks, values))
    return Stored(keys, blocks, values, np.array(ts, np.int64), np.array(order, np.int64) * _ORDER_STEP)


def _narrow(rows: Rows) -> Rows:
    """Return rows with the join's own types: a side may have more bytes than one array of them holds."""
    columns = [column.cast(pa.binary()) for column in rows.records.columns]
    records = pa.RecordBatch.from_arrays(columns, names=rows.records.schema.names)
    return replace(rows, records=records)


def _together(stored: Stored, unmatched: list[Unmatched]) -> tuple[Rows, Bool]:
    """Put one side's records into an order of arrival, and say which of them wait.

    A waiting record is the entry of its side's store with its key, timestamp and value. It keeps the headers
    of whichever of the two has any. One that the store has not (any more) becomes a row of its own.
    """
    wanted = {(each.timestamp, each.key) for each in unmatched}
    groups: dict[tuple[int, bytes], list[int]] = {}
    if wanted:
        for row in np.flatnonzero(np.isin(stored.ts, [ts for ts, _ in wanted])).tolist():
            groups.setdefault((int(stored.ts[row]), stored.keys[row].as_py()), []).append(row)
    headers: dict[int, bytes] = {}
    waits: list[int] = []
    added: list[tuple[bytes, bytes, bytes, int, int]] = []
    for each in unmatched:
        rows = sorted(groups.get((each.timestamp, each.key), ()), key=lambda row: stored.order[row])
        # From the end, so that one without an entry gets its place just before its successor's.
        order = _ORDER_STEP * (_ORDER_STEP << 12)
        for waiting, entry in reversed(_paired(each.waiting, rows, stored.values)):
            own = encode_headers(waiting.headers)
            if entry is None:
                order -= 1
                added.append((each.key, own, waiting.value, each.timestamp, order))
                continue
            order = int(stored.order[entry])
            waits.append(entry)
            if own and not stored.headers[entry].as_py():
                headers[entry] = own
    known = stored.headers
    if headers:
        every = enumerate(known.to_pylist())
        known = pa.array([headers.get(row, each) for row, each in every], pa.large_binary())
    more = [[row[column] for row in added] for column in range(5)]
    columns = [
        pa.concat_arrays([first, pa.array(rest, pa.large_binary())])
        for first, rest in zip((stored.keys, known, stored.values), more[:3], strict=True)
    ]
    ts = np.append(stored.ts, np.array(more[3], np.int64))
    arrived = np.append(stored.order, np.array(more[4], np.int64))
    flags = np.zeros(len(ts), np.bool_)
    flags[waits] = True
    flags[len(stored.ts) :] = True
    sorting = pa.table({"ts": ts, "key": columns[0], "order": arrived})
    place = pc.sort_indices(sorting, [(name, "ascending") for name in sorting.column_names])
    records = pa.RecordBatch.from_arrays(columns, names=["key", "headers", "value"]).take(place)
    at = place.to_numpy()
    seq = np.arange(len(at), dtype=np.int64)
    return Rows(records, ts[at], seq, hash_keys(records.column("key"))), flags[at]


def _paired(waiting: list[Waiting], rows: list[int], values: pa.Array) -> list[tuple[Waiting, int | None]]:
    """Find for each waiting record its stored entry: the next one with its value."""
    paired: list[tuple[Waiting, int | None]] = []
    at = 0
    for each in waiting:
        found = next((n for n in range(at, len(rows)) if values[rows[n]].as_py() == each.value), None)
        paired.append((each, None if found is None else rows[found]))
        at = at if found is None else found + 1
    return paired


def _read_buffer(source: Source) -> list[Unmatched]:
    if isinstance(source, str | Path) and Path(source).is_dir():
        path = Path(source)
        if not is_database(path):
            raise NotAStore(
                f"{path} holds no RocksDB.",
                next_step="Name the buffer's directory: <task>/rocksdb/<join>-…-shared-join-store.",
                path=str(path),
            )
        buffer = OuterJoinBuffer(RocksPairs(path, BufferFormat.HEADERS, read_only=True))
    else:
        buffer = OuterJoinBuffer(MemoryPairs(BufferFormat.HEADERS))
        buffer.restore(_records(source))
    try:
        return [Unmatched(*key, waiting) for key, waiting in buffer.walk()]
    finally:
        buffer.close()


def _records(source: Source) -> Iterator[ChangelogRecord]:
    if not isinstance(source, str | Path):
        yield from source
        return
    path = Path(source)
    if not path.is_file():
        raise NotAStore(
            f"There is no store and no changelog export at {path}.",
            next_step="Name a store's directory, or its changelog as JSON Lines.",
            path=str(path),
        )
    with path.open("rb") as file:
        compressed = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        yield from read_export(gzip.GzipFile(fileobj=file) if compressed else file)


def replayed_min_time(
    rules: JoinRules, stored: Mapping[Side, Stored], unmatched: Sequence[Unmatched]
) -> int | None:
    """Find the smallest time in the buffer.

    The records on disk begin in the middle of the application's life, at an unknown time between two rounds.
    So they are played from several such times; None where these do not all end with the application's buffer
    and with one number.
    """
    records = list(_merged([list(_arrivals(side, each)) for side, each in stored.items()]))
    waits = [
        (each.timestamp, each.side, each.key, waiting.value) for each in unmatched for waiting in each.waiting
    ]
    first = min((record.timestamp for record in records), default=0)
    period = max(map(rules.after_ms, Side)) + rules.windows.grace_ms
    starts = [NO_MIN_TIME, *(first - period + period * number // PHASES for number in range(1, PHASES + 1))]
    found: set[int | None] = set()
    for start in starts:
        found.add(_replayed(rules, records, waits, start))
        if len(found) > 1 or None in found:
            return None
    return found.pop()


def _replayed(
    rules: JoinRules, records: list[JoinRecord], waits: list[tuple[int, Side, bytes, bytes]], start: int
) -> int | None:
    quiet = replace(rules, headers=HeadersOf.TRIGGER, emit_interval_ms=0)
    stores = JoinStores.build(quiet, buffer_format=BufferFormat.PLAIN)
    with StreamJoin(quiet, stores, JoinClock(min_time=start)) as join:
        for record in records:
            join.process(record)
        found = [(timestamp, side, key, each.value) for timestamp, side, key, each in join.waiting()]
        return join.clock.min_time if found == waits else None


def _arrivals(side: Side, stored: Stored) -> Iterator[JoinRecord]:
    last = np.argsort(stored.order, kind="stable")[-REPLAYED_RECORDS:]
    columns = (each.take(pa.array(last)).to_pylist() for each in (stored.keys, stored.values))
    for key, value, timestamp in zip(*columns, stored.ts[last].tolist(), strict=True):
        yield JoinRecord(side, key, value, timestamp)


def _merged(sides: list[list[JoinRecord]]) -> Iterator[JoinRecord]:
    """Yield from the side whose next record is the earlier one; what is behind follows its predecessor."""
    queues = [
        zip(accumulate((each.timestamp for each in side), max), repeat(number), side, strict=False)
        for number, side in enumerate(sides)
    ]
    return (record for *_, record in heapq.merge(*queues, key=itemgetter(0, 1)))
