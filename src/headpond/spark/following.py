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
from dataclasses import replace
from typing import TYPE_CHECKING

from headpond.changes.assemble import ChunkRules
from headpond.pipeline.lake import open_lake, open_ledger
from headpond.spark.decoding import RULES, DecodedArchiveSource, DecodedKinesisSource, written_rules
from headpond.spark.delta_file import SparkFiles
from headpond.spark.delta_jars import require_delta
from headpond.spark.errors import carried
from headpond.spark.parts import apply_in_parts
from headpond.spark.spread import apply_frame
from headpond.tables.apply import Applied, Chunks, apply_batch
from headpond.tables.beside import apply_beside
from headpond.tables.ledger_apply import apply_records
from headpond.tables.remote import is_remote, is_s3

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from headpond.changes.decoders import Config
    from headpond.pipeline import Pipeline
    from headpond.tables.apply import DecodedBatch

logger = logging.getLogger(__name__)


def decoded_changes(
    spark: SparkSession, pipeline: Pipeline, config: Config, *, outline: bool = False
) -> DataFrame:
    """Read the pipeline's source as a streaming frame of decoded parts (`decoded.FRAME_SCHEMA`)."""
    source = pipeline.source
    if source.archive is None:
        kind, options = DecodedKinesisSource, source.source_options()
    else:
        kind = DecodedArchiveSource
        options = {
            "path": source.archive,
            "maxBytesPerTrigger": str(source.max_bytes_per_trigger),
            # As written: an identity must not change when the folder is moved.
            "streamName": source.archive_as_written or source.archive,
            "deaggregate": str(source.deaggregate).lower(),
            "onMalformed": source.on_malformed,
        }
        if is_remote(source.archive) and pipeline.target.storage_options:
            options["storageOptions"] = json.dumps(pipeline.target.storage_options)
    spark.dataSource.register(kind)
    reader = spark.readStream.format(kind.name()).options(**options)
    return reader.option(RULES, written_rules(config, outline=outline)).load()


def follow(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    until_caught_up: bool = False,
    only: str | None = None,
    on_batch: Callable[[int, Applied], None] | None = None,
) -> StreamingQuery:
    """Start the query that applies the source's changes to the lake.

    Args:
        spark: a session.
        pipeline: what to read and what to keep.
        until_caught_up: end when everything present at the start is applied, instead of going on.
        only: the one table to apply changes to, beside the pipeline itself (`spark.catch_up`).
        on_batch: called on the driver after each batch with its number and its figures.

    Returns:
        The running query; `awaitTermination()` waits for it.

    Raises:
        ConfigurationError: a table of the lake contradicts the pipeline.
        EnvironmentLacks: the session cannot merge into Delta tables, though the pipeline says it should.
    """
    if pipeline.source.format == "qldb":
        return follow_ledger(spark, pipeline, until_caught_up=until_caught_up, on_batch=on_batch)
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
    # Only where tombstones were dropped can a change be too late, and need its bytes for quarantine.
    config = replace(config, keep_data=lake.tombstones.newest_horizon_ns() is not None, only=only)

    target = pipeline.target
    rules = ChunkRules(timeout_ms=target.chunk_timeout_ms)
    spread = merging and only is None

    def chunks(batch: DecodedBatch) -> Chunks:
        # Files may come in any order: only a stream that is read in step with itself can tell what is late.
        in_step = only is None and not (until_caught_up and pipeline.source.archive is not None)
        now = batch.read_up_to if in_step else None
        return Chunks(config, rules, target.chunk_memory_bytes, target.chunk_disk_bytes, now)

    @carried
    def apply(frame: DataFrame, batch_id: int) -> None:
        files.session = frame.sparkSession
        query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or "headpond"
        if spread:
            applied = apply_frame(lake, frame, chunks=chunks, transaction=(query_id, batch_id))
        elif only is None:
            number = (query_id, batch_id)
            applied = apply_in_parts(
                frame.toArrow(), lambda part: apply_batch(lake, part, chunks=chunks(part), transaction=number)
            )
        else:
            applied = apply_in_parts(
                frame.toArrow(), lambda part: apply_beside(lake, part, chunks=chunks(part))
            )
        logger.info("batch %d applied: %s", batch_id, {t: dict(c) for t, c in applied.tables.items()})
        if on_batch is not None:
            on_batch(batch_id, applied)

    decoded = decoded_changes(spark, pipeline, config, outline=spread)
    return _started(decoded, pipeline, apply, until_caught_up=until_caught_up)


def follow_ledger(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    until_caught_up: bool = False,
    on_batch: Callable[[int, Applied], None] | None = None,
) -> StreamingQuery:
    """Start the query that applies QLDB records to the lake; `follow` calls it where the source has those."""
    lake = open_ledger(pipeline)
    lake.prepare()

    @carried
    def apply(frame: DataFrame, batch_id: int) -> None:
        query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or "headpond"
        number = (query_id, batch_id)
        applied = apply_in_parts(frame.toArrow(), lambda part: apply_records(lake, part, transaction=number))
        if lake.config.verify and not until_caught_up and lake.completed():
            lake.close_journal()  # a run that ends does so once, at its end
        logger.info("batch %d applied: %s", batch_id, {t: dict(c) for t, c in applied.tables.items()})
        if on_batch is not None:
            on_batch(batch_id, applied)

    decoded = decoded_changes(spark, pipeline, lake.config)
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


def _for_spark(place: str) -> str:
    """Write a URL of S3 with the scheme that Spark's jars know."""
    return "s3a://" + place.partition("://")[2] if is_s3(place) else place
