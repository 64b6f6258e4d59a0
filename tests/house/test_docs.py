"""The documentation says what is so: commands, keys, options, examples."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from headpond.cli.main import COMMANDS, headpond, main
from headpond.core.schemas import PENDING_SCHEMA, QUARANTINE_SCHEMA, USER_RECORD_SCHEMA
from headpond.kinesis.planning.options import OPTIONS
from headpond.lake.reports import BATCHES_SCHEMA
from headpond.lake.state.tombstones import TOMBSTONE_SCHEMA
from headpond.lake.targets.current import CURRENT_OWN
from headpond.lake.targets.log import LOG_OWN
from headpond.pipeline import load, loads
from tests.house.test_figures import load_program

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def section(page: str, heading: str) -> str:
    """The text below a second-level heading of a page."""
    text = (DOCS / page).read_text()
    found = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no section {heading}"
    return found[1]


def rows(text: str) -> dict[str, tuple[str, str]]:
    """First cell → the others, for the rows of the tables of a text."""
    found = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*) \|$", text, re.MULTILINE)
    return {name: (default, told) for name, default, told in found}


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Every fenced block of a language, with its page; also those in lists and admonitions, indented."""
    for page in PAGES:
        fence = rf"^( *)```{language}\n(.*?)^\1```$"
        for _, text in re.findall(fence, page.read_text(), re.MULTILINE | re.DOTALL):
            yield page.name, textwrap.dedent(text)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    """And no option is documented that is not there."""
    for path, command in leaves(name):
        told = section("reference/cli.md", f"headpond {path}")
        options = {parameter.opts[0] for parameter in command.params if isinstance(parameter, click.Option)}
        cells = re.findall(r"^\| `(--[^`]+)`", told, re.MULTILINE)
        assert {cell.split()[0].partition("[")[0] for cell in cells} == options, path


def leaves(name: str) -> list[tuple[str, click.Command]]:
    """A command, or the commands of a group, with what is typed for each."""
    command = headpond.get_command(click.Context(headpond), name)
    if isinstance(command, click.Group):
        return [(f"{name} {inner}", command.commands[inner]) for inner in command.commands]
    return [(name, command)]


def test_no_command_is_documented_that_is_not_there() -> None:
    """The page has a section per command, in the order of the help, and no other."""
    text = (DOCS / "reference/cli.md").read_text()
    documented = re.findall(r"^## headpond (.+)$", text, re.MULTILINE)
    assert documented == [path for name in COMMANDS for path, _ in leaves(name)]


def test_every_option_of_the_source_is_documented() -> None:
    """And every column of its rows."""
    text = (DOCS / "reference/source-options.md").read_text()
    table, _, columns = text.partition("## Columns")
    first_cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    assert {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} == set(OPTIONS)
    assert re.findall(r"^\| `(\w+)` \|", columns, re.MULTILINE) == USER_RECORD_SCHEMA.names


def test_every_column_of_the_lake_is_documented() -> None:
    """Own columns of tables and the columns of the tables in `_headpond`."""
    heading = {
        "_headpond/quarantine": QUARANTINE_SCHEMA,
        "_headpond/tombstones": TOMBSTONE_SCHEMA,
        "_headpond/batches": BATCHES_SCHEMA,
    }
    for name, schema in heading.items():
        told = section("reference/lake.md", name)
        assert [column for column in schema.names if f"`{column}`" not in told] == [], name
    pending = section("reference/lake.md", "_headpond/pending")
    own = set(PENDING_SCHEMA.names) - set(QUARANTINE_SCHEMA.names)
    assert [column for column in own if f"`{column}`" not in pending] == []
    told = section("reference/lake.md", "Tables")
    own = {column for column, _ in [*CURRENT_OWN.values(), *LOG_OWN.values()]}
    assert [column for column in sorted(own) if f"`{column}`" not in told] == []


@pytest.mark.parametrize(("page", "text"), [pytest.param(*block, id=block[0]) for block in blocks("toml")])
def test_every_pipeline_in_the_documentation_is_valid(page: str, text: str) -> None:
    """What can be copied can be run."""
    del page
    environ = {"STREAM_EXTERNAL_ID": "x", "LAKE_SECRET": "x"}
    assert loads(text, "/base", environ=environ).tables


@pytest.mark.parametrize("name", ["pipeline.toml", "aws.toml"])
def test_every_pipeline_of_the_examples_is_valid(name: str) -> None:
    """The examples too."""
    assert load(ROOT / "examples" / name, environ={"DSQL_CLUSTER": "x"}).tables


def test_the_test_with_a_local_kinesis_runs() -> None:
    """The program of that page, as it stands there."""
    (program,) = (text for page, text in blocks("python") if page == "local-kinesis.md")
    exec(compile(program, "local-kinesis.md", "exec"), {})


@pytest.mark.parametrize(("page", "text"), [pytest.param(*block, id=block[0]) for block in blocks("python")])
def test_programs_in_the_documentation_import_what_is_there(page: str, text: str) -> None:
    """Every import of ours in every program holds; other packages are the reader's own."""
    example = "headpond.till.records" if page == "add-a-format.md" else None  # a test of its own runs it
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            if node.module.split(".")[0] != "headpond" or node.module == example:
                continue
            module = importlib.import_module(node.module)
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@pytest.mark.parametrize(("page", "text"), [pytest.param(*block, id=block[0]) for block in blocks("json")])
def test_json_in_the_documentation_is_json(page: str, text: str) -> None:
    """A block is one document, or a document a line."""
    del page
    try:
        json.loads(text)
    except json.JSONDecodeError:
        for line in text.splitlines():
            json.loads(line)


def shown() -> Iterator[Any]:
    """Each `$ echo … | headpond …` of the documentation, with the lines that it is said to print."""
    for page, text in blocks("console"):
        for command, output in re.findall(
            r"^\$ (echo .*(?:\n +\|.*)?)\n((?:[^$\n].*\n)*)", text, re.MULTILINE
        ):
            yield pytest.param(command, output, id=page)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "output"), list(shown()))
def test_commands_in_the_documentation_print_what_is_shown(command: str, output: str) -> None:
    """Every pipe that is shown with its output is run, word for word."""
    runnable = command.replace("headpond ", f"{shlex.quote(sys.executable)} -m headpond ")
    done = subprocess.run(["sh", "-c", runnable], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.rstrip() for line in done.stdout.splitlines()] == output.splitlines()


def test_there_are_commands_to_run() -> None:
    """The test above does not pass for want of cases."""
    assert len(list(shown())) >= 3


def test_the_refusal_in_the_readme_is_what_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure that the first screen shows."""
    monkeypatch.chdir(tmp_path)
    (pipeline,) = (text for page, text in blocks("toml") if page == "README.md")
    (tmp_path / "pipeline.toml").write_text(pipeline.replace("region", "regoin"))
    assert main(["run", "pipeline.toml"]) == 2
    said = capsys.readouterr().err.strip()
    assert said == "Error: pipeline.toml:4: source.regoin is not a known key.\nDid you mean region?"
    assert said in (ROOT / "README.md").read_text()
    assert said in (DOCS / "how-to/aws.md").read_text()


@pytest.mark.slow
def test_the_example_archive_is_what_the_tutorial_says(tmp_path: Path) -> None:
    """Three changes and a record that nobody can use."""
    made = subprocess.run(
        [sys.executable, ROOT / "examples" / "make_changes.py"], capture_output=True, check=True, timeout=60
    ).stdout
    (tmp_path / "records.jsonl").write_bytes(made)
    done = subprocess.run(
        [sys.executable, "-m", "headpond", "inspect", str(tmp_path / "records.jsonl")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.rstrip() in (DOCS / "tutorial.md").read_text()


@pytest.mark.parametrize("room", ["", ".spark", ".kinesis"])
def test_every_public_name_is_in_the_reference_of_the_api(room: str) -> None:
    """What a room offers by its own name; that the names can be found, the build of the site checks."""
    shown = re.findall(r"^::: (\S+)$", _api(room[1:] or "headpond"), re.MULTILINE)
    offered = set(importlib.import_module(f"headpond{room}").__all__) - {"HeadpondError"}  # with its tree
    assert offered <= {path.rpartition(".")[2] for path in shown}


def _api(page: str) -> str:
    return (DOCS / "reference" / "api" / f"{page}.md").read_text()


OWN = re.compile(
    r"https://(?:github\.com/headpond/headpond/blob|raw\.githubusercontent\.com/headpond/headpond)/main/(.+)"
)
"""A file of this repository by its address, which an index of packages shows as well."""


def test_every_link_of_the_readme_leads_somewhere() -> None:
    """Links outside the site, which the build does not look at."""
    for page in (ROOT / "README.md", ROOT / "examples" / "README.md", ROOT / "CHANGELOG.md"):
        text = page.read_text()
        links = re.findall(r"\]\(([^)#]+)[^)]*\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
        for target in links:
            own = OWN.fullmatch(target)
            file = ROOT / own[1] if own else page.parent / target
            assert (target.startswith("https://") and not own) or file.exists(), (page.name, target)


def test_the_readme_shows_everywhere() -> None:
    """An index of packages knows no relative links."""
    targets = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith("https://")] == []


OUT = re.compile(r"\b(refused|struck|told|goes on|go on|of now|whoever)\b", re.IGNORECASE)
"""Words that CONTRIBUTING.md has others for."""


USERS = [page for page in PAGES if page.name != "design.md" and page.parent.name != "engineering"]


@pytest.mark.parametrize("page", USERS, ids=lambda page: page.name)
def test_a_page_uses_the_words_of_the_list(page: Path) -> None:
    """In its prose; a name in code is what it is."""
    fenced = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
    prose = re.sub(r"`[^`\n]*`", "", fenced.sub("", page.read_text()))
    assert OUT.findall(prose) == []


def test_pictures_are_small_and_of_a_script() -> None:
    """Each page in both colours, as `make screenshots` takes them."""
    pictures = {picture.name: picture for picture in (DOCS / "assets").glob("*.png")}
    pages = load_program(ROOT / "scripts" / "screenshots.py").SIZES
    assert set(pictures) == {f"{page}-{scheme}.png" for page in pages for scheme in ("light", "dark")}
    assert [name for name, picture in pictures.items() if picture.stat().st_size > 100_000] == []
    text = "".join(page.read_text() for page in PAGES)
    assert [name for name in pictures if name not in text] == []


@pytest.mark.thorough
@pytest.mark.spark
def test_the_run_of_the_tutorial_prints_what_is_shown(tmp_path: Path) -> None:
    """From the examples' own files to a table, word for word but for the folder."""
    for name in ("pipeline.toml", "make_changes.py"):
        (tmp_path / name).write_bytes((ROOT / "examples" / name).read_bytes())
    with (tmp_path / "records.jsonl").open("wb") as archive:
        subprocess.run(
            [sys.executable, "make_changes.py"], cwd=tmp_path, stdout=archive, check=True, timeout=60
        )
    done = run_of_the_tutorial(tmp_path)
    first, batch, *more = done.stderr.splitlines()
    assert (first, more) == ("headpond run pipeline.toml …", [])
    assert re.fullmatch(r"batch 0: 4 records in \S+ m?s, 1 applied, 1 quarantined", batch)
    said = done.stdout.replace(str(tmp_path), "/home/you")
    assert said.rstrip() in (DOCS / "tutorial.md").read_text()
    # "Run it again: nothing is read"
    summary = json.loads(run_of_the_tutorial(tmp_path, "--json").stdout)
    assert summary["counters"].get("records", 0) == 0
    # "Now delete … and run it once more": "the insert is stale and the update a duplicate"
    shutil.rmtree(tmp_path / "lake/_headpond/checkpoint")
    summary = json.loads(run_of_the_tutorial(tmp_path, "--json").stdout)
    assert summary["counters"]["records"] == 4
    table = summary["tables"]["public.orders"]
    figures = ("rows", "upserts", "deletes", "superseded", "conflicting_duplicates")
    assert [table[name] for name in figures] == [1, 0, 0, 0, 0]
    assert (table["stale"] > 0, table["duplicates"] > 0, table["stale"] + table["duplicates"]) == (
        True,
        True,
        3,
    )
    # Step 5, as it stands there
    (program,) = (text for page, text in blocks("python") if page == "tutorial.md")
    read = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    assert len(read) == 2
    assert "'quantity': " in read[0]
    assert "'reason': 'unknown_type'" in read[1]


def run_of_the_tutorial(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headpond", "run", "pipeline.toml", "--until-caught-up", *more]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done


def test_the_pipeline_of_the_tutorial_is_that_of_the_examples() -> None:
    """Whoever copies either has the same."""
    (shown,) = (text for page, text in blocks("toml") if page == "tutorial.md")
    lines = (ROOT / "examples" / "pipeline.toml").read_text().splitlines(keepends=True)
    assert "".join(line for line in lines if not line.startswith("#")).strip() == shown.strip()


def test_the_packages_that_databricks_needs_are_those_of_the_project() -> None:
    """Installed by name beside headpond: all that it requires but Spark, which the runtime has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = {*project["dependencies"], *extras["lake"], *extras["spark"]}
    wanted = {each for each in declared if not each.startswith(("pyspark", "headpond["))}
    (line,) = re.findall(
        r"^%pip install (?!--no-deps)(.*)$", (DOCS / "how-to/databricks.md").read_text(), re.MULTILINE
    )
    assert set(shlex.split(line)) == wanted
