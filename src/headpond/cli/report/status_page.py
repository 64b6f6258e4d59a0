"""The page that `headpond status --html` writes: where a pipeline stands, and its last batches as plots.

Names of tables, shards and reasons come from records: jinja2 escapes all of them.

::

    12 MiB/s ┐
             │    ╭╮   ╭─╮          a line per name, cut where a run ended
             │╭───╯╰───╯ ╰──  ╭──
    0        └───────────────────
             09:00          09:45
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from headpond.cli.report.page import TWO_DIGITS, WIDTH, Bar, columns, figure, style, template
from headpond.core.tabular import said_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import jinja2

_KIBI = 1024
_STEPS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(number: float) -> str:
    """Return bytes in the largest unit of which there is one."""
    unit = 0
    while number >= _KIBI and unit < len(_STEPS) - 1:
        number /= _KIBI
        unit += 1
    return (
        f"{number:.0f} {_STEPS[unit]}"
        if number >= TWO_DIGITS or unit == 0
        else f"{number:.1f} {_STEPS[unit]}"
    )


def span(seconds: float) -> str:
    """Return a span of time in the unit that suits it."""
    return said_ms(seconds * 1000)


def moment(at_ms: int, *, date: bool = False) -> str:
    """Return a time of day in UTC, with its date if wanted."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}" if date else f"{at:%H:%M:%S}"


HEIGHT = 160.0
MAX_POINTS = 240
"""Of a line: more could not be distinguished on a page."""
MAX_BARS = 60
MAX_LINES = 8
REST = "others"


class Point(NamedTuple):
    """A measurement: when (milliseconds since 1970), of which run, and what."""

    at_ms: int
    run: str
    value: float


class Line(NamedTuple):
    """A drawn line: what it is of, an SVG path for each run, and its last value."""

    name: str
    paths: list[str]
    last: float


class Plot(NamedTuple):
    """One plot between two times; `top` is the value at its upper edge, and the lower one is 0."""

    lines: list[Line]
    bars: list[Bar]
    top: float
    begun_ms: int
    ended_ms: int


def lines(
    series: Mapping[str, Sequence[Point]], span_ms: tuple[int, int], *, most: int = MAX_LINES, base: int = 10
) -> Plot:
    """Draw at most `most` lines, those with the greatest values; the rest share one with their greatest.

    Points are in the order of time; `base` is 1024 for bytes.
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
    """Draw rates: the sum of the values of each span, per second."""
    begun, ended = span_ms
    count = max(1, min(MAX_BARS, len(points)))
    each_ms = max(ended - begun, 1) / count
    sums = [0.0] * count
    for point in points:
        sums[min(int((point.at_ms - begun) / each_ms), count - 1)] += point.value
    rates = [total / (each_ms / 1000) for total in sums]
    top = nice(max(rates), base)
    return Plot([], list(columns(dict(enumerate(rates)), top, HEIGHT)), top, begun, ended)


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


MAX_LISTED = 20
"""Batches that the page lists; the plots have all."""
OWN = "_headpond/"


class Shown(NamedTuple):
    """A plot with its words."""

    title: str
    words: str
    plot: Plot
    unit: Callable[[float], str]
    """Writes its values."""


def render_status(
    found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, made_at: str, version: str
) -> str:
    """Return the page as HTML, of what `status.look` found and the batch log, oldest first."""
    own = {name: facts for name, facts in (found.get("sizes") or {}).items() if name.startswith(OWN)}
    return _template().render(
        found=found,
        verdict=_verdict(found),
        plots=plots_of(rows),
        batches=list(reversed(rows))[:MAX_LISTED],
        hidden=max(0, len(rows) - MAX_LISTED),
        own=own,
        made_at=made_at,
        version=version,
        width=WIDTH,
        height=HEIGHT,
        style=style(),
    )


def plots_of(rows: Sequence[Mapping[str, Any]]) -> list[Shown]:
    """Draw the last batches, oldest first; nothing where there are none."""
    if not rows:
        return []
    begun = [_ms(row["begun"]) for row in rows]
    ended = [at + row["duration_ms"] for at, row in zip(begun, rows, strict=True)]
    edges = (min(begun), max(ended))

    def points(column: str, scale: float = 1.0) -> list[Point]:
        return [
            Point(at, row["run_id"], row[column] / scale)
            for at, row in zip(ended, rows, strict=True)
            if row[column] is not None
        ]

    lags: dict[str, list[Point]] = {}
    tables: dict[str, list[Point]] = {}
    states: dict[str, list[Point]] = {}
    for at, row in zip(ended, rows, strict=True):
        for shard, lag in (row["lags_ms"] or {}).items():
            lags.setdefault(shard, []).append(Point(at, row["run_id"], lag / 1000))
        for table, facts in (row["sizes"] or {}).items():
            room = states if table.startswith(OWN) else tables
            room.setdefault(table.removeprefix(OWN), []).append(Point(at, row["run_id"], facts["bytes"]))
        if row["state_bytes"]:
            states.setdefault("Spark's state stores", []).append(Point(at, row["run_id"], row["state_bytes"]))
    read, data = bars(points("records"), edges), bars(points("data_bytes"), edges, base=1024)
    took = lines({"batch": points("duration_ms", 1000)}, edges)
    drawn = (
        Shown("Records per second", "User records, when their batch was done.", read, _per_second(figure)),
        Shown("Data per second", "Bytes of those records' data.", data, _per_second(size)),
        Shown("Lag per shard", "How far reading was behind its newest record.", lines(lags, edges), span),
        Shown("Batch time", "From planning to commit.", took, span),
        Shown("Tables", "Bytes of the newest version's files.", lines(tables, edges, base=1024), size),
        Shown("State", "Bytes of what is kept beside the tables.", lines(states, edges, base=1024), size),
    )
    return [shown for shown in drawn if shown.plot.lines or shown.plot.bars]


def _per_second(unit: Callable[[float], str]) -> Callable[[float], str]:
    return lambda value: f"{unit(value)}/s"


def _verdict(found: Mapping[str, Any]) -> tuple[str, str]:
    """Return a class and a sentence: `verified`, `problems` or `nothing`."""
    run = found.get("run")
    refused = sum(found["quarantined"].values())
    if run is not None and run["state"] == "failed":
        return "problems", "The last run failed"
    if refused or found.get("anomalies"):
        return (
            "problems",
            f"{figure(refused)} records are in quarantine" if refused else "The journal has anomalies",
        )
    if found["batch"] is None:
        return "nothing", "No batch is done yet"
    return "verified", f"Batch {found['batch']} is done, nothing was quarantined"


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@cache
def _template() -> jinja2.Template:
    return template("status.html.j2", size=size, span=span, moment=moment, clock=_clock)


def _clock(text: str) -> str:
    return moment(_ms(text), date=True)
