"""The stores of one join task: a window store for each side and the buffer of unmatched records.

::

    join      left store                right store                buffer (rocksdb/…)
    inner     <join>-this-join-store    <join>-other-join-store    —
    left      <join>-this-…             <join>-outer-other-…       <join>-left-shared-join-store
    outer     <join>-outer-this-…       <join>-outer-other-…       <join>-outer-shared-join-store
    self      <join>-this-join-store    the same                   —

Names and directories are Kafka Streams', so that an application's task directory opens as it is. Each side
is KIP-1300's `WindowStoreWithHeaders`: in memory, on RocksDB, or behind the adapter that an older format
needs, which may lose headers. Source: spec "window store", sections 5, 7 and 8.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headpond.errors import UsageError
from headpond.formats.outer_join_buffer import BufferFormat, Side
from headpond.formats.window_values import ValueFormat
from headpond.windows.changelog import RecordContext
from headpond.windows.outer_buffer import MemoryPairs, OuterJoinBuffer
from headpond.windows.rocks_buffer import RocksPairs
from headpond.windows.rules import NO_MIN_TIME, HeadersOf, JoinClock, JoinType
from headpond.windows.segments import StoreSettings
from headpond.windows.serdes import BytesSerde
from headpond.windows.stores import (
    InMemoryWindowBytesStoreSupplier,
    RocksDbWindowBytesStoreSupplier,
    Stores,
)

if TYPE_CHECKING:
    from headpond.windows.metered import WindowStoreWithHeaders
    from headpond.windows.rules import JoinRules
    from headpond.windows.stores import WindowBytesStoreSupplier

_KEY_VALUE_STORES = "rocksdb"


class JoinStoreNames(NamedTuple):
    """What a join's stores are called; None: the join has no such store."""

    left: str
    right: str | None
    buffer: str | None

    @classmethod
    def of(cls, rules: JoinRules, join: str) -> JoinStoreNames:
        """Give Kafka Streams' names for the join of that name."""
        left = f"{join}-outer-this-join-store" if rules.type is JoinType.OUTER else f"{join}-this-join-store"
        right = {
            JoinType.INNER: f"{join}-other-join-store",
            JoinType.LEFT: f"{join}-outer-other-join-store",
            JoinType.OUTER: f"{join}-outer-other-join-store",
            JoinType.SELF: None,
        }[rules.type]
        return cls(left, right, f"{join}-{rules.type}-shared-join-store" if rules.buffers else None)


class JoinStores:
    """A task's stores, open.

    Args:
        left: The left side's store.
        right: The right side's; the left one again in a self-join.
        buffer: The buffer; None for joins without unmatched results.
        context: The record being processed; shared with the stores' changelog layers.
    """

    def __init__(
        self,
        left: WindowStoreWithHeaders[bytes, bytes],
        right: WindowStoreWithHeaders[bytes, bytes],
        buffer: OuterJoinBuffer | None,
        context: RecordContext | None = None,
    ) -> None:
        self._sides = {Side.LEFT: left, Side.RIGHT: right}
        self.buffer = buffer
        self.context = context or RecordContext()

    @classmethod
    def build(
        cls,
        rules: JoinRules,
        directory: Path | str | None = None,
        *,
        store_format: ValueFormat = ValueFormat.PLAIN_HEADERS,
        buffer_format: BufferFormat = BufferFormat.HEADERS,
        join: str = "join",
    ) -> JoinStores:
        """Make or open the stores of a join.

        Stores on disk go on after the records that they hold: nothing is overwritten, and their greatest
        window start is the time that they have seen.

        Args:
            rules: What the join is.
            directory: The task's directory; None: in memory.
            store_format: The window stores' format on disk; an older one is met by its adapter.
            buffer_format: The buffer's.
            join: The join's name, which the stores' names begin with.
        """
        context = RecordContext()
        names = JoinStoreNames.of(rules, join)
        opened: list[WindowStoreWithHeaders[bytes, bytes]] = []
        try:
            for name in (names.left, names.right):
                if name is not None:
                    settings = store_settings(rules, name)
                    opened.append(_open(settings, store_format, directory, context))
            buffer = None
            if names.buffer is not None:
                buffer = _buffer(directory, names.buffer, buffer_format)
        except BaseException:
            for each in opened:
                each.close()
            raise
        return cls(opened[0], opened[-1], buffer, context)

    def of(self, side: Side) -> WindowStoreWithHeaders[bytes, bytes]:
        """Give a side's store."""
        return self._sides[side]

    def check(self, rules: JoinRules) -> None:
        """Refuse rules that these stores were not made for.

        Raises:
            UsageError: A store drops duplicates or has another retention, or the buffer is missing, not
                needed or without the headers that the rules ask for.
        """
        for each in self._sides.values():
            if not each.settings.retain_duplicates or each.settings.retention_ms != rules.retention_ms:
                raise UsageError(
                    f"Store {each.settings.name} is not one of this join, which keeps duplicates and "
                    f"retains {rules.retention_ms} ms: it retains {each.settings.retention_ms} ms and "
                    f"keeps {'' if each.settings.retain_duplicates else 'no '}duplicates.",
                    next_step="Make the stores with JoinStores.build and the same rules.",
                    name=each.settings.name,
                )
        if (self.buffer is not None) != rules.buffers:
            raise UsageError(
                f"A join of type {rules.type} has {'a' if rules.buffers else 'no'} buffer of unmatched "
                f"records, and these stores have {'one' if self.buffer is not None else 'none'}.",
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
        """Give each side's greatest window start, in ms; -1 for none."""
        return {side: store.observed_stream_time for side, store in self._sides.items()}

    def clock(self) -> JoinClock:
        """Tell a join's times from what the stores hold.

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


def store_settings(rules: JoinRules, name: str) -> StoreSettings:
    """Give the settings of a join's window store."""
    return StoreSettings(name, rules.retention_ms, rules.windows.size_ms, retain_duplicates=True)


def _open(
    settings: StoreSettings, store_format: ValueFormat, directory: Path | str | None, context: RecordContext
) -> WindowStoreWithHeaders[bytes, bytes]:
    supplier: WindowBytesStoreSupplier
    if directory is None:
        supplier = InMemoryWindowBytesStoreSupplier(settings, ValueFormat.PLAIN_HEADERS)
    else:
        supplier = RocksDbWindowBytesStoreSupplier(settings, store_format, recover_stream_time=True)
    return Stores.window_store_with_headers_builder(supplier, BytesSerde(), BytesSerde()).build(
        directory, context
    )


def _buffer(directory: Path | str | None, name: str, buffer_format: BufferFormat) -> OuterJoinBuffer:
    if directory is None:
        return OuterJoinBuffer(MemoryPairs(buffer_format))
    return OuterJoinBuffer(RocksPairs(Path(directory) / _KEY_VALUE_STORES / name, buffer_format))
