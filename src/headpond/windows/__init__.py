"""Window stores as Kafka Streams has them, and KIP-1300's with headers, in memory and on RocksDB.

::

    formats/window_values, window_keys     the bytes
    segments, segment, segmented           time segments, retention, reads: one logic …
    rocks, rocks_segment, rocks_store      … on RocksDB, with migration in place
    adapters, changelog, caching, metered  the layers of the KIP, one class each
    stores                                 suppliers and builders
    directory, migration                   directories that Kafka Streams left: reading and rewriting them
    rules                                  the windowed join: windows, type, headers, counters
    join_scalar, join_stores, outer_buffer the join on these stores, one record at a time
    join_state, join_handover              what a join keeps, also where Kafka Streams stopped
"""

from headpond.formats.headers import Header, Headers, SerializationError
from headpond.formats.outer_join_buffer import BufferFormat, Side
from headpond.formats.window_keys import WindowKey
from headpond.formats.window_values import ValueFormat
from headpond.windows.adapters import (
    FormatAdapter,
    PlainToHeadersWindowStoreAdapter,
    PlainToPlainHeadersWindowStoreAdapter,
    TimestampedHeadersToPlainHeadersWindowStoreAdapter,
    TimestampedToHeadersWindowStoreAdapter,
    TimestampedToPlainHeadersWindowStoreAdapter,
    adapted,
)
from headpond.windows.caching import CachingWindowStore
from headpond.windows.changelog import (
    ChangeLoggingWindowBytesStore,
    ChangeLoggingWindowBytesStoreWithHeaders,
    RecordContext,
    export_lines,
    read_export,
)
from headpond.windows.contract import ChangelogRecord, WindowBytesStore
from headpond.windows.directory import FormatStats, SegmentStats, StoredEntry, StoreDirectory
from headpond.windows.errors import (
    InconsistentStore,
    NotAStore,
    StoreClosed,
    StoreFormatMismatch,
    StoreLocked,
    TimestampsWouldBeLost,
)
from headpond.windows.join_handover import TaskStores, find_task_stores, read_initial_state
from headpond.windows.join_scalar import JoinRecord, JoinResult, StreamJoin
from headpond.windows.join_state import JoinState, fill_stores, state_of
from headpond.windows.join_stores import JoinStores
from headpond.windows.metered import (
    MeteredWindowStore,
    MeteredWindowStoreWithHeaders,
    StoreMetrics,
    TimestampedWindowStore,
    TimestampedWindowStoreWithHeaders,
    Windowed,
    WindowStore,
    WindowStoreWithHeaders,
)
from headpond.windows.migration import MigrationReport, migrate
from headpond.windows.outer_buffer import OuterJoinBuffer
from headpond.windows.rocks_store import (
    ROCKSDB_STORES,
    RocksDBTimestampedWindowStore,
    RocksDBTimestampedWindowStoreWithHeaders,
    RocksDBWindowStore,
    RocksDBWindowStoreWithHeaders,
)
from headpond.windows.rules import (
    Emit,
    HeadersOf,
    JoinClock,
    JoinCounters,
    JoinRules,
    JoinType,
    JoinWindows,
)
from headpond.windows.segmented import InMemoryWindowStore
from headpond.windows.segments import StoreSettings
from headpond.windows.serdes import BytesSerde, JsonSerde, Serde, StringSerde
from headpond.windows.stores import (
    DslStoreFormat,
    InMemoryWindowBytesStoreSupplier,
    RocksDBDslStoreSuppliers,
    RocksDbWindowBytesStoreSupplier,
    Stores,
    WindowBytesStoreSupplier,
    WindowStoreBuilder,
    WindowStoreWithHeadersBuilder,
)
from headpond.windows.values import ValueAndHeaders, ValueAndTimestamp, ValueTimestampHeaders

__all__ = [
    "ROCKSDB_STORES",
    "BufferFormat",
    "BytesSerde",
    "CachingWindowStore",
    "ChangeLoggingWindowBytesStore",
    "ChangeLoggingWindowBytesStoreWithHeaders",
    "ChangelogRecord",
    "DslStoreFormat",
    "Emit",
    "FormatAdapter",
    "FormatStats",
    "Header",
    "Headers",
    "HeadersOf",
    "InMemoryWindowBytesStoreSupplier",
    "InMemoryWindowStore",
    "InconsistentStore",
    "JoinClock",
    "JoinCounters",
    "JoinRecord",
    "JoinResult",
    "JoinRules",
    "JoinState",
    "JoinStores",
    "JoinType",
    "JoinWindows",
    "JsonSerde",
    "MeteredWindowStore",
    "MeteredWindowStoreWithHeaders",
    "MigrationReport",
    "NotAStore",
    "OuterJoinBuffer",
    "PlainToHeadersWindowStoreAdapter",
    "PlainToPlainHeadersWindowStoreAdapter",
    "RecordContext",
    "RocksDBDslStoreSuppliers",
    "RocksDBTimestampedWindowStore",
    "RocksDBTimestampedWindowStoreWithHeaders",
    "RocksDBWindowStore",
    "RocksDBWindowStoreWithHeaders",
    "RocksDbWindowBytesStoreSupplier",
    "SegmentStats",
    "Serde",
    "SerializationError",
    "Side",
    "StoreClosed",
    "StoreDirectory",
    "StoreFormatMismatch",
    "StoreLocked",
    "StoreMetrics",
    "StoreSettings",
    "StoredEntry",
    "Stores",
    "StreamJoin",
    "StringSerde",
    "TaskStores",
    "TimestampedHeadersToPlainHeadersWindowStoreAdapter",
    "TimestampedToHeadersWindowStoreAdapter",
    "TimestampedToPlainHeadersWindowStoreAdapter",
    "TimestampedWindowStore",
    "TimestampedWindowStoreWithHeaders",
    "TimestampsWouldBeLost",
    "ValueAndHeaders",
    "ValueAndTimestamp",
    "ValueFormat",
    "ValueTimestampHeaders",
    "WindowBytesStore",
    "WindowBytesStoreSupplier",
    "WindowKey",
    "WindowStore",
    "WindowStoreBuilder",
    "WindowStoreWithHeaders",
    "WindowStoreWithHeadersBuilder",
    "Windowed",
    "adapted",
    "export_lines",
    "fill_stores",
    "find_task_stores",
    "migrate",
    "read_export",
    "read_initial_state",
    "state_of",
]
