"""Where the measurements of `headpond run` go: the sinks that a pipeline file asks for.

::

    log lines        always         one per batch, for `--log-format`
    run mark         always         _headpond/run.json
    batch log        batches > 0    _headpond/batches
    Prometheus       prometheus = "HOST:PORT"
    OpenTelemetry    opentelemetry = true
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from headpond import __version__
from headpond.core.errors import HeadpondError
from headpond.core.formats import Newest, add_newest
from headpond.core.patterns import is_pattern
from headpond.lake.delta import Size
from headpond.lake.reports import BatchLog, BatchReport, batches_in, counted, sizes_of
from headpond.lake.state.run_mark import EVERY_S, RunMark, mark_in, newest_of, process_of
from headpond.pipeline import Pipeline
from headpond.pipeline.lake import open_lake
from headpond.spark.metrics.exporters import OpenTelemetry, Prometheus, Sink

logger = logging.getLogger("headpond.batches")

FLUSH_S = 1.0
"""Least time between two writes of the batch log: a commit per batch of ten milliseconds would not pay."""
MOST_HELD = 1_000
"""Batches that wait where the batch log cannot be written; the oldest are left out."""
AGAIN_S = 1.0
"""After so long the end of a run is marked again, where that failed."""


def sinks_of(pipeline: Pipeline) -> list[Sink]:
    """Make the sinks of a pipeline.

    Raises:
        MissingRequirement: a package, an address or a file that the pipeline asks for cannot be had.
    """
    monitor, target = pipeline.monitor, pipeline.target
    tables = [table.name for table in pipeline.tables if not is_pattern(table.name)]
    sinks: list[Sink] = [LogLines(), MarkOfRun(mark_in(target.path, target.storage_options))]
    if monitor.batches:
        sinks.append(Batches(batches_in(target.path, target.storage_options, monitor.batches)))
    if monitor.prometheus is not None:
        sinks.append(Prometheus(monitor.name, tables, monitor.prometheus))
    if monitor.opentelemetry:
        sinks.append(OpenTelemetry(monitor.name, tables))
    return sinks


def sizes_reader(pipeline: Pipeline) -> Callable[[], Mapping[str, Size]]:
    """Return a function that reads the sizes of a pipeline's tables, with files of its own."""
    lake = open_lake(pipeline)
    return lambda: sizes_of(lake)


@contextmanager
def marked(sinks: Sequence[Sink], stop: threading.Event) -> Iterator[None]:
    """Mark that the run inside goes on, and how it ended; close the sinks. `stop` is set if it was to end."""
    marks = [sink for sink in sinks if isinstance(sink, MarkOfRun)]
    for mark in marks:
        threading.Thread(target=mark.keep, name="headpond-mark", daemon=True).start()
    state, said = "finished", None
    try:
        yield
    except BaseException as error:
        state = "failed"
        said = error.message if isinstance(error, HeadpondError) else type(error).__name__
        raise
    finally:
        for sink in sinks:
            with _logged_failure(sink):
                sink.close()
        for mark in marks:
            ended = "stopped" if state == "finished" and stop.is_set() else state
            try:
                mark.ended(ended, said)
            except Exception:  # noqa: BLE001 - logged where it happens again
                time.sleep(AGAIN_S)
                with _logged_failure(mark):
                    mark.ended(ended, said)


@contextmanager
def _logged_failure(sink: Sink) -> Iterator[None]:
    """Log what a sink raises at its end: how the run went is another matter."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it meets
        logging.getLogger(__name__).warning("%s failed at its end: %s", type(sink).__name__, error)


class LogLines(Sink):
    """A line per batch, with its figures as fields; a warning where nothing of the first could be used."""

    def __init__(self) -> None:
        self._is_first = True

    def batch(self, report: BatchReport) -> None:
        """Write the line."""
        if self._is_first and 0 < report.records <= report.quarantined:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.reasons.items())
            logger.warning(
                "Every record of the first batch was quarantined (%s): see `headpond quarantine`", reasons
            )
        self._is_first = self._is_first and report.records == 0
        fields = {
            "batch_id": report.batch_id,
            "run_id": report.run_id,
            **report.figures(),
            "tables": counted(report.tables),
            "reasons": dict(report.reasons),
        }
        logger.info("batch %d is done", report.batch_id, extra={"fields": fields})


class Batches(Sink):
    """The batch log, written at most once in `FLUSH_S`."""

    def __init__(self, log: BatchLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._waiting: list[BatchReport] = []
        self._flushed = -FLUSH_S

    def batch(self, report: BatchReport) -> None:
        """Note a batch."""
        self._waiting = [*self._waiting[1 - MOST_HELD :], report]

    def tick(self) -> None:
        """Write what waits, unless that was done just now."""
        if self._waiting and self._clock() - self._flushed >= FLUSH_S:
            self.close()

    def close(self) -> None:
        """Write what waits."""
        if self._waiting:
            self._log.add(self._waiting)
            self._waiting = []
            self._flushed = self._clock()


class MarkOfRun(Sink):
    """The run mark: written at the start, every few seconds inside `marked`, and at the end (`ended`)."""

    def __init__(self, mark: RunMark) -> None:
        self._mark = mark
        self._lock, self._over = threading.Lock(), threading.Event()
        now = time.time_ns() // 1_000_000
        self._newest: Newest = {}
        with suppress(HeadpondError):  # a damaged mark is replaced
            add_newest(self._newest, newest_of(mark.read()))
        self._facts: dict[str, Any] = {
            "state": "running",
            "started_ms": now,
            "progress_ms": now,
            "batch_id": None,
            "run_id": None,
            "lag_ms": None,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "process": process_of(os.getpid()),
            "version": __version__,
            "error": None,
            "newest": self._newest,
        }
        self._write()

    def batch(self, report: BatchReport) -> None:
        """Note a batch."""
        with self._lock:
            self._facts |= {
                "batch_id": report.batch_id,
                "run_id": report.run_id,
                "lag_ms": report.most_lag_ms,
            }
            add_newest(self._newest, report.newest)
        self.idle()

    def idle(self) -> None:
        """Spark says that the query goes on."""
        self.works()

    def works(self) -> None:
        """A batch in flight makes progress."""
        self._facts["progress_ms"] = time.time_ns() // 1_000_000

    def keep(self) -> None:
        """Write the mark every few seconds until the run has ended; on a thread of its own.

        Spark may take minutes to start where a cluster has no room, and other sinks take their time: another
        run would take this one for gone.
        """
        failed = False
        while not self._over.wait(EVERY_S):
            try:
                self._write()
            except Exception as error:  # noqa: BLE001 - measurements must not end a pipeline, whatever they meet
                if not failed:
                    logging.getLogger(__name__).warning("The mark of the run is tried again: %s", error)
                failed = True
            else:
                failed = False

    def ended(self, state: str, error: str | None = None) -> None:
        """Write how the run ended."""
        self._over.set()
        with self._lock:
            self._facts |= {"state": state, "error": error}
        self._write()

    def _write(self) -> None:
        with self._lock:  # what ended is not said to run by the other thread
            self._mark.write(**self._facts)
