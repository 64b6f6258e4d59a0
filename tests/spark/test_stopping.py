"""SIGTERM and SIGINT of `headpond run`: the batch in flight ends, or is left whole to the next start."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from headpond.lake.state.run_mark import RunMark
from headpond.localkinesis import LocalKinesis
from headpond.spark.following.checkpoint import standing
from headpond.spark.following.stopping import Gate, StopAsked, bounded, end_query
from tests.kit.expected_tables import change_records, fill, pipeline_text
from tests.spark.test_kill import check, next_batch, start, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

GONE_WITHIN_S = 120
"""Much less than what hangs in these tests would take, and more than a busy machine needs."""


class Query:
    """A query as `end_query` sees it."""

    def __init__(self, done: int | None = None) -> None:
        self.isActive, self.stopped_after = True, None
        self.lastProgress = None if done is None else {"batchId": done}

    def stop(self) -> None:
        self.isActive = False


def stopping() -> tuple[threading.Event, Gate]:
    stop = threading.Event()
    return stop, Gate(stop)


@pytest.mark.parametrize(
    ("error", "level"), [(ConnectionRefusedError("gone"), "INFO"), (RuntimeError("hm"), "WARNING")]
)
def test_what_spark_raises_at_its_end_is_logged(
    error: Exception, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning, but of a JVM that is gone: the signal that ends the run ends that, too."""

    def stop() -> None:
        raise error

    with caplog.at_level(logging.INFO, "headpond.spark.following.stopping"):
        assert bounded(stop, 5)
    (record,) = caplog.records
    assert (record.levelname, str(error) in record.getMessage()) == (level, True)


def test_no_batch_begins_once_a_stop_is_asked_for() -> None:
    """It is refused before its first write."""
    stop, gate = stopping()
    gate.begin(1)
    gate.end(1)
    stop.set()
    with pytest.raises(StopAsked, match="Batch 2"):
        gate.begin(2)
    assert (gate.busy, gate.done, gate.refused) == (None, 1, 2)


def test_a_batch_in_flight_is_waited_for() -> None:
    """The query ends after its last write and its commit, and not before."""
    stop, gate = stopping()
    gate.begin(4)
    stop.set()
    query = Query(3)
    seen: list[tuple[bool, bool]] = []

    def work() -> None:
        time.sleep(0.1)
        seen.append((query.isActive, gate.busy == 4))
        gate.end(4)
        time.sleep(0.1)
        seen.append((query.isActive, gate.busy is None))
        query.lastProgress = {"batchId": 4}

    thread = threading.Thread(target=work)
    thread.start()
    assert end_query(query, gate, 30) is None
    thread.join()
    assert seen == [(True, True), (True, True)]
    assert not query.isActive


def test_a_batch_that_takes_too_long_is_left() -> None:
    """After the grace the query is told to end all the same, and which batch was left is known."""
    stop, gate = stopping()
    gate.begin(4)
    stop.set()
    assert end_query(Query(3), gate, 0.05) == 4


def test_a_query_that_does_not_end_is_not_waited_for() -> None:
    """A call that hangs is left behind, and one that fails counts as done."""
    assert not bounded(threading.Event().wait, 0.01)
    assert bounded(lambda: 1 / 0, 5)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A run over a stream in small batches, of which one is done; `slow` holds each table's write up."""
    with LocalKinesis() as kinesis:
        kinesis.engine.create_stream("changes", 2)
        records = change_records()
        fill(kinesis.client(), "changes", records)
        source = f'stream = "changes"\nendpoint_url = "{kinesis.endpoint_url}"\nstart = "TRIM_HORIZON"\n'
        source += "max_records_per_trigger = 15"
        text = pipeline_text(source, path="lake").replace('path = "lake"', 'path = "lake"\ntrigger = "10 ms"')
        (tmp_path / "p.toml").write_text(text)
        yield SimpleNamespace(folder=tmp_path, records=records)


def signalled(folder: Path, *arguments: str, signal_: int, group: bool = False) -> tuple[int, Any, str]:
    """Start a run, signal it while its second batch is planned, read or applied, and give how it ended."""
    process = start(folder, *arguments)
    try:
        wait_for(folder, process, batches=1)
        begun = folder / "lake" / "_headpond" / "checkpoint" / "offsets" / "1"
        end = time.monotonic() + GONE_WITHIN_S
        while not begun.exists() and time.monotonic() < end:
            time.sleep(0.01)
        if group:
            os.killpg(process.pid, signal_)
        else:
            process.send_signal(signal_)
        return _ended(process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _ended(process: subprocess.Popen[bytes]) -> tuple[int, Any, str]:
    out, err = process.communicate(timeout=GONE_WITHIN_S)
    return process.returncode, json.loads(out) if out else None, err.decode()


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("sent", "group"),
    [(signal.SIGTERM, False), (signal.SIGINT, True)],  # as supervisors and as terminals send them
)
def test_a_signal_ends_a_run_between_batches(running: SimpleNamespace, sent: int, *, group: bool) -> None:
    """Exit code 0; what was applied is committed; the next start does the rest, nothing lost or twice.

    A signal to the whole group, as Ctrl-C in a terminal and `timeout` send it, does not reach the JVM and its
    Python workers: the batch in flight ends with them.
    """
    code, summary, err = signalled(running.folder, signal_=sent, group=group)
    assert code == 0, err
    assert "Traceback" not in err
    assert summary["left"] is None
    mark = RunMark(str(running.folder / "lake" / "_headpond")).read()
    assert mark is not None
    assert mark["state"] == "stopped"
    at = standing(str(running.folder / "lake" / "_headpond" / "checkpoint"))
    # Every batch whose figures the summary has is committed: none was cut off between the two.
    assert summary["batches"] == (at.batch_id or 0) + 1
    assert summary["counters"]["records"] < len(running.records)
    process = start(running.folder, "--until-caught-up", "--strict")
    code, summary, err = _ended(process)
    assert code == 0, err
    assert next_batch(running.folder) > 2
    check(running.folder)


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_batch_beyond_the_grace_is_left_to_the_next_start(
    running: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that hangs in a write does not hold the stop up; the process still ends with 0."""
    # Site code of the child: the third write of a table never comes back.
    (running.folder / "sitecustomize.py").write_text(
        "import os, time\n"
        "if os.environ.get('HEADPOND_TEST_HANG'):\n"
        "    from headpond.lake.targets import current\n"
        "    write, count = current.CurrentTable.write, [0]\n"
        "    def hang(self, *args, **kwargs):\n"
        "        count[0] += 1\n"
        "        if count[0] > 6:\n"
        "            open('hangs', 'w').close()\n"
        "            time.sleep(600)\n"
        "        return write(self, *args, **kwargs)\n"
        "    current.CurrentTable.write = hang\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(running.folder))
    monkeypatch.setenv("HEADPOND_TEST_HANG", "1")
    process = start(running.folder, "--grace", "1 second")
    try:
        end = time.monotonic() + GONE_WITHIN_S
        while not (running.folder / "hangs").exists() and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        code, summary, err = _ended(process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert code == 0, err
    assert summary["left"] is not None
    assert f"Batch {summary['left']} was not done within 1 s" in err
    monkeypatch.delenv("HEADPOND_TEST_HANG")
    code, summary, err = _ended(start(running.folder, "--until-caught-up", "--strict"))
    assert code == 0, err
    check(running.folder)
