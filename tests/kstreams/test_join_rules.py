"""What a join's rules may be, and what they say of a record."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headpond.core.errors import UsageError
from headpond.kstreams import (
    Emit,
    HeadersOf,
    JoinRules,
    JoinStores,
    JoinType,
    JoinWindows,
    Side,
    StoreSettings,
)
from headpond.kstreams.join.rules import wrapped
from headpond.kstreams.stores.contract import MAX_SPAN_MS


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ((-5, 4), "ends before it starts"),
        ((1, 1, -1), "grace_ms must be zero or more, not -1"),
        ((1.5, 1), "before_ms must be a whole number of milliseconds, or a timedelta, not 1.5"),
        ((True, 1), "not True"),
        ((1, "1"), "after_ms must be a whole number"),
        ((MAX_SPAN_MS + 1, 1), "before_ms must be at most"),
        ((1, 1, MAX_SPAN_MS + 1), "grace_ms must be at most"),
    ],
)
def test_windows_that_cannot_be(spans: tuple[Any, ...], said: str) -> None:
    """Each is refused with what is wrong."""
    with pytest.raises(UsageError, match=said):
        JoinWindows(*spans)


def test_a_window_may_lie_on_one_side_of_its_record() -> None:
    """Either bound may be negative, and the sum zero."""
    assert JoinWindows(-5, 10, 3).retention_ms == 8
    assert JoinWindows(10, -10).size_ms == 0
    assert JoinWindows(MAX_SPAN_MS, MAX_SPAN_MS, MAX_SPAN_MS).retention_ms < 1 << 63


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"type": "full"}, "how is one of inner, left, outer, self, not 'full'. To get that, choose outer."),
        ({"headers": "both"}, "Choose one of own, trigger, merge"),
        ({"emit": None}, "Choose one of eager, final"),
        ({"emit_interval_ms": -1}, "emit_interval_ms must be zero or more"),
        ({"windows": (1, 1)}, "windows must be JoinWindows, not tuple"),
    ],
)
def test_rules_that_cannot_be(wrong: dict[str, Any], said: str) -> None:
    """Each is refused, and the choices are named."""
    right: dict[str, Any] = {"type": JoinType.INNER, "windows": JoinWindows(1, 1)}
    with pytest.raises(UsageError, match=said):
        JoinRules(**{**right, **wrong})


def test_spans_may_be_timedeltas() -> None:
    """Of windows, of the throttle, of stores; not of parts of milliseconds."""
    second, hour = timedelta(seconds=1), timedelta(hours=1)
    rules = JoinRules(JoinType.LEFT, JoinWindows(second, -second, hour), emit_interval_ms=second)  # type: ignore[arg-type]
    assert rules == JoinRules(JoinType.LEFT, JoinWindows(1000, -1000, 3_600_000), emit_interval_ms=1000)
    assert StoreSettings("s", hour, second) == StoreSettings("s", 3_600_000, 1000)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="retention_ms must be a whole number of milliseconds"):
        StoreSettings("s", timedelta(microseconds=1500), 1)  # type: ignore[arg-type]
    longest = JoinRules(JoinType.INNER, JoinWindows(MAX_SPAN_MS, MAX_SPAN_MS, MAX_SPAN_MS))
    JoinStores.build(longest).close()


def test_names_may_be_plain_text() -> None:
    """As options and files give them; rules travel between processes."""
    rules = JoinRules("left", JoinWindows(1, 1), "merge", "final")  # type: ignore[arg-type]
    assert rules == JoinRules(JoinType.LEFT, JoinWindows(1, 1), HeadersOf.MERGE, Emit.FINAL)
    assert pickle.loads(pickle.dumps(rules)) == rules


def test_sides_swap_their_bounds() -> None:
    """What is before for one is after for the other."""
    rules = JoinRules(JoinType.LEFT, JoinWindows(7, 2, 4))
    assert [rules.before_ms(side) for side in (Side.LEFT, Side.RIGHT)] == [7, 2]
    assert [rules.after_ms(side) for side in (Side.LEFT, Side.RIGHT)] == [2, 7]
    assert (rules.is_outer(Side.LEFT), rules.is_outer(Side.RIGHT)) == (True, False)
    assert [rules.closed(Side.LEFT, 100, time) for time in (106, 107)] == [False, True]
    assert [rules.closed(Side.RIGHT, 100, time) for time in (111, 112)] == [False, True]
    assert rules.first_partner(Side.LEFT, 5, 100) == 0
    assert rules.last_partner(Side.LEFT, 5) == 7


def test_a_fingerprint_tells_what_a_state_depends_on() -> None:
    """Type, windows, emission: not headers, not the throttle."""
    rules = JoinRules(JoinType.LEFT, JoinWindows(7, 2, 4))
    assert json.loads(rules.fingerprint) == {
        "version": 1,
        "type": "left",
        "emit": "eager",
        "before_ms": 7,
        "after_ms": 2,
        "grace_ms": 4,
    }
    assert replace(rules, headers=HeadersOf.MERGE, emit_interval_ms=5).fingerprint == rules.fingerprint
    others = [
        replace(rules, type=JoinType.OUTER),
        replace(rules, emit=Emit.FINAL),
        replace(rules, windows=JoinWindows(7, 2, 5)),
    ]
    assert len({each.fingerprint for each in (rules, *others)}) == 4


def test_times_wrap_as_64_bits_do() -> None:
    """An empty buffer's time plus a span is a time long ago."""
    assert wrapped((1 << 63) - 1 + 10) == -(1 << 63) + 9
    assert wrapped(-(1 << 63) - 1) == (1 << 63) - 1
    assert wrapped(5) == 5
