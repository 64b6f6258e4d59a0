"""The cache of a window store: the last value of each key and window start, until the next flush.

It keeps a store that gets many updates of the same windows from writing, and logging, each of them. It is
for stores without duplicates only: with them every put is an entry of its own. Reads see the cache and the
store as one. What is cached lies in a window store in memory, so bounds and order are those of any store;
one byte before a value tells whether it is there (01) or deleted (00).
Source: spec "window store", section 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.errors import UsageError
from headpond.formats.window_keys import MAX_TIMESTAMP, WindowKey, encode_store_key
from headpond.windows.segmented import InMemoryWindowStore
from headpond.windows.segments import segment_id
from headpond.windows.wrapped import WrappedStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headpond.windows.contract import ChangelogRecord, Entries, Entry, WindowBytesStore

MAX_CACHED_BYTES = 10 * 1024 * 1024
"""Keys and values that are cached before the cache writes itself out; Kafka Streams' default."""
ENTRY_BYTES = 200
"""What an entry costs beside its key and value, about."""
_DELETED, _THERE = b"\x00", b"\x01"


class CachingWindowStore(WrappedStore):
    """Holds back writes until a flush, or until the cache is full.

    Args:
        inner: The store.
        max_bytes: Keys and values held back at most, updates of one entry counted each.

    Raises:
        UsageError: The store keeps duplicates.
    """

    def __init__(self, inner: WindowBytesStore, *, max_bytes: int = MAX_CACHED_BYTES) -> None:
        if inner.settings.retain_duplicates:
            raise UsageError(
                f"Store {inner.settings.name} keeps duplicates, so it cannot be cached.",
                name=inner.settings.name,
            )
        super().__init__(inner)
        self._max_bytes = max_bytes
        self._retention_ms = inner.settings.retention_ms
        self._interval_ms = inner.settings.segment_interval_ms
        self._observed = inner.observed_stream_time
        self._empty_cache()

    def _empty_cache(self) -> None:
        self._cache = InMemoryWindowStore(self.inner.settings, self.inner.value_format)
        self._cached_bytes = 0

    @property
    def observed_stream_time(self) -> int:
        """The greatest window start seen, that of cached entries included."""
        return max(self._observed, self.inner.observed_stream_time)

    def put(self, key: bytes, value: bytes | None, window_start: int) -> None:
        """Remember the value; the store gets it with the next flush."""
        self._observed = max(self._observed, window_start)
        self._cache.put(key, _DELETED if value is None else _THERE + value, window_start)
        self._cached_bytes += len(key) + (0 if value is None else len(value)) + ENTRY_BYTES
        if self._cached_bytes > self._max_bytes:
            self._write_out()

    def fetch_at(self, key: bytes, window_start: int) -> bytes | None:
        """Read from the cache, else from the store."""
        if window_start < self._oldest_visible():
            return None
        cached = self._cache.fetch_at(key, window_start)
        if cached is None:
            return self.inner.fetch_at(key, window_start)
        return None if cached == _DELETED else cached[1:]

    def fetch(self, key: bytes, time_from: int, time_to: int, *, backward: bool = False) -> Entries:
        """Read the entries of one key from both."""
        time_from = max(time_from, self._oldest_visible())
        return self._merged(
            self._cache.fetch(key, time_from, time_to, backward=backward),
            self.inner.fetch(key, time_from, time_to, backward=backward),
            backward=backward,
        )

    def fetch_range(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        time_from: int,
        time_to: int,
        *,
        backward: bool = False,
    ) -> Entries:
        """Read the entries of a range of keys from both."""
        time_from = max(time_from, self._oldest_visible())
        return self._merged(
            self._cache.fetch_range(key_from, key_to, time_from, time_to, backward=backward),
            self.inner.fetch_range(key_from, key_to, time_from, time_to, backward=backward),
            backward=backward,
        )

    def fetch_all(self, time_from: int, time_to: int, *, backward: bool = False) -> Entries:
        """Read entries by time from both."""
        return self.fetch_range(None, None, time_from, time_to, backward=backward)

    def all(self, *, backward: bool = False) -> Entries:
        """Read all entries from both."""
        return self.fetch_range(None, None, 0, MAX_TIMESTAMP, backward=backward)

    def restore(self, records: Iterable[ChangelogRecord]) -> None:
        """Write the cache out, then restore into the store."""
        self._write_out()
        self.inner.restore(records)

    def flush(self, offsets: Mapping[str, int] | None = None) -> None:
        """Write the cache out and flush the store."""
        self._write_out()
        self.inner.flush(offsets)

    def close(self) -> None:
        """Write the cache out and let go."""
        self._write_out()
        self.inner.close()

    def _write_out(self) -> None:
        cached = list(self._cache.all())
        self._empty_cache()
        for key, value in cached:
            self.inner.put(key.key, None if value == _DELETED else value[1:], key.timestamp)

    def _oldest_visible(self) -> int:
        return self.observed_stream_time - self._retention_ms + 1

    def _merged(self, cached: Entries, stored: Entries, *, backward: bool) -> Iterator[Entry]:
        """Merge by segment and byte order; of an entry in both, the cached one counts."""
        left, right = next(cached, None), next(stored, None)
        while left is not None or right is not None:
            if right is None or (left is not None and left[0] == right[0]):
                take_left, skip_right = True, right is not None
            elif left is None:
                take_left = skip_right = False
            else:
                take_left = (self._rank(left[0]) < self._rank(right[0])) is not backward
                skip_right = False
            if take_left:
                assert left is not None
                if left[1] != _DELETED:
                    yield left[0], left[1][1:]
                left = next(cached, None)
                right = next(stored, None) if skip_right else right
            else:
                assert right is not None
                yield right
                right = next(stored, None)

    def _rank(self, key: WindowKey) -> tuple[int, bytes]:
        return segment_id(key.timestamp, self._interval_ms), encode_store_key(*key)
