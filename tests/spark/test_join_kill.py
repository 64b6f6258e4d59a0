"""SIGKILL of driver, Python workers and executors in the middle of a join: results as if nothing had been."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from headpond.kstreams.join.rules import JoinRules
from tests.kit.support import ROOT
from tests.spark.cluster_kit import executors
from tests.spark.join_job import TASKS, WINDOWS
from tests.spark.join_streams import random_batches, rows_of, wanted, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(1500)]

HERE = Path(__file__).parent
DEADLINE_S = 240
LOCAL = "local[2,20]"


def start(folder: Path, master: str = LOCAL) -> subprocess.Popen[bytes]:
    """Start the job as a process group of its own."""
    with (folder / "job.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(HERE / "join_job.py"), str(folder), master],
            stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip


def wait_for(
    process: subprocess.Popen[bytes], folder: Path, batch: int, folder_name: str = "offsets"
) -> None:
    """Wait until a batch was begun (or is done), or the job has ended."""
    end = time.monotonic() + DEADLINE_S
    place = folder / "checkpoint" / folder_name / str(batch)
    while not place.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)


def end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for the job's good end."""
    try:
        process.wait(DEADLINE_S * 2)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, (folder / "job.log").read_text()[-3000:]


def check(spark: SparkSession, folder: Path, seed: int, batches: int) -> None:
    events = [event for batch in random_batches(seed, batches=batches) for event in batch]
    expected, _ = wanted(JoinRules("outer", WINDOWS), [events], TASKS)
    assert rows_of(spark, folder) == expected


def kill_driver(folder: Path, chance: random.Random, batch: int, delay_s: float) -> None:
    process = start(folder)
    wait_for(process, folder, batch)
    time.sleep(chance.uniform(0, delay_s))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_drivers_killed_again_and_again(spark: SparkSession, tmp_path: Path) -> None:
    """At random moments of random batches."""
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)
    write(tmp_path, random_batches(seed, batches=6))
    (tmp_path / "slow").touch()
    for _ in range(int(os.environ.get("HEADPOND_FAULT_ROUNDS", "4"))):
        done = [int(p.name) for p in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")]
        kill_driver(tmp_path, chance, max(done, default=-1) + chance.choice([1, 1, 2]), 2.5)
    end(start(tmp_path), tmp_path)
    check(spark, tmp_path, seed, 6)


def joining(process: subprocess.Popen[bytes], folder: Path) -> list[psutil.Process]:
    """Workers of the job that have joined and live; the number of a dead one may be anybody's."""
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
        return [each for each in below if (folder / "workers" / str(each.pid)).exists()]
    return []


def test_python_workers_killed_at_work(spark: SparkSession, tmp_path: Path) -> None:
    """The workers of the join, several times a batch; Spark runs their tasks again."""
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)
    write(tmp_path, random_batches(seed, batches=5))
    (tmp_path / "slow").touch()
    process = start(tmp_path)
    killed = 0
    while process.poll() is None and killed < 8:
        time.sleep(chance.uniform(0.2, 1.0))
        alive = joining(process, tmp_path)
        if alive:
            chance.choice(alive).kill()
            killed += 1
    end(process, tmp_path)
    assert killed
    check(spark, tmp_path, seed, 5)


def test_executors_killed_at_work(spark: SparkSession, tmp_path: Path) -> None:
    """Two executors, killed in the middle of batches, with speculative attempts beside."""
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    write(tmp_path, random_batches(seed, batches=5))
    (tmp_path / "slow").touch()
    process = start(tmp_path, "local-cluster[2,1,1024]")
    killed = 0
    for batch in (1, 3):
        wait_for(process, tmp_path, batch)
        time.sleep(0.8)
        for victim in executors(process)[:1] if process.poll() is None else ():
            victim.kill()
            killed += 1
    end(process, tmp_path)
    assert killed == 2
    check(spark, tmp_path, seed, 5)
