"""Registered consumers of the local Kinesis and their subscriptions to shards (enhanced fan-out).

::

    RegisterStreamConsumer ─► CREATING ─► ACTIVE ─► DELETING ─► gone
                                            │ SubscribeToShard
                                            ▼
        at most one subscription per consumer and shard: for 5 s nobody else gets it, after that a new one
        takes it over; it ends by itself after 5 minutes, or with its shard

Rules and messages are those the service documents. Reads here are not metered: a consumer has its own
2 MiB a second per shard.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING

from headpond.localkinesis.settings import (
    ServiceRefusalError,
    in_use,
    invalid_argument,
    limit_exceeded,
    not_found,
)

if TYPE_CHECKING:
    from headpond.localkinesis.engine import Engine
    from headpond.localkinesis.model import Position, Reading, Start


@dataclass(slots=True)
class Consumer:
    """A registered consumer of one stream."""

    name: str
    arn: str
    stream_arn: str
    created_ms: int
    active_ms: int
    gone_ms: int | None = None
    subscriptions: dict[str, Subscription] = field(default_factory=dict)  # by shard

    def status(self, now_ms: int) -> str:
        """Return `CREATING`, `ACTIVE` or `DELETING`."""
        if self.gone_ms is not None:
            return "DELETING"
        return "CREATING" if now_ms < self.active_ms else "ACTIVE"


@dataclass(slots=True)
class Subscription:
    """One consumer's reading of one shard."""

    consumer: Consumer
    shard_id: str
    position: Position | None
    began_ms: int
    ends_ms: int
    taken_over: bool = False


class Consumers:
    """The consumers of all streams of one engine; guarded by the engine's lock."""

    def __init__(self, engine: Engine, lock: RLock) -> None:
        self._engine, self._lock = engine, lock

    def register(self, stream_name: str, name: str) -> Consumer:
        """Register a consumer."""
        with self._lock:
            stream, now_ms = self._engine.stream(stream_name), self._engine.clock()
            settings, there = self._engine.settings, self.of_stream(stream_name)
            if name in stream.consumers:
                raise in_use(
                    f"Consumer {name} under stream {stream.name}, account {settings.account} already exists."
                )
            creating = sum(each.status(now_ms) == "CREATING" for each in there)
            if len(there) >= settings.max_consumers or creating >= settings.max_creating_consumers:
                raise limit_exceeded(
                    f"Stream {stream.name} has {len(there)} consumers, {creating} of them CREATING; "
                    f"the limits are {settings.max_consumers} and {settings.max_creating_consumers}."
                )
            arn = f"{stream.arn}/consumer/{name}:{now_ms // 1000}"
            consumer = Consumer(name, arn, stream.arn, now_ms, now_ms + settings.settle_ms)
            stream.consumers[name] = consumer
            return consumer

    def deregister(self, consumer: Consumer) -> None:
        """Begin to delete a consumer; its subscriptions end."""
        consumer.gone_ms = self._engine.clock() + self._engine.settings.settle_ms

    def of_stream(self, stream_name: str) -> list[Consumer]:
        """Return a stream's consumers, by name; those that are deleted are forgotten."""
        with self._lock:
            stream, now_ms = self._engine.stream(stream_name), self._engine.clock()
            for each in list(stream.consumers.values()):
                if each.gone_ms is not None and now_ms >= each.gone_ms:
                    del stream.consumers[each.name]
            return [each for _, each in sorted(stream.consumers.items())]

    def find(
        self, *, arn: str | None = None, stream_name: str | None = None, name: str | None = None
    ) -> Consumer:
        """Find a consumer by its ARN, or by its stream and name."""
        if arn is not None:
            stream_name = arn.partition("/consumer/")[0]
        elif stream_name is None or name is None:
            raise invalid_argument("Either ConsumerARN, or StreamARN and ConsumerName must be given.")
        for each in self.of_stream(stream_name):
            if each.arn == arn or (arn is None and each.name == name):
                return each
        raise not_found(f"Consumer {arn or name} under account {self._engine.settings.account} not found.")

    def subscribe(self, arn: str, shard_id: str, start: Start) -> Subscription:
        """Subscribe to a shard."""
        with self._lock:
            consumer, now_ms = self.find(arn=arn), self._engine.clock()
            settings = self._engine.settings
            if consumer.status(now_ms) != "ACTIVE":
                raise in_use(f"Consumer {consumer.name} of {consumer.stream_arn} is not in ACTIVE status.")
            position = self._engine.position(consumer.stream_arn, shard_id, start)
            held = consumer.subscriptions.get(position.shard_id)
            if held is not None:
                if now_ms - held.began_ms < settings.resubscribe_ms:
                    raise _in_use(held)
                held.taken_over = True
            subscription = Subscription(
                consumer, position.shard_id, position, now_ms, now_ms + settings.subscription_ms
            )
            consumer.subscriptions[position.shard_id] = subscription
            return subscription

    def read(self, subscription: Subscription) -> Reading | None:
        """Read on for a subscription; None when it is over.

        Raises:
            ServiceRefusalError: It was taken over, or its consumer, stream or shard is gone.
        """
        with self._lock:
            if subscription.taken_over:
                raise _in_use(subscription)
            if subscription.consumer.gone_ms is not None:
                raise not_found(f"Consumer {subscription.consumer.name} not found.")
            if subscription.position is None or self._engine.clock() >= subscription.ends_ms:
                return None
            reading = self._engine.read(subscription.position, as_event=True)
            subscription.position = reading.position
            return reading


def _in_use(held: Subscription) -> ServiceRefusalError:
    return in_use(
        f"Another active subscription exists for this consumer: {held.consumer.name}, shard {held.shard_id}, "
        f"stream {held.consumer.stream_arn}."
    )
