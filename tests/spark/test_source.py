"""The Kinesis source in Spark, on the local Kinesis: every record exactly once, whatever happens between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import ConfigurationError, DataLoss, MissingRequirement, StreamNotFound
from headpond.kpl import UserRecord, encode
from headpond.localkinesis import Settings
from headpond.localkinesis.testing import local_kinesis, put_all, read_all
from headpond.spark import register
from headpond.spark.errors import headpond_error_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from headpond.localkinesis import LocalKinesis

pytestmark = pytest.mark.spark

STREAM = "orders"
Row = tuple[str, int, int, bytes]


class Sink:
    """Rows of each batch by its number; each is read twice, as two actions on one batch would."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.repeated: dict[int, list[Row]] = {}

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = self.rows(frame)
        self.repeated[number] = self.rows(frame)

    @staticmethod
    def rows(frame: DataFrame) -> list[Row]:
        columns = ("shard_id", "sequence_number", "sub_sequence_number", "data")
        return sorted((r[0], int(r[1]), r[2], bytes(r[3])) for r in frame.select(*columns).collect())

    @property
    def all(self) -> list[Row]:
        return sorted(row for rows in self.batches.values() for row in rows)


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    """A stream with a registered consumer, whose subscriptions may follow each other at once."""
    with local_kinesis(STREAM, shards=2, settings=Settings(resubscribe_ms=0, heartbeat_ms=50)) as running:
        running.engine.consumers.register(STREAM, "app")
        yield running


POLLING: dict[str, str] = {}
FAN_OUT = {"consumerMode": "efo", "consumerName": "app"}


def held(kinesis: LocalKinesis) -> list[Row]:
    return sorted((r.shard_id, r.sequence_number, 0, r.data) for r in read_all(kinesis.client(), STREAM))


def put(kinesis: LocalKinesis, first: int, count: int) -> None:
    put_all(kinesis.client(), STREAM, [(f"k{n}", b"%d" % n) for n in range(first, first + count)])


def frame(spark: SparkSession, kinesis: LocalKinesis, **options: str) -> DataFrame:
    register(spark)
    given = {"streamName": STREAM, "endpointUrl": kinesis.endpoint_url, "startingPosition": "TRIM_HORIZON"}
    return spark.readStream.format("kinesis").options(**{**given, **options}).load()


def run(spark: SparkSession, kinesis: LocalKinesis, folder: Path, sink: Any, **options: str) -> None:
    """Run to the end of what is there now."""
    query = (
        frame(spark, kinesis, **options)
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


@pytest.mark.parametrize("mode", [POLLING, FAN_OUT], ids=["polling", "efo"])
def test_exact_through_restarts_splits_and_merges(
    spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path, mode: dict[str, str]
) -> None:
    """Three runs, bounded batches, a split and a merge while stopped: each record once, repeatably."""
    sink = Sink()
    put(kinesis, 0, 50)
    run(spark, kinesis, tmp_path, sink, maxRecordsPerTrigger="20", **mode)
    assert held(kinesis) == sink.all
    assert max(map(len, sink.batches.values())) <= 20
    low, high = kinesis.engine.split_shard(STREAM, "shardId-000000000000")
    put(kinesis, 50, 30)
    kinesis.engine.merge_shards(STREAM, low.shard_id, high.shard_id)
    put(kinesis, 80, 30)
    run(spark, kinesis, tmp_path, sink, **mode)
    assert held(kinesis) == sink.all
    run(spark, kinesis, tmp_path, sink, **mode)
    assert held(kinesis) == sink.all
    assert sink.repeated == sink.batches


def test_a_batch_that_failed_is_read_again_the_same(
    spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path
) -> None:
    """A batch whose sink fails is tried again by the next run with the same rows, though more came."""
    seen: list[list[Row]] = []

    class Crash(Exception):
        pass

    def fail(batch: DataFrame, _number: int) -> None:
        seen.append(Sink.rows(batch))
        if seen[-1]:
            raise Crash

    run(spark, kinesis, tmp_path, Sink(), startingPosition="LATEST")
    put(kinesis, 0, 20)
    with pytest.raises(Exception, match="Crash"):
        run(spark, kinesis, tmp_path, fail, startingPosition="LATEST")
    put(kinesis, 20, 20)
    sink = Sink()
    run(spark, kinesis, tmp_path, sink, startingPosition="LATEST")
    assert seen[-1] in sink.batches.values()
    assert held(kinesis) == sink.all


def test_running_on_through_a_split(spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path) -> None:
    """A query that runs on reads what comes, through a split, and tells how far it is behind."""
    sink = Sink()
    put(kinesis, 0, 20)
    query = (
        frame(spark, kinesis, probeLag="0 ms")
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()
        kinesis.engine.split_shard(STREAM, "shardId-000000000001")
        put(kinesis, 20, 20)
        query.processAllAvailable()
        query.processAllAvailable()
        progress = query.lastProgress
    finally:
        query.stop()
    assert held(kinesis) == sink.all
    assert progress is not None
    assert "millis_behind_latest" in str(progress["sources"][0]["latestOffset"])
    assert "tolerated_losses" in str(progress["sources"][0]["latestOffset"])


def test_a_batch_read_opens_aggregates(spark: SparkSession, kinesis: LocalKinesis) -> None:
    """`spark.read` takes what is there, aggregates opened, with every column."""
    packed = encode([UserRecord("a", b"1", "7"), UserRecord("b", b"2")])
    client = kinesis.client()
    client.put_record(
        StreamName=STREAM, PartitionKey="x", ExplicitHashKey=packed.explicit_hash_key, Data=packed.data
    )
    put(kinesis, 5, 1)
    register(spark)
    options = {"streamName": STREAM, "endpointUrl": kinesis.endpoint_url}
    rows = [row.asDict() for row in spark.read.format("headpond-kinesis").options(**options).load().collect()]
    found = {
        (
            r["partition_key"],
            r["explicit_hash_key"],
            r["sub_sequence_number"],
            r["aggregated"],
            bytes(r["data"]),
        )
        for r in rows
    }
    assert found == {("a", "7", 0, True, b"1"), ("b", None, 1, True, b"2"), ("k5", None, 0, False, b"5")}
    assert {r["stream"] for r in rows} == {STREAM}
    assert all(r["approximate_arrival_timestamp"] is not None and r["problem"] is None for r in rows)
    closed = spark.read.format("kinesis").options(**options, deaggregate="false", includeTags="true").load()
    assert closed.columns[-1] == "tags"
    assert closed.count() == 2


def test_an_empty_stream_has_no_rows(spark: SparkSession, kinesis: LocalKinesis) -> None:
    """Read once, from the horizon, from now or from a time: no rows, and no error."""
    register(spark)
    reader = spark.read.format("headpond-kinesis").options(
        streamName=STREAM, endpointUrl=kinesis.endpoint_url
    )
    for position in ("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP 2026-01-01T00:00:00Z"):
        assert reader.option("startingPosition", position).load().collect() == []


def test_only_the_columns_that_a_schema_names(
    spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path
) -> None:
    """`schema` chooses columns, in its order, of both kinds of read; others are refused."""
    put(kinesis, 0, 20)
    register(spark)
    options = {"streamName": STREAM, "endpointUrl": kinesis.endpoint_url, "startingPosition": "TRIM_HORIZON"}
    wanted = "data BINARY, sub_sequence_number BIGINT"
    rows = spark.read.schema(wanted).format("kinesis").options(**options).load()
    assert rows.columns == ["data", "sub_sequence_number"]
    expected = sorted((b"%d" % n, 0) for n in range(20))
    assert sorted((bytes(row[0]), row[1]) for row in rows.collect()) == expected
    found: list[tuple[bytes, int]] = []
    query = (
        spark.readStream.schema(wanted)
        .format("kinesis")
        .options(**options)
        .load()
        .writeStream.foreachBatch(lambda frame, _: found.extend((bytes(r[0]), r[1]) for r in frame.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(found) == expected
    for wrong in ("data STRING", "payload BINARY"):
        with pytest.raises(Exception, match="HEADPOND") as caught:
            spark.read.schema(wrong).format("kinesis").options(**options).load().collect()
        assert isinstance(headpond_error_of(caught.value), ConfigurationError)


def test_a_consumer_is_registered_and_the_encryption_type_is_a_column(
    spark: SparkSession, kinesis: LocalKinesis
) -> None:
    """Both where they are asked for; the local Kinesis does not say how it encrypts, which is null."""
    put(kinesis, 0, 20)
    register(spark)
    options = {"streamName": STREAM, "endpointUrl": kinesis.endpoint_url, "includeEncryptionType": "true"}
    efo = {"consumerMode": "efo", "consumerName": "new", "registerConsumer": "true"}
    rows = spark.read.format("kinesis").options(**options, **efo).load()
    assert rows.columns[-1] == "encryption_type"
    found = sorted((bytes(row.data), row.encryption_type) for row in rows.collect())
    assert found == sorted((b"%d" % n, None) for n in range(20))
    assert [each.name for each in kinesis.engine.consumers.of_stream(STREAM)] == ["app", "new"]
    chosen = spark.read.schema("encryption_type STRING").format("kinesis").options(**options).load()
    assert [row[0] for row in chosen.collect()] == [None] * 20


def test_tasks_are_dealt_out(spark: SparkSession, kinesis: LocalKinesis) -> None:
    """By what they hold and the cores there are, or as many as `shardsPerTask` says."""
    client = kinesis.client()
    client.create_stream(StreamName="wide", ShardCount=40)
    for shard in kinesis.engine.shards("wide"):
        client.put_record(StreamName="wide", PartitionKey="k", ExplicitHashKey=str(shard.low), Data=b"x")
    register(spark)

    def partitions(**options: str) -> int:
        given = {"streamName": "wide", "endpointUrl": kinesis.endpoint_url, **options}
        rows = spark.read.format("kinesis").options(**given).load()
        assert rows.select("shard_id").distinct().count() == 40
        return rows.rdd.getNumPartitions()

    assert partitions() == 1
    assert partitions(shardsPerTask="1") == 40
    assert partitions(shardsPerTask="25") == 2
    for shard in kinesis.engine.shards("wide"):
        kinesis.engine.put("wide", "k", bytes(500_000), explicit_hash_key=shard.low)
    assert partitions() == spark.sparkContext.defaultParallelism


def test_errors_arrive_as_ours(spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path) -> None:
    """Unknown option, missing stream, lost records: found again as our own classes."""
    with pytest.raises(Exception, match="HEADPOND") as caught:
        frame(spark, kinesis, streamNam="x")
    error = headpond_error_of(caught.value)
    assert isinstance(error, ConfigurationError)
    assert error.next_step == "Did you mean streamName?"
    with pytest.raises(Exception, match="HEADPOND") as caught:
        run(spark, kinesis, tmp_path, Sink(), streamName="nowhere")
    assert isinstance(headpond_error_of(caught.value), StreamNotFound)
    with pytest.raises(Exception, match="HEADPOND") as caught:
        run(spark, kinesis, tmp_path / "efo", Sink(), consumerMode="efo", consumerName="nobody")
    missing = headpond_error_of(caught.value)
    assert isinstance(missing, MissingRequirement)
    assert missing.facts["consumer"] == "nobody"
    put(kinesis, 0, 20)
    run(spark, kinesis, tmp_path / "b", Sink())
    put(kinesis, 20, 20)
    numbers = [n for shard, n, _, _ in held(kinesis) if shard.endswith("0")]
    kinesis.engine.trim(STREAM, "shardId-000000000000", numbers[-1])
    with pytest.raises(Exception, match="HEADPOND") as caught:
        run(spark, kinesis, tmp_path / "b", Sink())
    loss = headpond_error_of(caught.value)
    assert isinstance(loss, DataLoss)
    assert loss.facts["shard_id"] == "shardId-000000000000"
