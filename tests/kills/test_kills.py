"""A few kills between any two writes, over an archive and a stream; `python -m tests.kills` does hundreds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.kills.kills import KEYS, World, forked

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]


@pytest.mark.parametrize("source", ["archive", "stream"])
def test_a_killed_run_loses_nothing_and_writes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """As `tests.spark.test_kill`, at more moments."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    # A change is refused for what it does, not for what was drawn.
    seed = 20_261_126 if "HEADPOND_SAME_DRAWS" in os.environ else int.from_bytes(os.urandom(4))
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    assert getattr(World(tmp_path, seed), source)(forked()) == []
