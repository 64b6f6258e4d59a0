"""The lake of the tutorial, made without Spark, as the folder that examples run in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headpond.lake.apply import apply_batch
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake, row_changes
from tests.lake.lakes import decoded

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the pipeline and records of the examples, and the lake that they make."""
    (tmp_path / "pipeline.toml").write_bytes((EXAMPLES / "pipeline.toml").read_bytes())
    made = subprocess.run([sys.executable, EXAMPLES / "make_changes.py"], capture_output=True, check=True)
    (tmp_path / "records.jsonl").write_bytes(made.stdout)
    pipeline = load(tmp_path / "pipeline.toml")
    lake = open_lake(pipeline)
    lake.prepare()
    apply_batch(lake, decoded(row_changes(pipeline), made.stdout.splitlines(keepends=True)))  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    return tmp_path
