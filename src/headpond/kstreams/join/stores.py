"""The stores of one join task: a window store for each side and the buffer of unmatched records.

::

    join      left store                right store                buffer (rocksdb/…)
    inner     <join>-this-join-store    <join>-other-join-store    —
    left      <join>-this-…             <join>-outer-other-…       <join>-left-shared-join-store
    outer     <join>-outer-this-…       <join>-outer-other-…       <join>-outer-shared-join-store
    self      <join>-this-join-store    the same                   —

Names and directories are Kafka Streams', so that an application's task directory opens as it is. Each side
is KIP-1300's `WindowStoreWithHeaders`: in memory, on RocksDB, or behind the adapter that an older format
needs, which may lose headers.

The buffer is one for both sides, in memory or in the directory of a Kafka Streams key-value store; it maps
time, side and key to a list of values in order of insertion::

    <task>/rocksdb/<buffer>/
        default                       lists as Kafka Streams writes them, without headers
        outerJoinBufferWithHeaders    lists whose elements have headers
        offsets                       changelog offsets, as in every store

A buffer with headers opened on a directory without them reads the old entries as having none. They stay
where they are until they leave, or until their list gets another element: then it moves as a whole. The
other way round fails. Writes skip the write-ahead log, as a window store's do.
Source: spec "window store", sections 5, 7 and 8.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headpond.core.errors import UsageError
from headpond.kstreams.bytes.headers import Header, SerializationError
from headpond.kstreams.bytes.join_buffer import (
    BufferFormat,
    BufferKey,
    Side,
    decode_buffer_element,
    decode_buffer_element_with_headers,
    decode_buffer_key,
    decode_buffer_list,
    encode_buffer_element,
    encode_buffer_element_with_headers,
    encode_buffer_key,
    encode_buffer_list,
    plain_list_to_headers,
)
from headpond.kstreams.bytes.window_values import ValueFormat
from headpond.kstreams.join.rules import NO_MIN_TIME, HeadersOf, JoinClock, JoinRules, JoinType
from headpond.kstreams.stores.contract import ChangelogRecord, RecordContext, StoreFormatMismatch
from headpond.kstreams.stores.rocks import DEFAULT, Layout, column_families
from headpond.kstreams.stores.rocks_store import RocksSegment
from headpond.kstreams.stores.segments import OrderedBytes, StoreSettings
from headpond.kstreams.stores.typed import BytesSerde, WindowStoreWithHeaders


class Waiting(NamedTuple):
    """One record's value in the buffer, with the headers that were kept of it."""

    value: bytes
    headers: tuple[Header, ...] = ()


class OuterJoinBuffer:
    """Unmatched records by time, side and key; several of one time, side and key are a list.

    Args:
        pairs: Where the bytes are, an ordered map; decides whether headers are kept.
        log: Gets key and list of every change, as Kafka Streams' changelog has them: elements without
            headers, None where the list is gone.
    """

    def __init__(
        self, pairs: MemoryPairs | RocksPairs, log: Callable[[bytes, bytes | None], object] | None = None
    ) -> None:
        self._pairs = pairs
        self._log = log

    @property
    def format(self) -> BufferFormat:
        """Whether headers are kept."""
        return self._pairs.format

    def append(
        self, timestamp: int, side: Side, key: bytes, value: bytes, headers: Iterable[Header] = ()
    ) -> None:
        """Put a record behind the others of its time, side and key."""
        stored = encode_buffer_key(timestamp, side, key)
        if self.format is BufferFormat.HEADERS:
            element = encode_buffer_element_with_headers(side, value, tuple(headers))
        else:
            element = encode_buffer_element(side, value)
        listed = self._pairs.get(stored)
        elements = [] if listed is None else decode_buffer_list(listed)
        elements.append(element)
        self._pairs.put(stored, encode_buffer_list(elements))
        if self._log is not None:
            values = (self._decode(each, side).value for each in elements)
            self._log(stored, encode_buffer_list([encode_buffer_element(side, each) for each in values]))

    def remove(self, timestamp: int, side: Side, key: bytes) -> None:
        """Remove all records of a time, side and key, if there are any."""
        stored = encode_buffer_key(timestamp, side, key)
        if self._log is not None and self._pairs.get(stored) is not None:
            self._log(stored, None)
        self._pairs.delete(stored)

    def walk(self) -> Iterator[tuple[BufferKey, list[Waiting]]]:
        """Read everything by time, right side before left, then by key; what was read may be removed.

        Raises:
            SerializationError: An entry is damaged; `facts["buffer_key"]` says which.
        """
        for stored, listed in self._pairs.scan():
            try:
                key = decode_buffer_key(stored)
                waiting = [self._decode(element, key.side) for element in decode_buffer_list(listed)]
            except SerializationError as error:
                raise SerializationError(
                    f"The buffer's entry {stored.hex()}: {error.message}",
                    next_step="Restore the buffer from its changelog.",
                    **{**error.facts, "buffer_key": stored.hex()},
                ) from error
            yield key, waiting

    def _decode(self, element: bytes, expected: Side) -> Waiting:
        if self.format is BufferFormat.HEADERS:
            side, value, headers = decode_buffer_element_with_headers(element)
        else:
            side, value = decode_buffer_element(element)
            headers = []
        if side is not expected:
            raise SerializationError(
                f"an element of the {side.name.lower()} side lies under a key of the other.",
                reason="bad_side",
            )
        return Waiting(value, tuple(headers))

    def restore(self, records: Iterable[ChangelogRecord]) -> None:
        """Put records of Kafka Streams' changelog back, which holds elements without headers."""
        for record in records:
            if record.value is None:
                self._pairs.delete(record.key)
            elif self.format is BufferFormat.HEADERS:
                self._pairs.put(record.key, plain_list_to_headers(record.value))
            else:
                self._pairs.put(record.key, record.value)

    def close(self) -> None:
        """Bring everything to disk and close."""
        self._pairs.close()


class MemoryPairs(OrderedBytes):
    """A buffer's bytes in memory."""

    def __init__(self, buffer_format: BufferFormat = BufferFormat.HEADERS) -> None:
        super().__init__()
        self.format = buffer_format

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Read all in order; each step looks its place up again, so keys may go and come meanwhile."""
        at = 0
        while at < len(self._keys):
            key = self._keys[at]
            yield key, self._values[key]
            at = bisect_right(self._keys, key)


BUFFER_WITH_HEADERS_COLUMN_FAMILY = "outerJoinBufferWithHeaders"
"""Kafka's change that gives the buffer headers is open and names no column family; this one is ours."""
_LAYOUTS = {
    BufferFormat.PLAIN: Layout("join buffer without headers", DEFAULT, {}),
    BufferFormat.HEADERS: Layout(
        "join buffer", BUFFER_WITH_HEADERS_COLUMN_FAMILY, {DEFAULT: plain_list_to_headers}
    ),
}


class RocksPairs(RocksSegment):
    """A buffer's bytes on RocksDB, in the directory of a Kafka Streams key-value store.

    Args:
        directory: The buffer's directory, `<task>/rocksdb/<buffer>`; made if it is not there.
        buffer_format: Without headers the directory stays one that Kafka Streams reads.
        read_only: Open for reading; the directory is not touched.

    Raises:
        StoreFormatMismatch: The directory has headers and `buffer_format` has none, or it is another store's.
        InconsistentStore: RocksDB cannot read it.
        StoreLocked: Somebody has it open.
    """

    def __init__(
        self,
        directory: Path | str,
        buffer_format: BufferFormat = BufferFormat.HEADERS,
        *,
        read_only: bool = False,
    ) -> None:
        self.format = buffer_format
        path = Path(directory)
        found = set(column_families(path))
        unknown = sorted(found - _LAYOUTS[BufferFormat.HEADERS].known)
        if unknown:
            raise StoreFormatMismatch(
                f"{path.name} has column families of no join buffer: {', '.join(unknown)}.",
                next_step="Name the directory of the join's shared store: <task>/rocksdb/<buffer>.",
                path=str(path),
                column_families=unknown,
            )
        if found - _LAYOUTS[buffer_format].known:
            raise StoreFormatMismatch(
                f"{path.name} keeps headers, which a buffer without them cannot read.",
                next_step="Open it with headers.",
                path=str(path),
            )
        super().__init__(path, _LAYOUTS[buffer_format], read_only=read_only)


class JoinStoreNames(NamedTuple):
    """What a join's stores are called; None: the join has no such store."""

    left: str
    right: str | None
    buffer: str | None

    @classmethod
    def of(cls, rules: JoinRules, join: str) -> JoinStoreNames:
        """Return Kafka Streams' names for the join of that name."""
        left = f"{join}-outer-this-join-store" if rules.type is JoinType.OUTER else f"{join}-this-join-store"
        right = f"{join}-{'outer-' if rules.buffers else ''}other-join-store"
        buffer = f"{join}-{rules.type}-shared-join-store"
        has_right = rules.type is not JoinType.SELF
        return cls(left, right if has_right else None, buffer if rules.buffers else None)


def _logged(
    log: Callable[[str, ChangelogRecord], object],
    name: str,
    context: RecordContext,
    key: bytes,
    value: bytes | None,
) -> None:
    log(name, ChangelogRecord(key, value, context.timestamp))


class JoinStores:
    """A task's stores, open; `build` makes them."""

    def __init__(
        self,
        rules: JoinRules,
        windows: list[WindowStoreWithHeaders[bytes, bytes]],
        buffer: OuterJoinBuffer | None,
        context: RecordContext,
    ) -> None:
        self._rules = rules
        # A self-join has one store for both sides.
        self._sides = {Side.LEFT: windows[0], Side.RIGHT: windows[-1]}
        self.buffer = buffer
        self.context = context

    @classmethod
    def build(
        cls,
        rules: JoinRules,
        directory: Path | str | None = None,
        *,
        store_format: ValueFormat = ValueFormat.PLAIN_HEADERS,
        buffer_format: BufferFormat = BufferFormat.HEADERS,
        join: str = "join",
        log: Callable[[str, ChangelogRecord], object] | None = None,
    ) -> JoinStores:
        """Make or open the stores of a join.

        Stores on disk continue after the records that they hold: nothing is overwritten, and their greatest
        window start is the time that they have seen.

        Args:
            rules: What the join is.
            directory: The task's directory; None: in memory.
            store_format: The window stores' format on disk; an older one is met by its adapter.
            buffer_format: The buffer's.
            join: The join's name, which the stores' names begin with.
            log: Gets the changelog record of every put into a window store and of every change of the
                buffer, and the store's name before it.
        """
        context = RecordContext()
        names = JoinStoreNames.of(rules, join)
        with ExitStack() as undo:
            windows = [
                undo.enter_context(
                    WindowStoreWithHeaders.open(
                        StoreSettings(
                            name, rules.retention_ms, rules.windows.size_ms, retain_duplicates=True
                        ),
                        BytesSerde(),
                        BytesSerde(),
                        directory,
                        disk_format=store_format,
                        context=context,
                        recover_stream_time=True,
                        log=None if log is None else partial(log, name),
                    )
                )
                for name in (names.left, names.right)
                if name is not None
            ]
            buffer = None
            if names.buffer is not None:
                pairs: MemoryPairs | RocksPairs = MemoryPairs(buffer_format)
                if directory is not None:
                    pairs = RocksPairs(Path(directory) / "rocksdb" / names.buffer, buffer_format)
                buffer = OuterJoinBuffer(
                    pairs, None if log is None else partial(_logged, log, names.buffer, context)
                )
            undo.pop_all()
        return cls(rules, windows, buffer, context)

    def of(self, side: Side) -> WindowStoreWithHeaders[bytes, bytes]:
        """Return a side's store."""
        return self._sides[side]

    def check(self, rules: JoinRules) -> None:
        """Raise for rules that these stores were not made for.

        Raises:
            UsageError: They are those of another join, or the buffer lacks headers that the rules ask for.
        """
        if rules.fingerprint != self._rules.fingerprint:
            raise UsageError(
                f"These stores are made for the join {self._rules.fingerprint}, and this one is "
                f"{rules.fingerprint}.",
                next_step="Make the stores with JoinStores.build and the same rules.",
            )
        if (
            self.buffer is not None
            and self.buffer.format is BufferFormat.PLAIN
            and rules.headers is not HeadersOf.TRIGGER
        ):
            raise UsageError(
                f"headers={rules.headers.value!r} gives unmatched results their own headers, and this buffer "
                "does not keep them.",
                next_step="Make the buffer with headers, or choose headers='trigger'.",
            )

    def observed_times(self) -> dict[Side, int]:
        """Return each side's greatest window start, in ms; -1 for none."""
        return {side: store.observed_stream_time for side, store in self._sides.items()}

    def clock(self) -> JoinClock:
        """Return a join's times as far as the stores show them.

        What they do not hold is taken as well as it can be: the stream time is the greatest window start (it
        was greater if the newest record had no key or no value), the buffer's smallest time its first
        entry's, and the throttle is free.
        """
        observed = self.observed_times()
        first = None if self.buffer is None else next(self.buffer.walk(), None)
        min_time = NO_MIN_TIME if first is None else first[0].timestamp
        return JoinClock(max(observed.values()), observed, min_time)

    def close(self) -> None:
        """Flush and close all."""
        for each in {id(store): store for store in self._sides.values()}.values():
            each.close()
        if self.buffer is not None:
            self.buffer.close()
