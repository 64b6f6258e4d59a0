"""The layers around a store of bytes: the adapter to an older format, and the changelog.

::

    adapter                            what is written                     what is read
    plain → plain+headers              the value; headers are lost         no headers, value
    timestamped → plain+headers        timestamp -1, value; headers lost   no headers, value
    timestamped+headers → plain+headers   headers, timestamp -1, value     headers, value
    plain → timestamped+headers        the value                           no headers, timestamp -1, value
    timestamped → timestamped+headers  timestamp, value                    no headers, timestamp, value

An adapter translates values and never touches keys. It stands on a persistent store only: one in memory
holds the new format's bytes from the start. Headers that an older format has no place for are lost by
design.

The changelog's record is the same for every format of a store, so changing the format never changes the
changelog::

    key         the store key: key | window start | sequence number
    value       the plain value, without timestamp and headers; None deletes
    timestamp   the value's own where the format has one, else that of the record being processed
    headers     the value's where the format has them (of None: the processed record's), else none

An export of it is JSON Lines: `{"key", "value", "timestamp", "headers"}`, bytes as hexadecimal text, headers
as `[[key, value or null], …]`; `offset` may be there. Source: KIP-1300, "Adapter Classes"; spec "window
store", sections 5 and 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from headpond.core.errors import InvalidData, UsageError
from headpond.kstreams.bytes.window_keys import MAX_SEQNUM, MAX_TIMESTAMP, encode_store_key
from headpond.kstreams.bytes.window_values import NO_TIMESTAMP, ValueFormat, conversion, decode_value
from headpond.kstreams.stores.contract import ChangelogRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from headpond.kstreams.bytes.headers import Header
    from headpond.kstreams.stores.contract import Entries, Entry, WindowBytesStore
    from headpond.kstreams.stores.segments import StoreSettings


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
        return self._seen(self.inner.fetch(key, time_from, time_to, backward=backward))

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
        return self._seen(self.inner.fetch_range(key_from, key_to, time_from, time_to, backward=backward))

    def fetch_all(self, time_from: int, time_to: int, *, backward: bool = False) -> Entries:
        """Read the entries of all keys whose window starts lie between the two."""
        return self.fetch_range(None, None, time_from, time_to, backward=backward)

    def all(self, *, backward: bool = False) -> Entries:
        """Read all entries within the retention."""
        return self.fetch_range(None, None, 0, MAX_TIMESTAMP, backward=backward)

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
        """Flush and close."""
        self.inner.close()

    def _seen(self, entries: Entries) -> Entries:
        """Return entries of `inner` as callers see them."""
        return entries


class FormatAdapter(WrappedStore):
    """Translates between the format that callers see and that of the store underneath.

    Args:
        inner: The store.
        outer: The format that callers see.
    """

    def __init__(self, inner: WindowBytesStore, outer: ValueFormat) -> None:
        super().__init__(inner)
        self._outer = outer
        self._to_inner = conversion(outer, inner.value_format)
        self._to_outer = conversion(inner.value_format, outer)

    @property
    def value_format(self) -> ValueFormat:
        """The format that callers see."""
        return self._outer

    def put(self, key: bytes, value: bytes | None, window_start: int) -> None:
        """Translate and store a value."""
        self.inner.put(key, self._to_inner(value), window_start)

    def fetch_at(self, key: bytes, window_start: int) -> bytes | None:
        """Read and translate one value."""
        return self._to_outer(self.inner.fetch_at(key, window_start))

    def _seen(self, entries: Entries) -> Iterator[Entry]:
        for key, value in entries:
            translated = self._to_outer(value)
            assert translated is not None
            yield key, translated


_READ_THROUGH = {
    ValueFormat.PLAIN_HEADERS: {
        ValueFormat.PLAIN,
        ValueFormat.TIMESTAMPED,
        ValueFormat.TIMESTAMPED_HEADERS,
    },
    ValueFormat.TIMESTAMPED_HEADERS: {ValueFormat.PLAIN, ValueFormat.TIMESTAMPED},
}
"""Format that callers see → older formats underneath; the pairs that the KIP's adapters exist for."""


def adapted(store: WindowBytesStore, wanted: ValueFormat) -> WindowBytesStore:
    """Return the store behind the adapter that its format needs, or as it is.

    Raises:
        UsageError: No adapter leads from the store's format to the wanted one.
    """
    if not store.persistent or store.value_format is wanted:
        return store
    if store.value_format not in _READ_THROUGH.get(wanted, ()):
        raise UsageError(
            f"A {wanted} store cannot be built on {store.settings.name}, which is {store.value_format}.",
            next_step="Open it in its own format, or through a newer one.",
            name=store.settings.name,
        )
    return FormatAdapter(store, wanted)


@dataclass(slots=True)
class RecordContext:
    """The record being processed: its timestamp (ms) and headers. Whoever puts keeps it up to date."""

    timestamp: int = NO_TIMESTAMP
    headers: tuple[Header, ...] = ()


class ChangeLoggingWindowBytesStore(WrappedStore):
    """Logs every put after it was done: plain value, and time and headers as the module tells.

    Args:
        inner: The store.
        log: What takes a record: a producer's send, a list's append.
        context: The record being processed.
        first_seqnum: The logging layer counts for itself, tombstones too, and may be ahead of the store.
            After a restart it starts at the store's last number, or at this one if the changelog's is known.
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
        """Put records back without logging them again; continue counting above theirs."""
        self.inner.restore(records)
        if self._retain_duplicates:
            self._seqnum = max(self._seqnum, self.inner.last_seqnum)


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
