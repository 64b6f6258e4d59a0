"""A process killed between any two writes of a batch: after the restart everything is as if undisturbed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headpond.lake.apply import Chunks, apply_batch
from tests.lake.killed_child import BATCHES, lines, pipeline
from tests.lake.lakes import decoded, lake_in, watched

if TYPE_CHECKING:
    from headpond.lake.delta import DeltaFile

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

CHILD = Path(__file__).with_name("killed_child.py")


def child(folder: Path, stage: str) -> int:
    done = subprocess.run(
        [sys.executable, str(CHILD), str(folder), stage], capture_output=True, check=False, timeout=300
    )
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr.decode()
    return done.returncode


def everything(folder: Path) -> dict[str, Any]:
    """Every table of a lake, those in `_headpond` too, without the order of rows and columns."""
    lake, _ = lake_in(folder, pipeline())
    return {name: rows_of(file) for name, file in lake.files()}


def rows_of(file: DeltaFile) -> list[str]:
    rows = file.read()
    return sorted(map(repr, rows.select(sorted(rows.column_names)).to_pylist()))


def test_killed_before_each_write_in_turn(tmp_path: Path) -> None:
    """Quarantine, pending, tombstones, deletes, each table, schema changes, and what is cleared up after."""
    lake, config = lake_in(tmp_path / "calm", pipeline())
    stages: dict[str, None] = {}
    fed = lines()
    size = -(-len(fed) // BATCHES)
    for start in range(0, len(fed), size):
        batch = decoded(config, fed[start : start + size], first_line=start + 1)
        apply_batch(watched(lake, stages.setdefault), batch, chunks=Chunks(config))
    assert {"quarantine", "pending", "tombstones", "deletes", "schema changes"} <= set(stages)
    assert len([stage for stage in stages if stage.startswith("table ")]) >= 5
    wanted = everything(tmp_path / "calm")
    assert wanted["_headpond/quarantine"]
    assert any(name.startswith("_headpond/unknown/") for name in wanted)
    # One lake goes through all of them: each kill falls into what the last one left.
    # A second look is taken where another writer was there, which a new tombstone table looks like.
    ended = {stage: child(tmp_path / "torn", stage) for stage in stages if stage != "second look"}
    assert [stage for stage, code in ended.items() if code == 0] == []
    assert child(tmp_path / "torn", "-") == 0
    torn = everything(tmp_path / "torn")
    assert torn.keys() == wanted.keys()
    for name, rows in wanted.items():
        differs = set(torn[name]) ^ set(rows)
        assert [each[:600] for each in sorted(differs)[:4]] == [], name
        assert len(torn[name]) == len(rows), name
