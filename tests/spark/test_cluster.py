"""A whole pipeline on executors in processes of their own, one of which is killed in mid-task."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson
import psutil
import pytest

from headpond.localkinesis.testing import local_kinesis
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.spark.session.start import QUICK_JAVA_OPTIONS
from tests.kit.expected_tables import change_records, differences, fill, pipeline_text
from tests.kit.support import vector_json
from tests.spark.cluster_kit import executors, lost_an_executor

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(600)]

MASTER = "local-cluster[2,1,1024]"


def test_a_pipeline_on_executors_of_their_own(tmp_path: Path) -> None:
    """`headpond run` on a cluster, an executor of which is killed while it reads: tables as expected."""
    with local_kinesis("changes", shards=4) as kinesis:
        fill(kinesis.client(), "changes", change_records())
        source = f'stream = "changes"\nendpoint_url = "{kinesis.endpoint_url}"\nstart = "TRIM_HORIZON"'
        settings = {
            "spark.master": MASTER,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK_JAVA_OPTIONS,
            "spark.task.maxFailures": "8",
        }
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
