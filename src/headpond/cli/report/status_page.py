"""The page that `headpond status --html` writes: where a pipeline stands, and its last batches as plots.

Names of tables, shards and reasons come from records: jinja2 escapes all of them.

::

    12 MiB/s ┐ ▂▂▄▄▄▄          ▆▆▆▆▆▆▆     a bar from the beginning of its batches to their end
     6 MiB/s ┤ █████████ ░░ ███████████    ░ a pause: no batch for a while, drawn as wide as any other
           0 └────────────────────────
             09:00          09:45

The plots are drawn for the last hour, the last day and all that is kept; a period that shows the batches of a
shorter one has no plots of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from headpond.api.looking import headline, level
from headpond.api.remedies import remedy
from headpond.cli.report.page import WIDTH, figure, size, template
from headpond.core.tabular import said_ms

if TYPE_CHECKING:
    Row = Mapping[str, Any]

HEIGHT = 160.0
MAX_BARS = 60
PAUSE_MS = 60_000
"""The shortest pause; of a pipeline with a slower trigger, three times the usual distance of its batches."""
MANY = 5
PAUSE_WIDTH, PAUSES_WIDTH, STRETCH_WIDTH = 30.0, 300.0, 12.0
"""Of a pause and of all pauses at most, and of the time between two pauses at least."""
MAX_LISTED = 20
"""Batches that the page lists; the plots have all."""
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
OWN = "_headpond/"


class Stretch(NamedTuple):
    """Batches without a pause between them, and where they are drawn."""

    batches: list[Row]
    begun_ms: int
    ended_ms: int
    x: float = 0.0
    width: float = 0.0

    def at(self, at_ms: int) -> float:
        """Return where a time is drawn."""
        return self.x + (at_ms - self.begun_ms) / max(self.ended_ms - self.begun_ms, 1) * self.width


class Pause(NamedTuple):
    """A time without batches, and where it is drawn."""

    x: float
    width: float
    ms: int


class Bar(NamedTuple):
    """A drawn bar; `inner` is the height of its darker part."""

    x: float
    width: float
    height: float
    inner: float
    title: str


class Plot(NamedTuple):
    """A plot with its words; `top` is the value at its upper edge, and the lower one is 0."""

    title: str
    words: str
    bars: list[Bar]
    top: float
    unit: Callable[[float], str]
    """Writes its values."""


class Period(NamedTuple):
    """What is drawn of one period."""

    title: str
    batches: int
    begun: str
    ended: str
    plots: list[Plot]
    pauses: list[Pause]
    changes: dict[str, int]
    """Table → rows written, deleted or appended."""


def render_status(
    found: dict[str, Any], rows: Sequence[Row], *, now_ms: int, version: str, refresh_s: int = 0
) -> str:
    """Return the page as HTML: of what `look` found, and the batch log, oldest first.

    `found` also has `quarantine`, as `headpond.quarantine(…).counts()` returns it. `now_ms` is when the page
    is made; a browser loads it again after `refresh_s`, 0 for never.
    """
    quarantine = [each | {"remedy": remedy(each["reason"])} for each in found["quarantine"]]
    return template("status.html.j2", size=size, said=said_ms, clock=_clock).render(
        found=found | {"quarantine": quarantine, "headline": headline(found)},
        level=level(found),
        periods=periods(rows, now_ms),
        batches=list(reversed(rows))[:MAX_LISTED],
        hidden=max(0, len(rows) - MAX_LISTED),
        shards=sorted(found.get("shards", {}).items(), key=lambda one: -(one[1]["lag_ms"] or 0)),
        own={name: facts for name, facts in found["sizes"].items() if name.startswith(OWN)},
        made_at=_moment(now_ms, "%d %B %Y, %H:%M:%S UTC"),
        version=version,
        refresh_s=refresh_s,
        height=HEIGHT,
    )


def periods(rows: Sequence[Row], now_ms: int) -> list[Period]:
    """Draw the last hour, the last day, and all batches, the shortest first; nothing where there are none."""
    drawn: list[Period] = []
    for title, since_ms in (("Last hour", now_ms - HOUR_MS), ("Last day", now_ms - DAY_MS), ("All", 0)):
        batches = [row for row in rows if _ended(row) >= since_ms]
        if batches and not (drawn and drawn[-1].batches == len(batches)):
            drawn.append(_period(title, batches, now_ms))
    return drawn


def _period(title: str, rows: Sequence[Row], now_ms: int) -> Period:
    rows = list(_with_sizes(rows))
    stretches, pauses = laid_out(rows, now_ms)
    begun, ended = (
        stretches[0].begun_ms,
        now_ms if pauses and pauses[-1].x > stretches[-1].x else _ended(rows[-1]),
    )
    form = "%H:%M:%S" if ended - begun < DAY_MS else "%Y-%m-%d %H:%M"
    changes: dict[str, int] = {}
    for row in rows:
        for table, figures in (row["tables"] or {}).items():
            count = sum(figures.get(name, 0) for name in ("upserts", "deletes", "appended"))
            changes[table] = changes.get(table, 0) + count
    ends = _moment(begun, form), _moment(ended, form)
    return Period(title, len(rows), *ends, list(plots_of(stretches)), pauses, changes)


def _with_sizes(rows: Sequence[Row]) -> Iterator[Row]:
    """Give batches after which nothing was measured the sizes of the one before."""
    sizes = None
    for row in rows:
        sizes = row["sizes"] or sizes
        yield {**row, "sizes": sizes}


def laid_out(rows: Sequence[Row], now_ms: int) -> tuple[list[Stretch], list[Pause]]:
    """Place batches, oldest first, and the pauses between them, on the width of a plot."""
    rows = sorted(rows, key=_begun)
    apart = [_begun(later) - _begun(one) for one, later in pairwise(rows)]
    # Of a few batches none is usual.
    shortest = max(PAUSE_MS, 3 * median(apart) if len(apart) > MANY else 0)
    found = [Stretch([rows[0]], _begun(rows[0]), _ended(rows[0]))]
    for row in rows[1:]:
        last = found[-1]
        if _begun(row) - last.ended_ms > shortest:
            found.append(Stretch([row], _begun(row), _ended(row)))
        else:
            last.batches.append(row)
            found[-1] = last._replace(ended_ms=max(last.ended_ms, _ended(row)))
    gaps = [later.begun_ms - one.ended_ms for one, later in pairwise(found)]
    if now_ms - found[-1].ended_ms > shortest:
        gaps.append(now_ms - found[-1].ended_ms)
    each_pause = min(PAUSE_WIDTH, PAUSES_WIDTH / max(len(gaps), 1))
    least = min(STRETCH_WIDTH, (WIDTH - PAUSES_WIDTH) / len(found))
    room = WIDTH - each_pause * len(gaps) - least * len(found)
    active = max(sum(each.ended_ms - each.begun_ms for each in found), 1)
    stretches, pauses, x = [], [], 0.0
    for at, each in enumerate(found):
        share = (each.ended_ms - each.begun_ms) / active if active > 1 else 1 / len(found)
        stretches.append(each._replace(x=x, width=least + room * share))
        x += stretches[-1].width
        if at < len(gaps):
            pauses.append(Pause(x, each_pause, gaps[at]))
            x += each_pause
    return stretches, pauses


def plots_of(stretches: Sequence[Stretch]) -> Iterator[Plot]:
    """Draw batches; a figure that none of them has is left out."""
    own = "; dark, headpond's own."
    for title, words, unit, base, seen in (
        ("Records per second", "User records read.", _per_second(figure), 10, _rate("records")),
        ("Data per second", "Bytes of those records.", _per_second(size), 1024, _rate("data_bytes")),
        ("Lag", "The shard furthest behind; dark, the median.", said_ms, 10, _lag),
        ("Batch time", "From planning to commit: the longest; dark, the median.", said_ms, 10, _duration),
        ("Size of the lake", f"Files of the newest versions{own}", size, 1024, _of_lake("bytes")),
        ("Files of the lake", f"Of the newest versions{own}", figure, 10, _of_lake("files")),
        ("Logs of the lake", f"Checkpoints and what follows them{own}", size, 1024, _of_lake("log_bytes")),
    ):
        groups = [(each, rows, seen(rows)) for each in stretches for rows in _groups(each)]
        top = nice(max((value for _, _, (value, _) in groups if value is not None), default=0.0), base)
        bars = [
            _bar(each, rows, value / top * HEIGHT, inner / top * HEIGHT, unit(value))
            for each, rows, (value, inner) in groups
            if value is not None
        ]
        if bars:
            yield Plot(title, words, bars, top, unit)


def _groups(stretch: Stretch) -> Iterator[list[Row]]:
    """Yield neighbouring batches that are too many to be told apart as one."""
    bars = max(round(stretch.width / WIDTH * MAX_BARS), 1)
    each_ms = (stretch.ended_ms - stretch.begun_ms) / bars or 1
    by_place: dict[int, list[Row]] = {}
    for row in stretch.batches:
        by_place.setdefault(int((_begun(row) - stretch.begun_ms) / each_ms), []).append(row)
    yield from by_place.values()


def _bar(stretch: Stretch, rows: Sequence[Row], height: float, inner: float, words: str) -> Bar:
    x = stretch.at(_begun(rows[0]))
    # What is 0 or short is still seen.
    width = min(max(stretch.at(_ended(rows[-1])) - x - 1, 2.0), WIDTH - x)
    which = f"batch {rows[0]['batch_id']}" if len(rows) == 1 else f"{len(rows)} batches"
    title = f"{_clock(rows[0]['begun'])}, {which}: {words}"
    return Bar(x, width, max(height, 1.5), inner, title)


_Seen = tuple[float | None, float]
"""What is known of some batches: the value of their bar, None if unknown, and that of its darker part."""


def _rate(column: str) -> Callable[[Sequence[Row]], _Seen]:
    def rate(rows: Sequence[Row]) -> _Seen:
        seconds = max(_ended(rows[-1]) - _begun(rows[0]), 1) / 1000
        return sum(row[column] for row in rows) / seconds, 0.0

    return rate


def _lag(rows: Sequence[Row]) -> _Seen:
    known = [row for row in rows if row["lag_ms"] is not None]
    if not known:
        return None, 0.0
    worst = max(known, key=lambda row: int(row["lag_ms"]))
    return worst["lag_ms"], median(worst["lags_ms"].values() or [0])


def _duration(rows: Sequence[Row]) -> _Seen:
    took = [row["duration_ms"] for row in rows]
    return max(took), median(took)


def _of_lake(fact: str) -> Callable[[Sequence[Row]], _Seen]:
    def of_lake(rows: Sequence[Row]) -> _Seen:
        sizes = rows[-1]["sizes"]
        # Before `log_bytes` was noted there was none.
        if sizes is None or not all(fact in facts for facts in sizes.values()):
            return None, 0.0
        own = sum(facts[fact] for name, facts in sizes.items() if name.startswith(OWN))
        return sum(facts[fact] for facts in sizes.values()), own

    return of_lake


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


def _per_second(unit: Callable[[float], str]) -> Callable[[float], str]:
    return lambda value: f"{unit(value)}/s"


def _begun(row: Row) -> int:
    return int(datetime.fromisoformat(row["begun"]).timestamp() * 1000)


def _ended(row: Row) -> int:
    return _begun(row) + int(row["duration_ms"])


def _moment(at_ms: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):{form}}"


def _clock(text: str) -> str:
    return _moment(int(datetime.fromisoformat(text).timestamp() * 1000))
