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
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import int64_array
from headpond.core.errors import InvalidData, UsageError
from headpond.kstreams.bytes.headers import SerializationError, decode_prefix, encode_prefix, prefix_bounds
from headpond.kstreams.bytes.join_buffer import BufferFormat, Side
from headpond.kstreams.bytes.window_keys import SUFFIX_BYTES, decode_store_key
from headpond.kstreams.bytes.window_values import ValueFormat
from headpond.kstreams.bytes.window_values_arrow import column_of, convert_values, numbers_of, window_starts
from headpond.kstreams.join.by_record import JoinRecord, StreamJoin
from headpond.kstreams.join.rules import NO_MIN_TIME, NO_TIME, HeadersOf, JoinClock, JoinType
from headpond.kstreams.join.state import JoinState, Stored, Unmatched, state_from
from headpond.kstreams.join.stores import JoinStoreNames, JoinStores, MemoryPairs, OuterJoinBuffer, RocksPairs
from headpond.kstreams.migration.directory import StoreDirectory, damaged_entry, pairs_of
from headpond.kstreams.stores.changelog import read_export
from headpond.kstreams.stores.contract import ChangelogRecord, NotAStore
from headpond.kstreams.stores.rocks import is_database, require_directory
from headpond.kstreams.stores.segments import check_start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headpond.kstreams.join.rules import JoinRules
    from headpond.kstreams.migration.directory import SegmentFiles

REPLAYED_RECORDS = 5_000
"""Records of each side that are played again at most, the last ones."""
PHASES = 4
"""Times at which the first round may have been, except at once: over the time between two rounds."""
_SEQNUM_BYTES = 4
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
    stored = [_read_window(source, side, rules) for side, source in sources.items() if source is not None]
    unmatched = [] if buffer is None else _read_buffer(buffer)
    for each in unmatched:
        if not rules.is_outer(each.side):
            raise InvalidData(
                f"The buffer holds a record of the {each.side.name.lower()} side, whose records do not wait "
                f"in a join of type {rules.type}.",
                next_step="Check the join's type and which store is the buffer.",
                reason="bad_side",
            )
    observed = dict.fromkeys(Side, NO_TIME)
    for entries in stored:
        observed[entries.side] = int(numbers_of(entries.timestamps).max(initial=NO_TIME))
    if rules.type is JoinType.SELF:
        observed[Side.RIGHT] = observed[Side.LEFT]
    seen = max(*observed.values(), *(each.timestamp for each in unmatched), NO_TIME)
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
    return state_from(rules, stored, unmatched, clock)


def _need(rules: JoinRules, name: str, source: object, *, needed: bool) -> None:
    if needed is not (source is not None):
        raise UsageError(
            f"A join of type {rules.type} {'needs a' if needed else 'has no'} {name} store, and "
            f"{'none' if source is None else 'one'} is given.",
            next_step="Check the join's type, or give the stores that it has.",
            option=name,
        )


def _read_window(source: Source, side: Side, rules: JoinRules) -> Stored:
    if isinstance(source, str | Path) and Path(source).is_dir():
        return _window_of_directory(Path(source), side, rules)
    # Of one key the last record counts; a value of None deletes.
    latest = {record.key: record for record in _records(source)}
    kept = [record for record in latest.values() if record.value is not None]
    payloads = [encode_prefix(record.headers) + (record.value or b"") for record in kept]
    return _stored(side, [record.key for record in kept], column_of(payloads))


def _window_of_directory(path: Path, side: Side, rules: JoinRules) -> Stored:
    if not any(path.iterdir()):
        # A side that has had no record yet.
        return _stored(side, [], column_of([]))
    directory = StoreDirectory(path)
    keys: list[bytes] = []
    payloads = []
    for segment in directory.segments:
        if not segment.name.legacy:
            check_start(segment.path, segment.start_ms, rules.retention_ms)
        for value_format, (segment_keys, values) in _by_format(segment).items():
            keys += segment_keys
            payloads.append(_converted(segment, segment_keys, values, value_format))
    return _stored(side, keys, pa.concat_arrays(payloads) if payloads else column_of([]))


def _by_format(segment: SegmentFiles) -> dict[ValueFormat, tuple[list[bytes], list[bytes]]]:
    found: dict[ValueFormat, tuple[list[bytes], list[bytes]]] = {}
    with segment.open() as database:
        for key, value, value_format in pairs_of(database):
            keys, values = found.setdefault(value_format, ([], []))
            keys.append(key)
            values.append(value)
    return found


def _converted(
    segment: SegmentFiles, keys: list[bytes], values: list[bytes], value_format: ValueFormat
) -> pa.Array:
    row = 0
    try:
        payloads = convert_values(column_of(values), value_format, ValueFormat.PLAIN_HEADERS)
        if value_format.has_headers:
            # A conversion does not look into headers; the join will, in the middle of its stream.
            for row in range(len(payloads)):
                decode_prefix(payloads[row].as_py())
    except SerializationError as error:
        key = decode_store_key(keys[error.facts.get("row", row)])
        raise damaged_entry(error, segment.path, key) from error
    return payloads


def _stored(side: Side, stored_keys: list[bytes], payloads: pa.Array) -> Stored:
    keys = column_of(stored_keys)
    starts = window_starts(keys)
    suffixes = pc.binary_slice(keys, -_SEQNUM_BYTES)
    seqnums = np.frombuffer(b"".join(suffixes.to_pylist()), ">i4").astype(np.int64)
    return Stored(side, pc.binary_slice(keys, 0, -SUFFIX_BYTES), starts, int64_array(seqnums), payloads)


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
    rules: JoinRules, stored: Sequence[Stored], unmatched: Sequence[Unmatched]
) -> int | None:
    """Find the smallest time in the buffer.

    The records on disk begin in the middle of the application's life, at an unknown time between two rounds.
    So they are played from several such times; None where these do not all end with the application's buffer
    and with one number.
    """
    records = list(_merged([list(_arrivals(each)) for each in stored]))
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


def _arrivals(stored: Stored) -> Iterator[JoinRecord]:
    order = pc.sort_indices(stored.seqnums)[-REPLAYED_RECORDS:]
    columns = (each.take(order).to_pylist() for each in (stored.keys, stored.payloads, stored.timestamps))
    for key, payload, timestamp in zip(*columns, strict=True):
        yield JoinRecord(stored.side, key, payload[prefix_bounds(payload)[1] :], timestamp)


def _merged(sides: list[list[JoinRecord]]) -> Iterator[JoinRecord]:
    """Yield from the side whose next record is the earlier one; what is behind follows its predecessor."""
    at = [0] * len(sides)
    newest = [-1] * len(sides)
    for _ in range(sum(map(len, sides))):
        heads = [
            (max(newest[number], side[at[number]].timestamp), number)
            for number, side in enumerate(sides)
            if at[number] < len(side)
        ]
        newest_of, number = min(heads)
        newest[number] = newest_of
        yield sides[number][at[number]]
        at[number] += 1
