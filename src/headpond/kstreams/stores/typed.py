"""The typed window store of KIP-1300, and the only layer that serialises: below it everything is bytes.

A value's serializer is called with its headers before they are encoded and may change them; its
deserializer gets the decoded ones. A value of None, or a serializer's None, is a tombstone, whatever headers
come with it. Two `ValueAndHeaders` are equal if value and headers are, order of headers included. Source:
KIP-1300, "Public Interfaces", "New Store Wrapper Stack".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import orjson

from headpond.core.errors import UsageError
from headpond.kstreams.bytes.headers import Header, decode_prefix, encode_prefix
from headpond.kstreams.bytes.window_keys import window_end
from headpond.kstreams.bytes.window_values import ValueFormat
from headpond.kstreams.stores.contract import ChangelogRecord, Entries, RecordContext
from headpond.kstreams.stores.segmented import WindowBytesStore
from headpond.kstreams.stores.segments import StoreSettings

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


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


class Windowed(NamedTuple, Generic[K]):
    """A key and its window, in ms; the end is exclusive."""

    key: K
    window_start: int
    window_end: int


class WindowStoreWithHeaders(Generic[K, V]):
    """KIP-1300's window store: keys K, values V with headers; the time is in the key alone.

    Args:
        inner: The store of bytes, plain+headers.
        key_serde: Turns keys into bytes; it gets no headers.
        value_serde: Turns values into bytes.

    Raises:
        UsageError: The store below is of another format.
    """

    def __init__(self, inner: WindowBytesStore, key_serde: Serde[K], value_serde: Serde[V]) -> None:
        if inner.value_format is not ValueFormat.PLAIN_HEADERS:
            raise UsageError(
                f"A window store with headers needs a plain_headers store, and {inner.settings.name} is "
                f"{inner.value_format}.",
                name=inner.settings.name,
            )
        self.inner = inner
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
        log: Callable[[ChangelogRecord], object] | None = None,
        context: RecordContext | None = None,
        first_seqnum: int | None = None,
        seed_counter: bool = True,
        recover_stream_time: bool = False,
    ) -> Self:
        """Make or open a store, in memory or at `directory/<name>`; see `WindowBytesStore` for the rest."""
        inner = WindowBytesStore(
            settings,
            directory=None if directory is None else Path(directory) / settings.name,
            disk_format=disk_format,
            log=log,
            context=context,
            first_seqnum=first_seqnum,
            seed_counter=seed_counter,
            recover_stream_time=recover_stream_time,
        )
        return cls(inner, key_serde, value_serde)

    @property
    def settings(self) -> StoreSettings:
        """Name, retention, window size, and whether duplicates are kept."""
        return self.inner.settings

    @property
    def observed_stream_time(self) -> int:
        """The greatest window start seen, in ms; -1 at first."""
        return self.inner.observed_stream_time

    def put(self, key: K, value: ValueAndHeaders[V] | None, window_start: int) -> None:
        """Store a value; None deletes, or does nothing where duplicates are kept."""
        self.inner.put(self._key(key), None if value is None else self._encode(value), window_start)

    def fetch_at(self, key: K, window_start: int) -> ValueAndHeaders[V] | None:
        """Read the value of exactly this key and window start."""
        data = self.inner.fetch_at(self._key(key), window_start)
        return None if data is None else self._decode(data)

    def fetch(
        self, key: K, time_from: int, time_to: int, *, backward: bool = False
    ) -> Iterator[tuple[int, ValueAndHeaders[V]]]:
        """Read window starts and values of one key between two window starts, both included."""
        entries = self.inner.fetch(self._key(key), time_from, time_to, backward=backward)
        decode = self._decode
        return ((found.timestamp, decode(data)) for found, data in entries)

    def fetch_range(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int, *, backward: bool = False
    ) -> Iterator[tuple[Windowed[K], ValueAndHeaders[V]]]:
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
    ) -> Iterator[tuple[Windowed[K], ValueAndHeaders[V]]]:
        """Read windowed keys and values between two window starts, both included."""
        entries = self.inner.fetch_all(time_from, time_to, backward=backward)
        return self._typed(entries)

    def all(self, *, backward: bool = False) -> Iterator[tuple[Windowed[K], ValueAndHeaders[V]]]:
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _key(self, key: K) -> bytes:
        data = self._key_serde.serialize(key, [])
        if data is None:
            raise UsageError(f"The key {key!r} of store {self.settings.name} has no bytes.")
        return data

    def _typed(self, entries: Entries) -> Iterator[tuple[Windowed[K], ValueAndHeaders[V]]]:
        for found, data in entries:
            key = self._key_serde.deserialize(found.key, [])
            end = window_end(found.timestamp, self._window_size_ms)
            yield Windowed(key, found.timestamp, end), self._decode(data)

    def _encode(self, value: ValueAndHeaders[V]) -> bytes | None:
        if value.value is None:
            return None
        headers = list(value.headers)
        data = self._value_serde.serialize(value.value, headers)
        return None if data is None else encode_prefix(headers) + data

    def _decode(self, data: bytes) -> ValueAndHeaders[V]:
        headers, at = decode_prefix(data)
        return ValueAndHeaders(self._value_serde.deserialize(data[at:], headers), tuple(headers))
