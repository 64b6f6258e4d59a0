"""The source in Spark while the service misbehaves: every record once, each batch the same to two actions."""

from __future__ import annotations

import os
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from headpond.localkinesis.testing import local_kinesis, put_all, read_all
from headpond.spark import register

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from headpond.localkinesis import LocalKinesis
    from headpond.localkinesis.faults import Rule

pytestmark = pytest.mark.spark

STREAM = "orders"
SPLIT = "shardId-000000000000"
Row = tuple[str, int, bytes]
READS = ("GetRecords", "GetShardIterator")


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    with local_kinesis(STREAM, shards=2) as running:
        yield running


def rows(frame: DataFrame) -> list[Row]:
    found = frame.select("shard_id", "sequence_number", "data").collect()
    return sorted((row[0], int(row[1]), bytes(row[2])) for row in found)


def held(kinesis: LocalKinesis) -> list[Row]:
    return sorted((r.shard_id, r.sequence_number, r.data) for r in read_all(kinesis.client(), STREAM))


def put(kinesis: LocalKinesis, first: int, count: int) -> None:
    put_all(kinesis.client(), STREAM, [(f"k{n}", b"%d" % n) for n in range(first, first + count)])


class Batches:
    """The rows of each batch, read by two actions that must see the same."""

    def __init__(self) -> None:
        self.all: list[Row] = []
        self.count = 0

    def __call__(self, frame: DataFrame, _number: int) -> None:
        seen = rows(frame)
        assert rows(frame) == seen
        self.all += seen
        self.count += 1


def run(spark: SparkSession, kinesis: LocalKinesis, folder: Path, batches: Any, **options: str) -> None:
    register(spark)
    given = {
        "streamName": STREAM,
        "endpointUrl": kinesis.endpoint_url,
        "startingPosition": "TRIM_HORIZON",
        "maxRecordsPerTrigger": "60",
        "maxRecordsPerFetch": "20",  # several replies a task: there is a middle to fail in
        **options,
    }
    query = (
        spark.readStream.format("headpond-kinesis")
        .options(**given)
        .load()
        .writeStream.foreachBatch(batches)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def throttled(kinesis: LocalKinesis) -> Rule:
    return kinesis.faults.throttle(0.5)


def failing(kinesis: LocalKinesis) -> Rule:
    return kinesis.faults.internal_failure(0.1)


def cut(kinesis: LocalKinesis) -> Rule:
    return kinesis.faults.cut(0.2, when="reply", calls=READS)


def expiring(kinesis: LocalKinesis) -> Rule:
    return kinesis.faults.expire_iterators(0.3)


FAULTS = [throttled, failing, cut, expiring]


def test_all_of_them_at_once(spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path) -> None:
    """Throttling, failures, cut replies and expiring iterators together, over some batches."""
    put(kinesis, 0, 120)
    for fault in (failing, cut, expiring):
        fault(kinesis)
    kinesis.faults.throttle(0.2)
    batches = Batches()
    run(spark, kinesis, tmp_path, batches)
    kinesis.faults.clear()
    assert sorted(batches.all) == held(kinesis)
    assert batches.count > 1


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault(spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path, fault: Any) -> None:
    """Half of all calls throttled; a tenth failing; replies cut; iterators expiring in mid-batch."""
    batches, rounds = Batches(), int(os.environ.get("HEADPOND_FAULT_ROUNDS", "10"))
    hits = 0
    for number in range(max(1, rounds // 2)):
        put(kinesis, number * 300, 300)
        rule = fault(kinesis)
        run(spark, kinesis, tmp_path, batches)
        hits += rule.hits
        kinesis.faults.clear()
    assert sorted(batches.all) == held(kinesis)
    assert hits


def test_a_split_during_a_batch(spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path) -> None:
    """A shard is split and written to while a batch that was planned before is being read."""

    class SplitInTheMiddle(Batches):
        def __call__(self, frame: DataFrame, number: int) -> None:
            # The plan is made, and nothing is read yet: reading starts with the first action.
            if number == 0:
                kinesis.engine.split_shard(STREAM, SPLIT)
                put(kinesis, 120, 60)
            slow = kinesis.faults.delay(100, calls=("GetRecords",))
            writer = Thread(target=put, args=(kinesis, 1000 + number * 10, 10))
            writer.start()
            super().__call__(frame, number)
            writer.join()
            kinesis.faults.remove(slow)

    put(kinesis, 0, 120)
    batches = SplitInTheMiddle()
    run(spark, kinesis, tmp_path, batches)
    # What came after the start of that run, the children's records among it, is the next run's.
    last = Batches()
    run(spark, kinesis, tmp_path, last, shardDiscoveryInterval="0 ms")
    assert sorted(batches.all + last.all) == held(kinesis)
    parents = {row[0] for row in batches.all}
    assert SPLIT in parents
    assert {row[0] for row in last.all} > {"shardId-000000000002", "shardId-000000000003"}
