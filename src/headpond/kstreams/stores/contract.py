"""What stores hand out and take, how they fail, and their changelogs as text.

An export of a changelog is JSON Lines of `{"key", "value", "timestamp", "headers"}`: bytes as hexadecimal
text, headers `[[key, value or null], …]`; `offset` may be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import orjson

from headpond.core.errors import InvalidData, MissingRequirement, UsageError
from headpond.kstreams.bytes.headers import Header
from headpond.kstreams.bytes.window_keys import WindowKey
from headpond.kstreams.bytes.window_values import NO_TIMESTAMP

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


def export_lines(records: Iterable[ChangelogRecord]) -> Iterator[bytes]:
    """Write records as an export, one line each."""
    for record in records:
        document = {
            "key": record.key.hex(),
            "value": None if record.value is None else record.value.hex(),
            "timestamp": record.timestamp,
            "headers": [[key, None if value is None else value.hex()] for key, value in record.headers],
        }
        yield orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def read_export(lines: Iterable[bytes]) -> Iterator[ChangelogRecord]:
    """Read an export, line by line; empty lines are skipped.

    Raises:
        InvalidData: A line is not a record; `facts` has `line` and `reason` ("changelog_line").
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _record(orjson.loads(line))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidData(
                f"Line {number} of the changelog is not a record: {error}.",
                next_step='A line is {"key": hex, "value": hex or null, "timestamp": ms, '
                '"headers": [[key, hex or null], …]}.',
                reason="changelog_line",
                line=number,
            ) from error


def _record(document: dict[str, Any]) -> ChangelogRecord:
    value, timestamp = document["value"], document["timestamp"]
    if not isinstance(timestamp, int):
        raise TypeError(f"timestamp is {type(timestamp).__name__}")
    return ChangelogRecord(
        bytes.fromhex(document["key"]),
        None if value is None else bytes.fromhex(value),
        timestamp,
        tuple((str(key), None if each is None else bytes.fromhex(each)) for key, each in document["headers"]),
    )


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
