"""Kafka Streams, byte for byte: window stores with headers (KIP-1300), and the windowed join they serve.

::

    bytes/       headers, window values and keys, the join's buffer            no I/O
    stores/      window stores in memory and on RocksDB, and the layers of the KIP
    migration/   directories that Kafka Streams left: read, and rewritten in another format
    join/        the windowed join: by the record on these stores, which is the oracle; by the batch on Arrow,
                 which is what Spark runs; its state, taken over from Kafka Streams and rescaled

Names are loaded when they are first used: a program that only reads headers does not pay for RocksDB.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headpond.kstreams.bytes.headers import Header, Headers, SerializationError
    from headpond.kstreams.bytes.join_buffer import BufferFormat, Side
    from headpond.kstreams.bytes.window_keys import WindowKey
    from headpond.kstreams.bytes.window_values import ValueFormat
    from headpond.kstreams.join.by_record import JoinRecord, JoinResult, StreamJoin
    from headpond.kstreams.join.kafka_state import TaskStores, find_task_stores, read_initial_state
    from headpond.kstreams.join.rules import (
        Emit,
        HeadersOf,
        JoinClock,
        JoinCounters,
        JoinRules,
        JoinType,
        JoinWindows,
    )
    from headpond.kstreams.join.state import JoinState
    from headpond.kstreams.join.stores import JoinStores, OuterJoinBuffer
    from headpond.kstreams.migration.directory import FormatStats, SegmentStats, StoredEntry, StoreDirectory
    from headpond.kstreams.migration.migrate import MigrationReport, migrate
    from headpond.kstreams.stores.contract import (
        ChangelogRecord,
        InconsistentStore,
        NotAStore,
        RecordContext,
        StoreClosed,
        StoreFormatMismatch,
        StoreLocked,
        TimestampsWouldBeLost,
        export_lines,
        read_export,
    )
    from headpond.kstreams.stores.segmented import WindowBytesStore
    from headpond.kstreams.stores.segments import StoreSettings
    from headpond.kstreams.stores.typed import (
        BytesSerde,
        JsonSerde,
        Serde,
        StringSerde,
        ValueAndHeaders,
        Windowed,
        WindowStoreWithHeaders,
    )

__all__ = [
    "BufferFormat", "BytesSerde", "ChangelogRecord", "Emit", "FormatStats", "Header", "Headers",
    "HeadersOf", "InconsistentStore", "JoinClock", "JoinCounters", "JoinRecord", "JoinResult",
    "JoinRules", "JoinState", "JoinStores", "JoinType", "JoinWindows", "JsonSerde", "MigrationReport",
    "NotAStore", "OuterJoinBuffer", "RecordContext", "SegmentStats", "Serde", "SerializationError",
    "Side", "StoreClosed", "StoreDirectory", "StoreFormatMismatch", "StoreLocked", "StoreSettings",
    "StoredEntry", "StreamJoin", "StringSerde", "TaskStores", "TimestampsWouldBeLost", "ValueAndHeaders",
    "ValueFormat", "WindowBytesStore", "WindowKey", "WindowStoreWithHeaders", "Windowed", "export_lines",
    "find_task_stores", "migrate", "read_export", "read_initial_state",
]  # fmt: skip
_MODULES = (
    "bytes.headers", "bytes.join_buffer", "bytes.window_keys", "bytes.window_values", "join.rules",
    "stores.contract", "stores.segments", "join.by_record", "join.kafka_state", "join.state", "join.stores",
    "migration.directory", "migration.migrate", "stores.segmented", "stores.typed",
)  # fmt: skip
"""Where the names are; modules that load RocksDB come last."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            found = getattr(import_module(f"{__name__}.{module}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__name__"]
