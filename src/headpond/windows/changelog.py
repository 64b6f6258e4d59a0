"""The changelog of a window store: what the logging layer writes, and reading an export of it back.

The record is the same for every format of a store, so changing the format never changes the changelog:

::

    key         the store key: key | window start | sequence number
    value       the plain value, without timestamp and headers; null deletes
    timestamp   the value's own where the format has one, else that of the record being processed
    headers     the value's where the format has them (of a null: the processed record's), else none

An export is JSON Lines: `{"key", "value", "timestamp", "headers"}`, bytes as hexadecimal text, headers as
`[[key, value or null], …]`; `offset` may be there. Source: spec "window store", section 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from headpond.errors import DamagedInput
from headpond.formats.window_keys import MAX_SEQNUM, encode_store_key
from headpond.formats.window_values import NO_TIMESTAMP, decode_value
from headpond.windows.contract import ChangelogRecord
from headpond.windows.wrapped import WrappedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headpond.formats.headers import Header
    from headpond.windows.contract import WindowBytesStore


@dataclass(slots=True)
class RecordContext:
    """The record being processed: its timestamp (ms) and headers. Whoever puts keeps it up to date."""

    timestamp: int = NO_TIMESTAMP
    headers: tuple[Header, ...] = ()


class ChangeLoggingWindowBytesStore(WrappedStore):
    """Logs every put after it was done.

    Args:
        inner: The store.
        log: What takes a record: a producer's send, a list's append.
        context: The record being processed.
        first_seqnum: The logging layer counts for itself, nulls too, and may be ahead of the store. After a
            restart it starts at the store's last number, or at this one if the changelog's is known.
    """

    def __init__(
        self,
        inner: WindowBytesStore,
        log: Callable[[ChangelogRecord], object],
        context: RecordContext,
        *,
        first_seqnum: int | None = None,
    ) -> None:
        super().__init__(inner)
        self._log = log
        self._context = context
        self._retain_duplicates = inner.settings.retain_duplicates
        self._seqnum = inner.last_seqnum if first_seqnum is None else first_seqnum

    def put(self, key: bytes, value: bytes | None, window_start: int) -> None:
        """Store a value, then log it."""
        self.inner.put(key, value, window_start)
        if self._retain_duplicates:
            self._seqnum = (self._seqnum + 1) & MAX_SEQNUM
        self._log(self.record(encode_store_key(key, window_start, self._seqnum), value))

    def record(self, stored_key: bytes, value: bytes | None) -> ChangelogRecord:
        """Build the record of a stored value."""
        context = self._context
        if value is None:
            headers = context.headers if self.inner.value_format.has_headers else ()
            return ChangelogRecord(stored_key, None, context.timestamp, headers)
        plain, timestamp, own = decode_value(value, self.inner.value_format)
        return ChangelogRecord(
            stored_key, plain, context.timestamp if timestamp is None else timestamp, tuple(own)
        )

    def restore(self, records: Iterable[ChangelogRecord]) -> None:
        """Put records back without logging them again; go on counting above theirs."""
        self.inner.restore(records)
        if self._retain_duplicates:
            self._seqnum = max(self._seqnum, self.inner.last_seqnum)


class ChangeLoggingWindowBytesStoreWithHeaders(ChangeLoggingWindowBytesStore):
    """KIP-1300's logging layer: plain value, the processed record's timestamp, the value's own headers."""


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
        DamagedInput: A line is no record; `facts` has `line` and `reason` ("changelog_line").
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _record(orjson.loads(line))
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedInput(
                f"Line {number} of the changelog is no record: {error}.",
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
