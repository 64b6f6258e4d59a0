"""Delta's MERGE on executors in processes of their own: the tables, and by Spark's events who wrote them."""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headpond.core.errors import MissingRequirement
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.spark.session.settings import package_for, spark_jars, spark_version
from headpond.spark.session.start import QUICK_JAVA_OPTIONS
from tests.kit.expected_tables import differences, pipeline_text
from tests.kit.maven_jars import fetch_delta_once
from tests.kit.support import vector_bytes, vector_json
from tests.spark.cluster_kit import event_settings, events
from tests.spark.standalone_kit import SETTINGS, SPARK_HOME, standalone_cluster

pytestmark = [pytest.mark.maven, pytest.mark.timeout(600)]

JOB = Path(__file__).with_name("delta_job.py")
FIRST = 8
"""Lines of the first batch: what they hold is decided on in the driver, the rest by the executors."""
ABOVE_BYTES = 12_000
"""Decoded, the first batch has some 8 kB and the second some 16."""
EXECUTORS = {"0", "1"}
"""As Spark names them; a task in the driver would be one of `driver`."""


@pytest.fixture(autouse=True)
def _jars_for_this_spark() -> None:
    fetch_delta_once()
    try:
        package_for(spark_version(spark_jars()))
    except MissingRequirement as error:
        pytest.skip(f"{error.message} (`make test-oldest` makes an environment in which this test can run.)")


def some_tables(*names: str) -> tuple[list[bytes], dict[str, Any]]:
    """Give the changes of some tables, as lines of an archive, and what the tables must be in the end."""
    document = vector_json("dsql/small.expected.json")
    wanted = {
        kind: {name: table for name, table in document[kind].items() if name in names}
        for kind in ("tables", "append_logs")
    }
    lines = []
    for line in vector_bytes("dsql/small.jsonl").splitlines(keepends=True):
        source = json.loads(base64.b64decode(json.loads(line)["data"]))["source"]
        if f"{source['schema']}.{source['table']}" in names:
            lines.append(line)
    return lines, wanted


def pipeline_in(
    folder: Path, batches: list[list[bytes]], wanted: dict[str, Any], spark: dict[str, str]
) -> Path:
    """Write an archive, a file for each batch, and the pipeline that reads it."""
    for number, lines in enumerate(batches):
        (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(b"".join(lines)))
    # A gzip file larger than the bound is a batch.
    text = pipeline_text('archive = "*.jsonl.gz"\nmax_bytes_per_trigger = 1', path="lake", wanted=wanted)
    quick = {f"spark.{where}.extraJavaOptions": QUICK_JAVA_OPTIONS for where in ("driver", "executor")}
    settings = spark | quick | event_settings(folder)
    told = "".join(f'"{name}" = "{value}"\n' for name, value in settings.items())
    file = folder / "p.toml"
    file.write_text(text.replace("[target]\n", '[target]\nengine = "spark"\n') + f"\n[spark]\n{told}")
    return file


def run(file: Path, above_bytes: int, environment: dict[str, str]) -> dict[str, Any]:
    """Run the pipeline to its end, and give what the command says; skipped where no jars can be fetched."""
    done = subprocess.run(
        [sys.executable, str(JOB), str(above_bytes), "run", str(file), "--until-caught-up", "--json"],
        capture_output=True, text=True, check=False, timeout=400, env=environment,
    )  # fmt: skip
    if done.returncode == 3 and "could not be fetched" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def merged(folder: Path) -> tuple[int, Counter[str], Counter[str]]:
    """Say how many merges there were, and how many tasks each process ran, and rows it wrote, for them."""
    count, running, tasks, rows = 0, None, Counter[str](), Counter[str]()
    for event in events(folder):
        kind = event["Event"].rpartition(".")[2]
        if kind == "SparkListenerSQLExecutionStart":
            if event["physicalPlanDescription"].startswith("== Physical Plan ==\nExecute MergeIntoCommand"):
                count, running = count + 1, event["executionId"]
        elif kind == "SparkListenerSQLExecutionEnd" and event["executionId"] == running:
            running = None
        elif kind == "SparkListenerTaskEnd" and running is not None:
            where = event["Task Info"]["Executor ID"]
            tasks[where] += 1
            rows[where] += event["Task Metrics"]["Output Metrics"]["Records Written"]
    return count, tasks, +rows


def decided_on_executors(folder: Path) -> int:
    """Say of how many merges the rows came from steps that executors ran on buckets of keys."""
    plans = [event.get("physicalPlanDescription", "") for event in events(folder)]
    views = [plan for plan in plans if plan.startswith("== Physical Plan ==\nExecute CreateViewCommand")]
    return sum("FlatMapCoGroupsInArrow" in view or "FlatMapGroupsInArrow" in view for view in views)


def test_executors_of_their_own_merge(tmp_path: Path) -> None:
    """`local-cluster`: a batch applied in the driver, and one that executors decide on and merge."""
    lines, wanted = some_tables("sales.Evolving", "public.events_nopk")
    lines = lines[::-1]
    spark = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "512m"}
    file = pipeline_in(tmp_path, [lines[:FIRST], lines[FIRST:]], wanted, spark)
    said = run(file, ABOVE_BYTES, dict(os.environ))
    for events_of_one in (tmp_path / "events").iterdir():
        # Workers of this kind put a copy of every jar into Spark's installation, and leave it there.
        shutil.rmtree(SPARK_HOME / "work" / events_of_one.name.removeprefix("eventlog_v2_"))
    assert said["batches"] == 2
    assert differences(open_lake(load(file)), wanted) == []
    merges, tasks, rows = merged(tmp_path)
    assert (merges, decided_on_executors(tmp_path)) == (2, 2)  # of both tables in the second batch
    assert set(tasks) == EXECUTORS
    assert set() < set(rows) <= EXECUTORS


def test_a_standalone_cluster_merges_with_the_headpond_it_is_sent(tmp_path: Path) -> None:
    """The workers' Python has no headpond: its steps on keys come from the driver, Delta's jars too."""
    lines, wanted = some_tables("public.accounts")
    (tmp_path / "cluster").mkdir()
    with standalone_cluster(tmp_path / "cluster") as cluster:
        # Delta's own number of tasks to sort a table's log in is for large clusters.
        spark = SETTINGS | {"spark.master": cluster.master, "spark.databricks.delta.snapshotPartitions": "2"}
        file = pipeline_in(tmp_path, [lines], wanted, spark)
        run(file, 0, cluster.environment(sys.executable))
    assert differences(open_lake(load(file)), wanted) == []
    merges, tasks, rows = merged(tmp_path)
    assert (merges, decided_on_executors(tmp_path)) == (1, 1)
    assert set(tasks) == EXECUTORS
    assert set(rows) <= EXECUTORS
    assert rows.total() >= len(wanted["tables"]["public.accounts"]["rows"])
