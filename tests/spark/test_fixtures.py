"""Lakes and checkpoints of earlier versions go on where they stood."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headpond.cli.expected import differences
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.spark import follow
from headpond.tables.apply import Applied
from support import vector_bytes, vector_json

FIXTURES = Path(__file__).parent.parent / "fixtures"
SMALL = vector_bytes("dsql/small.jsonl").splitlines(keepends=True)
APPLIED_LINES = 70


@pytest.mark.spark
@pytest.mark.parametrize("version", sorted(path.name for path in FIXTURES.glob("v*")))
def test_a_lake_in_mid_stream_is_continued(version: str, spark: object, tmp_path: Path) -> None:
    """Only what the checkpoint has not seen is read; tables, tombstones, quarantine and pending agree."""
    folder = tmp_path / "moved"
    shutil.copytree(FIXTURES / version, folder)
    before = open_lake(load(folder / "pipeline.toml"))
    assert before.quarantine.counts_by("reason") == {"invalid_json": 1}
    assert before.pending.count() == 1
    (folder / "records" / "b.jsonl").write_bytes(b"".join(SMALL[APPLIED_LINES:]))
    pipeline, total = load(folder / "pipeline.toml"), Applied()
    query = follow(spark, pipeline, until_caught_up=True, on_batch=lambda _, applied: total.add(applied))
    assert query.awaitTermination(240)
    assert total.counters["records"] == len(SMALL) - APPLIED_LINES
    lake = open_lake(pipeline)
    expected = vector_json("dsql/small.expected.json")
    assert differences(lake, expected) == []
    wanted = {name: len(table["deleted"]) for name, table in expected["tables"].items() if table["deleted"]}
    assert lake.tombstones.counts() == wanted
    assert {row["format_version"] for row in lake.quarantine.read(["format_version"]).to_pylist()} == {1}
