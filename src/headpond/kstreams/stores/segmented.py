"""The window store of bytes: segments, retention, observed stream time, reads; adapter and changelog.

::

    put ─► value in the format that callers see ─► [adapter] ─► value in the format on disk ─► segment
       └─► [changelog]

Two rules look alike and are not. A *put* is dropped only when its whole segment is older than the
retention, so up to one segment more than the retention stays on disk; a *read* never returns anything
older than the retention. Bounds are inclusive. Entries come by segment and then in byte order (key, window
start, sequence number), or exactly the other way round with `backward`. The *observed stream time* is the
greatest window start that was put or restored. A store belongs to one thread; an iterator must be used up or
dropped before the store is closed.

The KIP's adapters, by which a directory of an older format is used through a newer interface::

    on disk              what callers see       written                       read
    plain                plain+headers          the value; headers are lost   no headers, value
    timestamped          plain+headers          timestamp -1, value           no headers, value
    timestamped+headers  plain+headers          headers, timestamp -1, value  headers, value
    plain                timestamped+headers    the value                     no headers, timestamp -1, value
    timestamped          timestamped+headers    timestamp, value              no headers, timestamp, value

The changelog's record is the same for every format on disk::

    key         the store key: key | window start | sequence number
    value       the plain value, without timestamp and headers; None deletes
    timestamp   the value's own where the format has one, else that of the record being processed
    headers     the value's where the format has them (of None: the processed record's), else none

Source: KIP-1300, "Adapter Classes"; spec "window store", sections 4.2 to 4.4, 5 and 7.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.core.errors import UsageError
from headpond.kstreams.bytes.window_keys import (
    MAX_SEQNUM,
    MAX_TIMESTAMP,
    SUFFIX_BYTES,
    WindowKey,
    decode_store_key,
    encode_store_key,
    lower_bound,
    lower_bound_of_range,
    upper_bound,
    upper_bound_of_range,
)
from headpond.kstreams.bytes.window_values import ValueFormat, conversion, decode_value, encode_value
from headpond.kstreams.stores.contract import ChangelogRecord, Entries, Entry, RecordContext, StoreClosed
from headpond.kstreams.stores.rocks_store import RocksSegment, RocksSegments
from headpond.kstreams.stores.segments import MemorySegment, StoreSettings, segment_id, segment_interval_ms

if TYPE_CHECKING:
    Segment = RocksSegment | MemorySegment

_log = logging.getLogger("headpond.kstreams")
RESTORE_BATCH_RECORDS = 1000
"""Records that are restored together; Kafka Streams' consumers fetch batches of this order."""
_NONE_SEEN = -1
_SUFFIX = struct.Struct(">qi")
_new = tuple.__new__  # a named tuple's own constructor takes twice the time
_READ_THROUGH = {
    ValueFormat.PLAIN_HEADERS: set(ValueFormat) - {ValueFormat.PLAIN_HEADERS},
    ValueFormat.TIMESTAMPED_HEADERS: {ValueFormat.PLAIN, ValueFormat.TIMESTAMPED},
}
"""Format that callers see → older formats on disk; the pairs that the KIP's adapters exist for."""


class WindowBytesStore:
    """A window store of bytes, in memory or on RocksDB.

    Args:
        settings: Name, retention, window size, duplicates.
        value_format: The format of the values that are put and that come back.
        directory: The store's directory, `<task>/<store>`; None: in memory. One that holds an older format is
            upgraded in place (`rocks_store`).
        disk_format: The format on disk, if that is to stay an older one.
        read_only: Open for reading; the directory is not touched, even while somebody uses it.
        log: Gets the changelog record of every put, after it was done.
        context: The record being processed, for the log.
        first_seqnum: The log counts for itself, tombstones too, and may be ahead of the store. After a
            restart it starts at the store's last number, or at this one if the changelog's is known.
        seed_counter: Start the sequence numbers above the greatest stored one, so that nothing is
            overwritten after a restart. False is what Kafka Streams does: start at 0. Reads all keys on open.
        recover_stream_time: Start the observed stream time at the greatest stored window start. False is
            what Kafka Streams does: start at -1, so that expired entries show until the first put.

    Raises:
        UsageError: No adapter leads from the format on disk to that which callers see.
        StoreFormatMismatch: The directory was written in a newer format, or with another retention.
        InconsistentStore: The directory contradicts itself, or RocksDB cannot read it.
        StoreLocked: Somebody has it open.
    """

    def __init__(
        self,
        settings: StoreSettings,
        value_format: ValueFormat = ValueFormat.PLAIN_HEADERS,
        directory: Path | str | None = None,
        *,
        disk_format: ValueFormat | None = None,
        read_only: bool = False,
        log: Callable[[ChangelogRecord], object] | None = None,
        context: RecordContext | None = None,
        first_seqnum: int | None = None,
        seed_counter: bool = True,
        recover_stream_time: bool = False,
    ) -> None:
        self.settings = settings
        self.value_format = value_format
        self.expired_puts = 0
        self.context = context or RecordContext()
        self._disk_format = value_format if directory is None else disk_format or value_format
        self._adapts = self._disk_format is not value_format
        if self._adapts and self._disk_format not in _READ_THROUGH.get(value_format, ()):
            raise UsageError(
                f"A {value_format} store cannot be built on {settings.name}, which is {self._disk_format}.",
                next_step="Open it in its own format, or through a newer one.",
                name=settings.name,
            )
        self._to_disk = conversion(value_format, self._disk_format)
        self._from_disk = conversion(self._disk_format, value_format)
        self._interval_ms = segment_interval_ms(settings.retention_ms)
        self._retention_ms = settings.retention_ms
        self._retain_duplicates = settings.retain_duplicates
        self._make: Callable[[int], Segment] = lambda _number: MemorySegment()
        self._segments: dict[int, Segment] = {}
        if directory is not None:
            rocks = RocksSegments(Path(directory), settings, self._disk_format, read_only=read_only)
            self._make = rocks.create
            self._segments.update(rocks.existing())
        self._numbers = sorted(self._segments)
        self._observed = _NONE_SEEN
        self._seqnum = 0
        self._closed = False
        # The segment of the last put, and the window starts that fall into it: most puts and fetches do.
        self._recent: Segment | None = None
        if self._segments and ((seed_counter and self._retain_duplicates) or recover_stream_time):
            start, seqnum = self._greatest()
            self._observed = start if recover_stream_time else _NONE_SEEN
            self._seqnum = seqnum if seed_counter and self._retain_duplicates else 0
        self._log = log
        self._logged_seqnum = self._seqnum if first_seqnum is None else first_seqnum
        self._find_expiry()

    @property
    def observed_stream_time(self) -> int:
        """The greatest window start seen, in ms; -1 at first."""
        return self._observed

    @property
    def last_seqnum(self) -> int:
        """The sequence number given last."""
        return self._seqnum

    def segments(self) -> dict[int, Segment]:
        """Return the open segments by number, oldest first."""
        return {number: self._segments[number] for number in self._numbers}

    def put(self, key: bytes, value: bytes | None, window_start: int) -> None:
        """Store a value; None deletes, or does nothing where duplicates are kept."""
        if value is not None or not self._retain_duplicates:
            self._put(key, self._to_disk(value) if self._adapts else value, window_start)
        if self._log is not None:
            self._logged_seqnum = (self._logged_seqnum + self._retain_duplicates) & MAX_SEQNUM
            self._log(self._record(encode_store_key(key, window_start, self._logged_seqnum), value))

    def _put(self, key: bytes, value: bytes | None, window_start: int) -> None:
        if self._retain_duplicates:
            self._seqnum = (self._seqnum + 1) & MAX_SEQNUM
        stored = key + _SUFFIX.pack(window_start, self._seqnum)
        segment: Segment | None
        if self._recent_from <= window_start < self._recent_to and window_start < self._next_expiry:
            segment = self._recent
            self._observed = max(self._observed, window_start)
        else:
            segment = self._live_segment(window_start)
        if segment is None:
            self._count_expired(window_start)
        elif value is None:
            segment.delete(stored)
        else:
            segment.put(stored, value)

    def _record(self, stored_key: bytes, value: bytes | None) -> ChangelogRecord:
        context = self.context
        if value is None:
            headers = context.headers if self.value_format.has_headers else ()
            return ChangelogRecord(stored_key, None, context.timestamp, headers)
        plain, timestamp, own = decode_value(value, self.value_format)
        return ChangelogRecord(
            stored_key, plain, context.timestamp if timestamp is None else timestamp, tuple(own)
        )

    def fetch_at(self, key: bytes, window_start: int) -> bytes | None:
        """Read the value of exactly this key and window start, under the sequence number given last."""
        self._check_open()
        if window_start < self._observed - self._retention_ms + 1:
            return None
        segment = self._segments.get(segment_id(window_start, self._interval_ms))
        if segment is None:
            return None
        return self._from_disk(segment.get(encode_store_key(key, window_start, self._seqnum)))

    def fetch(self, key: bytes, time_from: int, time_to: int, *, backward: bool = False) -> Entries:
        """Read the entries of one key whose window starts lie between the two."""
        time_from, time_to = self._visible(time_from, time_to)
        if time_to < time_from:
            return iter(())
        lower, upper = lower_bound(key, time_from), upper_bound(key, time_to)
        segments = self._between(time_from, time_to, backward=backward)
        if time_to < 0:  # before the epoch byte order is not that of time
            kept = _kept(segments, lower, upper, (key, key), (time_from, time_to), backward=backward)
        else:
            kept = _of_one_key(segments, lower, upper, key, backward=backward)
        return self._seen(kept)

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
        if key_from is not None and key_to is not None and key_from > key_to:
            _log.warning(
                "Store %s: the range from key %s to %s is empty: its ends are in the wrong order.",
                self.settings.name,
                key_from.hex(),
                key_to.hex(),
            )
            return iter(())
        time_from, time_to = self._visible(time_from, time_to)
        if time_to < time_from:
            return iter(())
        lower = None if key_from is None else lower_bound_of_range(key_from)
        upper = None if key_to is None else upper_bound_of_range(key_to, time_to)
        segments = self._between(time_from, time_to, backward=backward)
        keys, times = (key_from, key_to), (time_from, time_to)
        return self._seen(_kept(segments, lower, upper, keys, times, backward=backward))

    def fetch_all(self, time_from: int, time_to: int, *, backward: bool = False) -> Entries:
        """Read the entries of all keys whose window starts lie between the two."""
        return self.fetch_range(None, None, time_from, time_to, backward=backward)

    def all(self, *, backward: bool = False) -> Entries:
        """Read all entries within the retention."""
        return self.fetch_range(None, None, 0, MAX_TIMESTAMP, backward=backward)

    def _seen(self, entries: Entries) -> Entries:
        """Return entries as callers see them."""
        return entries if not self._adapts else _converted(entries, self._from_disk)

    def restore(self, records: Iterable[ChangelogRecord]) -> None:
        """Put records of the changelog back, in the format on disk and without logging them, in batches."""
        every = iter(records)
        while batch := list(islice(every, RESTORE_BATCH_RECORDS)):
            self._restore(batch)

    def _restore(self, batch: list[ChangelogRecord]) -> None:
        keys = [decode_store_key(record.key) for record in batch]
        # The batch's newest record decides first what is live, as Kafka Streams does it.
        self._live_segment(max(key.timestamp for key in keys), create=False)
        placed: list[tuple[int, bytes, bytes | None]] = []
        for key, record in zip(keys, batch, strict=True):
            number = segment_id(key.timestamp, self._interval_ms)
            if number < self._min_live:
                self._count_expired(key.timestamp)
                continue
            value = record.value
            if value is not None:
                value = encode_value(value, record.timestamp, record.headers, self._disk_format)
            placed.append((number, record.key, value))
        # Sorting is stable: of two records with one key, the later one stays the later one.
        placed.sort(key=lambda each: each[0])
        for number, group in groupby(placed, key=lambda each: each[0]):
            self._segment(number).write((key, value) for _, key, value in group)
        if self._retain_duplicates:
            self._seqnum = max(self._seqnum, *(key.seqnum for key in keys))
            self._logged_seqnum = max(self._logged_seqnum, self._seqnum)

    def flush(self, offsets: Mapping[str, int] | None = None) -> None:
        """Bring everything put so far to disk, then these changelog offsets."""
        self._check_open()
        for segment in self._segments.values():
            segment.flush(offsets)

    def close(self) -> None:
        """Flush and close; closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        for segment in self._segments.values():
            segment.close()
        self._segments, self._numbers = {}, []
        self._forget_recent()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"Store {self.settings.name} is closed.", name=self.settings.name)

    def _live_segment(self, window_start: int, *, create: bool = True) -> Segment | None:
        """Raise the observed stream time, drop what expires by it, and give the segment; None: not live."""
        if window_start > self._observed:
            self._observed = window_start
            if window_start >= self._next_expiry:
                self._find_expiry()
        number = segment_id(window_start, self._interval_ms)
        if number < self._min_live:
            return None
        if self._numbers and self._numbers[0] < self._min_live:
            self._drop_expired()
        if not create:
            return None
        self._recent = segment = self._segment(number)
        # Segment 0 also covers what lies before the epoch, which is left to the slow path.
        self._recent_from = max(number, 0) * self._interval_ms
        self._recent_to = (number + 1) * self._interval_ms
        return segment

    def _find_expiry(self) -> None:
        """Find the oldest live segment by the observed stream time, and the time at which it expires."""
        self._min_live = segment_id(self._observed - self._retention_ms, self._interval_ms)
        # Ids are truncated towards zero, so a negative one ends just after its multiple.
        first = (
            (self._min_live + 1) * self._interval_ms
            if self._min_live >= 0
            else self._min_live * self._interval_ms + 1
        )
        self._next_expiry = first + self._retention_ms
        self._forget_recent()

    def _forget_recent(self) -> None:
        self._recent = None
        self._recent_from = self._recent_to = 0

    def _segment(self, number: int) -> Segment:
        self._check_open()
        segment = self._segments.get(number)
        if segment is None:
            segment = self._segments[number] = self._make(number)
            insort(self._numbers, number)
        return segment

    def _drop_expired(self) -> None:
        first_live = bisect_left(self._numbers, self._min_live)
        for number in self._numbers[:first_live]:
            self._segments.pop(number).destroy()
        del self._numbers[:first_live]

    def _count_expired(self, window_start: int) -> None:
        self.expired_puts += 1
        if self.expired_puts == 1:
            _log.warning(
                "Store %s: a record with window start %d is older than the retention of %d ms and is "
                "dropped; further ones are only counted.",
                self.settings.name,
                window_start,
                self._retention_ms,
            )

    def _visible(self, time_from: int, time_to: int) -> tuple[int, int]:
        self._check_open()
        oldest = self._observed - self._retention_ms + 1
        return max(time_from, oldest), min(time_to, MAX_TIMESTAMP)

    def _between(self, time_from: int, time_to: int, *, backward: bool) -> list[Segment]:
        if self._recent is not None and self._recent_from <= time_from and time_to < self._recent_to:
            return [self._recent]
        first = bisect_left(self._numbers, segment_id(time_from, self._interval_ms))
        end = bisect_right(self._numbers, segment_id(time_to, self._interval_ms))
        found = [self._segments[number] for number in self._numbers[first:end]]
        return found[::-1] if backward else found

    def _greatest(self) -> tuple[int, int]:
        """Find the greatest window start and the greatest sequence number that are stored."""
        start = seqnum = 0
        for segment in self._segments.values():
            for key in map(decode_store_key, segment.keys()):
                start, seqnum = max(start, key.timestamp), max(seqnum, key.seqnum)
        return start, seqnum


def _of_one_key(
    segments: list[Segment], lower: bytes, upper: bytes, key: bytes, *, backward: bool
) -> Iterator[Entry]:
    """Scan segments between bounds of one key; within them the length alone tells whose an entry is.

    The hot path of a join: by `_kept` a fetch takes a sixth more.
    """
    size = len(key)
    whole = size + SUFFIX_BYTES
    for segment in segments:
        for stored, value in segment.scan(lower, upper, backward=backward):
            if stored < lower or stored > upper:
                break
            if len(stored) == whole:
                timestamp, seqnum = _SUFFIX.unpack_from(stored, size)
                yield _new(WindowKey, (key, timestamp, seqnum)), value


def _kept(
    segments: list[Segment],
    lower: bytes | None,
    upper: bytes | None,
    keys: tuple[bytes | None, bytes | None],
    times: tuple[int, int],
    *,
    backward: bool,
) -> Iterator[Entry]:
    """Scan segments and keep what lies within the bounds: byte ranges let other keys through."""
    key_from, key_to = keys
    time_from, time_to = times
    for segment in segments:
        for stored, value in segment.scan(lower, upper, backward=backward):
            if (lower is not None and stored < lower) or (upper is not None and stored > upper):
                break
            found = decode_store_key(stored)
            if (
                time_from <= found.timestamp <= time_to
                and (key_from is None or found.key >= key_from)
                and (key_to is None or found.key <= key_to)
            ):
                yield found, value


def _converted(entries: Entries, convert: Callable[[bytes | None], bytes | None]) -> Iterator[Entry]:
    for key, value in entries:
        converted = convert(value)
        assert converted is not None
        yield key, converted
