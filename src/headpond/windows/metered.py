"""The typed window stores, and the only layer that serialises: below it everything is bytes.

::

    WindowStore                        V                         plain
    TimestampedWindowStore             ValueAndTimestamp[V]      timestamped
    TimestampedWindowStoreWithHeaders  ValueTimestampHeaders[V]  timestamped+headers
    WindowStoreWithHeaders             ValueAndHeaders[V]        plain+headers (KIP-1300)

A value's serializer is called with its headers before they are encoded and may change them; its
deserializer gets the decoded ones. A null value, or a serializer's None, is a tombstone, whatever headers
come with it. The layer also counts calls (`metrics`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, Self, TypeVar

from headpond.errors import UsageError
from headpond.formats.window_keys import window_end
from headpond.formats.window_values import (
    ValueFormat,
    decode_plain_headers,
    decode_timestamped,
    decode_timestamped_headers,
    encode_plain_headers,
    encode_timestamped,
    encode_timestamped_headers,
)
from headpond.windows.values import ValueAndHeaders, ValueAndTimestamp, ValueTimestampHeaders

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType

    from headpond.formats.headers import Header
    from headpond.windows.changelog import RecordContext
    from headpond.windows.contract import ChangelogRecord, Entries, WindowBytesStore
    from headpond.windows.segments import StoreSettings
    from headpond.windows.serdes import Serde

K = TypeVar("K")
V = TypeVar("V")
W = TypeVar("W")


class Windowed(NamedTuple, Generic[K]):
    """A key and its window, in ms; the end is exclusive."""

    key: K
    window_start: int
    window_end: int


@dataclass(slots=True)
class StoreMetrics:
    """Calls by what they do: single reads, reads of many, and the rest by name."""

    puts: int = 0
    fetches: int = 0
    scans: int = 0
    flushes: int = 0


class MeteredWindowStore(ABC, Generic[K, V, W]):
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
        self.metrics = StoreMetrics()
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._window_size_ms = inner.settings.window_size_ms

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
        self.metrics.puts += 1
        self.inner.put(self._key(key), None if value is None else self._encode(value), window_start)

    def fetch_at(self, key: K, window_start: int) -> W | None:
        """Read the value of exactly this key and window start."""
        self.metrics.fetches += 1
        data = self.inner.fetch_at(self._key(key), window_start)
        return None if data is None else self._decode(data)

    def fetch(
        self, key: K, time_from: int, time_to: int, *, backward: bool = False
    ) -> Iterator[tuple[int, W]]:
        """Read window starts and values of one key between two window starts, both included."""
        self.metrics.fetches += 1
        entries = self.inner.fetch(self._key(key), time_from, time_to, backward=backward)
        decode = self._decode
        return ((found.timestamp, decode(data)) for found, data in entries)

    def fetch_range(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int, *, backward: bool = False
    ) -> Iterator[tuple[Windowed[K], W]]:
        """Read windowed keys and values of a range of keys, by the order of their bytes."""
        self.metrics.scans += 1
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
        self.metrics.scans += 1
        entries = self.inner.fetch_all(time_from, time_to, backward=backward)
        return self._typed(entries)

    def all(self, *, backward: bool = False) -> Iterator[tuple[Windowed[K], W]]:
        """Read all windowed keys and values within the retention."""
        self.metrics.scans += 1
        entries = self.inner.all(backward=backward)
        return self._typed(entries)

    def restore(self, records: Iterable[ChangelogRecord]) -> None:
        """Put records of the changelog back, in the format of the innermost store."""
        self.inner.restore(records)

    def flush(self, offsets: Mapping[str, int] | None = None) -> None:
        """Bring everything put so far to disk, then these changelog offsets."""
        self.metrics.flushes += 1
        self.inner.flush(offsets)

    def close(self) -> None:
        """Flush and let go."""
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


class WindowStore(MeteredWindowStore[K, V, V]):
    """A window store of values alone."""

    FORMAT = ValueFormat.PLAIN

    def _encode(self, value: V) -> bytes | None:
        return self._value_bytes(value, list(self.context.headers))

    def _decode(self, data: bytes) -> V:
        return self._value_serde.deserialize(data, list(self.context.headers))


class TimestampedWindowStore(MeteredWindowStore[K, V, ValueAndTimestamp[V]]):
    """A window store of values with timestamps."""

    FORMAT = ValueFormat.TIMESTAMPED

    def _encode(self, value: ValueAndTimestamp[V]) -> bytes | None:
        data = self._value_bytes(value.value, list(self.context.headers))
        return None if data is None else encode_timestamped(data, value.timestamp)

    def _decode(self, data: bytes) -> ValueAndTimestamp[V]:
        value, timestamp = decode_timestamped(data)
        return ValueAndTimestamp(self._value_serde.deserialize(value, list(self.context.headers)), timestamp)


class TimestampedWindowStoreWithHeaders(MeteredWindowStore[K, V, ValueTimestampHeaders[V]]):
    """A window store of values with timestamps and headers."""

    FORMAT = ValueFormat.TIMESTAMPED_HEADERS

    def _encode(self, value: ValueTimestampHeaders[V]) -> bytes | None:
        headers = list(value.headers)
        data = self._value_bytes(value.value, headers)
        return None if data is None else encode_timestamped_headers(data, value.timestamp, headers)

    def _decode(self, data: bytes) -> ValueTimestampHeaders[V]:
        value, timestamp, headers = decode_timestamped_headers(data)
        return ValueTimestampHeaders(self._value_serde.deserialize(value, headers), timestamp, tuple(headers))


class WindowStoreWithHeaders(MeteredWindowStore[K, V, ValueAndHeaders[V]]):
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


MeteredWindowStoreWithHeaders = WindowStoreWithHeaders
"""The KIP's name for the layer; here the layer is the store that a user holds."""
