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
from dataclasses import dataclass
from functools import partialmethod
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


class Details(TypedDict, total=False):
    """What a rule may say beside its effect; `message` and `status` are those of a refusal."""

    calls: Iterable[str]
    skip: int
    times: int | None
    message: str
    status: int


@dataclass(slots=True)
class Rule:
    """One rule; `hits` counts the calls it hit."""

    effect: Effect
    share: float
    calls: Iterable[str] = ()
    skip: int = 0
    times: int | None = None
    code: str = ""
    message: str = "Refused by a fault rule."
    status: int = 400
    delay_ms: int = 0
    hits: int = 0
    seen: int = 0


class Faults:
    """The rules in force; may be changed from any thread at any time.

    Most methods add a rule and return it. They take `share` and, by name, what `Details` lists.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.rules: list[Rule] = []
        self._random, self._lock = random.Random(seed), Lock()

    def _add(
        self,
        effect: Effect,
        share: float = 1.0,
        *,
        code: str = "",
        delay_ms: int = 0,
        **details: Unpack[Details],
    ) -> Rule:
        rule = Rule(effect, share, code=code, delay_ms=delay_ms, **details)
        rule.calls = frozenset(rule.calls)  # however they were given
        with self._lock:
            self.rules.append(rule)
        return rule

    throttle = partialmethod(_add, "refuse", code=THROTTLED, message="Rate exceeded.")
    internal_failure = partialmethod(_add, "refuse", code="InternalFailureException", status=500)
    expire_iterators = partialmethod(_add, "refuse", code="ExpiredIteratorException", calls=("GetRecords",))
    fail_entries = partialmethod(_add, "fail_entry", calls=("PutRecords",), code=THROTTLED)
    empty_reads = partialmethod(_add, "empty_read", calls=("GetRecords",))
    cut_events = partialmethod(_add, "cut_event", calls=("SubscribeToShard",))
    fail_events = partialmethod(
        _add, "fail_event", calls=("SubscribeToShard",), code="InternalFailureException"
    )

    def refuse(self, code: str, share: float = 1.0, **details: Unpack[Details]) -> Rule:
        """Refuse calls with any error type of the service."""
        return self._add("refuse", share, code=code, **details)

    def cut(
        self,
        share: float = 1.0,
        *,
        when: Literal["before", "after", "reply"] = "before",
        **details: Unpack[Details],
    ) -> Rule:
        """Cut the connection before the call is done, after it, or in the middle of the reply."""
        effects: dict[str, Effect] = {"before": "cut_before", "after": "cut_after", "reply": "cut_reply"}
        return self._add(effects[when], share, **details)

    def crash(self, after: int = 0) -> Rule:
        """Answer this many calls, then none, as a service that died; removing the rule starts it again."""
        return self.cut(skip=after)

    def delay(self, delay_ms: int, share: float = 1.0, **details: Unpack[Details]) -> Rule:
        """Send replies later."""
        return self._add("delay", share, delay_ms=delay_ms, **details)

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

    def _draw(self, rule: Rule) -> bool:
        rule.seen += 1
        hit = (
            rule.seen > rule.skip
            and (rule.times is None or rule.hits < rule.times)
            and (rule.share >= 1 or self._random.random() < rule.share)
        )
        rule.hits += hit
        return hit
