"""The tests themselves: what would break a whole run is found in its first seconds."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def test_no_two_test_modules_share_a_name() -> None:
    """Pytest imports them by their bare names: a second of one name ends the run at collection."""
    modules = [path for path in TESTS.rglob("*.py") if path.parent.name not in {"fuzz", "peer"}]
    names = Counter(path.name for path in modules if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("marker", ["cluster", "connect", "faults", "maven", "package", "peers", "spark"])
def test_a_target_collects_all_tests_of_its_marker(marker: str) -> None:
    """Such targets name folders, which saves looking at all tests: none may lie beside them."""
    makefile = (TESTS.parent / "Makefile").read_text()
    variables = dict(re.findall(r"^(\w+) := (tests/.*)$", makefile, re.MULTILINE))
    lines = re.findall(rf'-m (?:{marker}|"{marker} [^"]*")( .*)', makefile)
    told = {word.strip(";") for line in lines for word in line.split()}
    places = {place for word in told for place in variables.get(word[2:-1], word).split()}
    wanted = f"mark.{marker}"
    if marker == "maven":
        wanted += "|delta_spark|\\bengine: str\\b"  # fixtures that need packages
    marked = [path for path in TESTS.rglob("test_*.py") if re.search(wanted, path.read_text())]
    assert marked
    assert places
    for path in marked:
        name = path.relative_to(TESTS.parent).as_posix()
        assert path == Path(__file__) or any(name.startswith(place) for place in places), name
