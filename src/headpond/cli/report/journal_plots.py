"""The two pictures of the page about a journal (`verify --html`), as shapes in units of a fixed canvas.

::

    strip   │████████████░░████████████▌███████│   a strand from its first block to its last
                         missing       anomaly
    bars    │  ▂ ▅ █ ▃ ▁   ▂ │                      transactions per day, week or month
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headpond.changes.journal_summary import Strand

WIDTH, STRIP_HEIGHT, BARS_HEIGHT = 1000.0, 40.0, 120.0
MIN_WIDTH = 3.0
"""A block among a million must be seen."""
MAX_MARKS = 500
MAX_BARS = 62


class Mark(NamedTuple):
    """A rectangle of the strip."""

    x: float
    width: float
    kind: str
    """`missing` or `anomaly`."""
    title: str


class Total(NamedTuple):
    """A rectangle of the bars: the transactions of a span."""

    x: float
    y: float
    width: float
    height: float
    title: str


def strip(strand: Strand, anomalies: Iterable[dict[str, Any]]) -> list[Mark]:
    """Place what is wrong with a strand between its first block and its last.

    Args:
        strand: the strand.
        anomalies: those of the strand, as `verify --json` prints them; the ones without a block are left out.
    """
    unit = WIDTH / (strand.last - strand.first + 1)
    marks: dict[tuple[int, str], Mark] = {}
    for anomaly in anomalies:
        first, last = _extent(anomaly)
        if first is None or last is None:
            continue
        x = min(max((first - strand.first) * unit, 0.0), WIDTH - MIN_WIDTH)
        width = max((last - first + 1) * unit, MIN_WIDTH)
        kind = "missing" if anomaly["kind"] == "missing_blocks" else "anomaly"
        place = f"block {first}" if first == last else f"blocks {first} to {last}"
        # Marks that would cover each other to the pixel are one.
        marks.setdefault(
            (round(x), kind), Mark(x, min(width, WIDTH - x), kind, f"{place}: {anomaly['kind']}")
        )
    return sorted(marks.values(), key=lambda mark: mark.kind == "anomaly")[:MAX_MARKS]


def _extent(anomaly: dict[str, Any]) -> tuple[int | None, int | None]:
    if "first" in anomaly:
        return anomaly["first"], anomaly["last"]
    number = anomaly.get("sequenceNo")
    return number, number


def bars(days: Sequence[tuple[dt.date, int]]) -> tuple[str, list[Total]]:
    """Draw transactions over time.

    Args:
        days: days that have any, in order.

    Returns:
        What a bar stands for (day, week, month or year), and the bars; spans without transactions are gaps.
    """
    if not days:
        return "day", []
    for name, begin, next_one in _SPANS:
        first = begin(days[0][0])
        spans = _spans(first, days[-1][0], next_one)
        if len(spans) <= MAX_BARS or name == _SPANS[-1][0]:
            break
    totals = dict.fromkeys(spans, 0)
    for day, count in days:
        totals[begin(day)] = totals.get(begin(day), 0) + count
    most = max(totals.values())
    unit = WIDTH / len(totals)
    found = []
    for at, (span, count) in enumerate(totals.items()):
        if count:
            height = max(count / most * BARS_HEIGHT, 2.0)
            found.append(
                Total(at * unit + unit * 0.1, BARS_HEIGHT - height, unit * 0.8, height, f"{span}: {count}")
            )
    return name, found


def _spans(first: dt.date, last: dt.date, next_one: Any) -> list[dt.date]:
    spans = [first]
    while len(spans) <= MAX_BARS * 4 and (following := next_one(spans[-1])) is not None and following <= last:
        spans.append(following)
    return spans


def _next_day(day: dt.date) -> dt.date | None:
    return day + dt.timedelta(days=1) if day < dt.date.max else None


def _monday(day: dt.date) -> dt.date:
    return day - dt.timedelta(days=min(day.weekday(), day.toordinal() - 1))


def _next_week(day: dt.date) -> dt.date | None:
    ordinal = day.toordinal() + 7
    return dt.date.fromordinal(ordinal) if ordinal <= dt.date.max.toordinal() else None


def _next_month(day: dt.date) -> dt.date | None:
    if day.month < 12:  # noqa: PLR2004 - months of a year
        return day.replace(month=day.month + 1)
    return _next_year(day.replace(month=1))


def _next_year(day: dt.date) -> dt.date | None:
    return day.replace(year=day.year + 1) if day.year < dt.MAXYEAR else None


_SPANS: list[tuple[str, Any, Any]] = [
    ("day", lambda day: day, _next_day),
    ("week", _monday, _next_week),
    ("month", lambda day: day.replace(day=1), _next_month),
    ("year", lambda day: day.replace(month=1, day=1), _next_year),
]
