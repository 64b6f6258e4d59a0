"""Window stores as Kafka Streams has them, and KIP-1300's with headers, in memory and on RocksDB.

::

    formats/window_values, window_keys     the bytes

    segments, segment, segmented           time segments, retention, reads: one logic …
    rocks, layouts, locks                  … on RocksDB: one open database, where what lies in it, who owns it
    rocks_segment, rocks_store             segments and stores on it
    segment_copy, swap                     a segment rewritten aside and put in its place
    directory, migration                   directories that Kafka Streams left: reading and rewriting them
    contract, adapters, changelog, caching, metered, wrapped, serdes, values
                                           the layers of the KIP, one class each, and what goes through them
    stores                                 suppliers and builders

    rules                                  the windowed join: windows, type, headers, counters
    join_scalar, join_stores               … on these stores, one record at a time: the oracle
    outer_buffer, rocks_buffer             its records that wait for a partner
    join_batch                             … a batch at a time
      join_arrival, join_batch_arranged      in which order records come
      join_batch_runs, join_batch_pairs      who meets whom
      join_batch_waiting, join_batch_expiry  who meets nobody, and when that is sure
      join_batch_results                     what comes out
      join_chunks, join_chunk_codec, join_chunk_cache   its state, in chunks of columns
      join_keys                              which task a key belongs to
    join_state, join_handover, join_adopt  what a join keeps, also where Kafka Streams stopped
    join_rescale                           the same state for another number of tasks
    join_scenario, join_replay, join_fates time-lines to try a join on, and what became of each record
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
