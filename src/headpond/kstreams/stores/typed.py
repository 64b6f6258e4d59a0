"""The typed window stores, and the only layer that serialises: below it everything is bytes.

::

    WindowStore                        V                         plain
    TimestampedWindowStore             ValueAndTimestamp[V]      timestamped
    TimestampedWindowStoreWithHeaders  ValueTimestampHeaders[V]  timestamped+headers
    WindowStoreWithHeaders             ValueAndHeaders[V]        plain+headers (KIP-1300)

    typed store (serialises) → [changelog] → [adapter] → store of bytes, in memory or on RocksDB

`WindowStoreWithHeaders.open(…)` puts the layers together; on a directory of an older format it adds the
adapter between the two.

A value's serializer is called with its headers before they are encoded and may change them; its
deserializer gets the decoded ones. A value of None, or a serializer's None, is a tombstone, whatever headers
come with it. A wrapper (`ValueAndHeaders` and the others) is a value of its own: two are equal if all they
carry is equal, order of headers included. Source: KIP-1300, "Public Interfaces", "New Store Wrapper Stack".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import orjson

from headpond.core.errors import UsageError
from headpond.kstreams.bytes.window_keys import window_end
from headpond.kstreams.bytes.window_values import (
    ValueFormat,
    decode_plain_headers,
    decode_timestamped,
    decode_timestamped_headers,
    encode_plain_headers,
    encode_timestamped,
    encode_timestamped_headers,
)
from headpond.kstreams.stores.layers import ChangeLoggingWindowBytesStore, RecordContext, adapted
from headpond.kstreams.stores.rocks_store import ROCKSDB_STORES
from headpond.kstreams.stores.segmented import InMemoryWindowStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    from headpond.kstreams.bytes.headers import Header
    from headpond.kstreams.stores.contract import ChangelogRecord, Entries, WindowBytesStore
    from headpond.kstreams.stores.segments import StoreSettings

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
W = TypeVar("W")


class Serde(Protocol[T]):
    """Turns values into bytes and back.

    It gets the record's headers with every call: formats exist that keep a schema's id in them. A serializer
    may also change them before they are stored, which is why they come as a list.
    """

    def serialize(self, value: T, headers: list[Header]) -> bytes | None:
        """Return the bytes; None makes the value a tombstone."""

    def deserialize(self, data: bytes, headers: list[Header]) -> T:
        """Return the value."""


class BytesSerde:
    """Bytes as they are."""

    def serialize(self, value: bytes, headers: list[Header]) -> bytes:
        """Return the bytes."""
        del headers
        return value

    def deserialize(self, data: bytes, headers: list[Header]) -> bytes:
        """Return the bytes."""
        del headers
        return data


class StringSerde:
    """Text as UTF-8."""

    def serialize(self, value: str, headers: list[Header]) -> bytes:
        """Encode."""
        del headers
        return value.encode()

    def deserialize(self, data: bytes, headers: list[Header]) -> str:
        """Decode; raise UnicodeDecodeError for what is not UTF-8."""
        del headers
        return data.decode()


class JsonSerde:
    """JSON documents; text must be well formed, numbers are 64 bits."""

    def serialize(self, value: Any, headers: list[Header]) -> bytes:
        """Encode."""
        del headers
        return orjson.dumps(value)

    def deserialize(self, data: bytes, headers: list[Header]) -> Any:
        """Decode; raise orjson.JSONDecodeError for what is not JSON."""
        del headers
        return orjson.loads(data)


@dataclass(frozen=True, slots=True)
class ValueAndHeaders(Generic[V]):
    """A value and its headers, in order; stored, a value of None is a tombstone."""

    value: V | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueAndTimestamp(Generic[V]):
    """A value and its timestamp (ms)."""

    value: V | None
    timestamp: int


@dataclass(frozen=True, slots=True)
class ValueTimestampHeaders(Generic[V]):
    """A value, its timestamp (ms) and its headers, in order."""

    value: V | None
    timestamp: int
    headers: tuple[Header, ...] = ()


class Windowed(NamedTuple, Generic[K]):
    """A key and its window, in ms; the end is exclusive."""

    key: K
    window_start: int
    window_end: int


class TypedWindowStore(ABC, Generic[K, V, W]):
    """A typed window store: keys K, values V, and W what is stored of a value.

    Args:
        inner: The layers below, ending in a store of this class's format.
        key_serde: Turns keys into bytes; it gets no headers.
        value_serde: Turns values into bytes.
        context: The record being processed; whoever puts keeps it up to date where changes are logged.

    Raises:
        UsageError: The store below is of another format.
    """

    FORMAT: ClassVar[ValueFormat]

    def __init__(
        self,
        inner: WindowBytesStore,
        key_serde: Serde[K],
        value_serde: Serde[V],
        context: RecordContext,
    ) -> None:
        if inner.value_format is not self.FORMAT:
            raise UsageError(
                f"{type(self).__name__} needs a {self.FORMAT} store, and {inner.settings.name} is "
                f"{inner.value_format}.",
                name=inner.settings.name,
            )
        self.inner = inner
        self.context = context
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._window_size_ms = inner.settings.window_size_ms

    @classmethod
    def open(
        cls,
        settings: StoreSettings,
        key_serde: Serde[K],
        value_serde: Serde[V],
        directory: Path | str | None = None,
        *,
        disk_format: ValueFormat | None = None,
        context: RecordContext | None = None,
        log: Callable[[ChangelogRecord], object] | None = None,
        first_seqnum: int | None = None,
        seed_counter: bool = True,
        recover_stream_time: bool = False,
    ) -> Self:
        """Make or open a store, in memory or at `directory/<name>`.

        Args:
            settings: Name, retention, window size, and whether duplicates are kept.
            key_serde: Turns keys into bytes.
            value_serde: Turns values into bytes.
            directory: The task's directory; None: in memory.
            disk_format: The format on disk, this class's unless given; an older one is met by its adapter.
            context: The record being processed.
            log: Gets the changelog record of every put.
            first_seqnum: See `ChangeLoggingWindowBytesStore`.
            seed_counter: See `SegmentedWindowStore`.
            recover_stream_time: See `SegmentedWindowStore`.

        Raises:
            UsageError: No adapter leads from the format on disk to this class's.
            StoreFormatMismatch, InconsistentStore, StoreLocked: As `RocksDBWindowStore`.
        """
        context = context or RecordContext()
        store: WindowBytesStore
        if directory is None:
            store = InMemoryWindowStore(settings, cls.FORMAT)
        else:
            store = ROCKSDB_STORES[disk_format or cls.FORMAT](
                Path(directory) / settings.name,
                settings,
                seed_counter=seed_counter,
                recover_stream_time=recover_stream_time,
            )
        try:
            store = adapted(store, cls.FORMAT)
            if log is not None:
                store = ChangeLoggingWindowBytesStore(store, log, context, first_seqnum=first_seqnum)
            return cls(store, key_serde, value_serde, context)
        except BaseException:
            store.close()
            raise

    @property
    def settings(self) -> StoreSettings:
        """Name, retention, window size, and whether duplicates are kept."""
        return self.inner.settings

    @property
    def observed_stream_time(self) -> int:
        """The greatest window start seen, in ms; -1 at first."""
        return self.inner.observed_stream_time

    @abstractmethod
    def _encode(self, value: W) -> bytes | None: ...

    @abstractmethod
    def _decode(self, data: bytes) -> W: ...

    def put(self, key: K, value: W | None, window_start: int) -> None:
        """Store a value; None deletes, or does nothing where duplicates are kept."""
        self.inner.put(self._key(key), None if value is None else self._encode(value), window_start)

    def fetch_at(self, key: K, window_start: int) -> W | None:
        """Read the value of exactly this key and window start."""
        data = self.inner.fetch_at(self._key(key), window_start)
        return None if data is None else self._decode(data)

    def fetch(
        self, key: K, time_from: int, time_to: int, *, backward: bool = False
    ) -> Iterator[tuple[int, W]]:
        """Read window starts and values of one key between two window starts, both included."""
        entries = self.inner.fetch(self._key(key), time_from, time_to, backward=backward)
        decode = self._decode
        return ((found.timestamp, decode(data)) for found, data in entries)

    def fetch_range(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int, *, backward: bool = False
    ) -> Iterator[tuple[Windowed[K], W]]:
        """Read windowed keys and values of a range of keys, by the order of their bytes."""
        entries = self.inner.fetch_range(
            None if key_from is None else self._key(key_from),
            None if key_to is None else self._key(key_to),
            time_from,
            time_to,
            backward=backward,
        )
        return self._typed(entries)

    def fetch_all(
        self, time_from: int, time_to: int, *, backward: bool = False
    ) -> Iterator[tuple[Windowed[K], W]]:
        """Read windowed keys and values between two window starts, both included."""
        entries = self.inner.fetch_all(time_from, time_to, backward=backward)
        return self._typed(entries)

    def all(self, *, backward: bool = False) -> Iterator[tuple[Windowed[K], W]]:
        """Read all windowed keys and values within the retention."""
        entries = self.inner.all(backward=backward)
        return self._typed(entries)

    def restore(self, records: Iterable[ChangelogRecord]) -> None:
        """Put records of the changelog back, in the format of the innermost store."""
        self.inner.restore(records)

    def flush(self, offsets: Mapping[str, int] | None = None) -> None:
        """Bring everything put so far to disk, then these changelog offsets."""
        self.inner.flush(offsets)

    def close(self) -> None:
        """Flush and close."""
        self.inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _key(self, key: K) -> bytes:
        data = self._key_serde.serialize(key, [])
        if data is None:
            raise UsageError(f"The key {key!r} of store {self.settings.name} has no bytes.")
        return data

    def _typed(self, entries: Entries) -> Iterator[tuple[Windowed[K], W]]:
        for found, data in entries:
            key = self._key_serde.deserialize(found.key, [])
            end = window_end(found.timestamp, self._window_size_ms)
            yield Windowed(key, found.timestamp, end), self._decode(data)

    def _value_bytes(self, value: V | None, headers: list[Header]) -> bytes | None:
        return None if value is None else self._value_serde.serialize(value, headers)


class WindowStore(TypedWindowStore[K, V, V]):
    """A window store of values alone."""

    FORMAT = ValueFormat.PLAIN

    def _encode(self, value: V) -> bytes | None:
        return self._value_bytes(value, list(self.context.headers))

    def _decode(self, data: bytes) -> V:
        return self._value_serde.deserialize(data, list(self.context.headers))


class TimestampedWindowStore(TypedWindowStore[K, V, ValueAndTimestamp[V]]):
    """A window store of values with timestamps."""

    FORMAT = ValueFormat.TIMESTAMPED

    def _encode(self, value: ValueAndTimestamp[V]) -> bytes | None:
        data = self._value_bytes(value.value, list(self.context.headers))
        return None if data is None else encode_timestamped(data, value.timestamp)

    def _decode(self, data: bytes) -> ValueAndTimestamp[V]:
        value, timestamp = decode_timestamped(data)
        return ValueAndTimestamp(self._value_serde.deserialize(value, list(self.context.headers)), timestamp)


class TimestampedWindowStoreWithHeaders(TypedWindowStore[K, V, ValueTimestampHeaders[V]]):
    """A window store of values with timestamps and headers."""

    FORMAT = ValueFormat.TIMESTAMPED_HEADERS

    def _encode(self, value: ValueTimestampHeaders[V]) -> bytes | None:
        headers = list(value.headers)
        data = self._value_bytes(value.value, headers)
        return None if data is None else encode_timestamped_headers(data, value.timestamp, headers)

    def _decode(self, data: bytes) -> ValueTimestampHeaders[V]:
        value, timestamp, headers = decode_timestamped_headers(data)
        return ValueTimestampHeaders(self._value_serde.deserialize(value, headers), timestamp, tuple(headers))


class WindowStoreWithHeaders(TypedWindowStore[K, V, ValueAndHeaders[V]]):
    """KIP-1300's window store: values with headers; the time is in the key alone."""

    FORMAT = ValueFormat.PLAIN_HEADERS

    def _encode(self, value: ValueAndHeaders[V]) -> bytes | None:
        headers = list(value.headers)
        data = self._value_bytes(value.value, headers)
        return None if data is None else encode_plain_headers(data, headers)

    def _decode(self, data: bytes) -> ValueAndHeaders[V]:
        if data[:1] == b"\x00":
            return ValueAndHeaders(self._value_serde.deserialize(data[1:], []))
        value, headers = decode_plain_headers(data)
        return ValueAndHeaders(self._value_serde.deserialize(value, headers), tuple(headers))
