"""Plots over time of the page about a pipeline (`status --html`), as shapes in units of a fixed canvas.

Words and numbers stand beside them as text.

::

    12 MiB/s ┐
             │    ╭╮   ╭─╮          a line per name, cut where a run ended
             │╭───╯╰───╯ ╰──  ╭──
    0        └───────────────────
             09:00          09:45
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WIDTH, HEIGHT = 1000.0, 160.0
MAX_POINTS = 240
"""Of a line: more would not be told apart on a page."""
MAX_BARS = 60
MAX_LINES = 8
REST = "others"


class Point(NamedTuple):
    """A measurement: when (milliseconds since 1970), of which run, and what."""

    at_ms: int
    run: str
    value: float


class Line(NamedTuple):
    """A drawn line.

    Attributes:
        name: what it is of.
        paths: SVG paths, one for each run.
        last: its last value.
    """

    name: str
    paths: list[str]
    last: float


class Bar(NamedTuple):
    """A drawn bar."""

    x: float
    y: float
    width: float
    height: float
    value: float


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot.

    Attributes:
        lines: drawn lines.
        bars: drawn bars.
        top: the value at its upper edge; the lower one is 0.
        begun_ms, ended_ms: its left and right edge.
    """

    lines: list[Line]
    bars: list[Bar]
    top: float
    begun_ms: int
    ended_ms: int


def lines(
    series: Mapping[str, Sequence[Point]], span_ms: tuple[int, int], *, most: int = MAX_LINES, base: int = 10
) -> Plot:
    """Draw a line for each name, those with the greatest values; the rest share one with their greatest.

    Args:
        series: name → points in the order of time.
        span_ms: left and right edge.
        most: how many lines at most.
        base: of the numbers: 1024 for bytes.
    """
    begun, ended = span_ms
    ranked = sorted(series, key=lambda name: (-max((p.value for p in series[name]), default=0.0), name))
    kept = ranked if len(ranked) <= most else ranked[: most - 1]
    shown = {name: list(series[name]) for name in kept}
    if len(kept) < len(ranked):
        greatest: dict[tuple[int, str], float] = {}
        for name in ranked[len(kept) :]:
            for point in series[name]:
                key = (point.at_ms, point.run)
                greatest[key] = max(greatest.get(key, 0.0), point.value)
        shown[REST] = [Point(at, run, value) for (at, run), value in sorted(greatest.items())]
    top = nice(max((p.value for points in shown.values() for p in points), default=0.0), base)
    drawn = []
    for name, points in shown.items():
        thin = thinned(points, begun, ended)
        if thin:
            drawn.append(Line(name, list(_paths(thin, begun, ended, top)), points[-1].value))
    return Plot(drawn, [], top, begun, ended)


def bars(points: Sequence[Point], span_ms: tuple[int, int], *, base: int = 10) -> Plot:
    """Draw rates: the sum of the values of each span, per second.

    Args:
        points: what came, at its time.
        span_ms: left and right edge.
        base: as for `lines`.
    """
    begun, ended = span_ms
    count = max(1, min(MAX_BARS, len(points)))
    each_ms = max(ended - begun, 1) / count
    sums = [0.0] * count
    for point in points:
        sums[min(int((point.at_ms - begun) / each_ms), count - 1)] += point.value
    rates = [total / (each_ms / 1000) for total in sums]
    top = nice(max(rates), base)
    unit = WIDTH / count
    drawn = []
    for number, rate in enumerate(rates):
        if rate:
            height = max(rate / top * HEIGHT, 2.0)
            drawn.append(Bar(number * unit + unit * 0.1, HEIGHT - height, unit * 0.8, height, rate))
    return Plot([], drawn, top, begun, ended)


def thinned(points: Sequence[Point], begun_ms: int, ended_ms: int) -> list[Point]:
    """Leave at most `MAX_POINTS`, of each span the greatest, so that no peak is lost; runs stay apart."""
    if len(points) <= MAX_POINTS:
        return list(points)
    each_ms = max(ended_ms - begun_ms, 1) / MAX_POINTS
    kept: dict[tuple[int, str], Point] = {}
    for point in points:
        key = (int((point.at_ms - begun_ms) / each_ms), point.run)
        if key not in kept or point.value > kept[key].value:
            kept[key] = point
    return list(kept.values())


def nice(value: float, base: int = 10) -> float:
    """Round up to 1, 2, 3, 5, 10, 20, … times a power of the base, below the next one; of nothing it is 1."""
    if value <= 0:
        return 1.0
    power = float(base)
    while power > value:
        power /= base
    while power * base <= value:
        power *= base
    digits = [10**digit * step for digit in range(4) for step in (1, 2, 3, 5)]
    return next((step * power for step in digits if value <= step * power < base * power), base * power)


def _paths(points: Iterable[Point], begun: int, ended: int, top: float) -> Iterable[str]:
    width = max(ended - begun, 1)
    runs: dict[str, list[str]] = {}
    for point in points:
        x = (point.at_ms - begun) / width * WIDTH
        y = HEIGHT - point.value / top * HEIGHT
        runs.setdefault(point.run, []).append(f"{x:.1f} {y:.1f}")
    for places in runs.values():
        # A single point is a line of no length, which a round cap makes a dot.
        yield "M" + "L".join(places if len(places) > 1 else places * 2)
