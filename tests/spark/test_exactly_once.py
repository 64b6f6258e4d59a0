"""A stream kept in a table and copied to another, through kills: every record once by its identity."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from base64 import b64decode
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import psutil
import pyarrow.parquet as pq
import pytest

from headpond.kpl import Aggregate, UserRecord, decode, encode
from headpond.localkinesis.testing import local_kinesis, read_all
from tests.spark.cluster_kit import executors, lost_an_executor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.localkinesis import LocalKinesis

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(1200)]

JOB = Path(__file__).with_name("copy_job.py")
KILLS = int(os.environ.get("HEADPOND_FAULT_ROUNDS", "10"))
RUN_S = 60.0 if KILLS >= 10 else 6.0 * KILLS  # of running time, start-up left out
START_S = 180
Row = tuple[str, str, str, int, bytes]


def start(kinesis: LocalKinesis, folder: Path, until: str, *master: str) -> subprocess.Popen[bytes]:
    """Start the job as a process group of its own."""
    (folder / "started").unlink(missing_ok=True)
    with (folder / "job.log").open("ab") as log:
        command = [sys.executable, str(JOB), kinesis.endpoint_url, str(folder), until, *master]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def told(folder: Path) -> str:
    """What the job's log says of its first failure."""
    log = (folder / "job.log").read_text()
    found = re.search(r"Traceback|Exception", log)
    return log[found.start() :][:6000] if found else log[-3000:]


def wait_until_started(process: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + START_S
    while not (folder / "started").exists():
        assert process.poll() is None, told(folder)
        assert time.monotonic() < end
        time.sleep(0.05)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill driver, workers and all."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_out(kinesis: LocalKinesis, folder: Path) -> None:
    """Run to the end of what is there."""
    process = start(kinesis, folder, "out")
    try:
        process.wait(timeout=400)
    finally:
        if process.poll() is None:
            kill(process)
    assert process.returncode == 0, told(folder)


@contextmanager
def written_to(kinesis: LocalKinesis, seed: int) -> Iterator[None]:
    """Write to the stream all the while, every third time an aggregate, and reshard it now and then."""
    stop, draw = Event(), random.Random(seed)
    client = kinesis.client()

    def write() -> None:
        number = 0
        while not stop.wait(0.03):
            if number % 3 == 0:
                packed = encode([UserRecord(f"k{n}", b"%d.%d" % (number, n)) for n in range(4)])
                client.put_record(
                    StreamName="orders",
                    PartitionKey=packed.partition_key,
                    ExplicitHashKey=str(draw.getrandbits(128)),
                    Data=packed.data,
                )
            else:
                client.put_record(StreamName="orders", PartitionKey=f"k{number}", Data=b"%d" % number)
            number += 1
            if number % 200 == 0:
                kinesis.engine.update_shard_count("orders", draw.choice([2, 3, 4]))

    thread = Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        client.close()


def held(kinesis: LocalKinesis) -> list[Row]:
    """Every user record of the stream with its identity."""
    rows: list[Row] = []
    for record in read_all(kinesis.client(), "orders"):
        opened = decode(record.data)
        inner = [each.data for each in opened.records] if isinstance(opened, Aggregate) else [record.data]
        number = str(record.sequence_number)
        rows += [("orders", record.shard_id, number, place, data) for place, data in enumerate(inner)]
    return sorted(rows)


def kept(folder: Path) -> list[Row]:
    """Every row of the table."""
    tables = [pq.read_table(path) for path in sorted((folder / "table").glob("*.parquet"))]
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def copied(kinesis: LocalKinesis) -> list[tuple[str, Row]]:
    """Every row of the other stream, with the sink's name for it."""
    rows = []
    for record in read_all(kinesis.client(), "copies"):
        opened = decode(record.data)
        assert isinstance(opened, Aggregate)
        for each in opened.records:
            stream, shard_id, number, place, data = each.data.decode().split("/", 4)
            rows.append((each.tags[0].value or "", (stream, shard_id, number, int(place), b64decode(data))))
    return rows


def check(kinesis: LocalKinesis, folder: Path) -> None:
    """Nothing missing, nothing extra, and each batch the same however often it was read."""
    expected = held(kinesis)
    assert len({row[:4] for row in expected}) == len(expected) > 100
    assert not (folder / "table" / "differences").exists()
    assert kept(folder) == expected
    copies = copied(kinesis)
    assert sorted({row for _, row in copies}) == expected
    # The sink's own identity removes the repeats as well: one query, one order, no shuffle.
    assert sorted(row for _, row in {name: (name, row) for name, row in copies}.values()) == expected


def test_the_driver_killed_at_random_moments(tmp_path: Path) -> None:
    """SIGKILL of everything at random moments of a run that is written to and resharded all the time."""
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    draw = random.Random(seed)
    with local_kinesis("orders", "copies", shards=2) as kinesis:
        with written_to(kinesis, seed):
            for _ in range(KILLS):
                process = start(kinesis, tmp_path, "on")
                try:
                    wait_until_started(process, tmp_path)
                    time.sleep(draw.uniform(0, 2 * RUN_S / KILLS))
                    assert process.poll() is None, told(tmp_path)
                finally:
                    kill(process)
        run_out(kinesis, tmp_path)
        check(kinesis, tmp_path)


def workers(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The Python workers below the job: what Spark's daemon forked, which is a fork itself."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if child.name() == child.parent().name() == "worker":  # type: ignore[union-attr]
                found.append(child)
        except (psutil.NoSuchProcess, AttributeError):
            continue
    return found


def test_python_workers_killed_in_mid_task(tmp_path: Path) -> None:
    """SIGKILL of the workers that read and write: their tasks are tried again, to the same end."""
    with local_kinesis("orders", "copies", shards=2) as kinesis:
        with written_to(kinesis, 1):
            time.sleep(6)
        # Calls that drag on: a worker is in the middle of a task whenever it is killed.
        slow = kinesis.faults.delay(300, 0.5, calls=("GetRecords", "PutRecords"))
        process = start(kinesis, tmp_path, "out")
        try:
            wait_until_started(process, tmp_path)
            killed = 0
            while killed < 2 + KILLS and process.poll() is None:
                time.sleep(0.7)
                if victims := workers(process):  # in turns: one of them may be idle
                    victims[killed % len(victims)].kill()
                    killed += 1
            kinesis.faults.remove(slow)
            process.wait(timeout=400)
        finally:
            if process.poll() is None:
                kill(process)
        assert process.returncode == 0, told(tmp_path)
        check(kinesis, tmp_path)
    log = (tmp_path / "spark.log").read_text(errors="replace")
    assert killed >= 2
    assert len(re.findall(r"Lost task \d+", log)) >= 1


def test_executors_killed_while_they_write(tmp_path: Path) -> None:
    """Reader and sink on processes of their own, one of which is killed amid its writes: the same end."""
    with local_kinesis("orders", "copies", shards=2) as kinesis:
        with written_to(kinesis, 2):
            time.sleep(6)
        # Writes that drag on: what a killed task had put is put again by the one after it.
        slow = kinesis.faults.delay(1000, calls=("PutRecords",))
        process = start(kinesis, tmp_path, "out", "local-cluster[2,1,1024]")
        try:
            end = time.monotonic() + START_S
            while slow.hits < 2 and process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            victims = executors(process)
            assert len(victims) == 2, told(tmp_path)
            victims[0].kill()
            slow.share = 0.0
            process.wait(timeout=400)
        finally:
            if process.poll() is None:
                kill(process)
        assert process.returncode == 0, told(tmp_path)
        check(kinesis, tmp_path)
    assert lost_an_executor(tmp_path / "spark.log")
