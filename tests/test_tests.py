"""The tests themselves: what would break a whole run is found in its first seconds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent


def test_no_two_test_modules_share_a_name() -> None:
    """Pytest imports them by their bare names: a second of one name ends the run at collection."""
    modules = [path for path in TESTS.rglob("*.py") if path.parent.name not in {"fuzz", "peer"}]
    names = Counter(path.name for path in modules if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
