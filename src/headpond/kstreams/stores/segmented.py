"""The window store proper: segments, retention, expiry, observed stream time, sequence numbers, reads.

It works alike on segments in memory and on RocksDB. Source: spec "window store", sections 4.2 to 4.4.

Two rules look alike and are not. A *put* is dropped only when its whole segment is older than the
retention, so up to one segment more than the retention stays on disk; a *read* never returns anything
older than the retention.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_left, bisect_right, insort
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

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
from headpond.kstreams.bytes.window_values import encode_value
from headpond.kstreams.stores.contract import StoreClosed
from headpond.kstreams.stores.segments import MemorySegments, Segment, segment_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headpond.kstreams.bytes.window_values import ValueFormat
    from headpond.kstreams.stores.contract import ChangelogRecord, Entries, Entry
    from headpond.kstreams.stores.segments import StoreSettings

_log = logging.getLogger("headpond.kstreams")
RESTORE_BATCH_RECORDS = 1000
"""Records that are restored together; Kafka Streams' consumers fetch batches of this order."""
_NONE_SEEN = -1
_SUFFIX = struct.Struct(">qi")
_new = tuple.__new__  # a named tuple's own constructor takes twice the time


class Segments(Protocol):
    """Where segments come from."""

    persistent: bool

    def existing(self) -> dict[int, Segment]:
        """Open the segments that are there already."""

    def create(self, number: int) -> Segment:
        """Make the segment of that number."""


class SegmentedWindowStore:
    """A window store of bytes on segments.

    Args:
        settings: Name, retention, window size, duplicates.
        segments: Where segments come from.
        value_format: What the values are; the store itself never looks into them.
        seed_counter: Start the sequence numbers above the greatest stored one, so that nothing is
            overwritten after a restart. False is what Kafka Streams does: start at 0. Reads all keys on open.
        recover_stream_time: Start the observed stream time at the greatest stored window start. False is
            what Kafka Streams does: start at -1, so that expired entries show until the first put.
    """

    def __init__(
        self,
        settings: StoreSettings,
        segments: Segments,
        value_format: ValueFormat,
        *,
        seed_counter: bool = True,
        recover_stream_time: bool = False,
    ) -> None:
        self.settings = settings
        self.value_format = value_format
        self.persistent = segments.persistent
        self.expired_puts = 0
        self._interval_ms = settings.segment_interval_ms
        self._retention_ms = settings.retention_ms
        self._retain_duplicates = settings.retain_duplicates
        self._factory = segments
        self._segments = segments.existing()
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
        if self._retain_duplicates:
            if value is None:
                return
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

    def fetch_at(self, key: bytes, window_start: int) -> bytes | None:
        """Read the value of exactly this key and window start, under the sequence number given last."""
        self._check_open()
        if window_start < self._observed - self._retention_ms + 1:
            return None
        segment = self._segments.get(segment_id(window_start, self._interval_ms))
        return None if segment is None else segment.get(encode_store_key(key, window_start, self._seqnum))

    def fetch(self, key: bytes, time_from: int, time_to: int, *, backward: bool = False) -> Entries:
        """Read the entries of one key whose window starts lie between the two."""
        time_from, time_to = self._visible(time_from, time_to)
        if time_to < time_from:
            return iter(())
        lower, upper = lower_bound(key, time_from), upper_bound(key, time_to)
        if self._recent is not None and self._recent_from <= time_from and time_to < self._recent_to:
            # The usual case of a join; within these bounds the length alone tells whose entry it is.
            if backward:
                return _of_one_key(self._recent.scan(lower, upper, backward=True), key, upper)
            return _of_one_key(self._recent.scan_from(lower, upper), key, upper)
        segments = self._between(time_from, time_to, backward=backward)
        return _kept(segments, lower, upper, (key, key), (time_from, time_to), backward=backward)

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
        return _kept(segments, lower, upper, (key_from, key_to), (time_from, time_to), backward=backward)

    def fetch_all(self, time_from: int, time_to: int, *, backward: bool = False) -> Entries:
        """Read the entries of all keys whose window starts lie between the two."""
        return self.fetch_range(None, None, time_from, time_to, backward=backward)

    def all(self, *, backward: bool = False) -> Entries:
        """Read all entries within the retention."""
        return self.fetch_range(None, None, 0, MAX_TIMESTAMP, backward=backward)

    def restore(self, records: Iterable[ChangelogRecord]) -> None:
        """Put records of the changelog back, converted to this store's format, in batches."""
        batch: list[ChangelogRecord] = []
        for record in records:
            batch.append(record)
            if len(batch) == RESTORE_BATCH_RECORDS:
                self._restore(batch)
                batch = []
        if batch:
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
                value = encode_value(value, record.timestamp, record.headers, self.value_format)
            placed.append((number, record.key, value))
        # Sorting is stable: of two records with one key, the later one stays the later one.
        placed.sort(key=lambda each: each[0])
        for number, group in groupby(placed, key=lambda each: each[0]):
            self._segment(number).write((key, value) for _, key, value in group)
        if self._retain_duplicates:
            self._seqnum = max(self._seqnum, *(key.seqnum for key in keys))

    def delete_range(self, lower: bytes, upper: bytes) -> None:
        """Remove all store keys between the two, the second excluded, in every segment."""
        self._check_open()
        for segment in self._segments.values():
            segment.delete_range(lower, upper)

    def approximate_count(self) -> int:
        """Estimate the number of entries, expired ones that are still there included."""
        self._check_open()
        return sum(segment.approximate_count() for segment in self._segments.values())

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
            segment = self._segments[number] = self._factory.create(number)
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
        if self._closed:
            self._check_open()
        oldest = self._observed - self._retention_ms + 1
        return (
            max(time_from, oldest),
            min(time_to, MAX_TIMESTAMP),
        )

    def _between(self, time_from: int, time_to: int, *, backward: bool) -> list[Segment]:
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


def _of_one_key(pairs: Iterator[tuple[bytes, bytes]], key: bytes, upper: bytes) -> Iterator[Entry]:
    """Keep what is the key's own, up to the upper bound; the hot path of a join."""
    size = len(key)
    whole = size + SUFFIX_BYTES
    for stored, value in pairs:
        if stored > upper:
            return
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
            found = decode_store_key(stored)
            if (
                time_from <= found.timestamp <= time_to
                and (key_from is None or found.key >= key_from)
                and (key_to is None or found.key <= key_to)
            ):
                yield found, value


class InMemoryWindowStore(SegmentedWindowStore):
    """A window store in memory; it holds whatever format its user writes."""

    def __init__(self, settings: StoreSettings, value_format: ValueFormat) -> None:
        super().__init__(settings, MemorySegments(), value_format)
