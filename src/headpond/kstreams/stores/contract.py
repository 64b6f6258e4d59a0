"""What stores hand out and take, and how they fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from headpond.core.errors import InvalidData, MissingRequirement, UsageError
from headpond.kstreams.bytes.window_keys import WindowKey
from headpond.kstreams.bytes.window_values import NO_TIMESTAMP

if TYPE_CHECKING:
    from headpond.kstreams.bytes.headers import Header

Entry = tuple[WindowKey, bytes]
"""A key taken apart and the bytes stored under it."""
Entries = Iterator[Entry]
MAX_SPAN_MS = 1 << 61
"""The longest span of time; three of them still fit into 64 bits."""


class ChangelogRecord(NamedTuple):
    """A record of a store's changelog; every format of a store logs the same records.

    `key` is the store key, `value` the plain value (None: deleted), `timestamp` (ms) the record's own.
    """

    key: bytes
    value: bytes | None
    timestamp: int
    headers: tuple[Header, ...] = ()


@dataclass(slots=True)
class RecordContext:
    """The record being processed: its timestamp (ms) and headers. Whoever puts keeps it up to date."""

    timestamp: int = NO_TIMESTAMP
    headers: tuple[Header, ...] = ()


def milliseconds(name: str, value: object, longest: int = MAX_SPAN_MS) -> int:
    """Return a span of time in milliseconds; it may be given as a timedelta.

    Raises:
        UsageError: It is not a whole number of milliseconds, or too long.
    """
    if isinstance(value, timedelta):
        value, rest = divmod(value, timedelta(milliseconds=1))
        value = value if not rest else f"{value} ms and {rest.microseconds} µs"
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(
            f"{name} must be a whole number of milliseconds, or a timedelta, not {value!r}.", option=name
        )
    if abs(value) > longest:
        raise UsageError(f"{name} must be at most {longest} ms either way, not {value}.", option=name)
    return value


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
