"""Registered consumers of a stream, as which enhanced fan-out reads: found, registered, listed, deregistered.

::

    register ─► CREATING ─► ACTIVE ─► deregister ─► DELETING ─► gone

A consumer is paid for by the hour and shard and outlives a query: headpond registers one only where it is
asked to, and deregisters one only by command.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from headpond.core.errors import MissingRequirement
from headpond.kinesis.api.errors import error_code
from headpond.kinesis.api.retry import PositionRejected, RetryableError
from headpond.kinesis.api.settings import ConnectionSettings

if TYPE_CHECKING:
    from headpond.kinesis.api.calls import ServiceCalls

MOST_WAIT_S = 300.0
"""How long a consumer is waited for that is being registered or deregistered; usually it takes seconds."""

_PAUSE_S = 1.0


class Consumer(NamedTuple):
    """A registered consumer; `status` is CREATING, ACTIVE or DELETING."""

    name: str
    arn: str
    status: str
    created: datetime


class Consumers:
    """The registered consumers of one stream; `most_s` as `MOST_WAIT_S`."""

    def __init__(
        self,
        calls: ServiceCalls,
        settings: ConnectionSettings,
        *,
        most_s: float = MOST_WAIT_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._calls, self._settings, self._most_s, self._sleep = calls, settings, most_s, sleep
        self._stream = {"StreamARN": settings.stream_arn or calls.describe().arn}

    def each(self) -> list[Consumer]:
        """List all of them, by name."""
        found: list[Consumer] = []
        more: dict[str, Any] = {}
        while True:
            doing = f"listing the consumers of stream {self._settings.name}"
            reply = self._calls.call(doing, "list_stream_consumers", **self._stream, **more)
            found += map(_consumer, reply["Consumers"])
            if not reply.get("NextToken"):
                return sorted(found)
            more = {"NextToken": reply["NextToken"]}

    def find(self, name: str) -> str:
        """Return a consumer's ARN.

        Raises:
            MissingRequirement: The stream has no such consumer; names those there are.
        """
        consumer = self._described(name)
        if consumer is None:
            there = ", ".join(each.name for each in self.each()) or "none"
            raise self._missing(
                name,
                f"has no registered consumer {name} {self._settings.where}; there is {there}",
                f"Register it (`headpond consumers register {self._settings.stream} {name}`, or set "
                "registerConsumer to true), or set consumerMode to polling.",
            )
        return consumer.arn

    def register(self, name: str) -> str:
        """Register a consumer unless it is there, and wait until it is ACTIVE.

        Returns:
            Its ARN.

        Raises:
            MissingRequirement: It is not ACTIVE in time, or the stream may have no more consumers.
        """
        waited_s, refused = 0.0, ""
        while True:
            consumer = self._described(name)
            if consumer is not None and consumer.status == "ACTIVE":
                return consumer.arn
            if consumer is None:
                refused = self._begun(name)
            if waited_s >= self._most_s:
                state = f"it is {consumer.status}" if consumer else f"the service answered {refused}"
                raise self._missing(
                    name,
                    f"has no ACTIVE consumer {name} after {waited_s:g} s of waiting for it; {state}",
                    "Look at `headpond consumers list`, and start again when it is ACTIVE.",
                )
            self._sleep(_PAUSE_S)
            waited_s += _PAUSE_S

    def deregister(self, name: str) -> None:
        """Deregister a consumer and wait until it is gone; its subscriptions end.

        Raises:
            MissingRequirement: The stream has no such consumer, or still has it after the time to wait.
        """
        self.find(name)
        waited_s = 0.0
        while (consumer := self._described(name)) is not None:
            if consumer.status != "DELETING":
                doing = f"deregistering the consumer {name} of stream {self._settings.name}"
                try:
                    self._calls.call(doing, "deregister_stream_consumer", ConsumerARN=consumer.arn)
                except PositionRejected:
                    return
            elif waited_s >= self._most_s:
                raise self._missing(
                    name,
                    f"still has the consumer {name} after {waited_s:g} s of waiting for its end",
                    "Look at `headpond consumers list`; it is paid for until it is gone.",
                )
            else:
                self._sleep(_PAUSE_S)
                waited_s += _PAUSE_S

    def _described(self, name: str) -> Consumer | None:
        try:
            reply = self._calls.call(
                f"looking for the consumer {name}",
                "describe_stream_consumer",
                **self._stream,
                ConsumerName=name,
            )
        except PositionRejected:
            return None
        return _consumer(reply["ConsumerDescription"])

    def _begun(self, name: str) -> str:
        """Register a consumer, trying once; return the service's answer where that may pass."""
        try:
            self._calls.once(
                f"registering the consumer {name} of stream {self._settings.name}",
                "register_stream_consumer",
                **self._stream,
                ConsumerName=name,
            )
        except RetryableError as passing:
            code = error_code(passing.failure)
            there = self.each() if code == "LimitExceededException" else []
            if there and all(each.status == "ACTIVE" for each in there):
                raise self._missing(
                    name,
                    f"may have no more consumers than its {len(there)}, and {name} is none of them",
                    f"Deregister one of {', '.join(each.name for each in there)}: `headpond consumers "
                    f"deregister {self._settings.stream} NAME`.",
                ) from None
            return code
        except PositionRejected as refused:  # it has just been registered, or the stream is not ACTIVE
            return refused.code
        return ""

    def _missing(self, name: str, fact: str, next_step: str) -> MissingRequirement:
        return MissingRequirement(
            f"Stream {self._settings.stream} {fact}.",
            next_step=next_step,
            stream=self._settings.stream,
            consumer=name,
        )


def _consumer(value: dict[str, Any]) -> Consumer:
    return Consumer(
        value["ConsumerName"],
        value["ConsumerARN"],
        value["ConsumerStatus"],
        value["ConsumerCreationTimestamp"],
    )


def consumer_of(calls: ServiceCalls, settings: ConnectionSettings, name: str, *, register: bool) -> str:
    """Return the ARN of the consumer that a query reads as, registered before where that is asked for."""
    consumers = Consumers(calls, settings)
    return consumers.register(name) if register else consumers.find(name)
