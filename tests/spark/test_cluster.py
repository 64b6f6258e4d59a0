"""On executors of their own processes: killed in mid-task, with speculation, two actions on each batch."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from headpond.kinesis.testing import local_kinesis, put_all, read_all

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(600)]

JOB = Path(__file__).with_name("cluster_job.py")
RECORDS = 240


def begun(folder: Path) -> int:
    path = folder / "begun"
    return len(path.read_text().split()) if path.exists() else 0


def executors(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The executors below the job's process, and no others."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def test_an_executor_killed_in_mid_task(tmp_path: Path) -> None:
    """Every record once, each batch the same to both actions, though executors died while reading."""
    with local_kinesis("orders", shards=4) as kinesis:
        put_all(kinesis.client(), "orders", [(f"k{n}", b"%d" % n) for n in range(RECORDS)])
        # Reads that drag on: there is a mid-task to be killed in, and stragglers to speculate on.
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
    found = []
    for path in (tmp_path / "rows").iterdir():
        first, second = json.loads(path.read_text())
        assert first == second
        found += [(shard, int(number), sub, data.encode()) for shard, number, sub, data in first]
    assert sorted(found) == expected
    log = (tmp_path / "spark.log").read_text(errors="replace")
    assert "Lost executor" in log
