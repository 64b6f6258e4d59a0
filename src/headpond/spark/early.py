"""Spark, started while the source and the lake are being checked; and its workers, before they are asked.

The two seconds that a JVM needs are not waited for: checks compute on one core, the JVM on another::

    main      ── imports ── checks ──┐
    JVM           └─ launch ─ context ┴ session ── query ── first batch
    workers                              └ daemon, imports ┘

What the checks find is told at once, whether Spark is up by then or not.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict

from headpond.errors import HeadpondError
from headpond.spark.classes import keep_nothing
from headpond.spark.java import find_java
from headpond.spark.log_file import log_path
from headpond.spark.session import started_context
from headpond.spark.settings import check_checkpoint, session_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from headpond.pipeline import Pipeline


class StartOptions(TypedDict):
    """How Spark is started: as for `spark_session`."""

    log_path: Path
    quick: bool
    ends: bool


def start_options(pipeline: Pipeline, *, until_caught_up: bool, quick: bool = False) -> StartOptions:
    """Say how Spark is started for a run of a pipeline; arguments as of `headpond.spark.run.Run`."""
    # Where Python reads and merges, the JVM has too little to do for a slow start ever to pay.
    quick = quick or pipeline.target.engine == "embedded"
    return {"log_path": log_path(pipeline), "quick": quick, "ends": until_caught_up}


class Starting:
    """A Spark context that comes up in a thread of its own.

    Args:
        conf: as for `spark_session`.
        options: as there.
    """

    def __init__(self, conf: dict[str, str], options: StartOptions) -> None:
        self._made = _missing(options["log_path"])
        self._lock = threading.Lock()
        self._context: SparkContext | None = None
        self._error: BaseException | None = None
        self._given_up = False
        # A daemon: a process whose checks failed does not wait for Spark, whose JVM ends with it.
        self._thread = threading.Thread(target=self._start, args=(conf, options), daemon=True)
        self._thread.start()

    def _start(self, conf: dict[str, str], options: StartOptions) -> None:
        try:
            importlib.import_module("pyspark")  # takes a while, in which checks may fail
            if self._given_up:
                return
            context = started_context("headpond", conf=conf, **options)
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._error = error
            return
        with self._lock:
            self._context = context
            if self._given_up:
                self._end()

    def wait(self) -> None:
        """Wait until Spark is up; from then on it is the caller's to end.

        Raises:
            JavaMissing, SparkNotStarted: as `spark_session`.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._context = None

    def give_up(self) -> None:
        """End what is up, now or as soon as it is, and remove the log unless it was there before."""
        if not self._thread.is_alive() and self._context is None:
            return
        self._given_up = True
        with self._lock:
            self._end()

    def _end(self) -> None:
        keep_nothing()
        if self._context is not None:
            self._context.stop()
        for place in self._made:
            # A folder that is not empty any more is somebody's.
            with contextlib.suppress(OSError):
                place.rmdir() if place.is_dir() else place.unlink()


def _missing(place: Path) -> list[Path]:
    """Name what of a path is not there yet, innermost first."""
    return [each for each in (place, *place.parents) if not each.exists()]


@contextmanager
def given_up_on_failure(starting: Starting | None) -> Iterator[None]:
    """Give up a start if something goes wrong before it was waited for."""
    try:
        yield
    except BaseException:
        if starting is not None:
            starting.give_up()
        raise


def start_early(pipeline: Pipeline, options: StartOptions) -> Starting | None:
    """Begin to start Spark for a pipeline.

    Returns:
        Null where Spark is up already, where `spark-submit` has started it, and where the settings are wrong,
        which the checks tell.
    """
    pyspark = sys.modules.get("pyspark")
    running = None if pyspark is None else pyspark.SparkContext._active_spark_context  # noqa: SLF001 (getOrCreate would start one)
    if running is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return None
    try:
        check_checkpoint(pipeline)
        conf = session_settings(pipeline)
        find_java()
    except HeadpondError:
        return None
    return Starting(conf, options)


def warm_workers(spark: SparkSession) -> None:
    """Have Spark start the process that its Python workers come from, while the query is being planned."""
    threading.Thread(target=_warm, args=(spark,), name="warming workers", daemon=True).start()


def _warm(spark: SparkSession) -> None:
    def same(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from parts

    # Whatever is wrong with the workers, the query will meet it, too.
    with contextlib.suppress(Exception):
        spark.range(1, numPartitions=1).mapInArrow(same, "id long").collect()
