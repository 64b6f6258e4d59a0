"""One run of a pipeline: checks, session, query, figures, and what went wrong as one of our errors."""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.errors import ServiceFailure
from headpond.spark.errors import headpond_error_of
from headpond.spark.preflight import preflight, session_settings
from headpond.spark.session import spark_session
from headpond.tables.apply import Applied
from headpond.tables.ledger import LedgerLake

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.pipeline import Pipeline
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
        stop: set it to end a run that would go on.
    """

    pipeline: Pipeline
    until_caught_up: bool = False
    quick: bool = False
    only: str | None = None
    say: Callable[[str], None] = lambda _words: None
    stop: threading.Event = field(default_factory=threading.Event)
    applied: Applied = field(default_factory=Applied)
    start_seconds: float = 0.0  # until Spark was up
    query_seconds: float = 0.0  # from the query's start to its end

    @property
    def log_path(self) -> Path:
        """Where Spark's words go: beside the tables, or in a folder for passing things."""
        if "://" in self.pipeline.target.path:
            return Path(tempfile.gettempdir()) / "headpond-spark.log"
        return Path(self.pipeline.target.path) / "_headpond" / "logs" / "spark.log"

    def go(self) -> Lake | LedgerLake:
        """Check, start Spark, follow the source to the end of the run, and give the lake.

        Raises:
            HeadpondError: whatever went wrong, as the class that says whose fault it is.
        """
        self.say("checking the source and the lake")
        lake = preflight(self.pipeline, files_must_exist=self.until_caught_up)
        self.say("starting Spark")
        begun = time.monotonic()
        conf = session_settings(self.pipeline)
        # Where Python reads and merges, the JVM has too little to do for a slow start ever to pay.
        quick = self.quick or self.pipeline.target.engine == "embedded"
        spark = spark_session("headpond", conf=conf, log_path=self.log_path, quick=quick)
        from pyspark.errors import PySparkException  # noqa: PLC0415

        from headpond.spark import follow  # noqa: PLC0415 - pyspark, only after the checks

        self.start_seconds = time.monotonic() - begun
        self.say("reading")
        try:
            query = follow(
                spark,
                self.pipeline,
                until_caught_up=self.until_caught_up,
                only=self.only,
                on_batch=self._count,
            )
            while not query.awaitTermination(STOP_CHECK_S):
                if self.stop.is_set():
                    query.stop()
        except PySparkException as error:
            raise self._told(error) from error
        finally:
            self.query_seconds = time.monotonic() - begun - self.start_seconds
            spark.stop()
        if (
            isinstance(lake, LedgerLake)
            and lake.config.verify
            and self.until_caught_up
            and not self.stop.is_set()
        ):
            self.say("checking the journal")
            lake.close_journal()
        return lake

    def _count(self, batch_id: int, applied: Applied) -> None:
        self.applied.add(applied)
        changes = sum(sum(figures.values()) for figures in self.applied.tables.values())
        self.say(f"batch {batch_id} applied, {changes} changes so far")

    def _told(self, error: Exception) -> Exception:
        """Give our own error out of Spark's, or one that says where to read on."""
        ours = headpond_error_of(error)
        if ours is not None:
            return ours
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return ServiceFailure(
            f"Spark ended the query: {first[:300]}",
            next_step=f"Read {self.log_path}; starting again is safe.",
            log=str(self.log_path),
        )
