"""Follow a change stream: one Spark streaming query that keeps the tables of a lake in step.

::

    read (kinesis | archive) and decode, on executors ─► foreachBatch on the driver ─► Delta tables
                                                      └► or on executors, but for the commits

Spark keeps the positions (its checkpoint) and replays a batch exactly; `lake.apply` makes the replay
harmless. A row counts as applied when its table's commit stands, and the batch as done when all do.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.lake.apply import Applied, DecodedBatch, apply_batch
from headpond.lake.maintenance.rebuild import widen
from headpond.lake.object_store import is_remote, is_s3
from headpond.lake.sparing import apply_sparing
from headpond.pipeline import Pipeline
from headpond.pipeline.lake import chunk_rules, open_lake
from headpond.pipeline.model import Target
from headpond.spark.errors import carried
from headpond.spark.following.checkpoint import read_again
from headpond.spark.following.distributed import (
    COLLECTED_AT_ONCE_BYTES,
    apply_collected,
    apply_frame,
    rewriting,
)
from headpond.spark.following.parts import apply_as_it_comes, apply_in_parts
from headpond.spark.following.upkeep import Upkeep, read_up_to_of
from headpond.spark.session.cluster import refuse_connect
from headpond.spark.session.settings import redact_options
from headpond.spark.sources.archive import DecodedArchiveSource
from headpond.spark.sources.cells import Folder
from headpond.spark.sources.rows import DecodingDataSource, Rules, register_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Apply = Callable[[DecodedBatch], Applied]
logger = logging.getLogger(__name__)

ARCHIVE_BYTES_PER_TRIGGER = 1 << 30
"""Default bound of a batch of an archive whose rows come to the driver as files, in parts, or not at all.

Between batches nothing is decoded while the last parts of one are merged and the next is planned, for some 2
seconds; memory is bounded by the parts, and a batch lies in files or with the executors meanwhile.
"""


def decoded_changes(
    spark: SparkSession, pipeline: Pipeline, rules: Rules, *, until: str | None = None
) -> DataFrame:
    """Read the pipeline's source as a streaming frame of decoded parts (`cells.FRAME_SCHEMA`)."""
    source = pipeline.source
    # Through the JVM rows of a whole batch come at once, and the facts of a ledger always do.
    to_driver = rules.folder is None and (not rules.summary or rules.config.kept_as == "documents")
    kind: type[DecodingDataSource]
    if source.archive is None:
        from headpond.spark.sources.kinesis import DecodedKinesisSource

        kind, options = DecodedKinesisSource, source.source_options()
        if until is not None:
            options["endingPosition"] = until
        bounds = source.max_bytes_per_trigger, source.max_records_per_trigger
        if bounds == (None, None) and to_driver:
            options["maxBytesPerTrigger"] = str(COLLECTED_AT_ONCE_BYTES)
    else:
        kind = DecodedArchiveSource
        options = {
            "path": source.archive,
            # As written: an identity must not change when the folder is moved.
            "streamName": source.archive_as_written or source.archive,
            "deaggregate": str(source.deaggregate).lower(),
            "onMalformed": source.on_malformed,
        }
        by_default = COLLECTED_AT_ONCE_BYTES if to_driver else ARCHIVE_BYTES_PER_TRIGGER
        options["maxBytesPerTrigger"] = str(source.max_bytes_per_trigger or by_default)
        if is_remote(source.archive) and pipeline.target.storage_options:
            options["storageOptions"] = json.dumps(pipeline.target.storage_options)
    redact_options(spark)
    register_source(spark, kind.with_rules(rules))
    return spark.readStream.format(kind.name()).options(**options).load()


def follow(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    until_caught_up: bool = False,
    until: str | None = None,
    only: str | None = None,
    keep_data: bool = False,
    on_batch: Callable[[int, Applied], None] | None = None,
    on_begin: Callable[[int], None] | None = None,
    before_write: Callable[[], None] = lambda: None,
    on_given_up: Callable[[Applied], None] | None = None,
) -> StreamingQuery:
    """Start the query that applies the source's changes to the lake.

    Args:
        spark: a session.
        pipeline: what to read and what to keep.
        until_caught_up: end once everything present at the start is applied, instead of following the stream.
        until: ignore what arrived at this time (ISO 8601, with an offset) or later; with `until_caught_up`
            the query ends once everything that arrived earlier is applied.
        only: the one table to apply changes to, in a catch-up (`following.run`).
        keep_data: keep the bytes of each record until it is applied, at a cost in memory, so that a record
            that headpond fails on can be quarantined.
        on_batch: called on the driver after each batch with its number and its figures.
        on_begin: called on the driver with each batch's number before its first write; an exception ends
            the query with nothing of that batch written.
        before_write: called before each write of a batch where the driver writes, from any thread.
        on_given_up: called with its figures after chunks that waited longer than `chunk_timeout` went to
            quarantine, between two batches (`spark.following.upkeep`).

    Returns:
        The running query; `awaitTermination()` waits for it.

    Raises:
        ConfigurationError: a table of the lake contradicts the pipeline.
        RecordFault (from the query): headpond failed on a change, and its bytes are not kept.
        UsageError: the session is a client of Spark Connect.
    """
    refuse_connect(spark, "Following a stream")
    lake = open_lake(pipeline)
    widen(lake)
    lake.prepare(rebuilt=read_again(pipeline, only), source=pipeline.source.described)
    if only is None:
        lake.retire_tombstones(pipeline.target.tombstone_retention_ms)
    else:
        lake = lake.catching_up(only)
    # Only where tombstones were dropped can a change be too late, and need its bytes for quarantine. A run
    # that goes on drops them where it found some; the first ones of a lake are dropped at the next start.
    may_drop = lake.tombstones.version() >= 0 and not until_caught_up
    keep_data |= may_drop or bool(lake.tombstones.horizons_ns())
    config = lake.config.for_run(only=only, keep_data=keep_data)

    target = pipeline.target
    master = str(spark.sparkContext.master)
    distributed, shared = by_executors(target, master), only is not None
    # A lake that travels to executors must not take along what the caller holds: there tasks show progress.
    lake.before_write = lake.before_write if distributed else lambda _: before_write()
    # Workers write into it and the driver reads, on one machine alone.
    folder = Folder() if not distributed and _is_one_machine(master) else None
    apply_here = _to_driver(folder, of_archive=pipeline.source.archive is not None)
    if distributed:
        for typed in lake.typed.values():
            typed.file.engine.write = rewriting(spark)

    query: StreamingQuery | None = None
    waiting = chunk_rules(pipeline, config)
    idle = waiting is None or only is not None
    upkeep = Upkeep(
        lake,
        waiting,
        None if idle else read_up_to_of(pipeline, until_caught_up=until_caught_up),
        # Tombstones are dropped where decoders keep what that needs.
        retention_ms=None if until_caught_up or not keep_data else target.tombstone_retention_ms,
        beside=open_lake(pipeline),
        versions_ms=None if until_caught_up or not target.maintenance else target.version_retention_ms,
        is_active=lambda: query is not None and query.isActive,
        on_given_up=on_given_up,
    )

    @carried
    def apply(frame: DataFrame, batch_id: int) -> None:
        with upkeep.writing:
            apply_one(frame, batch_id)
        upkeep.give_up_due()

    def apply_one(frame: DataFrame, batch_id: int) -> None:
        if on_begin is not None:
            on_begin(batch_id)
        query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or "headpond"
        number = (query_id, batch_id)
        if distributed:
            applied = apply_frame(lake, frame, chunks=upkeep.chunks, transaction=number, shared=shared)
        else:
            step = partial(apply_batch, lake, transaction=number, shared=shared)
            sparing = partial(apply_sparing, apply=lambda part: step(part, chunks=upkeep.chunks(part)))
            applied = apply_here(frame, sparing)
        if not until_caught_up:
            lake.extras.close(ended=False)  # a run that ends does so once, at its end
        logger.debug("batch %d applied: %s", batch_id, {t: dict(c) for t, c in applied.tables.items()})
        if on_batch is not None:
            on_batch(batch_id, applied)

    decoded = decoded_changes(
        spark, pipeline, Rules(config, distributed, folder.path if folder else None), until=until
    )
    query = _started(decoded.writeStream.foreachBatch(apply), target, until_caught_up=until_caught_up)
    upkeep.start()
    return query


def _started(writer: DataStreamWriter, target: Target, *, until_caught_up: bool) -> StreamingQuery:
    writer = writer.option("checkpointLocation", _for_spark(target.checkpoint))
    if until_caught_up:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{target.trigger_ms} milliseconds").start()


def _to_driver(folder: Folder | None, *, of_archive: bool) -> Callable[[DataFrame, Apply], Applied]:
    """Return what applies a batch in the driver, by the way its rows come there."""
    if folder is not None:
        return lambda frame, apply: apply_as_it_comes(folder, frame.toArrow, apply)
    # A stream's batch is bounded; a compressed file may expand to much more than its bytes.
    return apply_collected if of_archive else lambda frame, apply: apply_in_parts(frame.toArrow(), apply)


def by_executors(target: Target, master: str) -> bool:
    """Return whether executors write large batches: as asked, or by themselves."""
    if target.engine == "auto":
        return is_remote(target.path) and not _is_one_machine(master)
    return target.engine == "spark"


def _is_one_machine(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _for_spark(place: str) -> str:
    """Write a URL of S3 with the scheme that Spark's jars know, and of a folder that it is one here."""
    if not is_remote(place):  # with HADOOP_CONF_DIR set, a path alone may be one of HDFS
        return f"file://{Path(place).absolute()}"
    return "s3a://" + place.partition("://")[2] if is_s3(place) else place
