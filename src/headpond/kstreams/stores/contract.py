"""What every window store of bytes does, in memory or on disk, bare or behind an adapter, and how it fails.

Keys and values are bytes, window starts and times are milliseconds, all bounds are inclusive. A store has
an *observed stream time*: the greatest window start that was put or restored. A read returns nothing older
than observed stream time - retention. Entries come by segment and then in byte order (key, window start,
sequence number), or exactly the other way round with `backward`.

A store belongs to one thread. An iterator must be used up or dropped before the store is closed.

::

    NotAStore             (UsageError)          there is no window store at that place             exit 2
    StoreFormatMismatch   (UsageError)          the directory's format is not the class's          exit 2
    StoreClosed           (UsageError)          the store was closed, or is open for reading only  exit 2
    TimestampsWouldBeLost (UsageError)          a migration would drop timestamps that matter      exit 2
    InconsistentStore     (InvalidData)         what lies on disk contradicts itself               exit 1
    StoreLocked           (MissingRequirement)  another process has the directory open             exit 3
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headpond.core.errors import InvalidData, MissingRequirement, UsageError
from headpond.kstreams.bytes.window_keys import WindowKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headpond.kstreams.bytes.headers import Header
    from headpond.kstreams.bytes.window_values import ValueFormat
    from headpond.kstreams.stores.segments import StoreSettings

Entry = tuple[WindowKey, bytes]
"""A key taken apart and the bytes stored under it."""
Entries = Iterator[Entry]


class ChangelogRecord(NamedTuple):
    """A record of a store's changelog; every format of a store logs the same records.

    `key` is the store key, `value` the plain value (None: deleted), `timestamp` (ms) the record's own.
    """

    key: bytes
    value: bytes | None
    timestamp: int
    headers: tuple[Header, ...] = ()


class WindowBytesStore(Protocol):
    """A window store of bytes."""

    @property
    def settings(self) -> StoreSettings:
        """Name, retention, window size, and whether duplicates are kept."""

    @property
    def value_format(self) -> ValueFormat:
        """The format of the values that are put and that come back."""

    @property
    def persistent(self) -> bool:
        """Whether the entries are on disk."""

    @property
    def observed_stream_time(self) -> int:
        """The greatest window start seen, in ms; -1 at first."""

    @property
    def last_seqnum(self) -> int:
        """The sequence number given last; 0 at first, and always where duplicates are not kept."""

    def put(self, key: bytes, value: bytes | None, window_start: int) -> None:
        """Store a value; None deletes, or does nothing where duplicates are kept."""

    def fetch_at(self, key: bytes, window_start: int) -> bytes | None:
        """Read the value of exactly this key and window start, under the sequence number given last."""

    def fetch(self, key: bytes, time_from: int, time_to: int, *, backward: bool = False) -> Entries:
        """Read the entries of one key whose window starts lie between the two."""

    def fetch_range(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        time_from: int,
        time_to: int,
        *,
        backward: bool = False,
    ) -> Entries:
        """Read the entries of all keys between the two (None: no bound); by segment, not globally by key."""

    def fetch_all(self, time_from: int, time_to: int, *, backward: bool = False) -> Entries:
        """Read the entries of all keys whose window starts lie between the two."""

    def all(self, *, backward: bool = False) -> Entries:
        """Read all entries within the retention."""

    def restore(self, records: Iterable[ChangelogRecord]) -> None:
        """Put records of the changelog back, in the format of the innermost store."""

    def approximate_count(self) -> int:
        """Estimate the number of entries."""

    def flush(self, offsets: Mapping[str, int] | None = None) -> None:
        """Bring everything put so far to disk, then changelog offsets (`<topic>-<partition>`: offset)."""

    def close(self) -> None:
        """Flush and close; closing twice is fine."""


class NotAStore(UsageError):
    """There is no window store at that place."""


class StoreFormatMismatch(UsageError):
    """The directory holds a format that this class of store cannot read; upgrades go one way only."""


class StoreClosed(UsageError):
    """The store was closed, or opened for reading only."""


class TimestampsWouldBeLost(UsageError):
    """Values hold timestamps of their own, and the new format has no place for them."""


class InconsistentStore(InvalidData):
    """What lies on disk contradicts itself, or RocksDB cannot read it."""


class StoreLocked(MissingRequirement):
    """Another process, or another store object of this one, has the directory open."""
