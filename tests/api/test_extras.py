"""Without Spark, without Delta: what works, and the one line that installs what is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from headpond.core.lazy import EXTRAS
from tests.kit.support import vector_bytes

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LAKE = ("deltalake", "arro3", "obstore", "pyroaring")
SPARK = ("pyspark", "py4j", "pandas", "google")


LACKING = """
import sys


class Lacking:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Lacking)
"""


def without(packages: tuple[str, ...], program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program where some packages cannot be imported."""
    code = LACKING.format(packages=packages) + program
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def headpond(packages: tuple[str, ...], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = f"from headpond.cli.main import main\nsys.exit(main({list(arguments)!r}))"
    return without(packages, program, folder)


@pytest.mark.slow
def test_the_core_does_its_work(tmp_path: Path) -> None:
    """Records inspected and packed, a journal proven, joins played; codec and producer imported."""
    (tmp_path / "records.jsonl").write_bytes(vector_bytes("dsql/small.jsonl"))
    (tmp_path / "journal.jsonl").write_bytes(vector_bytes("qldb/clean.jsonl"))
    play = str(ROOT / "examples" / "joins" / "out-of-order.json")
    for command in (
        ["--help"],
        ["inspect", "records.jsonl", "--json"],
        ["verify", "journal.jsonl", "--workers", "1"],
        ["join", "play", play],
        ["local", "--help"],
        ["completion", "bash"],
    ):
        done = headpond((*SPARK, *LAKE), tmp_path, *command)
        assert (done.returncode, "not installed" in done.stderr) == (0, False), command
    program = (
        "import headpond\nfrom headpond.kinesis import Producer\nprint(headpond.inspect(b'{}')['reason'])"
    )
    done = without((*SPARK, *LAKE), program, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "unknown_type\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lacks", "arguments", "extra"),
    [
        ((*SPARK, *LAKE), ["run", "pipeline.toml"], "spark"),
        (SPARK, ["run", "pipeline.toml"], "spark"),
        (SPARK, ["demo"], "spark"),
        (LAKE, ["show", "lake"], "lake"),
        (LAKE, ["status", "pipeline.toml"], "lake"),
        (LAKE, ["suggest", "pipeline.toml"], "lake"),
        (("psycopg",), ["suggest", "--from-database", "dbname=x"], "postgres"),
    ],
)
def test_a_command_says_what_installs_what_it_lacks(
    tmp_path: Path, lacks: tuple[str, ...], arguments: list[str], extra: str
) -> None:
    """One sentence, one line for pip, and the exit code of a missing requirement."""
    (tmp_path / "pipeline.toml").write_bytes((ROOT / "examples" / "pipeline.toml").read_bytes())
    (tmp_path / "records.jsonl").write_bytes(vector_bytes("dsql/small.jsonl"))
    done = headpond(lacks, tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"pip install 'headpond[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_lake_is_read_without_spark(tmp_path: Path) -> None:
    """`headpond[lake]` is enough for tables."""
    (tmp_path / "lake").mkdir()
    done = headpond(SPARK, tmp_path, "show", "lake", "--json")
    assert (done.returncode, done.stdout) == (0, '{"tables":{}}\n')


@pytest.mark.slow
def test_a_name_says_what_installs_what_it_lacks(tmp_path: Path) -> None:
    """From Python, too."""
    program = (
        "import headpond\n"
        "for name in ('run', 'tables'):\n"
        "    try: getattr(headpond, name)\n"
        "    except headpond.HeadpondError as error: print(error)\n"
    )
    done = without((*SPARK, *LAKE), program, tmp_path)
    first, second = done.stdout.splitlines()
    assert "headpond.run needs pyspark" in first
    assert "pip install 'headpond[spark]'" in first
    assert "pip install 'headpond[lake]'" in second


def test_extras_bring_what_is_missing() -> None:
    """Each package that may be missing is a requirement of its extra, or of one of these."""
    extras = PROJECT["optional-dependencies"]
    for package in ("pyspark", "pandas", "deltalake", "obstore", "pyroaring", "psycopg"):
        assert any(each.startswith(package) for each in extras[EXTRAS[package]]), package
        assert not any(each.startswith(package) for each in PROJECT["dependencies"]), package
    assert "headpond[lake]" in extras["spark"]
    assert all(name in extras["all"][0] for name in set(extras) - {"all", "lake"})
