"""`headpond check`, `init` and `completion`."""

from __future__ import annotations

import gzip
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from headpond.cli.main import COMMANDS, EXAMPLES, GROUPS, MODULES, headpond
from headpond.pipeline import load
from tests.api.conftest import example

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli

__all__ = ["example"]


def states(found: dict[str, list[dict[str, str]]]) -> list[tuple[str, str]]:
    return [(each["name"], each["state"]) for each in found["checks"]]


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("example")
def test_check_looks_at_everything_and_writes_nothing(cli: Cli, example: Path) -> None:
    """File, tables, Java, source, records and lake; what would be quarantined is a doubt."""
    before = files_below(example)
    result = cli("check", "pipeline.toml", "--json")
    assert result.code == 0
    (found,) = result.lines()
    names = ["file", "tables", "java", "source", "records", "records", "lake"]
    assert states(found) == [(n, "?" if at == 5 else "ok") for at, n in enumerate(names)]
    assert found["checks"][5]["says"] == "1 of 4 would be quarantined: 1 unknown_type."
    assert files_below(example) == before
    assert "next: headpond run pipeline.toml" in cli("check", "pipeline.toml").stdout.decode()


def test_check_reports_every_trouble_at_once(cli: Cli, example: Path) -> None:
    """A source that is not there, a table that is kept otherwise; a key that is not declared is a doubt."""
    text = (example / "pipeline.toml").read_text().replace('"records.jsonl"', '"nothing-*.jsonl"')
    (example / "p.toml").write_text(text.replace('keys = ["id"]', 'keys = ["order_id"]\nkeep = "history"'))
    result = cli("check", "p.toml", "--json")
    (found,) = result.lines()
    assert result.code == 2
    assert {name for name, state in states(found) if state == "BAD"} == {"source", "records", "lake"}
    (doubt,) = [each["says"] for each in found["checks"] if each["state"] == "?"]
    assert "The key order_id of public.orders is not among its columns" in doubt
    said = cli("check", "p.toml").stdout.decode()
    assert "No file matches the archive" in said
    assert 'was made with keep = "current"' in said


def test_check_of_a_wrong_file_lists_its_mistakes_with_lines(cli: Cli, tmp_path: Path) -> None:
    """As any command does."""
    (tmp_path / "p.toml").write_text('[source]\nstraem = "x"\nformat = "dsq"\n[target]\npath = "l"\n')
    result = cli("check", tmp_path / "p.toml")
    assert result.code == 2
    assert all(f"line {number}: " in result.stderr for number in (2, 3))


@pytest.mark.parametrize("content", [b"\x00\xff\n" * 50, b"hello\nworld\n", b""])
def test_check_of_an_archive_without_a_record_fails(cli: Cli, example: Path, content: bytes) -> None:
    """Bytes or text of another kind, or nothing at all."""
    (example / "records.jsonl").write_bytes(content)
    result = cli("check", "pipeline.toml")
    assert result.code == 1
    assert "No line of the archive" in result.stdout.decode()


def test_check_names_a_file_that_is_cut_off(cli: Cli, example: Path) -> None:
    """Not only that a line of it is not a record."""
    whole = gzip.compress((example / "records.jsonl").read_bytes())
    (example / "cut.jsonl.gz").write_bytes(whole[:-9])
    text = (example / "pipeline.toml").read_text().replace('"records.jsonl"', '"cut.jsonl.gz"')
    (example / "cut.toml").write_text(text)
    result = cli("check", "cut.toml")
    assert result.code == 1
    assert "cut.jsonl.gz is truncated or damaged: gzip file: " in result.stdout.decode()


def test_init_writes_a_file_that_can_be_loaded(cli: Cli, example: Path) -> None:
    """Of what is given; nothing is overwritten."""
    result = cli("init", "new.toml", "--archive", "records.jsonl", "--format", "dsql", "--lake", "new")
    assert result.code == 0
    assert "next: headpond check new.toml" in result.stdout.decode()
    pipeline = load(example / "new.toml")
    assert [table.name for table in pipeline.tables] == ["public.orders"]
    assert pipeline.target.path == str(example / "new")
    again = cli("init", "new.toml", "--archive", "records.jsonl", "--format", "dsql")
    assert (again.code, "already exists" in again.stderr) == (2, True)


def test_init_asks_for_what_is_not_given(cli: Cli, example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files or a stream, and the format."""
    answers = iter(["records.jsonl", "dsql"])
    asked = []
    monkeypatch.setattr(click, "prompt", lambda question, **_: asked.append(question) or next(answers))
    assert cli("init", "asked.toml").code == 0
    assert len(asked) == 2
    assert load(example / "asked.toml").tables


def test_what_cannot_be_read_leaves_no_file(cli: Cli, tmp_path: Path) -> None:
    """A slip in the source is reported before anything is written."""
    file = tmp_path / "p.toml"
    assert cli("init", file, "--archive", "none-*.jsonl", "--format", "dsql").code == 2
    assert not file.exists()


def test_init_of_another_format_leaves_no_file(cli: Cli, example: Path) -> None:
    """Where no record is of the format that was named, a table cannot be proposed."""
    result = cli("init", "new.toml", "--archive", "records.jsonl", "--format", "qldb")
    assert result.code == 2
    assert "None of the 4 records that were read is of the format qldb: 4 not_binary_ion." in result.stderr
    assert not (example / "new.toml").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(cli: Cli, shell: str) -> None:
    """For each shell; $SHELL names the one that runs."""
    said = cli("completion", shell).stdout.decode()
    assert f"_HEADPOND_COMPLETE={shell}_complete" in said


def test_the_shell_is_found(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without completion is said."""
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert cli("completion", "--json").lines()[0]["shell"] == "fish"
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    result = cli("completion")
    assert (result.code, "tcsh" in result.stderr) == (2, True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_help_can_be_typed(name: str) -> None:
    """Every one parses: the command, its options, the number of arguments."""
    for line in EXAMPLES[name].splitlines():
        words = shlex.split(line.partition(" >> ")[0])
        assert words[0] == name
        command = headpond.get_command(click.Context(headpond), name)
        assert command is not None
        command.make_context(name, words[1:])
        assert line in (command.epilog or "")


def test_the_help_is_grouped(cli: Cli) -> None:
    """Every command is in one group, and has an example or commands of its own."""
    said = cli("--help").stdout.decode()
    assert [f"{title}:" in said.splitlines() for title in GROUPS] == [True] * len(GROUPS)
    assert set(MODULES) == set(COMMANDS)
    assert set(COMMANDS) - set(EXAMPLES) == {"join", "store", "consumers"}
    assert max(map(len, said.splitlines())) <= 100


def test_the_help_loads_nothing_heavy() -> None:
    """It answers at once."""
    code = (
        "import sys; from headpond.cli.main import main; main(['--help'])\n"
        "sys.exit(str({'pyspark', 'boto3', 'deltalake', 'pyarrow'} & set(sys.modules) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
