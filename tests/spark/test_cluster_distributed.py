"""Tables written by executors in processes of their own: which are killed, as the driver is; lakes in S3."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.spark.session.start import QUICK_JAVA_OPTIONS
from tests.kit.expected_tables import differences, pipeline_text
from tests.kit.s3_server import Store, s3_store
from tests.kit.support import share_of, vector_bytes, vector_json
from tests.spark.cluster_kit import event_settings, events, lost_an_executor
from tests.spark.standalone_kit import SETTINGS, SPARK_HOME, standalone_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(600)]

JOB = Path(__file__).with_name("distributed_job.py")
EXPECTED = vector_json("dsql/small.expected.json")
LINES = vector_bytes("dsql/small.jsonl").splitlines(keepends=True)[::-1]
EXECUTORS = {"0", "1"}
"""As Spark names them; a task in the driver would be one of `driver`."""
LOCAL_CLUSTER = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "512m"}


def pipeline_in(folder: Path, spark: dict[str, str], store: Store | None = None, *, batches: int = 2) -> Path:
    """Write an archive, a file for each batch, and the pipeline that reads it."""
    for number in range(batches):
        (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(b"".join(LINES[number::batches])))
    # A gzip file larger than the bound is a batch.
    text = pipeline_text('archive = "*.jsonl.gz"\nmax_bytes_per_trigger = 1', path="lake")
    target = '[target]\nengine = "spark"\ncheckpoint = "checkpoint"\n'
    if store is not None:
        text = text.replace('path = "lake"', 'path = "s3://lake/it"')
        target += f"storage_options = {store.toml}\n"
    quick = {f"spark.{where}.extraJavaOptions": QUICK_JAVA_OPTIONS for where in ("driver", "executor")}
    settings = spark | quick | event_settings(folder)
    told = "".join(f'"{name}" = "{value}"\n' for name, value in settings.items())
    file = folder / "p.toml"
    file.write_text(text.replace("[target]\n", target) + f"\n[spark]\n{told}")
    return file


def begin(
    file: Path, environment: dict[str, str] | None = None, *, folder: str = "-", stage: str = "-"
) -> subprocess.Popen[str]:
    """Begin to run the pipeline to its end."""
    return subprocess.Popen(
        [sys.executable, str(JOB), folder, stage, "run", str(file), "--until-caught-up"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Or workers of a local cluster would leave their folders in Spark's installation.
        env=(environment or dict(os.environ)) | {"SPARK_WORKER_DIR": str(file.parent / "work")},
    )


def ended(process: subprocess.Popen[str]) -> int:
    """Return how a run ended; what it said is shown where it failed."""
    try:
        _, said = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    assert process.returncode in {0, -signal.SIGKILL}, said[-3000:]
    return process.returncode


def writers(folder: Path) -> set[str]:
    """Say which processes ran the tasks that wrote rows: those that came after a shuffle."""
    found, after = set[str](), set[int]()
    for event in events(folder):
        if event["Event"] == "SparkListenerStageSubmitted" and event["Stage Info"]["Parent IDs"]:
            after.add(event["Stage Info"]["Stage ID"])
        elif event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in after:
            found.add(event["Task Info"]["Executor ID"])
    return found


def unnamed(folder: Path) -> list[Path]:
    """Return the data files of tables that no entry of their logs names."""
    found = []
    for table in (each.parent for each in folder.rglob("_delta_log") if "_headpond" not in str(each)):
        log = "".join(entry.read_text() for entry in table.glob("_delta_log/*.json"))
        found += [
            each
            for each in table.rglob("*.parquet")
            if each.name not in log and "_delta_log" not in str(each)
        ]
    return found


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with s3_store() as running:
        yield running


def clear_up(folder: Path) -> None:
    """Remove what workers of a local cluster put into Spark's installation: a copy of every jar."""
    for events_of_one in (folder / "events").iterdir():
        place = SPARK_HOME / "work" / events_of_one.name.removeprefix("eventlog_v2_")
        shutil.rmtree(place, ignore_errors=True)


def test_an_executor_killed_after_it_has_written(tmp_path: Path) -> None:
    """Its tasks run again elsewhere; what it wrote is in no table, and goes with the next vacuum."""
    spark = LOCAL_CLUSTER | {"spark.task.maxFailures": "8"}
    file = pipeline_in(tmp_path, spark, batches=1)
    process = begin(file, folder=str(tmp_path))
    try:
        end = time.monotonic() + 200
        while not (written := list(tmp_path.glob("written-*"))) and process.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert unnamed(tmp_path / "lake")  # and no commit has them
        # The parent of a worker is Python's daemon, whose parent is the executor.
        daemon = int(written[0].read_text())
        executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(executor, signal.SIGKILL)
    finally:
        (tmp_path / "go").touch()
        code = ended(process)
        clear_up(tmp_path)
    assert code == 0
    lake = open_lake(load(file))
    assert differences(lake, EXPECTED) == []
    assert lost_an_executor(tmp_path / "lake/_headpond/logs/spark.log")
    left = unnamed(tmp_path / "lake")
    assert left
    for typed in lake.typed.values():
        typed.file.vacuum(0)
    assert not any(each.exists() for each in left)
    assert differences(open_lake(load(file)), EXPECTED) == []


def test_executors_write_to_an_object_store(store: Store, tmp_path: Path) -> None:
    """Two batches of a cluster; the driver writes logs, the executors files."""
    file = pipeline_in(tmp_path, LOCAL_CLUSTER, store)
    try:
        assert ended(begin(file)) == 0
    finally:
        clear_up(tmp_path)
    assert differences(open_lake(load(file)), EXPECTED) == []
    assert set() < writers(tmp_path) <= EXECUTORS  # one may have come late


def test_a_standalone_cluster_writes_with_the_headpond_it_is_sent(tmp_path: Path) -> None:
    """The workers' Python has no headpond: its steps on keys come from the driver."""
    (tmp_path / "cluster").mkdir()
    with standalone_cluster(tmp_path / "cluster") as cluster:
        file = pipeline_in(tmp_path, SETTINGS | {"spark.master": cluster.master})
        assert ended(begin(file, cluster.environment(sys.executable))) == 0
    assert differences(open_lake(load(file)), EXPECTED) == []
    assert set() < writers(tmp_path) <= EXECUTORS  # one may have come late


STAGES = ["quarantine", "tombstones", "table sales.Evolving", "table public.accounts"]
STAGES += ["table public.events_nopk", "tombstones of keys that live again"]


@pytest.mark.timeout(1200)
def test_a_driver_killed_between_two_writes(tmp_path: Path) -> None:
    """One lake goes through all kills: each falls into what the last one left, the tasks' files among it."""
    file = pipeline_in(tmp_path, {"spark.master": "local[2]"}, batches=1)
    for stage in STAGES[:: len(STAGES) // max(2, share_of(len(STAGES)))]:
        shutil.rmtree(tmp_path / "events")
        (tmp_path / "events").mkdir()
        assert ended(begin(file, stage=stage)) == -signal.SIGKILL, stage
    assert ended(begin(file)) == 0
    assert differences(open_lake(load(file)), EXPECTED) == []
