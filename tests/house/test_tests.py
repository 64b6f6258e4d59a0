"""The tests themselves: every one of them is run by a target."""

from __future__ import annotations

import re
import tomllib
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
MARKERS = [line.partition(":")[0] for line in SETTINGS["markers"]]
FOLDERS_OF_ELSEWHERE = {"tests/spark", "tests/packaging"}


def selections(*targets: str) -> list[str]:
    """The expressions behind the last `-m` of the steps of some targets that look at all tests."""
    recipes = dict(re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE))
    lines = [line for target in targets for line in recipes[target].splitlines()]
    found = [re.search(r' -m (?:"([^"]*)"|(\w+))$', line) for line in lines]
    return [match.group(1) or match.group(2) for match in found if match]


def test_every_test_is_run_by_a_target() -> None:
    """Whatever markers a test has, one of the steps of `make test-all` selects it."""
    steps = selections("test", "test-thorough", "test-oldest")
    assert len(steps) == 6
    for given in product([False, True], repeat=len(MARKERS)):
        marked = dict(zip(MARKERS, given, strict=True))
        if not marked["elsewhere"]:  # the next test
            assert any(eval(step, {}, dict(marked)) for step in steps), marked


def test_tests_of_other_environments_lie_where_their_targets_look() -> None:
    """`-m elsewhere` is asked for in two folders only: each needs another environment."""
    wanted = set(re.findall(r"-m elsewhere (\S+)", MAKEFILE))
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if "mark.elsewhere" in path.read_text()}
    found = {path.parent.relative_to(ROOT).as_posix() for path in marked - {Path(__file__)}}
    assert found == wanted == FOLDERS_OF_ELSEWHERE
