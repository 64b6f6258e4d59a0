"""Spark source `kinesis`: a stream's user records, in exact and repeatable micro-batches; the sink is `sink`.

Offsets are sequence numbers in Spark's checkpoint; nothing else is kept. Planning happens in one
process on the driver, reading in the executors' Python workers. A batch read (`spark.read`) takes what
the stream holds when it is planned.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headpond.core.in_step import APPLICATION
from headpond.kinesis.api.calls import calls_of
from headpond.kinesis.api.replies import Record
from headpond.kinesis.consumers import consumer_of
from headpond.kinesis.fanout import MOST_IDLE_EVENTS, reading_calls
from headpond.kinesis.planning.options import Limits, SourceSettings, read_options
from headpond.kinesis.planning.planner import Planner
from headpond.kinesis.planning.stream_state import refuse_another
from headpond.kinesis.reading.cursor import LossRule
from headpond.kinesis.reading.positions import Offset, read_offset
from headpond.kinesis.reading.reader import TIP_PATIENCE, ShardRange, in_batches, read_pages
from headpond.kpl.batch import OpenCounters
from headpond.kpl.records import open_records
from headpond.spark.errors import carried, sentences_for_people
from headpond.spark.session.settings import redact_options
from headpond.spark.session.workers import freeze_worker_heap, use_this_python
from headpond.spark.sinks.kinesis import KinesisStreamWriter, KinesisWriter, prepare
from headpond.spark.sources.rows import (
    Decoding,
    DecodingDataSource,
    as_spark,
    chosen_columns,
    register_source,
    source_schema,
)
from headpond.spark.sources.tasks import deal, interleaved

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

CORES = "HEADPOND_CORES"
"""Where `register` tells the planner, in a process without a session, how many tasks run at a time."""

_MOST = (1 << 63) - 1


@dataclass
class KinesisPartition(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """What one task reads: a range in each of a few shards."""

    ranges: list[ShardRange] = field(default_factory=list)
    retention_ms: int = 0
    created_ms: int = 0  # when the stream was created that the ranges are of
    consumer_arn: str | None = None  # of enhanced fan-out; None: polling


class _Planning:
    """What the batch and the streaming reader share; sent to workers without its planner."""

    def __init__(self, settings: SourceSettings, columns: pa.Schema | None = None) -> None:
        self.settings = settings
        self._columns = columns  # None: all
        self._planner: Planner | None = None
        self._consumer_arn: str | None = None

    @property
    def planner(self) -> Planner:
        """Return the planner, which connects when first asked for: reading in a worker needs none."""
        if self._planner is None:
            settings = self.settings
            calls = calls_of(settings.connection)
            if settings.consumer_name is not None:
                # Looked for here, so that a query with a wrong name does not begin.
                self._consumer_arn = consumer_of(
                    calls, settings.connection, settings.consumer_name, register=settings.register_consumer
                )
            self._planner = Planner(calls, self.settings)
        return self._planner

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}

    @carried
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges."""
        assert isinstance(partition, KinesisPartition)
        freeze_worker_heap()
        parts, columns = [partition.ranges], self._columns
        if self.settings.hash_range_filter != "off":
            # Records are judged by the hash keys of one shard at a time.
            parts = [[wanted] for wanted in partition.ranges]
        for batch in interleaved(self._opened(partition, part) for part in parts):
            yield batch if columns is None else batch.select(columns.names).cast(columns)

    def _opened(self, task: KinesisPartition, ranges: list[ShardRange]) -> Iterator[pa.RecordBatch]:
        """Yield the user records of ranges; of one shard where they are filtered by hash keys."""
        settings, found = self.settings, OpenCounters()
        pages = interleaved(self._pages(task, wanted) for wanted in ranges)
        for records in in_batches(
            pages, settings.connection.stream, encryption_type=settings.encryption_type
        ):
            for opened in open_records(
                records,
                deaggregate=settings.deaggregate,
                on_malformed=settings.on_malformed,
                tags=settings.tags,
                hash_range_filter=settings.hash_range_filter,
                hash_keys=ranges[0].hash_keys,
                counters=found,
            ):
                yield as_spark(opened)
        if found.range_filtered:
            logger.info(
                "%d user records of %s lie outside its hash keys and were left out (hashRangeFilter is %s).",
                found.range_filtered,
                ranges[0].shard_id,
                settings.hash_range_filter,
            )

    def _pages(self, task: KinesisPartition, wanted: ShardRange) -> Iterator[tuple[str, list[Record]]]:
        settings = self.settings
        connection = settings.connection

        def check() -> None:
            refuse_another(connection.stream, task.created_ms, calls_of(connection).describe().created_ms)

        loss = LossRule(connection.stream, task.retention_ms, settings.fail_on_data_loss, check=check)
        most_idle = TIP_PATIENCE if task.consumer_arn is None else MOST_IDLE_EVENTS
        with reading_calls(connection, task.consumer_arn) as calls:
            for records in read_pages(
                calls, wanted, loss, records_per_page=settings.records_per_page, most_idle=most_idle
            ):
                yield wanted.shard_id, records

    def tasks(self, start: Offset, end: Offset) -> list[KinesisPartition]:
        """Deal the ranges out: `shardsPerTask` to each task, or as their sizes and the cores ask for."""
        ranges, many = self.planner.ranges(start, end), self.settings.shards_per_task
        if many is None:
            cores = int(os.environ.get(CORES) or os.cpu_count() or 1)
            parts = deal([wanted.size_bytes for wanted in ranges], cores)
            dealt = [[ranges[number] for number in part] for part in parts]
        else:
            dealt = [ranges[first : first + many] for first in range(0, len(ranges), many)]
        facts = self.planner.retention_ms, end.created_ms, self._consumer_arn
        return [KinesisPartition(part, *facts) for part in dealt]


class KinesisStreamReader(_Planning, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark is untyped here
    """Micro-batches of a stream."""

    @carried
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""
        return self.planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return that there are bounds; the planner knows all of them, these types only one each."""
        limits = self.settings.limits
        if limits.records is not None:
            return ReadMaxRows(limits.records)
        if limits == Limits():
            return ReadAllAvailable()
        return ReadMaxBytes(limits.size_bytes or _MOST)  # Spark has no limit of time

    @carried
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the stream's ends now."""
        self.planner.fix_ends()

    @carried
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Plan the end of the next batch."""
        # Spark asks for everything where the user's trigger does (`once`); else it hands our bounds back.
        limits = Limits() if isinstance(limit, ReadAllAvailable) else None
        return self.planner.latest(read_offset(start), limits).to_json()

    @carried
    def reportLatestOffset(self) -> dict[str, Any]:
        """Report how far each shard's planning is behind its tip, and the gaps passed."""
        return {
            "millis_behind_latest": self.planner.behind_ms(),
            "tolerated_losses": self.planner.tolerated_losses,
        }

    @carried
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a batch into tasks."""
        return self.tasks(read_offset(start), read_offset(end))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's checkpoint is the only memory."""

    def stop(self) -> None:
        """End the planner's threads."""
        if self._planner is not None:
            self._planner.close()


class KinesisReader(_Planning, DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """What the stream holds now."""

    @carried
    def partitions(self) -> Sequence[InputPartition]:
        """Cut everything from the starting position to the ends of now into tasks."""
        try:
            start, end = self.planner.span()
            # Spark calls `read` once even where there is nothing to read.
            return self.tasks(start, end) or [KinesisPartition()]
        finally:
            self.planner.close()


def _columns(settings: SourceSettings) -> StructType:
    return source_schema(tags=settings.tags, encryption_type=settings.encryption_type)


class KinesisDataSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """`spark.readStream.format("headpond-kinesis")`, `read`, `writeStream` and `write`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name that no platform has of its own."""
        return "headpond-kinesis"

    @carried
    def schema(self) -> StructType:
        """Return the columns of user records."""
        return _columns(read_options(self.options))

    @carried
    def reader(self, schema: StructType) -> KinesisReader:
        """Read once, by default from the horizon."""
        settings = read_options(self.options, start="TRIM_HORIZON")
        return KinesisReader(settings, chosen_columns(schema, _columns(settings)))

    @carried
    def streamReader(self, schema: StructType) -> KinesisStreamReader:
        """Read in micro-batches."""
        settings = read_options(self.options)
        return KinesisStreamReader(settings, chosen_columns(schema, _columns(settings)))

    @carried
    def writer(self, schema: StructType, overwrite: bool) -> KinesisWriter:  # noqa: FBT001 (Spark's signature)
        """Write a frame."""
        return KinesisWriter(prepare(self.options, schema, overwrite=overwrite))

    @carried
    def streamWriter(self, schema: StructType, overwrite: bool) -> KinesisStreamWriter:  # noqa: FBT001 (Spark's name and signature)
        """Write micro-batches."""
        return KinesisStreamWriter(prepare(self.options, schema, overwrite=overwrite))


class ShortNamedKinesisDataSource(KinesisDataSource):
    """The same under the name `kinesis`."""

    @classmethod
    def name(cls) -> str:
        """Return the short name."""
        return "kinesis"


class DecodingKinesisReader(Decoding, KinesisStreamReader):
    """Micro-batches of a stream, decoded."""


class DecodedKinesisSource(DecodingDataSource):
    """`spark.readStream.format("headpond-decoded-kinesis")`: for `follow` alone."""

    format_name = "headpond-decoded-kinesis"

    def _reader(self) -> DecodingKinesisReader:
        return DecodingKinesisReader(read_options(self.options))


def register(spark: SparkSession) -> None:
    """Register `headpond-kinesis`, `kinesis` (both also sinks) and `headpond-archive`; repeating is harmless.

    On platforms with a built-in `kinesis`, use the long name. Secret options are hidden in what the session
    shows (`redact_options`).
    """
    from pyspark.sql.utils import is_remote

    from headpond.spark.sources.archive import ArchiveDataSource

    if not is_remote():  # a client of Spark Connect has no context: planning counts the cores where it runs
        spark.sparkContext.environment[CORES] = str(spark.sparkContext.defaultParallelism)
        spark.sparkContext.environment[APPLICATION] = spark.sparkContext.applicationId
    use_this_python(spark)
    for source in (KinesisDataSource, ShortNamedKinesisDataSource, ArchiveDataSource):
        register_source(spark, source)
    redact_options(spark)
    sentences_for_people()
