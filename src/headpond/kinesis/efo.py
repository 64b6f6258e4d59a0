"""Enhanced fan-out: a batch read through subscriptions to its shards, in place of polling.

::

    SubscribeToShard ─► event ─► event ─► … 5 minutes ─► over ─┐
          ▲              records, continuation                 │
          └── at the continuation, 5 s after the last time ◄───┴── cut, failed, taken over

`FanOut` looks like the calls that poll, so what reads a shard (`cursor`, `read`) is the same in both modes
and gives the same records. Planning polls: it asks for single records, which a subscription cannot give.

A consumer has one subscription per shard. The service ends the older one where two are made, so two tasks
that read one shard at a time (speculation) take it from each other, every 5 seconds; each goes on where it
was.
"""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from headpond.errors import EnvironmentLacks, ServiceFailure
from headpond.kinesis.calls import Passing, PlaceRefused, calls_of
from headpond.kinesis.efo_events import EventFailed, read_events
from headpond.kinesis.efo_turns import Turns, turns_folder
from headpond.kinesis.replies import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headpond.kinesis.calls import IteratorKind, ServiceCalls, StreamCalls, StreamFacts
    from headpond.kinesis.connection import ConnectionSettings
    from headpond.kinesis.efo_events import Event
    from headpond.kinesis.shards import Shard

__all__ = ["MOST_IDLE_EVENTS", "FanOut", "find_consumer", "reading_calls"]

MOST_IDLE_EVENTS = 12
"""An event comes every 5 seconds at least: a minute."""

_turns = Turns(turns_folder())
_at_will = Turns(None, spacing_ms=0)


class _Place(NamedTuple):
    """Where a subscription starts."""

    kind: IteratorKind
    number: str | None = None
    time_ms: int | None = None

    @property
    def argument(self) -> dict[str, Any]:
        """`StartingPosition` as boto3 takes it."""
        position: dict[str, Any] = {"Type": self.kind}
        if self.number is not None:
            position["SequenceNumber"] = self.number
        if self.time_ms is not None:
            position["Timestamp"] = datetime.fromtimestamp(self.time_ms / 1000, UTC)
        return position


def find_consumer(calls: ServiceCalls, settings: ConnectionSettings, name: str) -> str:
    """Find a registered consumer's ARN by its name.

    headpond registers none: a consumer is paid for by the hour and shard, and outlives a query.

    Raises:
        EnvironmentLacks: The stream has no such consumer.
    """
    stream_arn = settings.stream_arn or calls.describe().arn
    try:
        return calls.consumer_arn(stream_arn, name)
    except PlaceRefused:
        raise EnvironmentLacks(
            f"Stream {settings.stream} has no registered consumer {name} {settings.where}.",
            next_step="Register it (aws kinesis register-stream-consumer --stream-arn "
            f"{stream_arn} --consumer-name {name}), or set consumerMode to polling.",
            stream=settings.stream,
            consumer=name,
        ) from None


@contextmanager
def reading_calls(connection: ConnectionSettings, consumer_arn: str | None) -> Iterator[StreamCalls]:
    """Give the calls that one task reads with: subscriptions of a consumer, or polling."""
    calls = calls_of(connection)
    if consumer_arn is None:
        yield calls
        return
    # As with the limits of polling: a service on this machine is a stand-in, which refuses what it must.
    turns = _at_will if connection.is_loopback else _turns
    fan_out = FanOut(calls, connection, consumer_arn, turns=turns)
    try:
        yield fan_out
    finally:
        fan_out.close()


class FanOut:
    """Reads one shard at a time through subscriptions; its `iterator` subscribes, its `page` is an event.

    Args:
        calls: The calls below.
        settings: The connection, for messages.
        consumer_arn: The consumer.
        turns: Who may subscribe when.
        sleep: How to wait.
    """

    def __init__(
        self,
        calls: ServiceCalls,
        settings: ConnectionSettings,
        consumer_arn: str,
        *,
        turns: Turns = _turns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._calls, self._settings, self._consumer_arn = calls, settings, consumer_arn
        self._turns, self._sleep = turns, sleep
        self._stream: Any = None
        self._events: Iterator[Event] = iter(())
        self._place = _Place("TRIM_HORIZON")
        self._last: int | None = None  # number of the last record given out
        self._renewed = False  # whether no record came since a renewal
        self._waited_s, self._attempt = 0.0, 0  # since the last event

    def describe(self) -> StreamFacts:
        """Ask for the stream's creation time and retention."""
        return self._calls.describe()

    def list_shards(self) -> list[Shard]:
        """List all shards that are not expired."""
        return self._calls.list_shards()

    def date_ms(self) -> int:
        """The time of the newest reply."""
        return self._calls.date_ms()

    def now_ms(self) -> int:
        """The server's clock as well as its replies tell."""
        return self._calls.now_ms()

    @property
    def parallel(self) -> int:
        """How many calls at a time pay."""
        return self._calls.parallel

    def iterator(
        self, shard_id: str, kind: IteratorKind, *, number: str | None = None, time_ms: int | None = None
    ) -> str:
        """Subscribe to a shard; the subscription to the one before ends."""
        self.close()
        self._place, self._last, self._renewed = _Place(kind, number, time_ms), None, False
        self._waited_s, self._attempt = 0.0, 0
        self._subscribe(shard_id)
        return shard_id

    def page(self, iterator: str, shard_id: str, limit: int) -> Page:  # noqa: ARG002 (events have the service's size)
        """Read on: one event, over renewals.

        Raises:
            PlaceRefused: The shard is gone.
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
                self._back_off(EventFailed("SubscriptionEnded", told=False), shard_id, None)
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
        self._place = _Place("AT_SEQUENCE_NUMBER", event.continuation)
        return Page(records, shard_id, event.behind_ms)

    def _subscribe(self, shard_id: str) -> None:
        while True:
            self._wait(self._turns.wait_s(self._consumer_arn, shard_id))
            try:
                self._stream = self._calls.subscribe(self._consumer_arn, shard_id, self._place.argument)
            except Passing as passing:
                self._back_off(passing.failure, shard_id, passing.patience_s)
            except PlaceRefused as refused:
                self._check_consumer(refused)
                raise
            else:
                self._turns.answered(self._consumer_arn, shard_id)
                self._events = read_events(self._stream)
                return

    def _judge(self, failed: EventFailed, shard_id: str) -> None:
        """Wait before another try, or find that there is none."""
        if not failed.told:
            self._back_off(failed, shard_id, None)
            return
        try:
            passing = self._calls.judge(failed.code, "SubscribeToShard", _doing(shard_id))
        except PlaceRefused as refused:
            self._check_consumer(refused)
            raise
        self._back_off(passing.failure, shard_id, passing.patience_s)

    def _back_off(self, failure: Exception, shard_id: str, patience_s: float | None) -> None:
        patience = self._calls.patience
        if self._waited_s >= (patience.unreachable_s if patience_s is None else patience_s):
            raise self._calls.given_up(failure, _doing(shard_id)) from None
        if self._attempt:
            longest_s = min(patience.longest_wait_s, patience.first_wait_s * 2**self._attempt)
            self._wait(random.uniform(longest_s / 10, longest_s))  # noqa: S311 (jitter, no secret)
        self._attempt = min(self._attempt + 1, 16)

    def _wait(self, wait_s: float) -> None:
        if wait_s > 0:
            self._sleep(wait_s)
            self._waited_s += wait_s

    def _check_consumer(self, refused: PlaceRefused) -> None:
        """Tell a consumer that is gone from a shard that is gone."""
        if refused.code == "ResourceNotFoundException" and not self._calls.has_consumer(self._consumer_arn):
            raise EnvironmentLacks(
                f"The consumer {self._consumer_arn} was deregistered while it was being read with.",
                next_step="Register it again and restart the query, or set consumerMode to polling.",
                stream=self._settings.stream,
                consumer=self._consumer_arn,
            ) from None


def _doing(shard_id: str) -> str:
    return f"reading {shard_id} by subscription"
