"""`headpond show` and `headpond quarantine`: what people see and what programs get."""

from __future__ import annotations

import base64
import json
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from headpond.cli.main import main
from headpond.cli.output import RowsDrawn
from tests.api.conftest import example

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

__all__ = ["example"]
pytestmark = pytest.mark.usefixtures("example")


def test_show_lists_tables_and_rows(cli: Cli) -> None:
    """Of a pipeline and of a lake; as text and as JSON Lines."""
    for file in ("pipeline.toml", "lake"):
        assert cli("show", file, "--json").lines() == [
            {"tables": {"public.orders": {"rows": 1, "version": 1}}}
        ]
        (row,) = cli("show", file, "public.orders", "--json").lines()
        assert (row["id"], row["item"], row["quantity"]) == (1, "anchor", 2)
    said = cli("show", "pipeline.toml", "public.orders").stdout.decode()
    assert "public.orders, version 1: 1 of 1 row\n" in said
    assert "anchor" in said
    assert "next: headpond show pipeline.toml public.orders" in cli("show", "pipeline.toml").stdout.decode()


def test_what_is_to_be_run_next_can_be_pasted_into_a_shell(cli: Cli) -> None:
    """Folders have names with spaces, and the name of a table is whatever a record says."""
    Path("pipeline.toml").rename("my pipeline.toml")
    said = cli("show", "my pipeline.toml").stdout.decode()
    assert "next: headpond show 'my pipeline.toml' public.orders" in said


def test_show_as_it_was_and_by_condition(cli: Cli) -> None:
    """A version, a time, SQL, a limit."""
    assert cli("show", "lake", "public.orders", "--json", "--at", "0").lines() == []
    assert len(cli("show", "lake", "public.orders", "--json", "--at", "2999-01-01T00:00:00Z").lines()) == 1
    assert cli("show", "lake", "public.orders", "--json", "--where", "quantity > 2").lines() == []
    assert len(cli("show", "lake", "_headpond/quarantine", "--json", "--limit", "1").lines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("public.order",), "It has public.orders."),
        (("public.orders", "--where", "prise > 1"), "Its columns are id, item"),
        (("public.orders", "--at", "9"), "Its newest version is 1"),
        (("public.orders", "--at", "1999-01-01"), "Name a later time."),
        (("public.orders", "--at", "noon"), "neither a version nor a time"),
    ],
)
def test_a_wrong_question_is_one_sentence(cli: Cli, arguments: tuple[str, ...], says: str) -> None:
    """With what there is."""
    result = cli("show", "pipeline.toml", *arguments)
    assert (result.code, result.stdout) == (2, b"")
    assert says in result.stderr


@pytest.mark.parametrize("command", ["show", "quarantine"])
def test_a_lake_that_is_not_there_is_not_an_empty_one(cli: Cli, command: str) -> None:
    """Nor is what was mistyped a pipeline that has not run yet."""
    assert cli(command, "nowhere") == (
        2,
        b"",
        "Error: There is no lake at nowhere.\nGive a pipeline file (.toml) or the folder of a lake.\n",
    )


def test_quarantine_counts_and_decodes(cli: Cli) -> None:
    """By reason and table, with the record's text, bytes and place; the next command is given."""
    (found,) = cli("quarantine", "pipeline.toml", "--json").lines()
    assert found["records"] == 1
    assert found["counts"] == [
        {"reason": "unknown_type", "table": None, "records": 1, "detail": 'type is "sideways"'}
    ]
    (record,) = found["shown"]
    assert base64.b64decode(record["data"]).decode() == record["text"] == '{"type": "sideways"}'
    assert (record["shard_id"], record["found"]["format"]) == ("shardId-000000000000", "dsql")
    said = cli("quarantine", "pipeline.toml").stdout.decode()
    assert '  {"type": "sideways"}\n' in said
    assert "unknown_type: Look for other data in the same stream, or a newer version of the format.\n" in said
    assert "next:" not in said
    assert cli("quarantine", "pipeline.toml", "--limit", "0", "--json").lines()[0]["shown"] == []


def test_the_next_command_is_for_what_can_be_mended(cli: Cli, example: Path) -> None:
    """A table that has no entry may get one; then its changes are fed in again."""
    (example / "pipeline.toml").write_text(
        (example / "pipeline.toml").read_text().replace("public.orders", "public.x")
    )
    changes = [json.loads(line) for line in (example / "records.jsonl").read_text().splitlines()]
    put_in(example, [b'{"data": "%b"}\n' % changes[0]["data"].encode()])
    said = cli("quarantine", "pipeline.toml", "--reason", "unknown_table").stdout.decode()
    assert "unknown_table: Add a [tables] entry, then headpond requeue.\n" in said
    assert "next: headpond requeue pipeline.toml --reason unknown_table --dry-run" in said


def test_an_export_is_an_archive_of_the_same_bytes(cli: Cli, example: Path) -> None:
    """That `inspect` reads; a file that is there is left alone."""
    assert cli("quarantine", "lake", "--export", "out.jsonl").code == 0
    (line,) = cli("inspect", "out.jsonl", "--json").lines()
    assert (line["reason"], line["shard"], line["size"]) == ("unknown_type", "shardId-000000000000", 20)
    before = (example / "out.jsonl").read_bytes()
    again = cli("quarantine", "lake", "--export", "out.jsonl")
    assert (again.code, "out.jsonl cannot be written" in again.stderr) == (2, True)
    assert (example / "out.jsonl").read_bytes() == before


def test_a_reason_that_is_not_there_is_said(cli: Cli, example: Path) -> None:
    """With those that are; an empty quarantine is no mistake."""
    result = cli("quarantine", "lake", "--reason", "cast_error")
    assert (result.code, "There are: unknown_type (no table)." in result.stderr) == (2, True)
    (example / "elsewhere").mkdir()
    assert cli("quarantine", "elsewhere").stdout.decode() == "Nothing is in quarantine.\n"


def put_in(example: Path, lines: list[bytes]) -> None:
    """Apply lines of an archive."""
    from headpond.lake.apply import apply_batch
    from headpond.pipeline import load
    from headpond.pipeline.lake import open_lake, row_changes
    from tests.lake.lakes import decoded

    pipeline = load(example / "pipeline.toml")
    apply_batch(open_lake(pipeline), decoded(row_changes(pipeline), lines))


def test_a_record_cannot_write_on_the_terminal(cli: Cli, example: Path) -> None:
    """Its bytes are shown as what they are."""
    data = base64.b64encode(b'{"type": "\x1b[2J"}').decode()
    line = f'{{"shard": "s\\u001b[2J", "sequenceNumber": "7", "data": "{data}"}}\n'.encode()
    put_in(example, [line])
    assert b"\x1b" not in cli("quarantine", "pipeline.toml").stdout


def test_pipes_get_lines_as_wide_as_what_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    """No padding to the width of a page that is not there."""
    for command in (["show", "lake"], ["show", "lake", "public.orders"], ["inspect", "records.jsonl"]):
        assert main(command) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) < 160


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_columns_that_do_not_fit_are_named(width: int) -> None:
    """Whole columns, the user's before headpond's own; nothing is left out without a word."""
    columns = ["_id", "name", "city", "_ts_ns", "text"]
    rows = [[1, "Ada", None, 1735725648000000000, "x" * 30], [2, "Bruno", "Oslo", 1, "y"]]
    out = StringIO()
    Console(file=out, width=width).print(RowsDrawn("people", columns, rows))
    text = out.getvalue()
    shown = text.splitlines()[1].split()
    named = " ".join(text.split()).partition("Hidden for lack of space: ")[2].rstrip(".")
    assert [name for name in columns if name in shown] == shown
    assert {*shown, *filter(None, named.split(", "))} == set(columns)
    assert not (set(shown) & {"_id", "_ts_ns"}) or {"name", "city", "text"} <= set(shown)
    assert bool(named) == (width < 80)
    assert all(len(line) <= width for line in text.splitlines())
