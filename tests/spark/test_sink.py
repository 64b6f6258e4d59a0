"""The Kinesis sink in Spark, on the local Kinesis: every row gets into the stream, or the query fails."""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64decode
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from headpond.core.errors import AccessDenied, ConfigurationError, StreamNotFound, UsageError
from headpond.kinesis.archive.lines import read_line
from headpond.kpl import Aggregate, InvalidUserRecord, decode
from headpond.localkinesis.testing import local_kinesis, read_all
from headpond.spark import register, without_repeats
from headpond.spark.errors import headpond_error_of
from headpond.spark.sinks.dead_letters import DeadLetters, Place, settle
from headpond.spark.sinks.kinesis import SINK_OPTIONS, RowsNotPut, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from headpond.localkinesis import LocalKinesis

pytestmark = pytest.mark.spark

STREAM = "orders"
BASE = {"streamName": STREAM}


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    with local_kinesis(STREAM, "copies", shards=2) as running:
        yield running


def frame(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    register(spark)
    rows = spark.range(0, count, 1, partitions)
    return rows.selectExpr("concat('k', id % 100) AS partition_key", "CAST(id AS STRING) AS data")


def write(rows: DataFrame, kinesis: LocalKinesis, **options: str) -> None:
    given = {"streamName": STREAM, "endpointUrl": kinesis.endpoint_url, **options}
    rows.write.format("kinesis").options(**given).mode("append").save()


def stored(kinesis: LocalKinesis, stream: str = STREAM) -> list[tuple[str, bytes]]:
    """User records in the stream: key and data."""
    found: list[tuple[str, bytes]] = []
    for record in read_all(kinesis.client(), stream):
        opened = decode(record.data)
        if isinstance(opened, Aggregate):
            found += [(each.partition_key, each.data) for each in opened.records]
        else:
            found.append((record.partition_key, record.data))
    return found


def expected(count: int) -> Counter[tuple[str, bytes]]:
    return Counter((f"k{n % 100}", b"%d" % n) for n in range(count))


def refusal(call: Any, *arguments: Any, **options: Any) -> Any:
    with pytest.raises(Exception, match=r"HEADPOND|sink|frame") as caught:
        call(*arguments, **options)
    return headpond_error_of(caught.value)


def test_every_row_once_and_aggregated(spark: SparkSession, kinesis: LocalKinesis) -> None:
    """Without faults each row is there once, in few Kinesis records, in order within a key of a partition."""
    write(frame(spark, 6_000), kinesis)
    found = stored(kinesis)
    assert Counter(found) == expected(6_000)
    assert len(read_all(kinesis.client(), STREAM)) < 60
    of_a_key = [int(data) for key, data in found if key == "k7"]
    assert [n for n in of_a_key if n < 3000] == sorted(n for n in of_a_key if n < 3000)


@pytest.mark.parametrize("fault", ["throttled calls and entries", "failures and cuts"])
def test_faults_lose_nothing(spark: SparkSession, kinesis: LocalKinesis, fault: str) -> None:
    """Half of all calls throttled, half of the entries; failures, lost replies: each row at least once."""
    if fault == "failures and cuts":
        rules = [
            kinesis.faults.internal_failure(calls=("PutRecords",), skip=1, times=3),
            kinesis.faults.cut(when="after", calls=("PutRecords",), skip=2, times=3),
        ]
    else:
        rules = [kinesis.faults.throttle(0.5), kinesis.faults.fail_entries(0.5)]
    write(frame(spark, 8_000), kinesis, aggregationMaxSize="2048", collectionMaxCount="6")
    kinesis.faults.clear()
    assert all(rule.hits for rule in rules), rules
    found = Counter(stored(kinesis))
    assert expected(8_000) - found == Counter()
    assert set(found) == set(expected(8_000))


def test_explicit_hash_keys_choose_the_shard(spark: SparkSession, kinesis: LocalKinesis) -> None:
    """A row with one goes where it says, one without where its key says; binary data as it is."""
    schema = StructType(
        [
            StructField("data", BinaryType()),
            StructField("partition_key", StringType()),
            StructField("explicit_hash_key", StringType()),
        ]
    )
    rows = [(b"\x00\xff", "a", "0"), (b"", "a", str((1 << 128) - 1)), (b"x", "b", None)]
    register(spark)
    write(spark.createDataFrame(rows, schema).coalesce(1), kinesis, aggregationEnabled="false")
    found = {(record.shard_id[-1], record.data) for record in read_all(kinesis.client(), STREAM)}
    assert {("0", b"\x00\xff"), ("1", b"")} < found
    assert len(found) == 3


def test_a_stream_is_copied_to_another(spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path) -> None:
    """Source to sink: all rows, over two runs of one query, each once since nothing failed."""

    def run() -> None:
        options = {"endpointUrl": kinesis.endpoint_url}
        records = (
            spark.readStream.format("headpond-kinesis")
            .options(**options, streamName=STREAM, startingPosition="TRIM_HORIZON", maxRecordsPerTrigger="2")
            .load()
        )
        query = (
            records.select("partition_key", "data")
            .writeStream.format("headpond-kinesis")
            .options(**options, streamName="copies", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    write(frame(spark, 1_000), kinesis, aggregationMaxSize="2048")
    run()
    assert Counter(stored(kinesis, "copies")) == expected(1_000)
    write(frame(spark, 10), kinesis)
    run()
    assert Counter(stored(kinesis, "copies")) == expected(1_000) + expected(10)


def test_what_cannot_be_put_fails_the_query(
    spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path
) -> None:
    """Rows that expire fail the query as our error with counts and reasons; a new run puts them all."""
    folder = tmp_path / "in"
    frame(spark, 500).write.json(str(folder))
    register(spark)

    def run(**options: str) -> None:
        query = (
            spark.readStream.schema("partition_key STRING, data STRING")
            .json(str(folder))
            .writeStream.format("kinesis")
            .options(
                **BASE, endpointUrl=kinesis.endpoint_url, checkpointLocation=str(tmp_path / "c"), **options
            )
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    kinesis.faults.throttle(calls=("PutRecords",))
    error = refusal(run, recordTtlMs="400")
    assert isinstance(error, RowsNotPut)
    assert error.facts["reasons"] == {"Expired": error.facts["failed"]}
    assert error.facts["failed"] > 0
    assert "ProvisionedThroughputExceeded" in error.message
    kinesis.faults.clear()
    run()
    assert Counter(stored(kinesis)) == expected(500)


def read_back(spark: SparkSession, kinesis: LocalKinesis) -> DataFrame:
    options = {"streamName": STREAM, "endpointUrl": kinesis.endpoint_url, "includeTags": "true"}
    return spark.read.format("headpond-kinesis").options(**options).load()


def test_identity_tells_repeats_from_rows_alike(
    spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path
) -> None:
    """A query fails in mid-batch and puts the batch again: readers keep each row once, equal rows too."""
    folder = tmp_path / "in"
    rows = frame(spark, 800)
    # Every row twice over, to the byte: these are no repeats.
    rows.union(rows).write.json(str(folder))
    wanted = expected(800) + expected(800)

    def run() -> None:
        options = {"checkpointLocation": str(tmp_path / "c"), "identity": "tags", "collectionMaxCount": "4"}
        query = (
            spark.readStream.schema("partition_key STRING, data STRING")
            .json(str(folder))
            .writeStream.format("kinesis")
            .options(**BASE, **options, endpointUrl=kinesis.endpoint_url, aggregationMaxSize="2048")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    # Lost replies make the producer itself repeat, too.
    lost = kinesis.faults.cut(when="after", calls=("PutRecords",), skip=2, times=2)
    broken = kinesis.faults.refuse("AccessDeniedException", calls=("PutRecords",), skip=12)
    assert isinstance(refusal(run), RowsNotPut)
    assert (lost.hits, broken.hits > 0) == (2, True)
    kinesis.faults.clear()
    run()
    assert Counter(stored(kinesis)).total() > wanted.total()
    # Other writers' rows have no identity, and a second write is no repeat of the first.
    for options in ({}, {"identity": "tags"}):
        write(frame(spark, 5), kinesis, **options)
    found = read_back(spark, kinesis)
    once = without_repeats(found).select("partition_key", "data").collect()
    assert Counter((row[0], bytes(row[1])) for row in once) == wanted + expected(5) + expected(5)
    with pytest.raises(UsageError, match="without tags"):
        without_repeats(found.drop("tags"))


def test_identity_stays_out_of_the_data(spark: SparkSession, kinesis: LocalKinesis) -> None:
    """A lone row is wrapped to carry it; AWS's own reader of aggregates gives the data as it was."""
    from aws_kinesis_agg.deaggregator import iter_deaggregate_records

    write(frame(spark, 3, 3), kinesis, identity="tags", recordMaxBufferedTimeMs="0")
    for record in read_all(kinesis.client(), STREAM):
        opened = decode(record.data)
        assert isinstance(opened, Aggregate)
        assert all(re.fullmatch(r"[0-9a-f]{32}:0:[0-2]:0", row.tags[0].value or "") for row in opened.records)
    client = kinesis.client()
    shards = [shard["ShardId"] for shard in client.list_shards(StreamName=STREAM)["Shards"]]
    places = [
        client.get_shard_iterator(StreamName=STREAM, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
        for shard in shards
    ]
    replies = [client.get_records(ShardIterator=place["ShardIterator"]) for place in places]
    records = [record for reply in replies for record in reply["Records"]]
    opened_by_aws = [r["kinesis"] for r in iter_deaggregate_records(records, data_format="Boto3")]
    assert Counter((r["partitionKey"], b64decode(r["data"])) for r in opened_by_aws) == expected(3)


def test_a_missing_stream_or_right_is_told(spark: SparkSession, kinesis: LocalKinesis) -> None:
    """Failures that no retry helps against end the write at once."""
    error = refusal(write, frame(spark, 10), kinesis, streamName="order")
    assert isinstance(error, StreamNotFound)
    assert "there are orders, copies" in error.message
    assert error.facts["reasons"] == {"ResourceNotFoundException": error.facts["failed"]}
    kinesis.faults.refuse("AccessDeniedException", calls=("PutRecords",))
    error = refusal(write, frame(spark, 10), kinesis)
    assert error.facts["reasons"] == {"AccessDeniedException": error.facts["failed"]}
    assert not isinstance(error, AccessDenied)


def test_rows_that_are_no_records_fail_the_task(spark: SparkSession, kinesis: LocalKinesis) -> None:
    """Nulls, an empty key, data over the limit: named, not dropped."""
    good = frame(spark, 10, 1)
    nulls = good.selectExpr("IF(data = '7', NULL, partition_key) AS partition_key", "data")
    error = refusal(write, nulls, kinesis)
    assert isinstance(error, UsageError)
    assert (error.facts["column"], error.facts["nulls"]) == ("partition_key", 1)
    error = refusal(write, good.selectExpr("partition_key", "CAST(NULL AS BINARY) AS data"), kinesis)
    assert error.facts["column"] == "data"
    error = refusal(write, good.selectExpr("'' AS partition_key", "data"), kinesis)
    assert isinstance(error, InvalidUserRecord)
    error = refusal(
        write, good.selectExpr("partition_key", "repeat(data, 100) AS data"), kinesis, maxUserRecordBytes="64"
    )
    assert isinstance(error, InvalidUserRecord)


def dead_letters(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.rglob("*.jsonl") for line in file.read_text().splitlines()]


WRONG = """
    CASE data WHEN '3' THEN '' WHEN '4' THEN repeat('k', 257) WHEN '5' THEN NULL ELSE partition_key END
        AS partition_key,
    CASE data WHEN '6' THEN repeat('x', 1048577) WHEN '7' THEN NULL WHEN '8' THEN repeat('y', 1048576)
        ELSE data END AS data,
    IF(data = '9', '-1', NULL) AS explicit_hash_key
"""


def test_rows_that_can_never_be_put_are_put_aside(
    spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path
) -> None:
    """Each with its reason and its bytes, as `headpond inspect` reads them; all other rows are put."""
    letters = tmp_path / "dead letters"
    rows = frame(spark, 40).selectExpr(*WRONG.split(",\n"))
    write(rows, kinesis, deadLetterPath=str(letters))
    assert Counter(stored(kinesis)) == Counter(
        (f"k{n}", b"%d" % n) for n in range(40) if n not in range(3, 10)
    )
    found = sorted(dead_letters(letters), key=lambda line: (line["reason"], line["detail"]))
    assert Counter(line["reason"] for line in found) == {
        "partition_key": 3,
        "data": 3,
        "explicit_hash_key": 1,
    }
    assert {len(b64decode(line["data"])) for line in found if line["data"]} == {1, 1048577, 1048576}
    assert [line["explicitHashKey"] for line in found if line["reason"] == "explicit_hash_key"] == ["-1"]
    large = {len(b64decode(line["data"])): line for line in found if len(line["data"] or "") > 1000}
    assert "1,048,578 bytes with its key; a stream takes 1,048,576" in large[1048576]["detail"]
    again = read_line(json.dumps(large[1048577]).encode(), file="f", line=1)
    assert again[-1] == b"x" * 1048577


def test_a_write_that_fails_leaves_no_dead_letters(
    spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path
) -> None:
    """Also where some of its tasks had put rows aside: a write that is begun again puts them aside anew."""
    rows = frame(spark, 4).selectExpr("IF(data < '2', '', 'k') AS partition_key", "data")
    kinesis.faults.refuse("AccessDeniedException", calls=("PutRecords",))
    assert isinstance(refusal(write, rows, kinesis, deadLetterPath=str(tmp_path)), RowsNotPut)
    kinesis.faults.clear()
    assert dead_letters(tmp_path) == []
    write(rows, kinesis, deadLetterPath=str(tmp_path))
    assert sorted(b64decode(line["data"]) for line in dead_letters(tmp_path)) == [b"0", b"1"]


def test_a_task_that_ends_after_its_write_has_failed(tmp_path: Path) -> None:
    """Its dead letters have no name yet, and the next try takes them away."""
    early, late, again = (Place.of(f"{tmp_path}/w/0", "0.jsonl") for _ in range(3))

    def put_aside(place: Place, key_data: tuple[str, bytes]) -> None:
        with DeadLetters(place, 1000, {}) as letters:
            assert list(letters.sorted_out([key_data])) == []
        assert dead_letters(tmp_path) == []

    put_aside(early, ("", b"early"))
    settle(early.folder, (), {})  # the write has failed
    assert not Path(early.folder).exists()
    put_aside(late, ("", b"late"))
    put_aside(again, ("", b"again"))
    settle(again.folder, [again], {})
    assert [b64decode(line["data"]) for line in dead_letters(tmp_path)] == [b"again"]
    assert [path.name for path in Path(again.folder).iterdir()] == ["0.jsonl"]


def test_dead_letters_of_a_batch_that_is_tried_again(
    spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path
) -> None:
    """They are there once, whatever a try before left; a task that fails leaves none."""
    letters, source = tmp_path / "letters", tmp_path / "in"
    rows = frame(spark, 40).selectExpr(
        "partition_key", "IF(CAST(data AS INT) % 10 = 7, repeat('x', 100), data) AS data"
    )
    rows.write.json(str(source))

    def run(**options: str) -> None:
        query = (
            spark.readStream.schema("partition_key STRING, data STRING")
            .json(str(source))
            .writeStream.format("kinesis")
            .options(**BASE, **options, endpointUrl=kinesis.endpoint_url, deadLetterPath=str(letters))
            .options(checkpointLocation=str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    kinesis.faults.refuse("AccessDeniedException", calls=("PutRecords",))
    assert isinstance(refusal(run, maxUserRecordBytes="64"), RowsNotPut)
    kinesis.faults.clear()
    assert dead_letters(letters) == []
    kinesis.faults.cut(when="after", calls=("PutRecords",), times=1)
    run(maxUserRecordBytes="64")
    assert [(line["reason"], len(b64decode(line["data"]))) for line in dead_letters(letters)] == [
        ("data", 100)
    ] * 4
    # The driver died before the batch counted as done; this time the stream's limit was raised.
    (batch,) = {path.parent for path in letters.rglob("*.jsonl")}
    (batch / "17.jsonl").write_text("{}\n")
    shutil.rmtree(tmp_path / "c" / "commits")
    run(maxUserRecordBytes="1000")
    assert list(letters.rglob("*.jsonl")) == []
    assert len({data for _, data in stored(kinesis)}) == 37


def schema_of(*columns: tuple[str, Any]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


GOOD = schema_of(("data", BinaryType()), ("partition_key", StringType()))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (schema_of(("data", BinaryType())), "partition_key is missing"),
        (schema_of(("partition_key", StringType())), "data is missing"),
        (schema_of(("data", IntegerType()), ("partition_key", StringType())), "data is int"),
        (
            schema_of(*[(f.name, f.dataType) for f in GOOD], ("key", StringType())),
            "key is not one of the sink's",
        ),
    ],
)
def test_columns_are_checked_first(schema: StructType, says: str) -> None:
    """Missing, unknown and wrong columns are named, with what is expected."""
    with pytest.raises(ConfigurationError) as caught:
        prepare(BASE, schema, overwrite=False)
    assert says in caught.value.message
    assert "explicit_hash_key (string, optional)" in caught.value.next_step


def test_options_are_checked_first(spark: SparkSession, kinesis: LocalKinesis) -> None:
    """Unknown options name the nearest; values have bounds; no overwriting; defaults of its own."""
    error = refusal(write, frame(spark, 1), kinesis, recordTtl="5")
    assert isinstance(error, ConfigurationError)
    assert error.next_step == "Did you mean recordTtlMs?"
    with pytest.raises(ConfigurationError, match="collection_max_count is 501"):
        prepare({**BASE, "collectionMaxCount": "501"}, GOOD, overwrite=False)
    with pytest.raises(ConfigurationError, match="cannot be overwritten"):
        prepare(BASE, GOOD, overwrite=True)
    with pytest.raises(ConfigurationError, match="neither"):
        prepare({}, GOOD, overwrite=False)
    settings = prepare({**BASE, "RATELIMIT": "80"}, GOOD, overwrite=False).producer
    assert (settings.rate_limit, settings.record_ttl_ms, settings.max_outstanding_bytes) == (
        80,
        300_000,
        32 << 20,
    )
    assert "recordMaxBufferedTimeMs" in SINK_OPTIONS
    with pytest.raises(ConfigurationError, match="only aggregates can carry"):
        prepare({**BASE, "identity": "tags", "aggregationEnabled": "false"}, GOOD, overwrite=False)
    with pytest.raises(ConfigurationError, match="storageOptions belongs to deadLetterPath"):
        prepare({**BASE, "storageOptions": "{}"}, GOOD, overwrite=False)
    with pytest.raises(ConfigurationError, match="one of none, tags"):
        prepare({**BASE, "identity": "yes"}, GOOD, overwrite=False)


def test_an_empty_frame_writes_nothing(spark: SparkSession, kinesis: LocalKinesis) -> None:
    """Empty partitions do not even connect."""
    kinesis.faults.refuse("AccessDeniedException")
    write(frame(spark, 0), kinesis)
    kinesis.faults.clear()
    assert stored(kinesis) == []
