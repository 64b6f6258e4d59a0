"""Lakes and checkpoints of earlier versions go on where they stood."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.rules import JoinRules, JoinType
from headpond.lake.apply import Applied
from headpond.lake.delta import DeltaFile
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.spark import follow, windowed_join
from tests.fixtures import make_join, make_kinesis
from tests.kit.expected_ledger import ledger_differences, ledger_lines
from tests.kit.expected_tables import differences
from tests.kit.support import vector_bytes, vector_json
from tests.spark.join_streams import drained, rows_of, source, wanted, write

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


@pytest.mark.spark
def test_headpond_run_goes_on_at_an_old_checkpoint(tmp_path: Path) -> None:
    """The command itself: no row lost, none twice, and nothing to do a second time."""
    folder = tmp_path / "moved"
    shutil.copytree(FIXTURES / "v0.1-archive", folder)
    (folder / "records" / "b.jsonl").write_bytes(b"".join(SMALL[APPLIED_LINES:]))
    command = [sys.executable, "-m", "headpond", "run", "pipeline.toml", "--until-caught-up", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["counters"]["records"] == len(SMALL) - APPLIED_LINES
    lake = open_lake(load(folder / "pipeline.toml"))
    assert differences(lake, vector_json("dsql/small.expected.json")) == []
    assert lake.quarantine.counts_by("reason") == {"invalid_json": 1}
    assert (folder / "lake/_headpond/checkpoint/commits/1").exists()  # the old one is 0


@pytest.mark.spark
@pytest.mark.parametrize("version", sorted(path.name for path in FIXTURES.glob("ledger-v*")))
def test_a_lake_of_a_ledger_in_mid_stream_is_continued(version: str, spark: object, tmp_path: Path) -> None:
    """Only what the checkpoint has not seen is read; revisions, the journal and its proof go on."""
    folder = tmp_path / "moved"
    shutil.copytree(FIXTURES / version, folder)
    before = open_lake(load(folder / "pipeline.toml"))
    assert before.quarantine.count() == 1
    assert len(ledger_differences(before)) > 0  # revisions that are still to come
    (folder / "records" / "b.jsonl").write_bytes(b"\n".join(ledger_lines()[APPLIED_LINES:]) + b"\n")
    pipeline, total = load(folder / "pipeline.toml"), Applied()
    query = follow(spark, pipeline, until_caught_up=True, on_batch=lambda _, applied: total.add(applied))
    assert query.awaitTermination(240)
    assert total.counters["records"] == len(ledger_lines()) - APPLIED_LINES
    lake = open_lake(pipeline)
    lake.extras.close(ended=True)
    assert ledger_differences(lake) == []
    assert lake.extras.journal.anomalies.count() == 0
    assert lake.quarantine.count() == 1


@pytest.mark.spark
@pytest.mark.parametrize("version", sorted(path.name for path in FIXTURES.glob("kinesis-v*")))
def test_a_stream_in_mid_read_is_continued(version: str, spark: object, tmp_path: Path) -> None:
    """From the position of each shard; histories, logs and what lies beside them as after one run."""
    shutil.copytree(FIXTURES / version, tmp_path / "moved")
    (tmp_path / "whole").mkdir()
    for name, applied_before in (("moved", make_kinesis.FIRST), ("whole", 0)):
        with make_kinesis.stream() as kinesis:
            (tmp_path / name / "pipeline.toml").write_text(make_kinesis.PIPELINE % kinesis.endpoint_url)
            pipeline, total = load(tmp_path / name / "pipeline.toml"), Applied()
            query = follow(spark, pipeline, until_caught_up=True, on_batch=lambda _, each: total.add(each))  # noqa: B023 - ends in the loop
            assert query.awaitTermination(240)
        assert total.counters["records"] == len(make_kinesis.records()) - applied_before
    moved, whole = tmp_path / "moved" / "lake", tmp_path / "whole" / "lake"
    tables = {str(place.parent.relative_to(whole)) for place in whole.rglob("_delta_log")}
    assert tables >= {"public.order_items", "public.accounts", "sales.Evolving"}
    beside = ("pending", "quarantine", "tombstones", "schema_changes", "unknown_tables", "unknown/audit.docs")
    assert tables >= {f"_headpond/{name}" for name in beside}
    for name in tables:
        assert rows_in(DeltaFile(str(moved / name))) == rows_in(DeltaFile(str(whole / name))), name


def rows_in(file: DeltaFile) -> list[str]:
    """All rows of a table, in some order of their own; but for words that are meant for people."""
    return sorted(map(str, file.read(sorted({*file.schema().names} - {"detail"})).to_pylist()))


@pytest.mark.spark
@pytest.mark.parametrize("version", sorted(path.name for path in FIXTURES.glob("join-v*")))
def test_a_join_in_mid_stream_is_continued(version: str, spark: Any, tmp_path: Path) -> None:
    """What waits in the state of an earlier version joins what comes now, as in one run."""
    folder = tmp_path / "moved"
    make_join.moved(FIXTURES / version, folder)
    write(folder, make_join.BATCHES[make_join.HALF :], make_join.HALF)
    left, right = (source(spark, folder, side) for side in (Side.LEFT, Side.RIGHT))
    drained(windowed_join(left, right, make_join.WINDOWS, "outer", tasks=make_join.TASKS), folder)
    rules = JoinRules(JoinType.OUTER, make_join.WINDOWS)
    rest = [event for batch in make_join.BATCHES[make_join.HALF :] for event in batch]
    batches = [*make_join.BATCHES[: make_join.HALF], rest]
    expected, _ = wanted(rules, batches, make_join.TASKS, by_share=make_join.HALF)
    before, _ = wanted(rules, [rest], make_join.TASKS)
    found = rows_of(spark, folder)
    assert found == expected
    assert not before <= found  # without the state it would have been another result
