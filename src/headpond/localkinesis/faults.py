"""What can go wrong between a client and the service, as rules that a test sets.

::

    rule                effect on a call it hits
    throttle            ProvisionedThroughputExceededException, nothing done
    internal_failure    InternalFailureException (HTTP 500), nothing done
    refuse              any error type
    cut                 connection cut; `when`: before the call is done, after it (the reply is lost), or
                        in the middle of the reply
    crash               every connection is cut before its call is done, from one call on until it is removed
    delay               the call is done, the reply comes later
    fail_entries        single entries of PutRecords fail, the others are stored
    empty_reads         GetRecords returns nothing and stays where it was, as across gaps
    expire_iterators    GetRecords finds its iterator expired
    cut_events          a subscription's connection is cut in the middle of an event
    fail_events         a subscription sends an exception instead of an event, and ends

Each rule hits a `share` of the calls named in `calls` (all when empty), leaves the first `skip` alone and
ends after `times` hits. Draws come from one seeded generator.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal, TypedDict, Unpack

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
_INNER = {"fail_entry", "empty_read", "cut_event", "fail_event"}


class Span(TypedDict, total=False):
    """Which of the calls that a rule is for it may hit: not the first `skip`, and `times` at most."""

    skip: int
    times: int | None


@dataclass(slots=True)
class Rule:
    """One rule; `hits` counts the calls it hit."""

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
        self._random = random.Random(self.seed)

    def throttle(self, share: float = 1.0, *, calls: Iterable[str] = (), **span: Unpack[Span]) -> Rule:
        """Refuse calls for their rate."""
        return self.refuse(THROTTLED, share, calls=calls, message="Rate exceeded.", **span)

    def internal_failure(
        self, share: float = 1.0, *, calls: Iterable[str] = (), **span: Unpack[Span]
    ) -> Rule:
        """Fail calls inside the service."""
        return self.refuse("InternalFailureException", share, calls=calls, status=500, **span)

    def refuse(
        self,
        code: str,
        share: float = 1.0,
        *,
        calls: Iterable[str] = (),
        message: str = "Refused by a fault rule.",
        status: int = 400,
        **span: Unpack[Span],
    ) -> Rule:
        """Refuse calls with any error type of the service."""
        return self._add(
            Rule("refuse", share, frozenset(calls), code=code, message=message, status=status, **span)
        )

    def cut(
        self,
        share: float = 1.0,
        *,
        when: Literal["before", "after", "reply"] = "before",
        calls: Iterable[str] = (),
        **span: Unpack[Span],
    ) -> Rule:
        """Cut the connection before the call is done, after it, or in the middle of the reply."""
        effects: dict[str, Effect] = {"before": "cut_before", "after": "cut_after", "reply": "cut_reply"}
        return self._add(Rule(effects[when], share, frozenset(calls), **span))

    def crash(self, after: int = 0) -> Rule:
        """Answer so many calls, then none, as a service that died; removing the rule starts it again."""
        return self.cut(skip=after)

    def delay(
        self, delay_ms: int, share: float = 1.0, *, calls: Iterable[str] = (), **span: Unpack[Span]
    ) -> Rule:
        """Send replies later."""
        return self._add(Rule("delay", share, frozenset(calls), delay_ms=delay_ms, **span))

    def fail_entries(
        self,
        share: float = 1.0,
        *,
        code: str = THROTTLED,
        message: str = "Rate exceeded for this shard.",
        **span: Unpack[Span],
    ) -> Rule:
        """Fail single entries of PutRecords."""
        calls = frozenset({"PutRecords"})
        return self._add(Rule("fail_entry", share, calls, code=code, message=message, **span))

    def empty_reads(self, share: float = 1.0, **span: Unpack[Span]) -> Rule:
        """Answer GetRecords with no records although there are some."""
        return self._add(Rule("empty_read", share, frozenset({"GetRecords"}), **span))

    def expire_iterators(self, share: float = 1.0, **span: Unpack[Span]) -> Rule:
        """Refuse GetRecords because its iterator expired."""
        message = "Iterator expired by a fault rule."
        return self.refuse("ExpiredIteratorException", share, calls=["GetRecords"], message=message, **span)

    def cut_events(self, share: float = 1.0, **span: Unpack[Span]) -> Rule:
        """Cut subscriptions in the middle of an event."""
        return self._add(Rule("cut_event", share, frozenset({"SubscribeToShard"}), **span))

    def fail_events(
        self,
        share: float = 1.0,
        *,
        code: str = "InternalFailureException",
        message: str = "Failed by a fault rule.",
        **span: Unpack[Span],
    ) -> Rule:
        """End subscriptions with an exception where an event would come."""
        calls = frozenset({"SubscribeToShard"})
        return self._add(Rule("fail_event", share, calls, code=code, message=message, **span))

    def remove(self, rule: Rule) -> None:
        """Remove one rule."""
        with self._lock:
            self.rules.remove(rule)

    def clear(self) -> None:
        """Remove all rules."""
        with self._lock:
            self.rules.clear()

    def hitting(self, call: str, *, inner: Effect | None = None) -> list[Rule]:
        """Return the rules that hit this call, and count that.

        With `inner` those with this effect inside of it (an entry of PutRecords, an empty read, an event).
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
        hit = (
            rule.seen > rule.skip
            and (rule.times is None or rule.hits < rule.times)
            and (rule.share >= 1 or self._random.random() < rule.share)
        )
        rule.hits += hit
        return hit
