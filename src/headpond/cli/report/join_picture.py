"""What `headpond join play` draws: each record's window, whom it met, and what became of it.

::

    key a                    90                      121
       0 L l1           100  ├───────●───◆───┤           ⋈ step 1
       1 R r1           105      ├───◆───●───────┤       ⋈ l1

One row a record in the order of arrival, one block a key. Along the axis of event time: the window, the
record's own time, the times of those it met, and the grace period behind the window. The page of --html draws
the same rows, and `Axis` places both; keys and values come from the file, so jinja2 escapes all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from headpond.cli.report.page import template
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.rules import JoinCounters, JoinRules, JoinType
from headpond.kstreams.join.scenario import Fate, Played, Scenario, fates, shown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

MIN_WIDTH, MAX_WIDTH = 60, 110
LABEL_WIDTH = 24
VALUE_WIDTH = 7
VERDICT_SHARE = 0.34
NULL = "∅"
LONG_TIMES_MS = 10_000_000
"""From here on times are shown as the distance from the first one, or they would fill the line."""


class JoinPicture:
    """Draws a time-line and the outcome of each of its steps, as wide as the terminal is."""

    def __init__(self, scenario: Scenario, played: Sequence[Played]) -> None:
        self.scenario = scenario
        self._rules = scenario.rules
        self._played = played
        times = [each.record.timestamp for each in played if each.record is not None]
        self._zero = min(times) if times and max(times) >= LONG_TIMES_MS else 0
        self._fates = fates(played, self_join=scenario.rules.type is JoinType.SELF)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the lines."""
        del console
        yield Text("\n").join(self.lines(options.max_width))

    def lines(self, width: int) -> list[Text]:
        """Return the picture's lines for a terminal of that width."""
        width = min(max(width, MIN_WIDTH), MAX_WIDTH)
        verdict_width = int(width * VERDICT_SHARE)
        strip = width - LABEL_WIDTH - verdict_width - 2
        lines = [Text(part, style) for words, style in self._head() for part in _broken(words, width)]
        for name, found, axis in self.blocks(strip):
            lines += [Text(), Text.assemble((_fit(name, LABEL_WIDTH), "bold"), " ", (axis.written(), "dim"))]
            for fate in found:
                lines += self._row(fate, axis, verdict_width)
        return [*lines, Text(), *(Text(part) for part in _broken(self.summary(), width))]

    def blocks(self, width: int) -> Iterator[tuple[str, list[Fate], Axis]]:
        """Yield each key's name, what became of its records, and their axis of that width."""
        blocks: dict[bytes | None, list[Fate]] = {}
        for fate in self._fates:
            blocks.setdefault(fate.record.key, []).append(fate)
        for key, found in blocks.items():
            name = "no key" if key is None else f"key {printable(key)}"
            yield name, found, Axis(found, self._rules, width, self._zero)

    def _head(self) -> Iterator[tuple[str, str]]:
        if self.scenario.name:
            yield self.scenario.name, "bold"
        first, *rest = self.rules()
        yield first, ""
        yield "├ window ┤  ┄ grace  ● record  ◆ partner  ✕ dropped  ⋈ joined with", "dim"
        yield from ((words, "") for words in rest)

    def rules(self) -> Iterator[str]:
        """Yield what the join is told, and how its times are to be read."""
        rules, windows = self._rules, self._rules.windows
        kind = "self-join" if rules.type is JoinType.SELF else f"{rules.type} join"
        spans = f"{windows.before_ms} ms before to {windows.after_ms} ms after, grace {windows.grace_ms} ms"
        yield f"{kind}: {spans}, headers of {rules.headers}, {rules.emit}"
        clocks = pairwise((0, *(each.wall_clock_ms for each in self._played)))
        moved = [f"+{now - before} ms at step {n}" for n, (before, now) in enumerate(clocks) if now != before]
        if moved:
            throttle = f"expired records leave every {rules.emit_interval_ms} ms"
            yield f"{throttle}; wall clock {', '.join(moved)}"
        if self._zero:
            yield f"times are ms after {self._zero}"

    def _row(self, fate: Fate, axis: Axis, verdict_width: int) -> Iterator[Text]:
        value = _fit(value_of(fate), VALUE_WIDTH)
        label = f"{fate.number:>4} {side_of(fate)} {value} {axis.time(fate):>8}"
        line = Text(_fit(label, LABEL_WIDTH) + " ")
        line.append_text(axis.draw(fate))
        line.append(" ")
        words, style = verdict(fate)
        first, *rest = _broken(words, verdict_width)
        indent = " " * line.cell_len
        line.append(first, style)
        yield line
        for part in rest:
            yield Text(indent + part, style)

    def summary(self) -> str:
        """Return what became of all records, counted."""
        total = JoinCounters()
        for step in self._played:
            total.add(JoinCounters(**{name: n for name, n in step.counts.items() if name != "emitted"}))
        dropped = total.dropped_null_key + total.dropped_null_value
        waiting = sum(each.waits for each in self._fates)
        return (
            f"{total.records} records: {total.joined} joined results, {total.unmatched} unmatched, "
            f"{waiting} still waiting, {dropped} dropped, {total.late} late"
        )


class Axis:
    """Event time of a key's records: along a strip of characters, or of a page in percent of its width."""

    def __init__(self, found: list[Fate], rules: JoinRules, width: int, zero: int) -> None:
        self._rules = rules
        self._width = width
        self._zero = zero
        spans = [self._span(each) for each in found]
        self._first = min(first for first, _ in spans)
        self._last = max(last + rules.windows.grace_ms for _, last in spans)

    def _span(self, fate: Fate) -> tuple[int, int]:
        """Return the ends of a record's window, the record's own time included."""
        time, side = fate.record.timestamp, fate.record.side
        if fate.record.key is None or fate.record.value is None:
            return time, time
        return time - max(0, self._rules.before_ms(side)), time + max(0, self._rules.after_ms(side))

    def ends(self) -> tuple[str, str]:
        """Return the first and the last time."""
        return str(self._first - self._zero), str(self._last - self._zero)

    def written(self) -> str:
        """Write the first and the last time where they are."""
        first, last = self.ends()
        return first + last.rjust(self._width - len(first)) if len(first + last) < self._width else first

    def _at(self, time: int) -> int:
        span = self._last - self._first
        place = (time - self._first) * (self._width - 1) // span if span else 0
        return min(max(place, 0), self._width - 1)

    def time(self, fate: Fate) -> int:
        """Return a record's time as it is shown."""
        return fate.record.timestamp - self._zero

    def percent(self, time: int) -> float:
        """Return how far along the axis a time is."""
        return 100 * (time - self._first) / max(self._last - self._first, 1)

    def window(self, fate: Fate) -> tuple[float, float, float]:
        """Return where a record's window begins and ends, and its grace period behind it, in percent."""
        first, last = self._span(fate)
        kept = 0 if first == last == fate.record.timestamp else self._rules.windows.grace_ms
        return self.percent(first), self.percent(last), self.percent(last + kept)

    def draw(self, fate: Fate) -> Text:
        """Draw a record's window, itself and its partners."""
        record = fate.record
        cells: list[tuple[str, str]] = [(" ", "")] * self._width
        if record.key is not None and record.value is not None:
            start = record.timestamp - self._rules.before_ms(record.side)
            end = record.timestamp + self._rules.after_ms(record.side)
            first, last = self._at(start), self._at(end)
            for place in range(last + 1, self._at(end + self._rules.windows.grace_ms) + 1):
                cells[place] = ("┄", "dim")
            for place in range(first, last + 1):
                cells[place] = ("─", "dim")
            cells[first], cells[last] = ("├", "dim"), ("┤", "dim")
        for _, time in (*fate.partners, *fate.met_later):
            cells[self._at(time)] = ("◆", "green")
        cells[self._at(record.timestamp)] = ("✕", "red") if fate.dropped else ("●", "bold")
        drawn = Text()
        for character, style in cells:
            drawn.append(character, style)
        return drawn


def side_of(fate: Fate) -> str:
    """Return the letter of a record's side."""
    return "L" if fate.record.side is Side.LEFT else "R"


def value_of(fate: Fate) -> str:
    """Return a record's value as text that stays on its line."""
    return NULL if fate.record.value is None else printable(fate.record.value)


def verdict(fate: Fate) -> tuple[str, str]:
    """Return what became of a record in words, and their style."""
    words: list[str] = []
    style = "dim"
    if fate.dropped:
        words, style = [f"dropped: {fate.dropped}"], "red"
    if fate.left_at is not None:
        at_once = "no key" if fate.record.key is None else "its window is over"
        when = f"at once: {at_once}" if fate.left_at == fate.number else f"at step {fate.left_at}"
        words, style = [f"unmatched {when}"], "yellow"
    if fate.partners:
        names = Counter("itself" if name is None else printable(name) for name, _ in fate.partners)
        met = ", ".join(f"{count} {name}" if count > 1 else name for name, count in names.items())
        words, style = [f"⋈ {met}"], "green"
    elif fate.met_later:
        steps = list(dict.fromkeys(number for number, _ in fate.met_later))
        more = f" and {len(steps) - 1} more" if len(steps) > 1 else ""
        words.append(f"⋈ step {steps[0]}{more}")
        style = "green" if fate.left_at is None else style
    if fate.waits:
        words, style = ["still waits"], "yellow"
    words = words or ["no partner"]
    if "late" in fate.counts:
        words.append("late")
    if "dropped_late" in fate.counts:
        words.append("not kept")
    return "; ".join(words), style


def printable(data: bytes) -> str:
    """Return text that stays on its line."""
    text = shown(data) or ""
    return text if text.isprintable() else repr(text)[1:-1]


def _fit(text: str, width: int) -> str:
    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def _broken(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".lstrip()
        lines[-1:] = [longer] if not lines[-1] or cell_len(longer) <= width else [lines[-1], word]
    return lines


STYLES = {"green": "joined", "yellow": "unmatched", "red": "dropped", "dim": "none"}
"""The colour of a verdict on a terminal → its class on the page."""


def render_join(pictures: Sequence[JoinPicture], *, made_at: str, version: str) -> str:
    """Return the page as HTML; `made_at` says when it is made, for people."""
    return template("join.html.j2", side=side_of, value=value_of).render(
        pictures=pictures, verdict=verdict, styles=STYLES, made_at=made_at, version=version
    )
