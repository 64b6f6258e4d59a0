"""The windowed stream-stream join, one record at a time, on the window stores: the reference engine.

::

                       stream time, throttle
                               │
    record ──► None? ──► expired ones leave ──► look into the other side's store ──► own side's store
                               │                     │ found           │ nothing found
                               ▼                     ▼                 ▼
                        unmatched results      joined results    leaves at once, or waits in the buffer

It reads like its specification and is as fast as its stores; whoever joins millions of records takes the
batch engine, which gives the same results in the same order. One engine is one task: it has its own stream
time and belongs to one thread. Source: spec "window store", section 8.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Self

from headpond.core.errors import UsageError
from headpond.kstreams.bytes.headers import Header
from headpond.kstreams.bytes.join_buffer import BufferFormat, Side
from headpond.kstreams.join.rules import (
    MAX_TIMESTAMP_MS,
    NO_MIN_TIME,
    OTHER_SIDE,
    HeadersOf,
    JoinClock,
    JoinCounters,
    JoinRules,
    JoinType,
    StreamTime,
    wrapped,
)
from headpond.kstreams.stores.typed import ValueAndHeaders

if TYPE_CHECKING:
    from headpond.kstreams.join.stores import JoinStores, Waiting


class JoinRecord(NamedTuple):
    """An input record; `timestamp` in ms. In a self-join every record is a left one."""

    side: Side
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[Header, ...] = ()


class JoinResult(NamedTuple):
    """A result: the values of both sides, None for the one that is missing; `timestamp` in ms."""

    key: bytes | None
    left: bytes | None
    right: bytes | None
    timestamp: int
    headers: tuple[Header, ...] = ()


class StreamJoin:
    """Joins two streams, record by record.

    Args:
        rules: What the join is.
        stores: Both sides' window stores and the buffer; closed with the engine.
        clock: The times to continue from; None: a new join's, or those that the stores' records show.

    Raises:
        UsageError: The stores are not made for these rules.
    """

    def __init__(self, rules: JoinRules, stores: JoinStores, clock: JoinClock | None = None) -> None:
        stores.check(rules)
        self.rules = rules
        self.stores = stores
        self.counters = JoinCounters()
        self._keeps_own = rules.headers is not HeadersOf.TRIGGER
        self._clock = replace(stores.clock() if clock is None else clock)

    @property
    def clock(self) -> JoinClock:
        """The join's times now."""
        return replace(self._clock, observed=self.stores.observed_times())

    def process(self, record: JoinRecord, wall_clock_ms: int = 0) -> list[JoinResult]:
        """Process a record; return the results that it causes, in order.

        Args:
            record: The record.
            wall_clock_ms: The time of day, for the throttle; never goes back.

        Raises:
            UsageError: The timestamp is negative or too great; nothing was done.
        """
        self._check(record)
        side, timestamp = record.side, record.timestamp
        self.stores.context.timestamp, self.stores.context.headers = timestamp, record.headers
        dropped = record.key is None or record.value is None
        if not (dropped and self.rules.type is JoinType.SELF):
            # A self-join alone drops records before they count for the stream time.
            self._clock.stream_time = max(self._clock.stream_time, timestamp)
        self.counters.records += 1
        self.counters.out_of_order += timestamp < self._clock.stream_time
        self.counters.late += self.rules.closed(side, timestamp, self._clock.stream_time)
        outer = self.rules.is_outer(side)
        results: list[JoinResult] = []
        if outer and record.key is None and record.value is not None:
            self._emit_unmatched(results, record, record)
            return results
        if record.key is None or record.value is None:
            if record.key is None:
                self.counters.dropped_null_key += 1
            else:
                self.counters.dropped_null_value += 1
            return results
        if self.rules.type is JoinType.SELF:
            self._join_with_itself(results, record, record.key, record.value)
        else:
            by_record = self.rules.stream_time is StreamTime.TASK
            if self.stores.buffer is not None and timestamp == self._clock.stream_time and by_record:
                self._emit_expired(results, record, wall_clock_ms)
            found = self._join(results, record, record.key)
            if outer and not found:
                if self.rules.leaves_at_once(side, timestamp, self._clock.stream_time):
                    self._emit_unmatched(results, record, record)
                else:
                    self._buffer(record, record.key, record.value)
        self._store(record, record.key, record.value)
        return results

    def advance(self, stream_time: int) -> list[JoinResult]:
        """Raise the stream time without a record; return the unmatched results that it lets go.

        Raises:
            UsageError: The join's stream time is that of its own records.
        """
        if self.rules.stream_time is not StreamTime.QUERY:
            raise UsageError("This join's stream time is that of its records.", option="stream_time")
        self._clock.stream_time = max(self._clock.stream_time, stream_time)
        results: list[JoinResult] = []
        for timestamp, side, key, each in self.waiting():
            if self.rules.closed(side, timestamp, self._clock.stream_time):
                own = JoinRecord(side, key, each.value, timestamp, each.headers)
                self._emit_unmatched(results, own, own)
                assert self.stores.buffer is not None
                self.stores.buffer.remove(timestamp, side, key)
        return results

    def _check(self, record: JoinRecord) -> None:
        if not 0 <= record.timestamp <= MAX_TIMESTAMP_MS:
            raise UsageError(
                f"A record's timestamp is between 0 and {MAX_TIMESTAMP_MS} ms, and this one's is "
                f"{record.timestamp}.",
                next_step="Drop or repair records without a time before the join.",
                timestamp=record.timestamp,
            )
        if record.side is Side.RIGHT and self.rules.type is JoinType.SELF:
            raise UsageError("A self-join has one input, the left one; this record is a right one.")

    def _emit_expired(self, results: list[JoinResult], trigger: JoinRecord, wall_clock_ms: int) -> None:
        """Emit unmatched records whose windows have closed, as far as the throttle allows."""
        windows = self.rules.windows
        # Wrapping is part of the rules: an empty buffer's time plus a span wraps, passes, and uses the
        # throttle's interval up.
        if not (
            wrapped(self._clock.min_time + self.rules.after_ms(trigger.side) + windows.grace_ms)
            < self._clock.stream_time
        ):
            return
        if wall_clock_ms < self._clock.next_emit_ms:
            return
        self._clock.next_emit_ms = wall_clock_ms + self.rules.emit_interval_ms
        self._clock.min_time = NO_MIN_TIME
        buffer = self.stores.buffer
        assert buffer is not None
        still_open: set[Side] = set()
        for (timestamp, side, key), waiting in buffer.walk():
            self._clock.min_time = timestamp
            if len(still_open) == len(Side):
                break
            if not self.rules.closed(side, timestamp, self._clock.stream_time):
                still_open.add(side)
                continue
            for each in waiting:
                own = JoinRecord(side, key, each.value, timestamp, each.headers)
                self._emit_unmatched(results, own, trigger)
            buffer.remove(timestamp, side, key)

    def _join(self, results: list[JoinResult], record: JoinRecord, key: bytes) -> bool:
        """Join a record with what the other side's store holds; return whether there was anything."""
        first, last = self._bounds(record.side, record.timestamp)
        other = OTHER_SIDE[record.side]
        found = False
        for partner_time, partner in self.stores.of(other).fetch(key, first, last):
            found = True
            if self.stores.buffer is not None:
                self.stores.buffer.remove(partner_time, other, key)
            self._emit_joined(results, record, partner, partner_time)
        return found

    def _join_with_itself(
        self, results: list[JoinResult], record: JoinRecord, key: bytes, value: bytes
    ) -> None:
        """Join a record with the earlier ones of its stream, as left and as right, and with itself."""
        rules, store, timestamp = self.rules, self.stores.of(Side.LEFT), record.timestamp
        itself = ValueAndHeaders(value, record.headers)
        # Whether its own store would still show it, had it been put already.
        meets_itself = timestamp > self._clock.stream_time - rules.retention_ms + 1
        for partner_time, partner in store.fetch(key, *self._bounds(Side.LEFT, timestamp)):
            self._emit_joined(results, record, partner, partner_time)
        as_right = record._replace(side=Side.RIGHT)
        for partner_time, partner in store.fetch(key, *self._bounds(Side.RIGHT, timestamp)):
            if meets_itself and partner_time > timestamp:
                self._emit_joined(results, record, itself, timestamp)
                meets_itself = False
            self._emit_joined(results, as_right, partner, partner_time)
        if meets_itself:
            self._emit_joined(results, record, itself, timestamp)

    def _bounds(self, side: Side, timestamp: int) -> tuple[int, int]:
        return (
            self.rules.first_partner(side, timestamp, self._clock.stream_time),
            self.rules.last_partner(side, timestamp),
        )

    def _emit_joined(
        self,
        results: list[JoinResult],
        record: JoinRecord,
        partner: ValueAndHeaders[bytes],
        partner_time: int,
    ) -> None:
        left, right = record.value, partner.value
        headers = record.headers
        if self.rules.headers is HeadersOf.MERGE:
            headers = record.headers + partner.headers
        if record.side is Side.RIGHT:
            left, right = right, left
            if self.rules.headers is HeadersOf.MERGE:
                headers = partner.headers + record.headers
        self.counters.joined += 1
        results.append(JoinResult(record.key, left, right, max(record.timestamp, partner_time), headers))

    def _emit_unmatched(self, results: list[JoinResult], own: JoinRecord, trigger: JoinRecord) -> None:
        left, right = (own.value, None) if own.side is Side.LEFT else (None, own.value)
        headers = own.headers if self._keeps_own else trigger.headers
        self.counters.unmatched += 1
        results.append(JoinResult(own.key, left, right, own.timestamp, headers))

    def _buffer(self, record: JoinRecord, key: bytes, value: bytes) -> None:
        buffer = self.stores.buffer
        assert buffer is not None
        self._clock.min_time = min(self._clock.min_time, record.timestamp)
        headers = record.headers if buffer.format is BufferFormat.HEADERS else ()
        buffer.append(record.timestamp, record.side, key, value, headers)
        self.counters.buffered += 1

    def _store(self, record: JoinRecord, key: bytes, value: bytes) -> None:
        store = self.stores.of(record.side)
        store.put(key, ValueAndHeaders(value, record.headers), record.timestamp)
        oldest_readable = store.observed_stream_time - self.rules.retention_ms + 1
        self.counters.dropped_late += record.timestamp < oldest_readable

    def waiting(self) -> list[tuple[int, Side, bytes, Waiting]]:
        """List what waits in the buffer, in the order in which it will leave."""
        if self.stores.buffer is None:
            return []
        return [
            (timestamp, side, key, each)
            for (timestamp, side, key), waiting in self.stores.buffer.walk()
            for each in waiting
        ]

    def close(self) -> None:
        """Close the stores."""
        self.stores.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
