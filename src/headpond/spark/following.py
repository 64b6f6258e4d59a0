"""Follow a change stream: one Spark streaming query that keeps the tables of a lake in step.

::

    read (kinesis | archive) and decode, on executors ─► foreachBatch on the driver ─► Delta (deltalake)
                                                      └► or newest per key and MERGE on executors

Spark keeps the positions (its checkpoint) and replays a batch exactly; `tables.apply` makes the replay
harmless. A row counts as applied when its table's commit stands, and the batch as done when all do.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from headpond.changes.assemble import ChunkRules
from headpond.pipeline.lake import open_lake, open_ledger
from headpond.spark.connect import refuse_connect
from headpond.spark.decoding import RULES, DecodedArchiveSource, DecodingDataSource, Rules, written_rules
from headpond.spark.delta_file import SparkFiles
from headpond.spark.delta_jars import require_delta
from headpond.spark.errors import carried
from headpond.spark.handover import Folder
from headpond.spark.keeper import Keeper, Round
from headpond.spark.parts import apply_as_it_comes, apply_in_parts
from headpond.spark.redaction import redact_options
from headpond.spark.spread import apply_frame
from headpond.spark.timeouts import TimeOuts, clock_of
from headpond.tables.apply import Applied, Chunks, apply_batch
from headpond.tables.beside import apply_beside
from headpond.tables.ledger_apply import apply_records
from headpond.tables.remote import is_remote, is_s3

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from headpond.pipeline import Pipeline
    from headpond.spark.timeouts import ArchiveClock, StreamClock
    from headpond.tables.apply import DecodedBatch
    from headpond.tables.lake import Lake

logger = logging.getLogger(__name__)

RETIRE_S = 3600.0
"""How often a run that goes on drops tombstones."""

ARCHIVE_BYTES_PER_TRIGGER = 1 << 30
"""What a batch of an archive takes, unless told, where its rows come to the driver as files, in parts.

Between batches nothing is decoded while the last parts of one are merged and the next is planned, for some 2
seconds; memory is bounded by the parts, and a batch lies in files meanwhile.
"""


def decoded_changes(spark: SparkSession, pipeline: Pipeline, rules: Rules) -> DataFrame:
    """Read the pipeline's source as a streaming frame of decoded parts (`cells.FRAME_SCHEMA`)."""
    source = pipeline.source
    kind: type[DecodingDataSource]
    if source.archive is None:
        from headpond.spark.decoding_kinesis import DecodedKinesisSource  # noqa: PLC0415 - an AWS client

        kind, options = DecodedKinesisSource, source.source_options()
    else:
        kind = DecodedArchiveSource
        options = {
            "path": source.archive,
            # As written: an identity must not change when the folder is moved.
            "streamName": source.archive_as_written or source.archive,
            "deaggregate": str(source.deaggregate).lower(),
            "onMalformed": source.on_malformed,
        }
        most_bytes = source.max_bytes_per_trigger
        if most_bytes is None and rules.folder is not None:
            most_bytes = ARCHIVE_BYTES_PER_TRIGGER
        if most_bytes is not None:
            options["maxBytesPerTrigger"] = str(most_bytes)
        if is_remote(source.archive) and pipeline.target.storage_options:
            options["storageOptions"] = json.dumps(pipeline.target.storage_options)
    redact_options(spark)
    spark.dataSource.register(kind)
    reader = spark.readStream.format(kind.name()).options(**options)
    return reader.option(RULES, written_rules(rules)).load()


def follow(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    until_caught_up: bool = False,
    only: str | None = None,
    on_batch: Callable[[int, Applied], None] | None = None,
    on_begin: Callable[[int], None] | None = None,
    on_given_up: Callable[[Applied], None] | None = None,
) -> StreamingQuery:
    """Start the query that applies the source's changes to the lake.

    Args:
        spark: a session.
        pipeline: what to read and what to keep.
        until_caught_up: end when everything present at the start is applied, instead of going on.
        only: the one table to apply changes to, beside the pipeline itself (`spark.catch_up`).
        on_batch: called on the driver after each batch with its number and its figures.
        on_begin: called on the driver before the first write of each batch with its number; what it raises
            ends the query, with nothing of that batch written.
        on_given_up: called with its figures after chunks that waited longer than `chunk_timeout` went to
            quarantine, between two batches, in a thread of its own (`spark.timeouts`).

    Returns:
        The running query; `awaitTermination()` waits for it.

    Raises:
        ConfigurationError: a table of the lake contradicts the pipeline.
        EnvironmentLacks: the session cannot merge into Delta tables, though the pipeline says it should.
        UsageError: the session is a client of Spark Connect.
    """
    refuse_connect(spark, "Following a stream")
    if pipeline.source.format == "qldb":
        return follow_ledger(
            spark, pipeline, until_caught_up=until_caught_up, on_batch=on_batch, on_begin=on_begin
        )
    config = pipeline.dsql_config()
    files = SparkFiles(spark)
    merging = pipeline.target.engine == "spark"
    if merging:
        require_delta(spark)
    lake = open_lake(pipeline, files=files) if merging else open_lake(pipeline)
    lake.prepare()
    if only is None:
        lake.retire_tombstones(pipeline.target.tombstone_retention_ms)
    else:
        lake = lake.catching_up(only)
    # Only where tombstones were dropped can a change be too late, and need its bytes for quarantine. A run
    # that goes on drops them where it found some; the first ones of a lake are dropped at the next start.
    may_drop = lake.tombstones.version() >= 0 and not until_caught_up
    keep_data = may_drop or lake.tombstones.newest_horizon_ns() is not None
    config = replace(config, keep_data=keep_data, only=only)

    target = pipeline.target
    rules = ChunkRules(timeout_ms=target.chunk_timeout_ms)
    spread = merging and only is None
    folder = None if merging else _folder(spark)

    beside = _Beside(lake, Chunks(config, rules, target.chunk_memory_bytes, target.chunk_disk_bytes))
    chunks = beside.chunks
    if only is None:
        beside.clock = clock_of(pipeline, until_caught_up=until_caught_up)

    @carried
    def apply(frame: DataFrame, batch_id: int) -> None:
        with beside.writing:
            apply_one(frame, batch_id)

    def apply_one(frame: DataFrame, batch_id: int) -> None:
        if on_begin is not None:
            on_begin(batch_id)
        files.session = frame.sparkSession
        query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or "headpond"
        number = (query_id, batch_id)
        if spread:
            applied = apply_frame(lake, frame, chunks=chunks, transaction=number)
        else:
            step = partial(apply_batch, transaction=number) if only is None else apply_beside
            applied = _in_parts(frame, folder, lambda part: step(lake, part, chunks=chunks(part)))
        logger.debug("batch %d applied: %s", batch_id, {t: dict(c) for t, c in applied.tables.items()})
        if on_batch is not None:
            on_batch(batch_id, applied)

    decoded = decoded_changes(spark, pipeline, Rules(config, spread, folder.path if folder else None))
    query = _started(decoded, pipeline, apply, until_caught_up=until_caught_up)
    beside.start(query, None if until_caught_up else target.tombstone_retention_ms, on_given_up)
    return query


@dataclass(slots=True)
class _Beside:
    """What is done to the lake beside the batches, and how both keep out of each other's way."""

    lake: Lake
    waiting: Chunks
    clock: StreamClock | ArchiveClock | None = None  # null: nothing is done
    writing: threading.Lock = field(default_factory=threading.Lock)

    def chunks(self, batch: DecodedBatch) -> Chunks:
        """How a batch puts chunks together: it gives nothing up, for it may come again later."""
        if self.clock is not None:
            self.clock.note(batch)
        return self.waiting

    def start(
        self,
        query: StreamingQuery,
        retention_ms: int | None,
        on_given_up: Callable[[Applied], None] | None,
    ) -> None:
        """Begin."""
        is_active = lambda: query.isActive  # noqa: E731
        if rounds := self.rounds(is_active, retention_ms, on_given_up):
            Keeper(is_active, rounds).start()

    def rounds(
        self,
        is_active: Callable[[], bool],
        retention_ms: int | None,
        on_given_up: Callable[[Applied], None] | None,
    ) -> list[Round]:
        """List what is done; tombstones are dropped where decoders keep what that needs."""
        if self.clock is None:
            return []
        late = TimeOuts(
            self.lake,
            self.waiting,
            self.clock,
            self.writing,
            is_active=is_active,
            on_given_up=on_given_up,
        )
        rounds = [Round("Giving chunks up", late.every_s, late.look, at_once=True)]
        if retention_ms is not None and self.waiting.config.keep_data:
            rounds.append(Round("Dropping tombstones", RETIRE_S, partial(self.retire, retention_ms)))
        return rounds

    def retire(self, retention_ms: int) -> None:
        """Drop old tombstones."""
        with self.writing:
            self.lake.retire_tombstones(retention_ms)


def follow_ledger(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    until_caught_up: bool = False,
    on_batch: Callable[[int, Applied], None] | None = None,
    on_begin: Callable[[int], None] | None = None,
) -> StreamingQuery:
    """Start the query that applies QLDB records to the lake; `follow` calls it where the source has those."""
    files = SparkFiles(spark)
    merging = pipeline.target.engine == "spark"
    if merging:
        require_delta(spark)
    lake = open_ledger(pipeline, files=files) if merging else open_ledger(pipeline)
    lake.prepare()

    @carried
    def apply(frame: DataFrame, batch_id: int) -> None:
        files.session = frame.sparkSession
        if on_begin is not None:
            on_begin(batch_id)
        query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or "headpond"
        number = (query_id, batch_id)
        applied = apply_in_parts(frame.toArrow(), lambda part: apply_records(lake, part, transaction=number))
        if lake.config.verify and not until_caught_up and lake.completed():
            lake.close_journal()  # a run that ends does so once, at its end
        logger.debug("batch %d applied: %s", batch_id, {t: dict(c) for t, c in applied.tables.items()})
        if on_batch is not None:
            on_batch(batch_id, applied)

    decoded = decoded_changes(spark, pipeline, Rules(lake.config))
    return _started(decoded, pipeline, apply, until_caught_up=until_caught_up)


def _started(
    decoded: DataFrame,
    pipeline: Pipeline,
    apply: Callable[[DataFrame, int], None],
    *,
    until_caught_up: bool,
) -> StreamingQuery:
    target = pipeline.target
    writer = decoded.writeStream.foreachBatch(apply).option(
        "checkpointLocation", _for_spark(target.checkpoint)
    )
    if until_caught_up:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{target.trigger_ms} milliseconds").start()


def _in_parts(frame: DataFrame, folder: Folder | None, apply: Callable[[DecodedBatch], Applied]) -> Applied:
    if folder is None:
        return apply_in_parts(frame.toArrow(), apply)
    return apply_as_it_comes(folder, frame.toArrow, apply)


def _folder(spark: SparkSession) -> Folder | None:
    """A folder that workers write into and the driver reads; null where they are on different machines."""
    master = str(spark.sparkContext.master)
    return Folder() if master == "local" or master.startswith("local[") else None


def _for_spark(place: str) -> str:
    """Write a URL of S3 with the scheme that Spark's jars know."""
    return "s3a://" + place.partition("://")[2] if is_s3(place) else place
