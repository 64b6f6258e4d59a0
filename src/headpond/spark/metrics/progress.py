"""Measure every micro-batch of a followed stream, off the path of the batches themselves.

::

    foreachBatch ── Applied ──────────────┐
    Spark's listener bus ── progress ─────┴─► queue ─► one thread ─► sizes ─► sinks
                                                                      batch log, run mark, metrics, log lines

Spark calls a listener after a batch is committed, so that sinks take no time of the next batch. Measurements
must not end a pipeline: a sink that fails is logged once, still gets batches, and is retried with back-off.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from headpond.core.formats import Newest, add_newest
from headpond.lake.apply import Applied
from headpond.lake.delta import Size
from headpond.lake.reports import BatchReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headpond.spark.metrics.exporters import Sink

logger = logging.getLogger(__name__)

BOUND_S = 10.0
"""How long an event waits until the measured query is known."""
DRAIN_S = 3.0
"""How long the end of a query is waited for: Spark reports it after the last batch's progress."""
MOST_WAITING = 1_000
"""Batches that a slow sink may be behind; then the oldest are left out, which is logged."""
SIZES_SHARE = 20
"""Looking at sizes takes at most a twentieth of the time, however many files there are."""
FIRST_SIZES_S = 1.0
TICK_S = 1.0
WORKS_S = 5.0
"""How often a batch in flight is looked at: whether tasks of it have ended, or writes have begun."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""How long a sink that failed is left alone: twice as long after each failure."""


class _Fed:
    """A sink and how it fares."""

    def __init__(self, sink: Sink, clock: Callable[[], float]) -> None:
        self._sink, self._clock = sink, clock
        self._wait_s, self._again_at = 0.0, 0.0  # no wait: it works

    def take(self, call: Callable[[Sink], None]) -> None:
        """Hand something over, and survive what the sink raises."""
        try:
            call(self._sink)
        except Exception as error:  # noqa: BLE001 - measurements must not end a pipeline, whatever they meet
            self._failed(error)

    def tick(self) -> None:
        """Have it write, unless it failed just now."""
        if self._wait_s and self._clock() < self._again_at:
            return
        try:
            self._sink.tick()
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)
            return
        if self._wait_s:
            self._wait_s = 0.0
            logger.info("%s works again", type(self._sink).__name__)

    def _failed(self, error: Exception) -> None:
        if not self._wait_s:
            logger.warning("%s fails and is tried again: %s", type(self._sink).__name__, error)
        self._wait_s = min(LONGEST_WAIT_S, 2 * self._wait_s or FIRST_WAIT_S)
        self._again_at = self._clock() + self._wait_s


class _Events(JStreamingQueryListener):  # type: ignore[misc]  # pyspark is untyped here
    """What the JVM calls. pyspark asks it for each field of an event, which takes 0.3 s of every batch."""

    def onQueryStarted(self, jevent: Any) -> None:
        """Ask nothing: the query starts when this has returned."""

    def onQueryProgress(self, jevent: Any) -> None:
        """Hand on what the event says of itself."""
        progress = StreamingQueryProgress.fromJson(json.loads(jevent.progress().json()))
        self.pylistener.onQueryProgress(QueryProgressEvent(progress))


class Measuring(StreamingQueryListener):  # type: ignore[misc]  # pyspark is untyped here
    """A listener that puts Spark's progress and our own figures together; use `measuring`."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        sizes: Callable[[], Mapping[str, Size]] | None = None,
        sizes_every_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        tasks: Callable[[], object] = lambda: None,
    ) -> None:
        self._tasks, self._seen, self._looked = tasks, (0, tasks()), clock()
        self._writes = 0
        self._sinks = [_Fed(sink, clock) for sink in sinks]
        self._sizes, self._sizes_every_s, self._clock = sizes, sizes_every_s, clock
        self._sizes_after, self._begun = 0.0, clock()
        self.lag_ms: int | None = None
        """How far the last batch was planned behind the stream; None where no source reports it."""
        self._applied: dict[int, Applied] = {}
        self._newest: Newest = {}
        self._of_tables = False
        self._reports: queue.Queue[BatchReport | None] = queue.Queue(MOST_WAITING)
        self._ended = threading.Event()
        self._closing = threading.Event()
        self._bound = threading.Event()
        self._run_id: str | None = None
        self._events: Any = None
        self._thread = threading.Thread(target=self._work, name="headpond-measuring", daemon=True)
        self._thread.start()

    def applied(self, batch_id: int, applied: Applied) -> None:
        """Note what a batch did; for `on_batch` of `follow`. Other queries have no such figures."""
        self._of_tables = True
        if len(self._applied) > MOST_WAITING:
            self._applied.pop(next(iter(self._applied)), None)
        self._applied[batch_id] = applied

    def before_write(self) -> None:
        """Note that a batch has come to its next write; for `before_write` of `follow`."""
        self._writes += 1

    def follows(self, query: Any) -> None:
        """Name the query that is measured, once `follow` has started it: a session may have others."""
        self._run_id = str(query.runId)
        self._bound.set()

    def _is_ours(self, run_id: Any) -> bool:
        # The first events may be here before `follow` has returned.
        self._bound.wait(BOUND_S)
        return str(run_id) == self._run_id

    @property
    def _jlistener(self) -> Any:
        """What is registered with the JVM, in the place of pyspark's own."""
        if self._events is None:
            wrapper = SparkContext._jvm.PythonStreamingQueryListenerWrapper  # noqa: SLF001 - as pyspark does it
            self._events = wrapper(_Events(self))
        return self._events

    # What Spark calls, on a thread of its own.

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing; Spark waits for this one, so nothing may be waited for here."""

    def onQueryProgress(self, event: Any) -> None:
        """Put a batch's progress and figures together."""
        progress = event.progress
        if not self._is_ours(progress.runId):
            return
        fields = json.loads(progress.json)
        applied = self._applied.pop(progress.batchId, None)
        if applied is None:
            if self._of_tables or "addBatch" not in fields.get("durationMs", {}):
                return  # a trigger without a batch
            applied = Applied(counters=Counter(records=int(fields.get("numInputRows") or 0)))
        add_newest(self._newest, applied.newest)
        report = replace(report_of(fields, applied), newest=dict(self._newest))
        self.lag_ms = report.most_lag_ms
        while True:
            try:
                self._reports.put_nowait(report)
            except queue.Full:
                with suppress(queue.Empty):
                    lost = self._reports.get_nowait()
                    if lost is not None:
                        logger.warning("Batch %d was not measured: sinks are too slow", lost.batch_id)
            else:
                return

    def onQueryIdle(self, event: Any) -> None:
        """Pass on that there is nothing to read."""
        if self._is_ours(event.runId):
            with suppress(queue.Full):
                self._reports.put_nowait(None)

    def onQueryTerminated(self, event: Any) -> None:
        """Spark has reported everything."""
        if self._is_ours(event.runId):
            self._ended.set()

    # Our own thread.

    def finish(self, wait_s: float = DRAIN_S) -> None:
        """Wait for what Spark still has to report, hand it to the sinks, and close them."""
        if self._bound.is_set():
            self._ended.wait(wait_s)
        self._bound.set()  # whoever waits for it waits no more
        self._closing.set()
        self._thread.join(wait_s)

    def _work(self) -> None:
        ticked = self._clock()
        while True:
            closing = self._closing.is_set()
            try:
                report = self._reports.get(timeout=0 if closing else TICK_S)
            except queue.Empty:
                if closing:
                    break
            else:
                if report is None:
                    self._call_all(methodcaller("idle"))
                else:
                    self._call_all(methodcaller("batch", self._with_sizes(report)))
                    ticked = -TICK_S
            if self._clock() - self._looked >= WORKS_S:
                self._look()
            if self._clock() - ticked >= TICK_S:
                ticked = self._clock()
                for each in self._sinks:
                    each.tick()
        self._call_all(methodcaller("close"))

    def _look(self) -> None:
        self._looked, seen = self._clock(), self._seen
        with suppress(Exception):  # the JVM may be gone
            self._seen = self._writes, self._tasks()
        if self._seen != seen:
            self._call_all(methodcaller("works"))

    def _call_all(self, call: Callable[[Sink], None]) -> None:
        for each in self._sinks:
            each.take(call)

    def _with_sizes(self, report: BatchReport) -> BatchReport:
        begun = self._clock()
        if self._sizes is None or begun < self._sizes_after:
            return report
        try:
            sizes = self._sizes()
        except Exception as error:  # noqa: BLE001 - as above; a file may go while it is looked at
            logger.warning("The tables' sizes are not known: %s", error)
            sizes = None
        took = self._clock() - begun
        # A short run is to leave a few of them, too.
        every_s = min(self._sizes_every_s, FIRST_SIZES_S + (begun - self._begun) / SIZES_SHARE)
        self._sizes_after = self._clock() + max(every_s, SIZES_SHARE * took)
        return report if sizes is None else replace(report, sizes=sizes)


@contextmanager
def measuring(
    spark: SparkSession,
    sinks: Sequence[Sink],
    sizes: Callable[[], Mapping[str, Size]] | None = None,
    sizes_every_s: float = 30.0,
) -> Iterator[Measuring]:
    """Measure a query that is started inside: `on_batch` of `follow` is `applied`, and `follows` names it."""
    found = Measuring(sinks, sizes, sizes_every_s, tasks=partial(_ended_tasks, spark))
    spark.streams.addListener(found)
    try:
        yield found
    finally:
        found.finish()
        with suppress(Exception):  # the JVM may be gone
            spark.streams.removeListener(found)


def _ended_tasks(spark: SparkSession) -> dict[int, int]:
    """Return how many tasks have ended of each stage that is under way."""
    tracker = spark.sparkContext.statusTracker()
    stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
    return {stage.stageId: stage.numCompletedTasks for stage in stages if stage is not None}


def report_of(progress: Mapping[str, Any], applied: Applied) -> BatchReport:
    """Put a progress event and a batch's figures together."""
    phases = {name: int(value) for name, value in (progress.get("durationMs") or {}).items()}
    lags: dict[str, int] = {}
    losses = 0
    for source in progress.get("sources") or ():
        latest = _opened(source.get("latestOffset"))
        lags |= {shard: int(behind) for shard, behind in (latest.get("millis_behind_latest") or {}).items()}
        losses += int(latest.get("tolerated_losses") or 0)
    operators = progress.get("stateOperators") or ()
    counters = applied.counters
    return BatchReport(
        run_id=str(progress["runId"]),
        batch_id=int(progress["batchId"]),
        begun_ms=int(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000),
        duration_ms=phases.get("triggerExecution", 0),
        phases_ms={name: value for name, value in phases.items() if name != "triggerExecution"},
        records=counters.get("records", 0),
        data_bytes=counters.get("data_bytes", 0),
        tables={table: dict(figures) for table, figures in applied.tables.items()},
        reasons=dict(applied.quarantined),
        lags_ms=lags,
        tolerated_losses=losses,
        state_rows=sum(int(each.get("numRowsTotal") or 0) for each in operators),
        state_bytes=sum(int(each.get("memoryUsedBytes") or 0) for each in operators),
    )


def _opened(offset: Any) -> Mapping[str, Any]:
    """Return an offset as Spark hands it on: an object, or its text."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    return offset if isinstance(offset, dict) else {}
