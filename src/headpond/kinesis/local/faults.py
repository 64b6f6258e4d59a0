"""What can go wrong between a client and the service, as rules that a test lays down.

::

    rule                effect on a call it strikes
    throttle            ProvisionedThroughputExceededException, nothing done
    internal_failure    InternalFailureException (HTTP 500), nothing done
    refuse              any error type
    cut                 connection cut; `when`: before the call is done, after it (the reply is lost), or
                        in the middle of the reply
    crash               every connection is cut before its call is done, from one call on until it is removed
    delay               the call is done, the reply comes later
    fail_entries        single entries of PutRecords fail, the others are stored
    empty_reads         GetRecords gives nothing and stays where it was, as across gaps
    expire_iterators    GetRecords finds its iterator expired
    cut_events          a subscription's connection is cut in the middle of an event
    fail_events         a subscription sends an exception instead of an event, and ends

Each rule strikes a `share` of the calls named in `calls` (all when empty), leaves the first `skip` alone
and ends after `times` strikes. Draws come from one seeded generator.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal

__all__ = ["Faults", "Rule"]

Effect = Literal[
    "refuse",
    "cut_before",
    "cut_after",
    "cut_reply",
    "delay",
    "fail_entry",
    "empty_read",
    "cut_event",
    "fail_event",
]
THROTTLED = "ProvisionedThroughputExceededException"
_FIRST_SERVER_STATUS = 500
_INNER = {"fail_entry", "empty_read", "cut_event", "fail_event"}


@dataclass(slots=True)
class Rule:
    """One rule; `hits` counts its strikes."""

    effect: Effect
    share: float
    calls: frozenset[str]
    skip: int = 0
    times: int | None = None
    code: str = ""
    message: str = ""
    status: int = 400
    delay_ms: int = 0
    hits: int = 0
    seen: int = 0


@dataclass(slots=True)
class Faults:
    """The rules in force; may be changed from any thread at any time."""

    seed: int = 0
    rules: list[Rule] = field(default_factory=list)
    _random: random.Random = field(init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - test faults, no secrets

    def throttle(
        self, share: float = 1.0, *, calls: tuple[str, ...] = (), skip: int = 0, times: int | None = None
    ) -> Rule:
        """Refuse calls for their rate."""
        return self.refuse(THROTTLED, share, calls=calls, skip=skip, times=times, message="Rate exceeded.")

    def internal_failure(
        self, share: float = 1.0, *, calls: tuple[str, ...] = (), skip: int = 0, times: int | None = None
    ) -> Rule:
        """Fail calls inside the service."""
        return self.refuse(
            "InternalFailureException",
            share,
            calls=calls,
            skip=skip,
            times=times,
            status=_FIRST_SERVER_STATUS,
        )

    def refuse(
        self,
        code: str,
        share: float = 1.0,
        *,
        calls: tuple[str, ...] = (),
        skip: int = 0,
        times: int | None = None,
        message: str = "Refused by a fault rule.",
        status: int = 400,
    ) -> Rule:
        """Refuse calls with any error type of the service."""
        return self._add(
            Rule("refuse", share, frozenset(calls), skip, times, code=code, message=message, status=status)
        )

    def cut(
        self,
        share: float = 1.0,
        *,
        when: Literal["before", "after", "reply"] = "before",
        calls: tuple[str, ...] = (),
        skip: int = 0,
        times: int | None = None,
    ) -> Rule:
        """Cut the connection before the call is done, after it, or in the middle of the reply."""
        effects: dict[str, Effect] = {"before": "cut_before", "after": "cut_after", "reply": "cut_reply"}
        return self._add(Rule(effects[when], share, frozenset(calls), skip, times))

    def crash(self, after: int = 0) -> Rule:
        """Answer so many calls, then none, as a service that died; removing the rule starts it again."""
        return self.cut(skip=after)

    def delay(
        self,
        delay_ms: int,
        share: float = 1.0,
        *,
        calls: tuple[str, ...] = (),
        skip: int = 0,
        times: int | None = None,
    ) -> Rule:
        """Send replies later."""
        return self._add(Rule("delay", share, frozenset(calls), skip, times, delay_ms=delay_ms))

    def fail_entries(
        self,
        share: float = 1.0,
        *,
        code: str = THROTTLED,
        message: str = "Rate exceeded for this shard.",
        skip: int = 0,
        times: int | None = None,
    ) -> Rule:
        """Fail single entries of PutRecords."""
        calls = frozenset({"PutRecords"})
        return self._add(Rule("fail_entry", share, calls, skip, times, code=code, message=message))

    def empty_reads(self, share: float = 1.0, *, skip: int = 0, times: int | None = None) -> Rule:
        """Let GetRecords give nothing although there is something."""
        return self._add(Rule("empty_read", share, frozenset({"GetRecords"}), skip, times))

    def expire_iterators(self, share: float = 1.0, *, skip: int = 0, times: int | None = None) -> Rule:
        """Let GetRecords find its iterator expired."""
        message = "Iterator expired by a fault rule."
        return self.refuse(
            "ExpiredIteratorException",
            share,
            calls=("GetRecords",),
            skip=skip,
            times=times,
            message=message,
        )

    def cut_events(self, share: float = 1.0, *, skip: int = 0, times: int | None = None) -> Rule:
        """Cut subscriptions in the middle of an event."""
        return self._add(Rule("cut_event", share, frozenset({"SubscribeToShard"}), skip, times))

    def fail_events(
        self,
        share: float = 1.0,
        *,
        code: str = "InternalFailureException",
        message: str = "Failed by a fault rule.",
        skip: int = 0,
        times: int | None = None,
    ) -> Rule:
        """Let subscriptions end with an exception where an event would come."""
        calls = frozenset({"SubscribeToShard"})
        return self._add(Rule("fail_event", share, calls, skip, times, code=code, message=message))

    def remove(self, rule: Rule) -> None:
        """Lift one rule."""
        with self._lock:
            self.rules.remove(rule)

    def clear(self) -> None:
        """Lift all rules."""
        with self._lock:
            self.rules.clear()

    def strike(self, call: str, *, inner: Effect | None = None) -> list[Rule]:
        """The rules that strike this call, counted.

        Args:
            call: The call's name.
            inner: Ask for this effect inside a call (an entry of PutRecords, an empty read, an event)
                instead.
        """
        if not self.rules:
            return []
        with self._lock:
            return [
                rule
                for rule in self.rules
                if (rule.effect == inner if inner else rule.effect not in _INNER)
                and (not rule.calls or call in rule.calls)
                and self._draw(rule)
            ]

    def _add(self, rule: Rule) -> Rule:
        with self._lock:
            self.rules.append(rule)
        return rule

    def _draw(self, rule: Rule) -> bool:
        rule.seen += 1
        struck = (
            rule.seen > rule.skip
            and (rule.times is None or rule.hits < rule.times)
            and (rule.share >= 1 or self._random.random() < rule.share)
        )
        rule.hits += struck
        return struck
