"""Where results and words of commands go.

::

                      results → standard output            words and progress → standard error
    ConsoleOutput     as a person reads them                with colours on a terminal
    JsonOutput        JSON, one document a line             the same words

Names, reasons and values come from records that anybody may have written. What a terminal would obey in them
(escape sequences, controls, changes of the direction of writing) is shown as a sign in its place: the name of
a table must not clear the screen.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from headpond.core.errors import HeadpondError
from headpond.core.tabular import said_ms

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType


PIPE_COLUMNS = 1000
"""Room for tables where no terminal bounds it: what is piped or saved is not cut."""

# Unicode has pictures of the oldest of them.
_OBEYED: dict[int, int] = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), 0x061C, 0x200E, 0x200F), 0xFFFD),
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029), 0xFFFD),
}
"""Characters that a terminal obeys, and one sign for each; tabs and line feeds stay."""


def harmless(text: str) -> str:
    """Return text with a sign in place of each character that a terminal would obey."""
    return text if text.isascii() and text.isprintable() else text.translate(_OBEYED)


class Show(Protocol):
    """Changes what is shown of something that goes on."""

    def __call__(self, words: str, /, *, done: int | None = None) -> None:
        """Change the words, and the number of steps that are done where it is given."""


def dumps(document: Any) -> bytes:
    """Return a JSON document as a line of UTF-8, with its line feed and no other end of a line."""
    line = orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
    for end in "\x85\u2028\u2029":
        line = line.replace(end.encode(), f"\\u{ord(end):04x}".encode())
    return line


class _Terminal(Console):
    """A console that obeys nobody but rich: text that is drawn holds no controls."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Draw, with a sign in place of each control in a text."""
        for drawn in super().render(renderable, options):
            shown = drawn.text if drawn.control else harmless(drawn.text)
            yield drawn if shown is drawn.text else Segment(shown, drawn.style)


class _Words:
    """Standard error: sentences are never wrapped or taken for markup, since names may hold brackets."""

    def __init__(self) -> None:
        self.stderr = _Terminal(stderr=True, highlight=False, soft_wrap=True)

    def say(self, sentence: str) -> None:
        """Write a sentence for a person; never part of the result."""
        self.stderr.print(Text(sentence))

    @contextmanager
    def progress(self, description: str, steps: int | None = None) -> Iterator[Show]:
        """Show a spinner and a bar on a terminal, else a sentence at the start and at each step."""
        if not self.stderr.is_terminal:
            self.say(f"{description} …")
            yield lambda words, *, done=None: None if done is None else self.say(f"{done}/{steps} {words} …")
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.stderr, transient=True) as bar:
            task = bar.add_task(description, total=steps)
            yield lambda words, *, done=None: bar.update(task, description=words, completed=done)

    @contextmanager
    def view(self, draw: Callable[[], RenderableType]) -> Iterator[bool]:
        """Show on a terminal what `draw` draws, again and again; yield whether there is one."""
        if not self.stderr.is_terminal:
            yield False
            return
        with Live(get_renderable=draw, console=self.stderr, transient=True, refresh_per_second=2):
            yield True

    def error(self, error: HeadpondError) -> None:
        """Write what went wrong and what to do about it."""
        self.stderr.print(Text.assemble(("Error: ", "bold red"), error.message))
        if error.next_step:
            self.stderr.print(Text(error.next_step))


class _Results(_Terminal):
    """Standard output that leaves a broken pipe to the command line's last frame."""

    def on_broken_pipe(self) -> None:
        """Raise as Python does; rich would end the process with 1."""
        raise BrokenPipeError


class ConsoleOutput(_Words):
    """Results as a person reads them."""

    json = False

    def __init__(self) -> None:
        super().__init__()
        self.stdout = _Results(highlight=False)
        if not self.stdout.is_terminal and "COLUMNS" not in os.environ:
            self.stdout.width = PIPE_COLUMNS

    def result(self, document: Any, shown: Callable[[], RenderableType] | None = None) -> None:
        """Draw the result as `shown` does, else the document."""
        drawn = shown() if shown is not None else Text(dumps(document).decode().rstrip())
        if isinstance(drawn, Text) and not self.stdout.is_terminal:
            # Of a line without colours rich would draw nothing else, in the time of a hundred.
            self.stdout.file.write(f"{harmless(drawn.plain)}\n")
            self.stdout.file.flush()
            return
        # Lines are not broken: a command or a path that is shown can be copied whole. Tables fit themselves.
        self.stdout.print(drawn, soft_wrap=True)

    @contextmanager
    def live(self) -> Iterator[Callable[[Any, RenderableType], None]]:
        """Draw over what was drawn before on a terminal; one below the other where there is none."""
        if not self.stdout.is_terminal:

            def append(document: Any, drawn: RenderableType) -> None:
                self.result(document, lambda: drawn)
                self.stdout.file.flush()

            yield append
            return
        with Live(console=self.stdout, screen=True, auto_refresh=False, vertical_overflow="crop") as screen:
            yield lambda _document, drawn: screen.update(drawn, refresh=True)


class JsonOutput(_Words):
    """Results as JSON Lines."""

    json = True

    def result(self, document: Any, shown: Callable[[], RenderableType] | None = None) -> None:
        """Write the document as one line, at once."""
        del shown
        sys.stdout.buffer.write(dumps(document))
        sys.stdout.buffer.flush()

    @contextmanager
    def live(self) -> Iterator[Callable[[Any, RenderableType], None]]:
        """Write a line each time."""
        yield lambda document, _drawn: self.result(document)


Output = ConsoleOutput | JsonOutput
"""Where a command's results and words go."""


RUN_FIGURES = ("written", "deletes", "duplicates", "stale", "superseded")
"""Columns beside `rows`; what is written is upserts in a current table and new entries in a log."""
MAX_CELL = 28


def draw_summary(summary: Mapping[str, Any], file: str | None = None) -> RenderableType:
    """Draw what `lake_summary` returned, with the next command for the pipeline file where it is given."""
    ran = "batches" in summary
    figures = RUN_FIGURES if ran else ()
    fresh = summary.get("freshness", {})
    table = grid("table", ("rows", *figures, *(["newest change"] if fresh else [])))
    for name, facts in summary["tables"].items():
        shown = facts | {"written": facts.get("upserts", facts.get("appended"))}
        ages = [_aged(fresh[name]["age_ms"])] if fresh else []
        table.add_row(name, *(number(shown.get(figure)) for figure in ("rows", *figures)), *ages)
    return Group(table, *_lines(summary), *([] if file is None else [_next(summary, file)]))


def _aged(age_ms: int | None) -> str:
    return "" if age_ms is None else f"{said_ms(max(0, age_ms))} ago"


def next_command(*arguments: str, when: str = "") -> Text:
    """Draw the command that a reader of a result needs next, as a shell takes it: names are anybody's."""
    command = shlex.join(["headpond", *arguments])
    return Text.assemble(("next: ", "dim"), (command, "bold"), (f"  ({when})" if when else "", "dim"))


def _next(summary: Mapping[str, Any], file: str) -> Text:
    if summary.get("batch", 0) is None:
        return next_command("run", file)
    if summary["quarantined"]:
        return next_command("quarantine", file)
    if summary["unknown_tables"]:
        return next_command("suggest", file)
    return next_command("show", file, *list(summary["tables"])[:1])


@dataclass(frozen=True, slots=True)
class RowsDrawn:
    """A few rows of a table: the columns that fit, headpond's own last; the others are named."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Draw them for a terminal's width."""
        cells = [list(map(_cell, row)) for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.columns, *cells, strict=True)]
        own_last = sorted(range(len(widths)), key=lambda at: self.columns[at].startswith("_"))
        taken = list(accumulate(widths[at] + 2 for at in own_last))
        fitting = max(1, sum(width - 2 <= options.max_width for width in taken))
        chosen = sorted(own_last[:fitting])
        table = Table(title=self.title, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for at in chosen:
            table.add_column(self.columns[at], no_wrap=True)
        for row in cells:
            table.add_row(*(row[at] for at in chosen))
        yield table
        if left := sorted(own_last[fitting:]):
            names = ", ".join(self.columns[at] for at in left)
            yield Text(f"Hidden for lack of space: {names}.", style="dim")


def grid(first: str, others: Iterable[str]) -> Table:
    """Return an empty table of names and numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for other in others:
        table.add_column(other, justify="right", no_wrap=True)
    return table


def advice(rewritten: Mapping[str, int]) -> list[Text]:
    """Say which tables are written again by each batch, and what avoids that."""
    return [
        Text(
            f"{name}: each batch writes {found / 2**20:,.0f} MiB again; "
            "deletion_vectors = true in its entry avoids that"
        )
        for name, found in rewritten.items()
        if found
    ]


def _lines(summary: Mapping[str, Any]) -> list[Text]:
    lines = [_counts("in quarantine", summary["quarantined"], "nothing", "yellow")]
    if "anomalies" in summary:
        lines.append(_counts("anomalies in the journal", summary["anomalies"], "none", "red"))
    if summary.get("digest"):
        verdict = summary["digest"]["verdict"]
        lines.append(Text(f"saved digest: {verdict}", style="" if verdict == "ok" else "red"))
    if summary.get("lag_ms"):
        lines.append(Text(f"behind the stream: {summary['lag_ms'] / 1000:,.1f} s", style="yellow"))
    lines += advice({name: facts.get("rewritten_bytes", 0) for name, facts in summary["tables"].items()})
    counters = summary.get("counters", {})
    conflicts = sum(facts.get("conflicting_duplicates", 0) for facts in summary["tables"].values())
    odd = {
        "duplicates whose image differs": conflicts,
        "changes with an unknown op, applied as upserts": counters.get("unknown_op", 0),
        "changes of tables that are not configured, ignored": counters.get("ignored", 0),
    }
    lines += [Text(f"{number(count)} {what}") for what, count in odd.items() if count]
    if summary["pending"]:
        lines.append(Text(f"pending: {summary['pending']} records wait for the rest of their chunks"))
    for name, unknown in summary["unknown_tables"].items():
        entry = unknown["configured_as"]
        more = "; it is not configured" if entry is None else f" from before it was configured as {entry}"
        lines.append(Text(f"{name} has a raw log of {unknown['rows']:,} changes{more}"))
    for table, columns in summary["columns"].items():
        names = ", ".join(f"{original!r} as {encoded}" for original, encoded in columns.items())
        lines.append(Text(f"{table} holds {names}"))
    return [*lines, Text(f"lake: {summary['lake']}", overflow="ignore")]


def many(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> many(1, "row"), many(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _counts(title: str, counts: Mapping[str, int], none: str, style: str) -> Text:
    listed = ", ".join(f"{count} {what}" for what, count in counts.items()) or none
    return Text(f"{title}: {listed}", style=style if counts else "")


def number(value: int | None) -> str:
    """Return a whole number as all of headpond writes it: 1,234,567; nothing where there is none."""
    return "" if value is None else f"{value:,}"


def _cell(value: Any) -> str:
    shown = "·" if value is None else value.hex(" ") if isinstance(value, bytes) else str(value)
    return shown if len(shown) <= MAX_CELL else shown[: MAX_CELL - 1] + "…"
