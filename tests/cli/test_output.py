"""What commands say, and where: results on standard output, words on standard error."""

from __future__ import annotations

import json
import re
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from headpond.cli.output import ConsoleOutput, JsonOutput, Output, draw_summary, dumps, grid
from headpond.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS: list[Callable[[], Output]] = [ConsoleOutput, JsonOutput]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_json_is_one_document_a_line(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """Never wrapped, UTF-8 as it is, and the drawing is not even made."""

    def draw() -> Text:
        raise AssertionError("drawn for nobody")

    output = JsonOutput()
    assert output.json
    output.result({"name": "größe [x]" * 10}, draw)
    output.result([1, None])
    assert capsysbinary.readouterr() == (('{"name":"' + "größe [x]" * 10 + '"}\n[1,null]\n').encode(), b"")


def test_a_person_gets_the_drawing_or_else_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    """A document without a drawing is shown whole, on one line."""
    output = ConsoleOutput()
    assert not output.json
    output.result({"a": 1}, lambda: Text("drawn"))
    output.result({"[bold]": "x" * 60})
    assert capsys.readouterr().out == "drawn\n" + '{"[bold]":"' + "x" * 60 + '"}\n'


def test_shown_commands_can_be_copied_and_piped_tables_are_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line is never broken, and without a terminal a table is not cut."""
    output = ConsoleOutput()
    output.result(None, lambda: Text("headpond run " + "x" * 50 + " --until-caught-up"))
    assert capsys.readouterr().out == "headpond run " + "x" * 50 + " --until-caught-up\n"
    monkeypatch.delenv("COLUMNS")
    table = Table("long " * 40, box=None)
    table.add_row("y" * 300)
    ConsoleOutput().result(None, lambda: table)
    assert "y" * 300 in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_words_go_to_standard_error_whole(
    kind: Callable[[], Output], capsys: pytest.CaptureFixture[str]
) -> None:
    """Brackets are no markup and long sentences are not wrapped, since programs read them too."""
    sentence = '[tables."public.orders"]' + " word" * 20
    kind().say(sentence)
    assert capsys.readouterr() == ("", sentence + "\n")


HOSTILE = "t\x1b[2J\x1b]52;c;AAAA\x07\x9b31m\r\x7f\u202e"
"""Clears a screen, writes into the clipboard, changes colours, goes back in the line, turns text around."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_terminal_does_not_obey_what_records_say(
    kind: Callable[[], Output], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Controls in names and reasons are shown, in sentences, errors, tables, views; our own colours stay."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm-256color")
    output = kind()
    output.say(HOSTILE)
    output.error(UsageError(f"of {HOSTILE}", next_step=f"to {HOSTILE}"))
    with output.progress(HOSTILE) as show:
        show(HOSTILE, done=1)
    if not output.json:
        table = grid(HOSTILE, ("rows",))
        table.add_row(HOSTILE, "1")
        output.result({}, lambda: table)
        output.result({"name": HOSTILE})
        with output.live() as draw:
            draw({}, Group(Text(HOSTILE), table))
    printed = "".join(capsys.readouterr())
    assert "t\u241b[2J\u241b]52" in printed
    assert "\x1b[1;31mError: " in printed
    # What is left are colours, and what draws over a spinner and shows another screen.
    assert not re.search(r"\x1b(?!\[[0-9;?]*[mAKhlH])|\x1b\[2J\x1b\]|[\x07\x7f-\x9f\u202e]", printed)


@pytest.mark.parametrize("kind", KINDS)
def test_progress_without_a_terminal_is_one_sentence(
    kind: Callable[[], Output], capsys: pytest.CaptureFixture[str]
) -> None:
    """A log file gets no animation."""
    with kind().progress("reading") as show:
        show("batch 1")
        show("batch 2")
    assert capsys.readouterr() == ("", "reading …\n")


def test_progress_on_a_terminal_shows_the_words_of_the_moment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, so that results may be piped."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with ConsoleOutput().progress("reading") as show:
        show("batch 2 applied")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "batch 2 applied" in printed.err


def test_a_document_is_one_line_for_every_reader() -> None:
    """Some take U+0085, U+2028 and U+2029 for the end of a line."""
    document = {"text": "a\x85b\u2028c\u2029d\x1ce"}
    line = dumps(document).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line) == document


def test_a_summary_says_what_an_operator_wants_to_see_once() -> None:
    """Repeats that differ, unknown operations, changes that nobody keeps: only where there are any."""
    tables = {
        "t": {"rows": 1, "conflicting_duplicates": 1200},
        "u": {"rows": 2, "conflicting_duplicates": 34},
    }
    summary = {
        "tables": tables,
        "quarantined": {},
        "pending": 0,
        "unknown_tables": {},
        "columns": {},
        "lake": "l",
    }
    out = StringIO()
    Console(file=out, width=200).print(draw_summary(summary | {"counters": {"unknown_op": 2, "ignored": 0}}))
    assert "1,234 duplicates whose image differs" in out.getvalue()
    assert "2 changes with an unknown op, applied as upserts" in out.getvalue()
    assert "ignored" not in out.getvalue()
