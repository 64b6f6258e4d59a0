"""Putting Spark's progress and our figures together, and what becomes of sinks that fail or are slow."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import AccessDenied
from headpond.lake.apply import Applied
from headpond.lake.delta import Size
from headpond.spark.metrics import sinks
from headpond.spark.metrics.progress import WORKS_S, Measuring, _Fed, report_of
from headpond.spark.metrics.sinks import Batches, MarkOfRun, marked

if TYPE_CHECKING:
    from headpond.lake.reports import BatchReport

# It imports pyspark, which takes longer than the tests of the quick part may.
pytestmark = pytest.mark.thorough

PROGRESS = {
    "id": "q",
    "runId": "r",
    "batchId": 3,
    "timestamp": "2026-01-01T00:00:00.250Z",
    "durationMs": {"triggerExecution": 900, "addBatch": 700, "walCommit": 20},
    "sources": [
        {
            "latestOffset": json.dumps(
                {"millis_behind_latest": {"shardId-000000000000": 1_200}, "tolerated_losses": 2}
            )
        }
    ],
    "stateOperators": [
        {"numRowsTotal": 5, "memoryUsedBytes": 100},
        {"numRowsTotal": 1, "memoryUsedBytes": 50},
    ],
}
APPLIED = Applied(
    {"t": Counter(upserts=4)}, Counter(cast_error=1), Counter(records=5, data_bytes=900), batches=1
)


class Seen:
    """A sink that remembers; `fails` on each batch, if told so, or on so many `failing_ticks`."""

    def __init__(self, *, fails: bool = False, failing_ticks: int = 0) -> None:
        self.reports: list[BatchReport] = []
        self.idles = self.worked = self.ticks = 0
        self.closed = False
        self._fails, self._failing_ticks = fails, failing_ticks

    def batch(self, report: BatchReport) -> None:
        self.reports.append(report)
        if self._fails:
            raise OSError("full")

    def idle(self) -> None:
        self.idles += 1

    def works(self) -> None:
        self.worked += 1

    def tick(self) -> None:
        self.ticks += 1
        if self.ticks <= self._failing_ticks:
            raise OSError("no route")

    def close(self) -> None:
        self.closed = True


def event(batch_id: int = 3, run_id: str = "r") -> Any:
    text = json.dumps(PROGRESS | {"batchId": batch_id, "runId": run_id})
    return SimpleNamespace(progress=SimpleNamespace(batchId=batch_id, runId=run_id, json=text), runId=run_id)


def test_a_report_has_both_halves() -> None:
    """Times, lag and state from Spark; records, bytes and figures from what was applied."""
    report = report_of(PROGRESS, APPLIED)
    assert (report.batch_id, report.run_id, report.begun_ms) == (3, "r", 1_767_225_600_250)
    assert (report.duration_ms, report.phases_ms) == (900, {"addBatch": 700, "walCommit": 20})
    assert (report.records, report.data_bytes, report.quarantined) == (5, 900, 1)
    assert (report.lags_ms, report.tolerated_losses) == ({"shardId-000000000000": 1_200}, 2)
    assert (report.state_rows, report.state_bytes) == (6, 150)
    assert report.tables == {"t": {"upserts": 4}}


@pytest.mark.parametrize("latest", [None, "", "null", "no json", "[1]", {"files": {}}])
def test_a_source_without_lag_has_none(latest: Any) -> None:
    """An archive tells no lag; nothing is made up."""
    report = report_of(PROGRESS | {"sources": [{"latestOffset": latest}]}, APPLIED)
    assert (report.lags_ms, report.most_lag_ms) == ({}, None)


def test_every_sink_gets_every_batch_and_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """One that fails goes on getting them, and is told of once; the others go on."""
    good, bad = Seen(), Seen(fails=True)
    with caplog.at_level(logging.INFO, "headpond.spark.metrics.progress"):
        _three_batches(Measuring([bad, good], lambda: {"t": Size(1, 2, 3)}))
    assert [report.batch_id for report in good.reports] == [0, 1, 2]
    assert good.reports[0].sizes == {"t": Size(1, 2, 3)}
    assert good.reports[1].sizes is None  # looked at a moment ago
    assert (good.idles, good.closed) == (1, True)
    assert (len(bad.reports), bad.closed) == (3, True)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def _three_batches(measuring: Measuring) -> None:
    measuring.follows(SimpleNamespace(runId="r"))
    for number in range(3):
        measuring.applied(number, APPLIED)
        measuring.onQueryProgress(event(number))
    measuring.onQueryIdle(event())
    measuring.onQueryTerminated(event())
    measuring.finish()


def test_a_sink_that_could_not_write_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """After a while, twice as long each time, until it works; told of twice, and no batch is missing."""
    now = [0.0]
    sink = Seen(failing_ticks=2)
    fed = _Fed(sink, lambda: now[0])
    asked = []
    with caplog.at_level(logging.INFO, "headpond.spark.metrics.progress"):
        for second in range(6):
            now[0] = second
            fed.take(lambda sink: sink.batch(report_of(PROGRESS, APPLIED)))
            fed.tick()
            asked.append(sink.ticks)
    assert asked == [1, 2, 2, 3, 4, 5]  # at 0 s and 1 s in vain; at 3 s it works
    assert len(sink.reports) == 6
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "Seen fails and is tried again: no route"),
        ("INFO", "Seen works again"),
    ]


def test_a_run_is_marked_while_it_starts_and_after_a_mark_that_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It needs no batch and no other sink; writes that fail one after the other are logged once."""
    monkeypatch.setattr(sinks, "EVERY_S", 0.001)
    written: list[dict[str, Any]] = []
    fails = [False, True, True, False, False, True, False]  # the first is the start's
    asked = iter([*fails, *[False] * 1_000_000])

    def write(**facts: Any) -> None:
        if next(asked):
            raise AccessDenied("slow down", next_step="wait")
        written.append(facts)

    sink = MarkOfRun(SimpleNamespace(write=write, read=lambda: None))  # type: ignore[arg-type]
    with marked([sink], threading.Event()):
        end = time.monotonic() + 20
        while len(written) < 6 and time.monotonic() < end:
            time.sleep(0.001)
    states = [facts["state"] for facts in written]
    assert states.count("running") >= 6
    time.sleep(0.02)
    assert [facts["state"] for facts in written][states.index("finished") :] == ["finished"]
    assert [record.getMessage() for record in caplog.records] == [
        "The mark of the run is tried again: slow down wait"
    ] * 2


@pytest.mark.parametrize("sign", ["batch", "idle", "works"])
def test_the_mark_says_when_a_run_last_made_progress(monkeypatch: pytest.MonkeyPatch, sign: str) -> None:
    """A batch that is done, nothing to read, or something of a batch in flight; not time alone."""
    now_ms = [1_000]
    monkeypatch.setattr(time, "time_ns", lambda: now_ms[0] * 1_000_000)
    written: list[int] = []

    def write(**facts: Any) -> None:
        written.append(facts["progress_ms"])

    sink = MarkOfRun(SimpleNamespace(write=write, read=lambda: None))  # type: ignore[arg-type]
    now_ms[0] = 2_000
    sink._write()
    getattr(sink, sign)(*([report_of(PROGRESS, APPLIED)] if sign == "batch" else []))
    sink._write()
    assert written == [1_000, 1_000, 2_000]


def test_a_run_whose_end_cannot_be_marked_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """`headpond health` would wait for it: the reason is logged; the run's own error is raised."""
    sink = MarkOfRun(SimpleNamespace(write=lambda **_facts: None, read=lambda: None))  # type: ignore[arg-type]

    def refused(**_facts: Any) -> None:
        raise AccessDenied("s3://lake is refused", next_step="wait")

    sink._mark = SimpleNamespace(write=refused)  # type: ignore[assignment]
    with pytest.raises(OSError, match="its own"), marked([sink], threading.Event()):
        raise OSError("its own")
    assert [record.getMessage() for record in caplog.records] == [
        "MarkOfRun failed at its end: s3://lake is refused wait"
    ]


def test_other_queries_of_the_session_are_not_measured() -> None:
    """Progress without figures of ours, idleness and ends of other queries."""
    seen = Seen()
    measuring = Measuring([seen])
    measuring.follows(SimpleNamespace(runId="r"))
    measuring.applied(9, APPLIED)
    measuring.onQueryProgress(event(9, "another"))
    measuring.onQueryIdle(event(9, "another"))
    measuring.onQueryTerminated(event(9, "another"))
    assert not measuring._ended.is_set()
    measuring.onQueryTerminated(event())
    measuring.finish()
    assert (seen.reports, seen.idles) == ([], 0)


def test_a_long_batch_is_seen_to_make_progress() -> None:
    """Tasks that have ended and writes that have begun count; time that passes and errors do not."""
    now, ended = [0.0], [0]
    looked = threading.Event()
    told: list[int] = []  # what the sink had been told at each look
    seen = Seen()

    def tasks() -> dict[int, int]:
        found = {1: ended[0]}
        told.append(seen.worked)
        looked.set()
        if len(told) == 4:
            raise OSError("the JVM is busy")
        return found

    measuring = Measuring([seen], clock=lambda: now[0], tasks=tasks)
    for step in ("nothing", "a task", "an error", "a write", "nothing"):
        looked.clear()
        ended[0] += step == "a task"
        if step == "a write":
            measuring.before_write()
        now[0] += WORKS_S
        assert looked.wait(240)
    measuring.finish()
    assert (told, seen.worked) == ([0, 0, 0, 1, 1, 2], 2)


def test_a_slow_sink_does_not_hold_spark_up() -> None:
    """The listener returns at once; what was told comes when the sink is free."""
    free = threading.Event()
    seen = Seen()
    take = seen.batch
    seen.batch = lambda report: (free.wait(240), take(report))[1]  # type: ignore[method-assign, func-returns-value]
    measuring = Measuring([seen])
    measuring.follows(SimpleNamespace(runId="r"))
    for number in range(50):
        measuring.applied(number, APPLIED)
        measuring.onQueryProgress(event(number))
    assert seen.reports == []  # all was told while the sink still waits
    free.set()
    measuring.onQueryTerminated(event())
    measuring.finish()
    assert len(seen.reports) == 50


def test_an_event_may_come_before_it_is_known_whose_it_is() -> None:
    """It waits until the query is named."""
    seen = Seen()
    measuring = Measuring([seen])
    measuring.applied(3, APPLIED)
    early = threading.Thread(target=measuring.onQueryProgress, args=(event(),))
    early.start()
    assert seen.reports == []
    measuring.follows(SimpleNamespace(runId="r"))
    early.join()
    measuring.onQueryTerminated(event())
    measuring.finish()
    assert [report.batch_id for report in seen.reports] == [3]


def test_sizes_that_cannot_be_had_are_unknown() -> None:
    """A file that went while it was looked at costs the sizes, not the report."""

    def gone() -> dict[str, Size]:
        raise FileNotFoundError("a.parquet")

    seen = Seen()
    measuring = Measuring([seen], gone)
    measuring.follows(SimpleNamespace(runId="r"))
    measuring.applied(3, APPLIED)
    measuring.onQueryProgress(event())
    measuring.onQueryTerminated(event())
    measuring.finish(5)
    assert [report.sizes for report in seen.reports] == [None]


def test_the_batch_log_is_written_at_most_once_a_second() -> None:
    """Batches of milliseconds share a commit, and none is left at the end."""
    written: list[list[int]] = []
    log = SimpleNamespace(add=lambda reports: written.append([each.batch_id for each in reports]))
    now = [0.0]
    sink = Batches(log, lambda: now[0])  # type: ignore[arg-type]
    for number, at in enumerate([0.0, 0.2, 0.9, 1.1, 1.2]):
        now[0] = at
        sink.batch(report_of(PROGRESS | {"batchId": number}, APPLIED))
        sink.tick()
    sink.close()
    sink.close()
    assert written == [[0], [1, 2, 3], [4]]


def test_a_query_without_tables_is_measured_by_its_progress_alone() -> None:
    """A join, say: its rows, time and state; triggers without a batch are none."""
    seen = Seen()
    measuring = Measuring([seen])
    measuring.follows(SimpleNamespace(runId="r"))
    for number, changes in enumerate(({"numInputRows": 12}, {"durationMs": {"triggerExecution": 3}})):
        text = json.dumps(PROGRESS | {"batchId": number} | changes)
        progress = SimpleNamespace(batchId=number, runId="r", json=text)
        measuring.onQueryProgress(SimpleNamespace(progress=progress))
    measuring.onQueryTerminated(event())
    measuring.finish()
    (report,) = seen.reports
    assert (report.batch_id, report.records, report.duration_ms) == (0, 12, 900)
    assert (report.state_rows, report.state_bytes, report.tables) == (6, 150, {})
