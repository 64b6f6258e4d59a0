"""A window store of bytes around another one: everything is passed on; layers override what they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headpond.formats.window_values import ValueFormat
    from headpond.windows.contract import ChangelogRecord, Entries, WindowBytesStore
    from headpond.windows.segments import StoreSettings


class WrappedStore:
    """Passes every call on to `inner`."""

    def __init__(self, inner: WindowBytesStore) -> None:
        self.inner = inner

    @property
    def settings(self) -> StoreSettings:
        """Name, retention, window size, and whether duplicates are kept."""
        return self.inner.settings

    @property
    def value_format(self) -> ValueFormat:
        """The format of the values that are put and that come back."""
        return self.inner.value_format

    @property
    def persistent(self) -> bool:
        """Whether the entries are on disk."""
        return self.inner.persistent

    @property
    def observed_stream_time(self) -> int:
        """The greatest window start seen, in ms; -1 at first."""
        return self.inner.observed_stream_time

    @property
    def last_seqnum(self) -> int:
        """The sequence number given last."""
        return self.inner.last_seqnum

    def put(self, key: bytes, value: bytes | None, window_start: int) -> None:
        """Store a value."""
        self.inner.put(key, value, window_start)

    def fetch_at(self, key: bytes, window_start: int) -> bytes | None:
        """Read one value."""
        return self.inner.fetch_at(key, window_start)

    def fetch(self, key: bytes, time_from: int, time_to: int, *, backward: bool = False) -> Entries:
        """Read the entries of one key."""
        return self.inner.fetch(key, time_from, time_to, backward=backward)

    def fetch_range(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        time_from: int,
        time_to: int,
        *,
        backward: bool = False,
    ) -> Entries:
        """Read the entries of a range of keys."""
        return self.inner.fetch_range(key_from, key_to, time_from, time_to, backward=backward)

    def fetch_all(self, time_from: int, time_to: int, *, backward: bool = False) -> Entries:
        """Read the entries of all keys whose window starts lie between the two."""
        return self.inner.fetch_all(time_from, time_to, backward=backward)

    def all(self, *, backward: bool = False) -> Entries:
        """Read all entries within the retention."""
        return self.inner.all(backward=backward)

    def restore(self, records: Iterable[ChangelogRecord]) -> None:
        """Put records of the changelog back, in the format of the innermost store."""
        self.inner.restore(records)

    def approximate_count(self) -> int:
        """Estimate the number of entries."""
        return self.inner.approximate_count()

    def flush(self, offsets: Mapping[str, int] | None = None) -> None:
        """Bring everything put so far to disk, then these changelog offsets."""
        self.inner.flush(offsets)

    def close(self) -> None:
        """Flush and let go."""
        self.inner.close()
