"""Spark sink `kinesis`: the rows of a frame as user records of a stream, at least once each.

::

    task ─► rows ─► producer (aggregate by predicted shard · limit · PutRecords · retry per entry) ─► stream
             │                                                        │
             └ null, or larger than a record may be:                  └ not acknowledged: the task fails
               the task fails, or the row is put aside (`dead_letters`)

A task succeeds only when the stream acknowledged every row, or it is put aside. A task or a batch that is
tried again puts all of its rows again; nothing takes the first ones back. With `identity = tags` each row
carries which one it is, by which `without_repeats` removes duplicates::

    headpond-row = 4f0c…e1 : 17 : 3 : 1042
                   query    batch partition place in the partition

A retried task numbers its rows from 0 again, and Spark does not promise the same rows in the same order. So a
row is a duplicate only where identity, key and data agree: rows that changed places are kept twice, not lost.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import chain, count, islice, repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from headpond.core.errors import ConfigurationError, HeadpondError, ServiceFailure, StreamNotFound, UsageError
from headpond.core.options import Options
from headpond.kinesis.api.calls import check_stream
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.planning.options import CONNECTION_OPTIONS
from headpond.kinesis.producer import BlockingProducer, ProducerSettings, PutFailed
from headpond.kinesis.producer.records import Puttable
from headpond.kpl import Tag
from headpond.spark.errors import carried
from headpond.spark.session.workers import freeze_worker_heap
from headpond.spark.sinks.dead_letters import DeadLetters, Place, settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

IDENTITY_TAG = "headpond-row"
_KEYS = ("_identity", "_content")


def without_repeats(frame: DataFrame) -> DataFrame:
    """Keep the first of the rows that a Kinesis sink with `identity` put more than once.

    The rows are those of the Kinesis source with `includeTags`; without an identity all are kept. In a batch
    read this is a shuffle; in a query it keeps the identity of every row as state, for ever: for a
    long-running query, merge into a table by identity instead.

    Raises:
        UsageError: The frame lacks a column that this needs.
    """
    needed = ("tags", "partition_key", "data", "shard_id", "sequence_number", "sub_sequence_number")
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise UsageError(
            f"Repeats cannot be removed from a frame without {', '.join(missing)}.",
            next_step="Read the stream with includeTags = true, and remove repeats before selecting columns.",
            columns=list(frame.columns),
        )
    own = F.try_element_at(F.filter("tags", lambda tag: tag.key == IDENTITY_TAG), F.lit(1))["value"]
    place = F.concat_ws("/", "shard_id", "sequence_number", F.col("sub_sequence_number").cast("string"))
    content = F.sha2(F.concat(F.encode(F.concat("partition_key", F.lit("\0")), "UTF-8"), F.col("data")), 256)
    named = frame.withColumns({"_identity": F.coalesce(own, place), "_content": content})
    return named.dropDuplicates(list(_KEYS)).drop(*_KEYS)


logger = logging.getLogger(__name__)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


PRODUCER_OPTIONS = tuple(_camel(each.name) for each in fields(ProducerSettings))
SINK_OPTIONS = (*CONNECTION_OPTIONS, "identity", "deadLetterPath", "storageOptions", *PRODUCER_OPTIONS)

_OWN_DEFAULTS = {
    # A task writes as fast as it can read, so rows wait behind a shard's limits for as long as there are
    # rows: patience has to cover what all tasks together may have outstanding.
    "recordttlms": "300000",
    "maxoutstandingbytes": str(32 << 20),
}
_SPARKS_OWN = ("checkpointLocation",)
_MOST_NAMES = 20  # of streams that exist, in the facts of an error that passes through Spark's text
_COLUMNS: dict[str, tuple[str, ...]] = {
    "data": ("binary", "string"),
    "partition_key": ("string",),
    "explicit_hash_key": ("string",),
}
_OPTIONAL = {"explicit_hash_key"}


class RowsNotPut(ServiceFailure):
    """Rows of a task are not known to be in the stream; `facts` has their number and the reasons."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Where and how to write; picklable, holds no secret."""

    connection: ConnectionSettings
    producer: ProducerSettings
    identity: bool = False
    dead_letters: str | None = None  # a folder
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)  # what opens it


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc]  # pyspark is untyped here
    """What a task wrote, and where its dead letters are, if rows may be put aside."""

    rows: int
    aside: int = 0
    place: Place | None = None


def prepare(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkSettings:
    """Check options and columns before anything runs.

    Raises:
        ConfigurationError: An option is unknown or wrong, a column is missing, unknown or of a wrong type, or
            the stream would have to be overwritten.
    """
    known = Options(options, (*SINK_OPTIONS, *_SPARKS_OWN), "sink kinesis")
    if overwrite:
        raise ConfigurationError(
            "A Kinesis stream cannot be overwritten, only appended to.",
            next_step='Use mode("append"), or outputMode("append") or "update" of a query.',
        )
    _check_columns(schema)
    given = {name: value for name in SINK_OPTIONS if (value := known.text(name)) is not None}
    own = {name.lower(): value for name, value in given.items() if name in PRODUCER_OPTIONS}
    producer = ProducerSettings.from_options({**_OWN_DEFAULTS, **own})
    identity = known.choice("identity", ("none", "tags"), "none") == "tags"
    if identity and not producer.aggregation_enabled:
        raise ConfigurationError(
            "Option identity of the sink kinesis is tags, which only aggregates can carry, and "
            "aggregationEnabled is false.",
            next_step="Remove one of the two.",
            option="identity",
        )
    if known.text("storageOptions") is not None and known.text("deadLetterPath") is None:
        raise ConfigurationError(
            "Option storageOptions belongs to deadLetterPath of the sink kinesis, which is not given.",
            next_step="Give deadLetterPath, or remove it.",
            option="storageOptions",
        )
    return SinkSettings(
        ConnectionSettings.from_options(given),
        producer,
        identity,
        known.text("deadLetterPath"),
        known.texts("storageOptions"),
    )


def _check_columns(schema: StructType) -> None:
    found = {each.name: each.dataType.simpleString() for each in schema.fields}
    expected = ", ".join(
        f"{name} ({' or '.join(types)}{', optional' if name in _OPTIONAL else ''})"
        for name, types in _COLUMNS.items()
    )
    wrong = [f"{name} is missing" for name in _COLUMNS if name not in found and name not in _OPTIONAL]
    wrong += [f"{name} is not one of the sink's" for name in found if name not in _COLUMNS]
    wrong += [
        f"{name} is {kind}" for name, kind in found.items() if name in _COLUMNS and kind not in _COLUMNS[name]
    ]
    if wrong:
        raise ConfigurationError(
            f"The frame's columns do not fit the sink kinesis: {'; '.join(wrong)}.",
            next_step=f"Select {expected}.",
            columns=found,
        )


_MOST_LENT = 4
_idle: dict[tuple[ConnectionSettings, ProducerSettings], BlockingProducer] = {}


@contextmanager
def lent_producer(settings: SinkSettings) -> Iterator[BlockingProducer]:
    """Lend this process's producer for a stream: one client, one role and one shard map for all its tasks.

    They are renewed where the service refuses the credentials, or stores records in other shards than the map
    says. After an error it is closed.
    """
    key = (settings.connection, settings.producer)
    producer = _idle.pop(key, None)
    if producer is None:
        producer = BlockingProducer(*key)
        producer.start()
    try:
        yield producer
    except BaseException:
        producer.close()
        raise
    surplus = [_idle.pop(key, None), _idle.pop(next(iter(_idle))) if len(_idle) >= _MOST_LENT else None]
    _idle[key] = producer
    for each in surplus:
        if each is not None:
            each.close()


class _Writing:
    """What the batch and the streaming writer share; sent to the tasks."""

    _streaming = False

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings
        self._write_id = uuid.uuid4().hex  # stands for the query id in a batch write; the same in all tasks

    @carried
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Put one task's rows, and wait until the stream has them all."""
        batches = (batch for batch in iterator if batch.num_rows)
        first, place = next(batches, None), self._place()
        if first is None:
            return Written(0, place=place)
        tags = self._tags() if self.settings.identity else None
        rows = (row for batch in chain([first], batches) for row in _rows(batch, tags, place))
        with lent_producer(self.settings) as producer:
            freeze_worker_heap()
            before = producer.acknowledged
            try:
                if place is None:
                    return Written(producer.send_all(rows))
                most_bytes = self.settings.producer.max_user_record_bytes
                with DeadLetters(place, most_bytes, self.settings.storage_options) as letters:
                    producer.send_all(letters.sorted_out(rows), aside=letters.take)
                return Written(producer.acknowledged - before, letters.count, place)
            except PutFailed as error:
                raise self._summed_up(error, producer.acknowledged - before) from error

    def _tags(self) -> Iterator[tuple[Tag, ...]]:
        """Number a task's rows: query, batch, partition, place; the same when the task is tried again."""
        prefix = ":".join(self._task()) + ":"
        return ((Tag(IDENTITY_TAG, f"{prefix}{place}"),) for place in count())

    def _place(self) -> Place | None:
        """Return where the dead letters of this try of a task go."""
        if self.settings.dead_letters is None:
            return None
        write, batch, partition = self._task()
        return Place.of(f"{self.settings.dead_letters.rstrip('/')}/{write}/{batch}", f"{partition}.jsonl")

    def _task(self) -> tuple[str, str, str]:
        """Return query (or write), batch and partition."""
        task = TaskContext.get()
        assert task is not None
        query = task.getLocalProperty("sql.streaming.queryId") if self._streaming else None
        batch = task.getLocalProperty("streaming.sql.batchId") if query else None
        return (query or self._write_id).replace("-", ""), str(batch or 0), str(task.partitionId())

    def _summed_up(self, error: PutFailed, acknowledged: int) -> HeadpondError:
        """Return the error without the thousands of single failures, which would not pass through Spark."""
        reasons: dict[str, int] = error.facts["reasons"]
        stream = self.settings.connection.stream
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        failures: dict[int, PutFailed] = error.facts["failures"]
        example = next(iter(failures.values()))
        facts = {"failed": len(failures), "acknowledged": acknowledged, "reasons": reasons}
        sentence = (
            f"{len(failures)} rows of a task were not put into stream {stream}, "
            f"{acknowledged} were: {counts}."
        )
        if "ResourceNotFoundException" in reasons:
            missing = self._missing()
            if missing is not None:
                near = {**missing.facts, "existing": missing.facts.get("existing", [])[:_MOST_NAMES]}
                return StreamNotFound(
                    f"{missing.message} {sentence}", next_step=missing.next_step, **near, **facts
                )
        return RowsNotPut(
            f"{sentence} The first: {example.message}",
            next_step="Start the query again when the cause is fixed: the batch's rows are all put again.",
            stream=stream,
            **facts,
        )

    def _missing(self) -> StreamNotFound | None:
        """Ask whether the stream is missing, and which ones there are."""
        try:
            check_stream(self.settings.connection)
        except StreamNotFound as missing:
            return missing
        except HeadpondError:
            logger.warning("Whether the stream exists could not be asked.", exc_info=True)
        return None

    def _ended(self, messages: Sequence[Any], what: str, *, well: bool) -> None:
        """Log the figures; leave what this try put aside if it went well, and nothing of others."""
        written = [each for each in messages if isinstance(each, Written)]
        rows, aside = sum(each.rows for each in written), sum(each.aside for each in written)
        logger.info("%s: %d rows are in stream %s.", what, rows, self.settings.connection.stream)
        places = {each.place for each in written if each.place is not None and each.aside and well}
        for folder in {each.place.folder for each in written if each.place is not None}:
            settle(folder, places, self.settings.storage_options)
            if places:
                logger.warning("%d rows can never be in the stream and are in %s.", aside, folder)


class KinesisWriter(_Writing, DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is untyped here
    """`frame.write.format("headpond-kinesis")`."""

    def commit(self, messages: Sequence[Any]) -> None:
        """Log the figures, and clear up."""
        self._ended(messages, "written", well=True)

    def abort(self, messages: Sequence[Any]) -> None:
        """Log the figures, and clear up: rows that are in the stream cannot be taken back."""
        self._ended(messages, "failed, in part written", well=False)


class KinesisStreamWriter(_Writing, DataSourceStreamArrowWriter):  # type: ignore[misc]  # pyspark is untyped here
    """`frame.writeStream.format("headpond-kinesis")`."""

    _streaming = True

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        """Log the figures, and clear up."""
        self._ended(messages, f"batch {batchId} written", well=True)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """Log the figures, and clear up: the batch is tried again as a whole."""
        self._ended(messages, f"batch {batchId} failed, in part written", well=False)


def _rows(
    batch: pa.RecordBatch, tags: Iterator[tuple[Tag, ...]] | None, place: Place | None
) -> Iterator[Puttable]:
    """Return a batch as what the producer takes, each row with the next tags if there are some.

    Raises:
        UsageError: A row has no data or no partition key, and there is no place to put it aside.
    """
    for name in () if place is not None else ("data", "partition_key"):
        nulls = batch[name].null_count
        if nulls:
            raise UsageError(
                f"Column {name} is null in {nulls} of {batch.num_rows} rows that are to be put into Kinesis.",
                next_step="Filter such rows out, or fill them in.",
                column=name,
                nulls=nulls,
            )
    columns: list[Any] = [batch["partition_key"].to_pylist(), batch["data"].cast(pa.binary()).to_pylist()]
    if "explicit_hash_key" in batch.schema.names and batch["explicit_hash_key"].null_count < batch.num_rows:
        columns.append(batch["explicit_hash_key"].to_pylist())
    elif tags is not None:
        columns.append(repeat(None, batch.num_rows))
    if tags is not None:
        columns.append(islice(tags, batch.num_rows))
    return zip(*columns, strict=True)
