"""On executors in processes of their own: killed in mid-task, two actions on each batch, a whole pipeline."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson
import psutil
import pytest

from headpond.localkinesis.testing import local_kinesis, put_all, read_all
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from tests.kit.expected_tables import change_records, differences, fill, pipeline_text
from tests.kit.support import vector_json
from tests.spark.cluster_kit import JOB, begun, executors, lost_an_executor, rows_found, tasks_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(600)]

RECORDS = 240
MASTER = "local-cluster[2,1,1024]"


def test_an_executor_killed_in_mid_task(tmp_path: Path) -> None:
    """Every record once, each batch the same to both actions, though executors died while reading."""
    with local_kinesis("orders", shards=4) as kinesis:
        put_all(kinesis.client(), "orders", [(f"k{n}", b"%d" % n) for n in range(RECORDS)])
        # Reads that drag on: there is a mid-task to be killed in.
        kinesis.faults.delay(700, 0.6, calls=("GetRecords",))
        process = subprocess.Popen(
            [sys.executable, str(JOB), kinesis.endpoint_url, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        killed = 0
        try:
            for batch in (2, 4):
                while begun(tmp_path) < batch and process.poll() is None:
                    time.sleep(0.05)
                time.sleep(0.4)
                for victim in executors(process)[:1]:
                    victim.kill()
                    killed += 1
            out, _ = process.communicate(timeout=400)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, out.decode()[-3000:]
        expected = sorted(
            (r.shard_id, r.sequence_number, 0, r.data) for r in read_all(kinesis.client(), "orders")
        )
    assert killed == 2
    assert len(expected) == RECORDS
    assert rows_found(tmp_path) == expected
    assert tasks_of(tmp_path)["ExecutorLostFailure"] >= 1


def test_a_pipeline_on_executors_of_their_own(tmp_path: Path) -> None:
    """`headpond run` on a cluster, an executor of which is killed while it reads: tables as expected."""
    with local_kinesis("changes", shards=4) as kinesis:
        fill(kinesis.client(), "changes", change_records())
        source = f'stream = "changes"\nendpoint_url = "{kinesis.endpoint_url}"\nstart = "TRIM_HORIZON"'
        settings = {"spark.master": MASTER, "spark.executor.memory": "512m", "spark.task.maxFailures": "8"}
        told = "".join(f'"{name}" = "{value}"\n' for name, value in settings.items())
        file = tmp_path / "p.toml"
        file.write_text(pipeline_text(source, path="lake") + f"\n[spark]\n{told}")
        # Long enough for the kill to come while tasks read, whoever is slow.
        slow = kinesis.faults.delay(2000, calls=("GetRecords",))
        process = subprocess.Popen(
            [sys.executable, "-m", "headpond", "run", str(file), "--until-caught-up", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=_environment(tmp_path),
        )
        try:
            end = time.monotonic() + 200
            # One with a Python worker: the planner reads, too, before the driver knows of any executor.
            while not (victims := reading(process)) and process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            victims[0].kill()
            slow.share = 0.0
            out, words = process.communicate(timeout=300)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, words.decode()[-3000:]
    assert differences(open_lake(load(file)), vector_json("dsql/small.expected.json")) == []
    assert orjson.loads(out)["counters"]["records"] == len(change_records())
    assert lost_an_executor(tmp_path / "lake/_headpond/logs/spark.log")


def reading(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Executors that have started a Python worker for a task."""
    found = []
    for each in executors(process):
        with suppress(psutil.NoSuchProcess):
            if any("python" in child.name() for child in each.children()):
                found.append(each)
    return found


def _environment(folder: Path) -> dict[str, str]:
    import os

    # Or the workers would leave their folders in Spark's installation.
    return {**os.environ, "SPARK_WORKER_DIR": str(folder / "work")}
