"""One run of a pipeline: checks, session, query, figures, and failures as headpond's own errors.

A table that was configured later is caught up by a run of its own: it reads the source from its beginning,
with a checkpoint and pending chunks of its own, applies the changes of that table alone, and ends at what was
the tip when it began. Versions make the seam to the pipeline exact. At its end, chunks that still wait for
others go to the pipeline, which has read what comes after the tip. Killed, it resumes where it stopped.
"""

from __future__ import annotations

import difflib
import logging
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headpond.core.errors import (
    ConfigurationError,
    InvalidData,
    MissingRequirement,
    RecordFault,
    ServiceFailure,
)
from headpond.core.schemas import PENDING_SCHEMA
from headpond.core.times import parse_time_ms
from headpond.dsql.config import TableSpec
from headpond.dsql.records import Change, parse
from headpond.kinesis.api.calls import calls_of, check_stream
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.archive.lines import BAD_LINE
from headpond.kinesis.consumers import consumer_of
from headpond.lake.apply import Applied
from headpond.lake.maintenance.catch_up import CaughtUp, configured
from headpond.lake.maintenance.rebuild import widen
from headpond.lake.naming import table_folder
from headpond.lake.object_store import is_remote
from headpond.lake.reports import lake_summary
from headpond.lake.state.run_mark import mark_in
from headpond.lake.storage import make_folder, remove_folder
from headpond.lake.tables import Lake
from headpond.pipeline import Pipeline
from headpond.pipeline.lake import open_lake
from headpond.spark.errors import headpond_error_of, telling, text_of
from headpond.spark.following.checkpoint import check_whole, read_again
from headpond.spark.following.stopping import GRACE_S, SPARK_STOP_S, Gate, bounded, end_query
from headpond.spark.metrics.exporters import Sink
from headpond.spark.metrics.sinks import marked, sinks_of, sizes_reader
from headpond.spark.session.java import find_java
from headpond.spark.session.settings import (
    NO_JAR,
    check_checkpoint,
    check_lasting,
    log_path,
    no_jar_for,
    session_settings,
)
from headpond.spark.session.start import (
    Starting,
    ended_jvm,
    given_up_on_failure,
    spark_session,
    start_early,
    stop_spark,
    warm_workers,
)
from headpond.spark.sources.archive_files import PatternFiles, open_pattern

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def preflight(pipeline: Pipeline, *, files_must_exist: bool = False, only: str | None = None) -> Lake:
    """Check Java, the source and the lake.

    Returns:
        The lake, its tables created and agreeing with the pipeline.

    Raises:
        JavaMissing: no Java 17 or newer.
        EndpointUnreachable, StreamNotFound, AccessDenied: the stream cannot be had.
        ConfigurationError: the archive matches no file, a table contradicts the pipeline, or the lake would
            be in a folder that YARN deletes.
        InvalidData: a power cut left a torn file in the checkpoint or in a table.
        MissingRequirement: the lake's folder cannot be written, its object store cannot be used, Spark cannot
            keep a checkpoint where it is to be.
    """
    storage_options = pipeline.target.storage_options
    check_checkpoint(pipeline)
    check_lasting(pipeline)
    check_whole(pipeline.target.checkpoint, storage_options)
    find_java()
    if pipeline.source.archive is None:
        check_source(pipeline)
    else:
        try:
            archive_files(pipeline)
        except ConfigurationError as error:
            if files_must_exist:
                raise
            logger.warning("%s: the run waits for one", error.message.removesuffix("."))
    lake = open_lake(pipeline)
    if not is_remote(pipeline.target.path):
        _writable(Path(pipeline.target.path))
    widen(lake)
    lake.prepare(rebuilt=read_again(pipeline, only), source=pipeline.source.described)
    return lake


def check_source(pipeline: Pipeline) -> None:
    """Ask the service for the pipeline's stream, and for its consumer where it reads as one."""
    settings = ConnectionSettings.from_options(pipeline.source.connection_options())
    check_stream(settings)
    if pipeline.source.consumer_name is not None:
        name, register = pipeline.source.consumer_name, pipeline.source.register_consumer
        consumer_of(calls_of(settings), settings, name, register=register)


def archive_files(pipeline: Pipeline) -> tuple[PatternFiles, list[str]]:
    """Return the files of a pipeline's archive, and their names in order.

    Raises:
        ConfigurationError: there are none.
    """
    assert pipeline.source.archive is not None
    files = open_pattern(pipeline.source.archive, pipeline.target.storage_options)
    names = sorted(files.listed())
    if not names:
        raise ConfigurationError(
            f"No file matches the archive {pipeline.source.archive}.",
            next_step="Correct source.archive; a relative path is relative to the pipeline file.",
            key="source.archive",
        )
    return files, names


def doubts(pipeline: Pipeline) -> list[str]:
    """Return what looks like a slip and may be meant: keys that are not among the declared columns."""
    found = []
    for table in pipeline.tables:
        for key in table.keys if table.columns else ():
            if key not in table.columns:
                near = difflib.get_close_matches(key, table.columns, n=1, cutoff=0.5)
                hint = f" Did you mean {near[0]}?" if near else ""
                found.append(
                    f"The key {key} of {table.name} is not among its columns: a record without it is "
                    f"quarantined as missing_key.{hint}"
                )
    return found


def check_lines(archive: str, bad_lines: Iterable[Mapping[str, Any]], *, whole: bool, lines: int) -> None:
    """Raise where an archive has a file that is cut off, or (`whole`) no record in any of the lines read."""
    for row in bad_lines:
        if (row["data"] or b"").startswith(b"gzip file"):
            raise InvalidData(
                f"{row['shard_id']} is truncated or damaged: {row['data'].decode(errors='replace')}.",
                next_step="Fetch it again, under a new name where a run has applied its first part already: "
                "repeats change nothing.",
                reason=BAD_LINE,
            )
    if whole:
        raise InvalidData(
            f"No line of the archive {archive} is a record ({lines:,} read).",
            next_step='Each line must be a JSON object with "data" in base64; see `headpond inspect`.',
            reason=BAD_LINE,
        )


def _writable(folder: Path) -> None:
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise MissingRequirement(
            f"The lake's folder {folder} cannot be written: {error.strerror or error}.",
            next_step="Correct target.path, or the folder's permissions.",
            path=str(folder),
        ) from error


logger = logging.getLogger(__name__)

MEMORY = (
    "A system that is short of memory kills processes, as does a container at its limit; for most pipelines "
    "2 GiB are enough. "
)
OUT_OF_MEMORY = 52
"""Spark's exit code where its heap is full, or no thread can be made."""
STOP_CHECK_S = 0.2
"""How often a waiting run looks whether it is to stop."""


@dataclass(slots=True)
class Run:
    """A run of a pipeline: its inputs, then what `go` leaves."""

    pipeline: Pipeline
    until_caught_up: bool = False  # end when everything present at the start is applied
    until: str | None = None  # end when everything is applied that arrived before this time
    only: str | None = None  # the one table to apply changes to, in a run of its own
    say: Callable[[str], None] = lambda _words: None  # called with each stage in a few words
    say_batches: bool = True  # and with each batch
    stop: threading.Event = field(default_factory=threading.Event)  # set it to end a run after its batch
    grace_s: float = GRACE_S  # how long that batch is waited for; then it is left to the next start
    spark_is_up: Callable[[], None] = lambda: None  # called then: Spark takes the handler of SIGINT
    starting: Starting | None = None  # a Spark that is being started for this run already
    sinks: Sequence[Sink] = ()  # where measurements go beside what the pipeline asks for
    applied: Applied = field(default_factory=Applied)
    lag_ms: int | None = None  # how far the last batch was planned behind the stream
    left: int | None = None  # a batch that was being applied when the grace was over
    hangs: bool = False  # Spark did not end in time: leave the process without waiting for it
    gate: Gate = field(init=False)
    _log: Path = field(init=False)
    start_seconds: float = 0.0  # until Spark was up
    query_seconds: float = 0.0  # from the query's start to its end

    def __post_init__(self) -> None:
        self.gate = Gate(self.stop)
        self._log = log_path(self.pipeline)

    def go(self) -> Lake:
        """Check, start Spark, follow the source to the end of the run, and return the lake.

        Raises:
            HeadpondError: whatever went wrong, as the class that says whose fault it is.
        """
        self.say("checking the source and the lake")
        for doubt in doubts(self.pipeline):
            logger.warning("%s", doubt)
        starting = self.starting or start_early(self.pipeline, self._log)
        with given_up_on_failure(starting):
            lake = preflight(self.pipeline, files_must_exist=self.until_caught_up, only=self.only)
            if self.until is not None:
                self.until_caught_up = self._until_has_come()
            if self.only is None:
                mark_in(self.pipeline.target.path, self.pipeline.target.storage_options).refuse_another()
            # A catch-up leaves no measurements: they would be taken for its own.
            sinks = [*sinks_of(self.pipeline), *self.sinks] if self.only is None else []
            with marked(sinks, self.stop):
                self._follow(sinks, starting)
        if self.until_caught_up and not self.stop.is_set():
            self.say("concluding")
            lake.extras.close(ended=True)
        self.check_archive(lake)
        return lake

    def check_archive(self, lake: Lake) -> None:
        """Raise where what was read of an archive has no record, or is cut off."""
        if self.pipeline.source.archive is None:
            return
        bad, count = self.applied.quarantined[BAD_LINE], self.applied.counters["records"]
        rows = lake.quarantine.read(["shard_id", "data"], f"reason = '{BAD_LINE}'").to_pylist() if bad else []
        ended = self.until_caught_up and not self.stop.is_set()
        nothing = count == 0 and ended and not self._has_bytes()
        is_without = nothing or 0 < count <= bad
        check_lines(self.pipeline.source.name, rows, whole=is_without, lines=count)

    def _has_bytes(self) -> bool:
        files, _ = archive_files(self.pipeline)
        return any(file.size for file in files.listed().values())

    def summary(self, lake: Lake, seconds: float) -> dict[str, Any]:
        """Return what the run did and what the lake has now: the document of `headpond run --json`."""
        facts = {"seconds": round(seconds, 1), "left": self.left, "lag_ms": self.lag_ms}
        return lake_summary(lake, self.applied) | facts

    def _follow(self, sinks: Sequence[Sink], starting: Starting | None) -> None:
        """Wait for Spark, run the query to the end of the run, and end Spark."""
        self.say("starting Spark")
        begun = time.monotonic()
        if starting is not None:
            starting.wait()
        from pyspark.sql import SparkSession

        is_ours = SparkSession.getActiveSession() is None
        # Where Python reads and merges, the JVM has too little to do for a slow start ever to pay.
        conf = session_settings(self.pipeline)
        spark = spark_session("headpond", conf=conf, log_path=self._log, quick=True)
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from headpond.spark import follow
        from headpond.spark.metrics.progress import measuring

        # Where the JVM is gone, which is reported in a sentence, its thread would print a stack trace.
        spark.sparkContext._accumulatorServer.handle_error = lambda *_: None  # noqa: SLF001
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

                def begin(*, keep_data: bool = False) -> StreamingQuery:
                    query = follow(
                        spark,
                        self.pipeline,
                        until_caught_up=self.until_caught_up,
                        until=self.until,
                        only=self.only,
                        keep_data=keep_data,
                        on_batch=count,
                        on_begin=self.gate.begin,
                        before_write=measures.before_write,
                        on_given_up=self.applied.add,
                    )
                    measures.follows(query)
                    return query

                try:
                    self._wait(begin)
                except PySparkException as error:
                    if not isinstance(headpond_error_of(error), RecordFault):
                        raise
                    # The batch comes again, with the bytes of its records: the one that is wrong is found.
                    self._wait(partial(begin, keep_data=True))
            self.lag_ms = measures.lag_ms
        except (PySparkException, Py4JError, OSError) as error:
            # A stop may reach Spark's JVM too (a signal to the whole group), or come between two batches.
            if headpond_error_of(error) is not None or not self.stop.is_set():
                raise self._headpond_error(error) from error
            self.left = self.gate.busy
        finally:
            self.query_seconds = time.monotonic() - begun - self.start_seconds
            if is_ours:
                self._end(spark)

    def _end(self, spark: SparkSession) -> None:
        wait_s = (SPARK_STOP_S if self.left is None else 0.0) if self.stop.is_set() else None
        self.hangs = not bounded(partial(stop_spark, spark), wait_s)

    def _wait(self, begin: Callable[[], StreamingQuery]) -> None:
        """Begin the query, and wait for its end or end it."""
        query = begin()
        while not query.awaitTermination(STOP_CHECK_S):
            if self.stop.is_set():
                self.left = end_query(query, self.gate, self.grace_s)
                return
            ending = self.until is not None and not self.until_caught_up
            if ending and self.gate.busy is None and self._until_has_come():
                # A batch that this interrupts is done again, by the query that has an end.
                query.stop()
                self.until_caught_up = True
                query = begin()

    def _until_has_come(self) -> bool:
        assert self.until is not None
        settings = ConnectionSettings.from_options(self.pipeline.source.connection_options())
        calls = calls_of(settings)
        if not calls.date_ms():
            calls.describe()  # a reply tells the service's clock
        return calls.now_ms() >= parse_time_ms(self.until)

    def _count(self, batch_id: int, applied: Applied) -> None:
        self.gate.end(batch_id)
        self.applied.add(applied)
        changes = sum(sum(figures.values()) for figures in self.applied.tables.values())
        if self.say_batches:
            self.say(f"batch {batch_id} applied, {changes} changes so far")

    def _headpond_error(self, error: Exception) -> Exception:
        """Return headpond's error in one of Spark's, or one that names the log."""
        if (found := headpond_error_of(error)) is not None:
            return found
        text, about_memory = text_of(error), MEMORY
        if NO_JAR.search(text):
            return no_jar_for(self.pipeline.target.checkpoint)
        if (code := ended_jvm(error)) is not None:
            how = f"was killed (signal {-code})" if code < 0 else f"ended with exit code {code}"
            lacks = re.findall(r"OutOfMemoryError: (.+)", _end_of(self._log)) if code == OUT_OF_MEMORY else []
            said = f"Spark's JVM {how}{f': {lacks[-1]}' if lacks else ''}."
            about_memory = MEMORY if code in {-signal.SIGKILL, OUT_OF_MEMORY} else ""
        elif "Python worker exited unexpectedly" in text:
            said = "A process that decodes records ended unexpectedly."
        else:
            said, about_memory = telling(text.splitlines()) or type(error).__name__, ""
            said = f"Spark ended the query: {said[:300]}"
        next_step = f"{about_memory}Read {self._log}; starting again is safe."
        return ServiceFailure(said, next_step=next_step, log=str(self._log))


def _end_of(log: Path) -> str:
    with log.open("rb") as opened:
        opened.seek(max(0, log.stat().st_size - (1 << 20)))
        return opened.read().decode(errors="replace")


def catch_up_from_start(
    pipeline: Pipeline, table: str, *, say: Callable[[str], None] = lambda _: None
) -> CaughtUp:
    """Apply every change of a table that its stream or archive still holds.

    Raises:
        UsageError: there is no such table.
        HeadpondError: whatever a run of the pipeline may end with.
    """
    spec = configured(open_lake(pipeline), table)
    job = Run(from_the_start(pipeline, table), until_caught_up=True, only=table, say=say)
    job.go()
    finish(job.pipeline, spec)
    return CaughtUp(sum(job.applied.tables.get(table, {}).values()), job.applied)


def from_the_start(pipeline: Pipeline, table: str) -> Pipeline:
    """Return the pipeline that reads everything there is, with a checkpoint of its own."""
    checkpoint = f"{pipeline.target.checkpoint}-catch-up/{table_folder(table)}"
    return replace(
        pipeline,
        source=replace(pipeline.source, start="TRIM_HORIZON", kcl_leases=None),
        target=replace(pipeline.target, checkpoint=checkpoint),
    )


def finish(pipeline: Pipeline, spec: TableSpec) -> None:
    """Hand what still waits over to the pipeline, and clear up."""
    lake = open_lake(pipeline)
    rows = lake.catching_up(spec.name).pending.read(None, "status = 'waiting'")
    waiting = [row for row in rows.to_pylist() if not _of_another(row["data"], spec)]
    lake.end_catch_up(spec.name, pa.Table.from_pylist(waiting, rows.schema).select(PENDING_SCHEMA.names))
    remove_folder(pipeline.target.checkpoint, pipeline.target.storage_options)


def _of_another(data: bytes, spec: TableSpec) -> bool:
    record = parse(data)
    if not (isinstance(record, Change) and record.chunks):
        return False
    return (record.source.schema, record.source.table) != (spec.schema, spec.table)
