"""Options of the source that only a query shows: loss gone on from, lease tables, filters, order, bounds."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from headpond.kpl import MalformedAggregate, UserRecord, encode
from headpond.localkinesis import Settings
from headpond.localkinesis.testing import ManualClock, local_kinesis, put_all, read_all
from headpond.spark import register
from headpond.spark.errors import headpond_error_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from headpond.localkinesis import LocalKinesis

pytestmark = pytest.mark.spark

STREAM = "orders"
FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"
HOUR_MS = 3_600_000
TOP = str((1 << 128) - 1)
Row = tuple[str, int, bytes]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def kinesis(clock: ManualClock) -> Iterator[LocalKinesis]:
    settings = Settings(resubscribe_ms=0, heartbeat_ms=50)
    with local_kinesis(STREAM, shards=2, clock=clock, settings=settings) as running:
        yield running


def put(kinesis: LocalKinesis, first: int, count: int) -> None:
    put_all(kinesis.client(), STREAM, [(f"k{n}", b"%d" % n) for n in range(first, first + count)])


def held(kinesis: LocalKinesis) -> list[Row]:
    return sorted((r.shard_id, r.sequence_number, r.data) for r in read_all(kinesis.client(), STREAM))


class Batches:
    """The rows of each batch."""

    def __init__(self) -> None:
        self.each: list[list[Row]] = []

    def __call__(self, frame: DataFrame, _number: int) -> None:
        rows = frame.select("shard_id", "sequence_number", "data").collect()
        self.each.append(sorted((row[0], int(row[1]), bytes(row[2])) for row in rows))

    @property
    def all(self) -> list[Row]:
        return sorted(row for rows in self.each for row in rows)


def given(kinesis: LocalKinesis, options: dict[str, str]) -> dict[str, str]:
    named = {} if "streamARN" in options else {"streamName": STREAM}
    return {**named, "endpointUrl": kinesis.endpoint_url, "startingPosition": "TRIM_HORIZON", **options}


def start(
    spark: SparkSession, kinesis: LocalKinesis, folder: Path, sink: Any, **options: str
) -> StreamingQuery:
    register(spark)
    frame = spark.readStream.format("kinesis").options(**given(kinesis, options)).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(processingTime="200 milliseconds").start()


def run(spark: SparkSession, kinesis: LocalKinesis, folder: Path, **options: str) -> tuple[Batches, Any]:
    """Read all there is; gives the batches and the last progress."""
    sink = Batches()
    query = start(spark, kinesis, folder, sink, probeLag="0 ms", **options)
    try:
        query.processAllAvailable()
        return sink, query.lastProgress
    finally:
        query.stop()


def test_loss_is_gone_on_from_warned_of_and_counted(
    spark: SparkSession,
    kinesis: LocalKinesis,
    clock: ManualClock,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """With failOnDataLoss=false: what is left, both sides of each gap in the log, and their number."""
    put(kinesis, 0, 20)
    before, progress = run(spark, kinesis, tmp_path, failOnDataLoss="false")
    assert before.all == held(kinesis)
    assert json.loads(progress["sources"][0]["latestOffset"])["tolerated_losses"] == 0
    last = {shard: max(n for name, n, _ in before.all if name == shard) for shard in (FIRST, SECOND)}
    put(kinesis, 20, 20)
    clock.advance(30 * HOUR_MS)
    put(kinesis, 40, 20)
    left = held(kinesis)
    assert len(left) == 20
    after, progress = run(spark, kinesis, tmp_path, failOnDataLoss="false")
    assert after.all == left
    assert json.loads(progress["sources"][0]["latestOffset"])["tolerated_losses"] == 2
    log = "".join(path.read_text() for path in tmp_path_factory.getbasetemp().glob("spark*/spark.log"))
    for shard, number in last.items():
        oldest = min(n for name, n, _ in left if name == shard)
        gap = f"the position {number} is gone, and the oldest record left is {oldest}"
        assert f"Records of {shard} in {STREAM} are lost: {gap}. Going on with what is left" in log


def test_the_options_that_choose_what_is_read(
    spark: SparkSession, kinesis: LocalKinesis, clock: ManualClock, tmp_path: Path
) -> None:
    """A lease table, a stream by ARN, an exact bound, children at once, hash keys, broken records."""
    put(kinesis, 0, 40)
    there = held(kinesis)
    done = {shard: [n for name, n, _ in there if name == shard][2] for shard in (FIRST, SECOND)}
    leases = tmp_path / "leases.json"
    leases.write_text(json.dumps([{"leaseKey": k, "checkpoint": str(n)} for k, n in done.items()]))
    arn = kinesis.client().describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
    options = {"streamARN": arn, "kclLeases": str(leases), "maxBytesPerTrigger": "60"}
    found, _ = run(spark, kinesis, tmp_path / "a", **options)
    assert found.all == [row for row in there if row[1] > done[row[0]]]
    # A record of data "12" has the key "k12".
    assert max(sum(2 * len(data) + 1 for _, _, data in rows) for rows in found.each) <= 60

    clock.advance(1_000)
    low, _ = kinesis.engine.split_shard(STREAM, FIRST)
    put(kinesis, 40, 20)
    at_once, _ = run(spark, kinesis, tmp_path / "b", shardOrdering="none")
    assert at_once.each[0] == at_once.all == held(kinesis)
    in_order, _ = run(spark, kinesis, tmp_path / "c")
    assert in_order.all == at_once.all
    assert {shard for shard, _, _ in in_order.each[0]} == {FIRST, SECOND}

    inside, outside = UserRecord("a", b"in", "1"), UserRecord("b", b"out", TOP)
    packed = encode([inside, outside])
    client = kinesis.client()
    client.put_record(StreamName=STREAM, PartitionKey="a", ExplicitHashKey="1", Data=packed.data)
    for mode, kept in (("off", {b"in", b"out"}), ("per_record", {b"in"}), ("kcl", set())):
        frame = spark.read.format("kinesis").options(**given(kinesis, {"hashRangeFilter": mode})).load()
        rows = frame.where(f"shard_id = '{low.shard_id}' AND aggregated").select("data").collect()
        assert {bytes(row[0]) for row in rows} == kept

    # Its checksum is right, and its message is none.
    broken = packed.data[:4] + b"\xff" + hashlib.md5(b"\xff").digest()
    client.put_record(StreamName=STREAM, PartitionKey="a", Data=broken)
    passed = spark.read.format("kinesis").options(**given(kinesis, {})).load()
    assert passed.where("problem IS NOT NULL").count() == 1
    failing = spark.read.format("kinesis").options(**given(kinesis, {"onMalformed": "fail"})).load()
    with pytest.raises(Exception, match="HEADPOND") as caught:
        failing.collect()
    assert isinstance(headpond_error_of(caught.value), MalformedAggregate)


def test_a_quiet_stream_is_written_down_by_an_empty_batch(
    spark: SparkSession, kinesis: LocalKinesis, clock: ManualClock, tmp_path: Path
) -> None:
    """After a quarter of the retention; started again late, the query knows that nothing is lost."""
    sink = Batches()
    options = {"startingPosition": "LATEST", "probeLag": "0 ms"}
    query = start(spark, kinesis, tmp_path, sink, **options)
    offsets = tmp_path / "checkpoint" / "offsets"
    try:
        query.processAllAvailable()
        assert [len(rows) for rows in sink.each] == [0]
        for _ in range(3):
            clock.advance(7 * HOUR_MS)
            for _ in range(3):
                query.processAllAvailable()
    finally:
        query.stop()
    written = sorted(int(path.name) for path in offsets.iterdir() if path.name.isdecimal())
    assert sink.all == []
    assert 2 <= len(written) <= 4
    assert '"u"' in (offsets / str(written[-1])).read_text()
    clock.advance(10 * HOUR_MS)
    put(kinesis, 0, 20)
    after, _ = run(spark, kinesis, tmp_path, startingPosition="LATEST")
    assert after.all == held(kinesis)
    assert len(after.all) == 20
