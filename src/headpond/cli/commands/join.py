"""`headpond join`: windowed joins of two streams, tried on a time-line; what one on Spark holds.

`play` draws each record's window, whom it met, and what became of it::

    key a                    90                      121
       0 L l1           100  ├───────●───◆───┤           ⋈ step 1
       1 R r1           105      ├───◆───●───────┤       ⋈ l1

One row a record in the order of arrival, one block a key. Along the axis of event time: the window, the
record's own time, the times of those it met, and the grace period behind the window.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import orjson
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from headpond.cli.commands.store import key_of, milliseconds_of, readable
from headpond.cli.inputs import input_argument, input_lines, with_output
from headpond.cli.output import Output
from headpond.core.errors import UsageError
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.rules import Emit, HeadersOf, JoinCounters, JoinRules, JoinType
from headpond.kstreams.join.scenario import (
    Fate,
    Played,
    Scenario,
    differing_steps,
    fates,
    filled,
    read_scenario,
    shown,
)
from headpond.spark.join.checkpoint import KeptRecord

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
        self._scenario = scenario
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
        blocks: dict[bytes | None, list[Fate]] = {}
        for fate in self._fates:
            blocks.setdefault(fate.record.key, []).append(fate)
        for key, found in blocks.items():
            axis = _Axis(found, self._rules, strip)
            name = "no key" if key is None else f"key {_printable(key)}"
            ends = axis.ends(self._zero)
            lines += [Text(), Text.assemble((_fit(name, LABEL_WIDTH), "bold"), " ", (ends, "dim"))]
            for fate in found:
                lines += self._row(fate, axis, verdict_width)
        return [*lines, Text(), *(Text(part) for part in _broken(self._summary(), width))]

    def _head(self) -> Iterator[tuple[str, str]]:
        rules, windows = self._rules, self._rules.windows
        if self._scenario.name:
            yield self._scenario.name, "bold"
        kind = "self-join" if rules.type is JoinType.SELF else f"{rules.type} join"
        spans = f"{windows.before_ms} ms before to {windows.after_ms} ms after, grace {windows.grace_ms} ms"
        yield f"{kind}: {spans}, headers of {rules.headers}, {rules.emit}", ""
        yield "├ window ┤  ┄ grace  ● record  ◆ partner  ✕ dropped  ⋈ joined with", "dim"
        clocks = pairwise((0, *(each.wall_clock_ms for each in self._played)))
        moved = [f"+{now - before} ms at step {n}" for n, (before, now) in enumerate(clocks) if now != before]
        if moved:
            throttle = f"expired records leave every {rules.emit_interval_ms} ms"
            yield f"{throttle}; wall clock {', '.join(moved)}", ""
        if self._zero:
            yield f"times are ms after {self._zero}", "dim"

    def _row(self, fate: Fate, axis: _Axis, verdict_width: int) -> Iterator[Text]:
        record = fate.record
        side = "L" if record.side is Side.LEFT else "R"
        value = NULL if record.value is None else _printable(record.value)
        label = f"{fate.number:>4} {side} {_fit(value, VALUE_WIDTH)} {record.timestamp - self._zero:>8}"
        line = Text(_fit(label, LABEL_WIDTH) + " ")
        line.append_text(axis.draw(fate))
        line.append(" ")
        words, style = _verdict(fate)
        first, *rest = _broken(words, verdict_width)
        indent = " " * line.cell_len
        line.append(first, style)
        yield line
        for part in rest:
            yield Text(indent + part, style)

    def _summary(self) -> str:
        total = JoinCounters()
        for step in self._played:
            total.add(JoinCounters(**{name: n for name, n in step.counts.items() if name != "emitted"}))
        dropped = total.dropped_null_key + total.dropped_null_value
        waiting = sum(each.waits for each in self._fates)
        return (
            f"{total.records} records: {total.joined} joined results, {total.unmatched} unmatched, "
            f"{waiting} still waiting, {dropped} dropped, {total.late} late"
        )


class _Axis:
    """Event time along a strip of characters."""

    def __init__(self, found: list[Fate], rules: JoinRules, width: int) -> None:
        self._rules = rules
        self._width = width
        spans = [self._span(each) for each in found]
        self._first = min(first for first, _ in spans)
        self._last = max(last + rules.windows.grace_ms for _, last in spans)

    def _span(self, fate: Fate) -> tuple[int, int]:
        """Return the ends of a record's window, the record's own time included."""
        time, side = fate.record.timestamp, fate.record.side
        if fate.record.key is None or fate.record.value is None:
            return time, time
        return time - max(0, self._rules.before_ms(side)), time + max(0, self._rules.after_ms(side))

    def ends(self, zero: int) -> str:
        """Write the first and the last time where they are."""
        first, last = str(self._first - zero), str(self._last - zero)
        return first + last.rjust(self._width - len(first)) if len(first + last) < self._width else first

    def _at(self, time: int) -> int:
        span = self._last - self._first
        place = (time - self._first) * (self._width - 1) // span if span else 0
        return min(max(place, 0), self._width - 1)

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


def _verdict(fate: Fate) -> tuple[str, str]:
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
        names = Counter("itself" if name is None else _printable(name) for name, _ in fate.partners)
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


def _printable(data: bytes) -> str:
    """Return text that stays on its line."""
    text = shown(data) or ""
    return text if text.isprintable() else repr(text)[1:-1]


def _fit(text: str, width: int) -> str:
    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def _broken(text: str, width: int) -> list[str]:
    """Break a text at blanks."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".lstrip()
        lines[-1:] = [longer] if not lines[-1] or cell_len(longer) <= width else [lines[-1], word]
    return lines


def _is_checkpoint(_ctx: click.Context, _param: click.Parameter, folder: str) -> str:
    if "://" not in folder and not (Path(folder) / "offsets").is_dir():
        raise UsageError(
            f"{folder} is not a checkpoint: it has no folder offsets.",
            next_step="Give the checkpointLocation of a query.",
            checkpoint=folder,
        )
    return folder


_checkpoint = click.argument(
    "checkpoint", metavar="CHECKPOINT", type=click.Path(path_type=str), callback=_is_checkpoint
)


def _is_setting(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise UsageError(f"--conf {each} is not NAME=VALUE.", option="conf")
    return dict(each.split("=", 1) for each in given)


_conf = click.option(
    "--conf", multiple=True, metavar="NAME=VALUE", callback=_is_setting,
    help="A setting of Spark, such as what it needs to reach an object store; several are possible.",
)  # fmt: skip


@click.group()
def join() -> None:
    """Join two streams in time windows: try one out, or look into one on Spark."""


@join.command()
@input_argument
@click.option(
    "--headers-of",
    "headers_of",
    type=click.Choice([each.value for each in HeadersOf]),
    default=HeadersOf.OWN.value,
    show_default=True,
    help="Whose headers results carry.",
)
@click.option(
    "--emit",
    type=click.Choice([each.value for each in Emit]),
    help="When unmatched results leave; as the time-line says when not given, else eager.",
)
@click.option("--check", is_flag=True, help="End with 1 if a step's own `out` is not what came out.")
@with_output
@click.pass_context
def play(
    ctx: click.Context, output: Output, file: str, *, headers_of: str, emit: str | None, check: bool
) -> None:
    """Run a time-line through a join and show what becomes of each record.

    FILE (standard input when `-` or absent) is a JSON document {"type": "inner" | "left" | "outer",
    "before_ms", "after_ms", "grace_ms", "steps": [{"side": "L" | "R", "key", "value", "timestamp",
    "headers"}, …]}, or a list of such. With --json it is printed again with each step's `out` filled in.
    """
    try:
        content = orjson.loads(b"".join(input_lines(file)))
    except orjson.JSONDecodeError as error:
        raise UsageError(
            f"{'Standard input' if file == '-' else file} is not a JSON document: {error}.",
            next_step="examples/joins holds time-lines to start from.",
            file=file,
        ) from error
    documents: list[Any] = content if isinstance(content, list) else [content]
    results = []
    different = False
    for number, document in enumerate(documents):
        try:
            scenario = read_scenario(
                document, headers=HeadersOf(headers_of), emit=None if emit is None else Emit(emit)
            )
        except UsageError as error:
            where = f"Time-line {number}: " if isinstance(content, list) else ""
            raise UsageError(f"{where}{error.message}", next_step=error.next_step, **error.facts) from error
        played = scenario.play()
        steps = differing_steps(document, played)
        if check and steps:
            different = True
            named = f" of {scenario.name}" if scenario.name else ""
            output.say(f"Different from `out` in the file: step {', '.join(map(str, steps))}{named}.")
        results.append(filled(document, played))
        if not output.json:
            picture = JoinPicture(scenario, played)
            output.result(results[-1], lambda picture=picture: picture)  # type: ignore[misc]
    if output.json:
        output.result(results if isinstance(content, list) else results[0])
    if different:
        ctx.exit(1)


@join.command()
@_checkpoint
@_conf
@with_output
def inspect(output: Output, checkpoint: str, *, conf: dict[str, str]) -> None:
    """Show what a join on Spark holds: tasks, stream times, records and bytes, how many wait unmatched.

    CHECKPOINT is the checkpointLocation of its query, a folder or URL. It is read with Spark and not changed.
    """
    from headpond.spark.join.checkpoint import figures, read_join

    with output.progress("starting Spark"), _session(conf) as spark:
        standing = read_join(spark, checkpoint)
    tasks = [figures(each) for each in standing.documents.values()]
    first = next(iter(standing.documents.values()))
    document = {
        "batch": standing.batch,
        "tasks": standing.tasks,
        "rules": first["fingerprint"]["rules"],
        "records": sum(each["records"] for each in tasks),
        "bytes": sum(each["bytes"] for each in tasks),
        "unmatched": sum(each["unmatched"] for each in tasks),
        "each": tasks,
    }
    output.result(document, lambda: _drawn(document))


@join.command()
@_checkpoint
@click.option("--tasks", type=click.IntRange(1), required=True, help="The new number of tasks.")
@click.option("--out", type=click.Path(path_type=str), required=True, help="The new checkpoint.")
@_conf
@with_output
def rescale(output: Output, checkpoint: str, *, tasks: int, out: str, conf: dict[str, str]) -> None:
    """Write a copy of a checkpoint whose join has another number of tasks.

    CHECKPOINT is a folder or URL; its query must not be running. Start the query with the new number of tasks
    and the new checkpoint. Batches keep their numbers.
    """
    from headpond.spark.join.checkpoint import rescale as rescale_checkpoint

    with output.progress("starting Spark") as show, _session(conf) as spark:
        show("rewriting the state")
        done = rescale_checkpoint(spark, checkpoint, tasks, out)
    summary = f"{done['records']} records of {done['from_tasks']} tasks are in {done['to_tasks']} now: {out}"
    output.result({**done, "checkpoint": out}, lambda: Text(summary))


@join.command()
@_checkpoint
@click.option("--key", "key_text", help="The key, given as text.")
@click.option("--key-hex", help="The key, given as hexadecimal digits.")
@click.option("--from", "time_from", metavar="TIME", help="Only records from then on: ms, or ISO 8601.")
@click.option("--to", "time_to", metavar="TIME", help="Only records up to then.")
@_conf
@with_output
def show(
    output: Output,
    checkpoint: str,
    *,
    key_text: str | None,
    key_hex: str | None,
    time_from: str | None,
    time_to: str | None,
    conf: dict[str, str],
) -> None:
    """List the records of a key that a join on Spark keeps, with their headers.

    CHECKPOINT is the checkpointLocation of its query, a folder or URL. With --json each line is {"side",
    "timestamp", "value", "headers", "waiting", "held"}: bytes as hexadecimal text; waiting ones have no
    partner yet, held ones wait for a slower input.
    """
    from headpond.spark.join.checkpoint import kept_records

    key = key_of(key_text, key_hex)
    if key is None:
        raise UsageError("There is no key to look for.", next_step="Give one with --key or --key-hex.")
    first, last = milliseconds_of(time_from), milliseconds_of(time_to)
    with output.progress("starting Spark"), _session(conf) as spark:
        found = list(kept_records(spark, checkpoint, key, first, last))
    for each in found:
        document = {
            "side": each.side.name.lower(),
            "timestamp": each.timestamp,
            "value": None if each.value is None else each.value.hex(),
            "headers": [[name, None if value is None else value.hex()] for name, value in each.headers],
            "waiting": each.waiting,
            "held": each.held,
        }
        output.result(document, lambda each=each: _kept_line(each))  # type: ignore[misc]


def _kept_line(each: KeptRecord) -> Text:
    state = "  held" if each.held else "  unmatched" if each.waiting else ""
    return Text.assemble(
        (_moment(each.timestamp), "cyan"),
        f"  {each.side.name.lower():<5}  {readable(each.value)}",
        (state, "yellow"),
        *((f"  {name}={readable(value)}", "green") for name, value in each.headers),
    )


@contextmanager
def _session(conf: Mapping[str, str]) -> Iterator[Any]:
    from headpond.spark.session.settings import private_logs
    from headpond.spark.session.start import spark_session

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    settings = {"spark.sql.streaming.stateStore.providerClass": provider, **conf}
    spark = spark_session("headpond join", log_path=private_logs() / "join.log", conf=settings, quick=True)
    try:
        yield spark
    finally:
        spark.stop()


def _drawn(document: dict[str, Any]) -> RenderableType:
    table = Table("task", "side", "from", "to", "records", "bytes", "unmatched", "chunks")
    for task in document["each"]:
        for each in task["slices"]:
            table.add_row(
                str(task["task"]), each["side"], _moment(each["from_ms"]), _moment(each["to_ms"]),
                f"{each['records']:,}", f"{each['bytes']:,}", f"{each['unmatched']:,}", str(each["chunks"]),
            )  # fmt: skip
    times = [
        Text(f"task {task['task']}: stream time {_moment(task['stream_time'])}") for task in document["each"]
    ]
    head = (
        f"{document['tasks']} tasks after batch {document['batch']}: {document['records']:,} records, "
        f"{document['bytes']:,} bytes, {document['unmatched']:,} wait unmatched"
    )
    return Group(Text(head), Text(document["rules"]), *times, table)


def _moment(millis: int) -> str:
    if millis < 0:
        return "none yet"
    try:
        return dt.datetime.fromtimestamp(millis / 1000, dt.UTC).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{millis} ms"
