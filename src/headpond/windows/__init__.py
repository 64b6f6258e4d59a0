"""Window stores as Kafka Streams has them, and KIP-1300's with headers, in memory and on RocksDB.

::

    formats/window_values, window_keys     the bytes
    segments, segment, segmented           time segments, retention, reads: one logic …
    rocks, rocks_segment, rocks_store      … on RocksDB, with migration in place
    adapters, changelog, caching, metered  the layers of the KIP, one class each
    stores                                 suppliers and builders
    directory, migration                   directories that Kafka Streams left: reading and rewriting them
"""

from headpond.formats.headers import Header, Headers, SerializationError
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
from headpond.windows.rocks_store import (
    ROCKSDB_STORES,
    RocksDBTimestampedWindowStore,
    RocksDBTimestampedWindowStoreWithHeaders,
    RocksDBWindowStore,
    RocksDBWindowStoreWithHeaders,
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
    "BytesSerde",
    "CachingWindowStore",
    "ChangeLoggingWindowBytesStore",
    "ChangeLoggingWindowBytesStoreWithHeaders",
    "ChangelogRecord",
    "DslStoreFormat",
    "FormatAdapter",
    "FormatStats",
    "Header",
    "Headers",
    "InMemoryWindowBytesStoreSupplier",
    "InMemoryWindowStore",
    "InconsistentStore",
    "JsonSerde",
    "MeteredWindowStore",
    "MeteredWindowStoreWithHeaders",
    "MigrationReport",
    "NotAStore",
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
    "StoreClosed",
    "StoreDirectory",
    "StoreFormatMismatch",
    "StoreLocked",
    "StoreMetrics",
    "StoreSettings",
    "StoredEntry",
    "Stores",
    "StringSerde",
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
    "migrate",
    "read_export",
]
