"""One run of a pipeline: checks, session, query, figures, and what went wrong as one of our errors."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headpond.errors import ServiceFailure
from headpond.spark.classes import keep_nothing
from headpond.spark.early import given_up_on_failure, start_early, start_options, warm_workers
from headpond.spark.errors import headpond_error_of, text_of
from headpond.spark.measurements import marked, sinks_of, sizes_reader
from headpond.spark.preflight import preflight
from headpond.spark.session import spark_session
from headpond.spark.settings import session_settings
from headpond.spark.stopping import GRACE_S, SPARK_STOP_S, Gate, bounded, end_query
from headpond.tables.apply import Applied
from headpond.tables.ledger import LedgerLake

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headpond.pipeline import Pipeline
    from headpond.spark.early import Starting, StartOptions
    from headpond.spark.progress import Sink
    from headpond.tables.lake import Lake

STOP_CHECK_S = 0.2
"""How often a waiting run looks whether it is to stop."""


@dataclass(slots=True)
class Run:
    """A run of a pipeline.

    Args:
        pipeline: what to read and what to keep.
        until_caught_up: end when everything present at the start is applied.
        quick: start-up counts more than throughput.
        only: the one table to apply changes to, beside the pipeline itself.
        say: told each stage in a few words.
        say_batches: whether it is told each batch, too.
        stop: set it to end a run that would go on: the batch in flight is waited for.
        grace_s: how long that is waited for; then it is left to the next start.
        spark_is_up: called once Spark has started, which takes the handler of SIGINT for itself.
        starting: a Spark that is being started for this run already.
    """

    pipeline: Pipeline
    until_caught_up: bool = False
    quick: bool = False
    only: str | None = None
    say: Callable[[str], None] = lambda _words: None
    say_batches: bool = True
    stop: threading.Event = field(default_factory=threading.Event)
    grace_s: float = GRACE_S
    spark_is_up: Callable[[], None] = lambda: None
    starting: Starting | None = None
    applied: Applied = field(default_factory=Applied)
    lag_ms: int | None = None  # how far the last batch was planned behind the stream
    left: int | None = None  # a batch that was being applied when the grace was over
    hangs: bool = False  # Spark did not end in time: leave the process without waiting for it
    gate: Gate = field(init=False)
    _options: StartOptions = field(init=False)
    start_seconds: float = 0.0  # until Spark was up
    query_seconds: float = 0.0  # from the query's start to its end

    def __post_init__(self) -> None:
        self.gate = Gate(self.stop)
        self._options = start_options(self.pipeline, until_caught_up=self.until_caught_up, quick=self.quick)

    def go(self) -> Lake | LedgerLake:
        """Check, start Spark, follow the source to the end of the run, and give the lake.

        Raises:
            HeadpondError: whatever went wrong, as the class that says whose fault it is.
        """
        self.say("checking the source and the lake")
        starting = self.starting or start_early(self.pipeline, self._options)
        with given_up_on_failure(starting):
            lake = preflight(self.pipeline, files_must_exist=self.until_caught_up)
            # A catch-up beside the pipeline leaves no measurements: they would be taken for its own.
            sinks = sinks_of(self.pipeline) if self.only is None else []
            with marked(sinks, self.stop):
                self._follow(sinks, starting)
        if (
            isinstance(lake, LedgerLake)
            and lake.config.verify
            and self.until_caught_up
            and not self.stop.is_set()
        ):
            self.say("checking the journal")
            lake.close_journal()
        return lake

    def _follow(self, sinks: Sequence[Sink], starting: Starting | None) -> None:
        """Wait for Spark, run the query to the end of the run, and end Spark."""
        self.say("starting Spark")
        begun = time.monotonic()
        if starting is not None:
            starting.wait()
        spark = spark_session("headpond", conf=session_settings(self.pipeline), **self._options)
        from py4j.protocol import Py4JError  # noqa: PLC0415 (comes with pyspark)
        from pyspark.errors import PySparkException  # noqa: PLC0415

        from headpond.spark import follow  # noqa: PLC0415 - pyspark, only after the checks
        from headpond.spark.progress import measuring  # noqa: PLC0415 - as above

        self.start_seconds = time.monotonic() - begun
        self.spark_is_up()
        if starting is not None and str(spark.sparkContext.master).startswith("local"):
            warm_workers(spark)
        self.say("reading")
        sizes_s = self.pipeline.monitor.sizes_every_ms / 1000
        try:
            with measuring(spark, sinks, sizes_reader(self.pipeline), sizes_s) as measures:

                def count(batch_id: int, applied: Applied) -> None:
                    measures.applied(batch_id, applied)
                    self._count(batch_id, applied)

                query = follow(
                    spark,
                    self.pipeline,
                    until_caught_up=self.until_caught_up,
                    only=self.only,
                    on_batch=count,
                    on_begin=self.gate.begin,
                    on_given_up=self.applied.add,
                )
                measures.follows(query)
                while not query.awaitTermination(STOP_CHECK_S):
                    if self.stop.is_set():
                        self.left = end_query(query, self.gate, self.grace_s)
                        break
            self.lag_ms = measures.lag_ms
        except (PySparkException, Py4JError, OSError) as error:
            # A stop may reach Spark's JVM too (a signal to the whole group), or come between two batches.
            if headpond_error_of(error) is not None or not self.stop.is_set():
                raise self._told(error) from error
            self.left = self.gate.busy
        finally:
            self.query_seconds = time.monotonic() - begun - self.start_seconds
            if self.stop.is_set():
                self.hangs = not bounded(spark.stop, SPARK_STOP_S if self.left is None else 0.0)
                keep_nothing()
            else:
                spark.stop()

    def _count(self, batch_id: int, applied: Applied) -> None:
        self.gate.end(batch_id)
        self.applied.add(applied)
        changes = sum(sum(figures.values()) for figures in self.applied.tables.values())
        if self.say_batches:
            self.say(f"batch {batch_id} applied, {changes} changes so far")

    def _told(self, error: Exception) -> Exception:
        """Give our own error out of Spark's, or one that says where to read on."""
        ours = headpond_error_of(error)
        if ours is not None:
            return ours
        said = text_of(error).splitlines()
        first = next((line.strip() for line in said if line.strip()), type(error).__name__)
        log = str(self._options["log_path"])
        return ServiceFailure(
            f"Spark ended the query: {first[:300]}",
            next_step=f"Read {log}; starting again is safe.",
            log=log,
        )
