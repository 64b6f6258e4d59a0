"""Enhanced fan-out: a batch read through subscriptions to its shards, in place of polling.

::

    SubscribeToShard ─► event ─► event ─► … 5 minutes ─► over ─┐
          ▲              records, continuation                 │
          └── at the continuation ◄────────────────────────────┴── cut, failed, taken over

`FanOut` looks like the calls that poll, so what reads a shard (`cursor`, `read`) is the same in both modes
and gives the same records. Planning polls: it asks for single records, which a subscription cannot give.

A consumer has one subscription per shard, made once in 5 seconds at most: who comes too soon is refused, and
waits. The service ends the older one where two are made, so two tasks that read one shard at a time
(speculation) take it from each other, every 5 seconds; each goes on where it was.

Events are read without botocore's own parser; framing stays botocore's::

    event stream ─ botocore's frames ─► event      ─► JSON into `Record`s, as in `replies` ─► Event
                                        exception  ─► EventFailed(code)
                 ─ cut, timed out, damaged         ─► EventFailed(code)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from botocore.exceptions import BotoCoreError, ClientError

from headpond.core.errors import MissingRequirement, ServiceFailure
from headpond.kinesis.api.calls import IteratorKind, ServiceCalls, StreamCalls, calls_of
from headpond.kinesis.api.errors import translate
from headpond.kinesis.api.replies import Page, Record
from headpond.kinesis.api.retry import CUT, NOT_FOUND, PositionRejected, RetryableError, classify
from headpond.kinesis.api.settings import ConnectionSettings

MOST_IDLE_EVENTS = 12
"""An event comes every 5 seconds at least: a minute."""


@contextmanager
def reading_calls(connection: ConnectionSettings, consumer_arn: str | None) -> Iterator[StreamCalls]:
    """Return the calls that one task reads with: subscriptions of a consumer, or polling."""
    calls = calls_of(connection)
    if consumer_arn is None:
        yield calls
        return
    with closing(FanOut(calls, connection, consumer_arn)) as fan_out:
        yield fan_out


class FanOut:
    """Reads one shard at a time through subscriptions; its `iterator` subscribes, its `page` is an event."""

    def __init__(
        self,
        calls: ServiceCalls,
        settings: ConnectionSettings,
        consumer_arn: str,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._calls, self._settings, self._consumer_arn, self._sleep = calls, settings, consumer_arn, sleep
        self.list_shards, self.now_ms = calls.list_shards, calls.now_ms
        self._stream: Any = None
        self._events: Iterator[Event] = iter(())
        self._place: dict[str, Any] = {}  # `StartingPosition` as boto3 takes it
        self._last: int | None = None  # number of the last record returned
        self._renewed = False  # whether no record came since a renewal
        self._waited_s, self._attempt = 0.0, 0  # since the last event

    def iterator(
        self, shard_id: str, kind: IteratorKind, *, number: str | None = None, time_ms: int | None = None
    ) -> str:
        """Subscribe to a shard; the subscription to the one before ends."""
        self.close()
        self._place, self._last, self._renewed = {"Type": kind}, None, False
        if number is not None:
            self._place["SequenceNumber"] = number
        if time_ms is not None:
            self._place["Timestamp"] = datetime.fromtimestamp(time_ms / 1000, UTC)
        self._waited_s, self._attempt = 0.0, 0
        self._subscribe(shard_id)
        return shard_id

    def page(self, iterator: str, shard_id: str, limit: int) -> Page:  # noqa: ARG002 (events have the service's size)
        """Read on: one event, over renewals.

        Raises:
            PositionRejected: The shard is gone.
            HeadpondError: It goes on failing.
        """
        while True:
            try:
                event = next(self._events, None)
            except EventFailed as failed:
                self.close()
                self._judge(failed, shard_id)
            else:
                if event is not None:
                    self._waited_s, self._attempt = 0.0, 0
                    return self._page(event, shard_id)
                self.close()
                # Over in its time, unless not even one event came.
                self._back_off(EventFailed("SubscriptionEnded", by_service=False), shard_id, None)
            self._renewed = self._last is not None
            self._subscribe(shard_id)

    def close(self) -> None:
        """End the subscription."""
        stream, self._stream, self._events = self._stream, None, iter(())
        if stream is not None:
            stream.close()

    def _page(self, event: Event, shard_id: str) -> Page:
        records = event.records
        if records and self._last is not None:
            if self._renewed and records[0].number == self._last:
                records = records[1:]  # a continuation may be the number of the last record
            if records and records[0].number <= self._last:
                raise ServiceFailure(
                    f"The subscription to {shard_id} of {self._settings.stream} sent record "
                    f"{records[0].sequence_number} after {self._last}.",
                    next_step="Run again; if it lasts, set consumerMode to polling.",
                    shard_id=shard_id,
                )
        if records:
            self._last, self._renewed = records[-1].number, False
        if event.continuation is None:
            self.close()
            return Page(records, None, event.behind_ms)
        self._place = {"Type": "AT_SEQUENCE_NUMBER", "SequenceNumber": event.continuation}
        return Page(records, shard_id, event.behind_ms)

    def _subscribe(self, shard_id: str) -> None:
        while True:
            try:
                reply = self._calls.once(
                    f"subscribing to {shard_id}",
                    "subscribe_to_shard",
                    ConsumerARN=self._consumer_arn,
                    ShardId=shard_id,
                    StartingPosition=self._place,
                )
            except RetryableError as passing:
                self._back_off(passing.failure, shard_id, passing.patience_s)
            except PositionRejected as refused:
                self._check_consumer(refused, shard_id)
                raise
            else:
                self._stream = reply["EventStream"]
                self._events = read_events(self._stream)
                return

    def _judge(self, failed: EventFailed, shard_id: str) -> None:
        """Wait before another try, or find that there is none."""
        if not failed.by_service:
            self._back_off(failed, shard_id, None)
            return
        error = ClientError({"Error": {"Code": failed.code}}, "SubscribeToShard")
        try:
            passing = classify(error, self._calls.patience, self._settings, _doing(shard_id))
        except PositionRejected as refused:
            self._check_consumer(refused, shard_id)
            raise
        self._back_off(passing.failure, shard_id, passing.patience_s)

    def _back_off(self, failure: Exception, shard_id: str, patience_s: float | None) -> None:
        patience = self._calls.patience
        if self._waited_s >= (patience.unreachable_s if patience_s is None else patience_s):
            raise translate(failure, self._settings, doing=_doing(shard_id)) from None
        if self._attempt:
            wait_s = patience.wait_s(self._attempt)
            self._sleep(wait_s)
            self._waited_s += wait_s
        self._attempt += 1

    def _check_consumer(self, refused: PositionRejected, shard_id: str) -> None:
        """Distinguish a consumer that is gone from a shard that is gone."""
        if refused.code != NOT_FOUND:
            return
        try:
            doing = "looking for the consumer"
            self._calls.call(doing, "describe_stream_consumer", ConsumerARN=self._consumer_arn)
        except PositionRejected:
            raise MissingRequirement(
                f"The consumer {self._consumer_arn} was deregistered while {shard_id} was read with it.",
                next_step="Register it again (`headpond consumers register`) and restart the query, or set "
                "consumerMode to polling.",
                stream=self._settings.stream,
                shard_id=shard_id,
                consumer=self._consumer_arn,
            ) from None


def _doing(shard_id: str) -> str:
    return f"reading {shard_id} by subscription"


class Event(NamedTuple):
    """One event; without a continuation it is the last one of a closed shard."""

    records: list[Record]
    continuation: str | None
    behind_ms: int


class EventFailed(Exception):
    """The subscription ended before its time; `code` is that of the service, or the client's error."""

    def __init__(self, code: str, *, by_service: bool) -> None:
        super().__init__(code)
        self.code = code
        self.by_service = by_service


class _Payload(msgspec.Struct, gc=False):
    records: list[Record] = msgspec.field(name="Records")
    continuation: str | None = msgspec.field(name="ContinuationSequenceNumber", default=None)
    behind_ms: int = msgspec.field(name="MillisBehindLatest", default=0)
    children: list[msgspec.Raw] | None = msgspec.field(name="ChildShards", default=None)


_decode = msgspec.json.Decoder(_Payload).decode


def read_events(stream: Any) -> Iterator[Event]:
    """Read the events of `subscribe_to_shard`'s EventStream until it ends.

    Raises:
        EventFailed: It ended by an exception, was cut, or is damaged.
    """
    try:
        for message in stream._event_generator:  # noqa: SLF001 - no other way to an event before its parser
            headers = message.headers
            if headers.get(":message-type") in ("exception", "error"):
                code = headers.get(":exception-type") or headers.get(":error-code") or "Unknown"
                raise EventFailed(str(code), by_service=True)
            if headers.get(":event-type") == "SubscribeToShardEvent":
                yield _event(message.payload)
    except (*CUT, BotoCoreError) as error:
        raise EventFailed(type(error).__name__, by_service=False) from None


def _event(payload: bytes) -> Event:
    try:
        found = _decode(payload)
    except msgspec.DecodeError:
        found = _Payload([])
    if found.continuation is None and not found.children:
        # Only a shard that ended has no continuation, and then it has children.
        raise EventFailed("EventDamaged", by_service=False)
    return Event(found.records, found.continuation, found.behind_ms)
