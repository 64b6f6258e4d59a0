"""The local Kinesis through boto3: putting and getting records."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from headpond.localkinesis import SERVICE_LIMITS, Limits, LocalKinesis, Settings
from headpond.localkinesis.testing import ManualClock, local_kinesis, put_all, read_all
from tests.localkinesis.local_kit import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_kinesis import KinesisClient

SHARD = "shardId-000000000000"
MIB = 1024 * 1024


@pytest.fixture
def kinesis(clock: ManualClock) -> Iterator[LocalKinesis]:
    with local_kinesis("one", clock=clock) as running:
        yield running


@pytest.fixture
def client(kinesis: LocalKinesis) -> KinesisClient:
    return kinesis.client()


def place(client: KinesisClient, kind: str, **more: Any) -> str:
    iterator = client.get_shard_iterator(StreamName="one", ShardId=SHARD, ShardIteratorType=kind, **more)  # type: ignore[arg-type]
    return iterator["ShardIterator"]


def datas(client: KinesisClient, kind: str, **more: Any) -> list[bytes]:
    return [r["Data"] for r in client.get_records(ShardIterator=place(client, kind, **more))["Records"]]


def raw(kinesis: LocalKinesis, call: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """Speak HTTP to the server, for what boto3 itself would not send."""
    request = urllib.request.Request(kinesis.endpoint_url, body, {"X-Amz-Target": f"Kinesis_20131202.{call}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, json.loads(reply.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_records_come_back_as_put(client: KinesisClient, clock: ManualClock) -> None:
    """Data, key and arrival time come back; numbers have 56 digits, rise, and are not dense."""
    data = [b"", b"\x00\xff", "ü/+".encode(), b"x" * 1000, bytes(range(256))]
    numbers = []
    for each in data:
        clock.advance(7)
        numbers.append(
            int(client.put_record(StreamName="one", PartitionKey="schlüssel", Data=each)["SequenceNumber"])
        )
    reply = client.get_records(ShardIterator=place(client, "TRIM_HORIZON"))
    assert [r["Data"] for r in reply["Records"]] == data
    assert [int(r["SequenceNumber"]) for r in reply["Records"]] == numbers
    assert {r["PartitionKey"] for r in reply["Records"]} == {"schlüssel"}
    assert reply["Records"][-1]["ApproximateArrivalTimestamp"] == datetime.fromtimestamp(clock() / 1000, UTC)
    assert all(len(str(n)) == 56 for n in numbers)
    assert all(later - earlier > 1 for earlier, later in pairwise(numbers))


def test_placement_by_md5_and_by_explicit_hash_key() -> None:
    """The shard is the one whose range holds the MD5 of the key, or the explicit hash key, edges included."""
    with local_kinesis("s", shards=3) as kinesis:
        client = kinesis.client()
        shards = kinesis.engine.stream("s").open_shards
        for key in map(str, range(40)):
            expected = int.from_bytes(hashlib.md5(key.encode()).digest(), "big")
            found = client.put_record(StreamName="s", PartitionKey=key, Data=b"")["ShardId"]
            assert found == next(s.shard_id for s in shards if s.low <= expected <= s.high)
        for shard in shards:
            for hash_key in (shard.low, shard.high):
                placed = client.put_record(
                    StreamName="s", PartitionKey="k", Data=b"", ExplicitHashKey=str(hash_key)
                )
                assert placed["ShardId"] == shard.shard_id
        refused(
            "InvalidArgumentException",
            client.put_record,
            StreamName="s",
            PartitionKey="k",
            Data=b"",
            ExplicitHashKey=str(2**128),
        )


def test_the_five_iterator_kinds(client: KinesisClient, clock: ManualClock) -> None:
    """Each kind starts where it says."""
    times, numbers = [], []
    for n in range(4):
        times.append(clock())
        numbers.append(
            client.put_record(StreamName="one", PartitionKey="k", Data=b"%d" % n)["SequenceNumber"]
        )
        clock.advance(1000)
    latest = place(client, "LATEST")
    client.put_record(StreamName="one", PartitionKey="k", Data=b"4")
    assert datas(client, "TRIM_HORIZON") == [b"0", b"1", b"2", b"3", b"4"]
    assert datas(client, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[2]) == [b"2", b"3", b"4"]
    assert datas(client, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[2]) == [b"3", b"4"]
    assert [r["Data"] for r in client.get_records(ShardIterator=latest)["Records"]] == [b"4"]

    def at(time_ms: float) -> list[bytes]:
        return datas(client, "AT_TIMESTAMP", Timestamp=datetime.fromtimestamp(time_ms / 1000, UTC))

    assert at(times[1]) == [b"1", b"2", b"3", b"4"]
    assert at(times[1] + 1) == [b"2", b"3", b"4"]
    assert at(times[0] - 5000) == [b"0", b"1", b"2", b"3", b"4"]
    assert at(clock()) == [b"4"]


def test_a_timestamp_place_waits_for_what_comes(client: KinesisClient, clock: ManualClock) -> None:
    """A place at a time without records yet gives the first that comes; a future time is refused."""
    client.put_record(StreamName="one", PartitionKey="k", Data=b"before")
    clock.advance(10)
    waiting = place(client, "AT_TIMESTAMP", Timestamp=datetime.fromtimestamp(clock() / 1000, UTC))
    assert client.get_records(ShardIterator=waiting)["Records"] == []
    client.put_record(StreamName="one", PartitionKey="k", Data=b"after")
    assert [r["Data"] for r in client.get_records(ShardIterator=waiting)["Records"]] == [b"after"]
    refused(
        "InvalidArgumentException",
        client.get_shard_iterator,
        StreamName="one",
        ShardId=SHARD,
        ShardIteratorType="AT_TIMESTAMP",
        Timestamp=datetime.fromtimestamp(clock() / 1000 + 5, UTC),
    )


@pytest.mark.parametrize("number", ["0", "1", "49" + "0" * 53 + "9", "5" + "0" * 55, "9" * 128])
def test_numbers_of_elsewhere_are_refused(client: KinesisClient, number: str) -> None:
    """A sequence number that this shard cannot have given is an invalid argument."""
    message = refused(
        "InvalidArgumentException",
        client.get_shard_iterator,
        StreamName="one",
        ShardId=SHARD,
        ShardIteratorType="AT_SEQUENCE_NUMBER",
        StartingSequenceNumber=number,
    )
    assert SHARD in message


def test_iterators_expire_and_broken_ones_are_refused(client: KinesisClient, clock: ManualClock) -> None:
    """An iterator lives five minutes."""
    iterator = place(client, "TRIM_HORIZON")
    clock.advance(300_000)
    assert client.get_records(ShardIterator=iterator)["Records"] == []
    clock.advance(1)
    refused("ExpiredIteratorException", client.get_records, ShardIterator=iterator)
    refused("InvalidArgumentException", client.get_records, ShardIterator="AAAA")


def test_a_reply_is_bounded_by_records_and_bytes() -> None:
    """A reply holds at most its caps of records and bytes and the limit asked for, but always a record."""
    with local_kinesis("one", settings=Settings(reply_records=100, reply_bytes=1000)) as kinesis:
        client = kinesis.client()
        put_all(client, "one", [("k", b"") for _ in range(150)])
        reply = client.get_records(ShardIterator=place(client, "TRIM_HORIZON"))
        assert len(reply["Records"]) == 100
        assert reply["MillisBehindLatest"] > 0
        assert len(client.get_records(ShardIterator=reply["NextShardIterator"])["Records"]) == 50
        assert len(client.get_records(ShardIterator=place(client, "TRIM_HORIZON"), Limit=7)["Records"]) == 7
        after = place(client, "LATEST")
        put_all(client, "one", [("k", b"x" * 499), ("k", b"x" * 499), ("k", b"x"), ("k", b"x" * 2000)])
        sizes = []
        for _ in range(3):
            reply = client.get_records(ShardIterator=after)
            sizes.append([len(r["Data"]) for r in reply["Records"]])
            after = reply["NextShardIterator"]
        assert sizes == [[499, 499], [1], [2000]]
        assert reply["MillisBehindLatest"] == 0


def test_a_closed_shard_ends_with_its_children(kinesis: LocalKinesis, client: KinesisClient) -> None:
    """At the end of a closed shard there is no next iterator; children are listed there and nowhere else."""
    put_all(client, "one", [("k", b"a"), ("k", b"b")])
    open_reply = client.get_records(ShardIterator=place(client, "TRIM_HORIZON"))
    assert "ChildShards" not in open_reply
    kinesis.engine.split_shard("one", SHARD)
    middle = client.get_records(ShardIterator=place(client, "TRIM_HORIZON"), Limit=1)
    assert "ChildShards" not in middle
    end = client.get_records(ShardIterator=middle["NextShardIterator"])
    assert [r["Data"] for r in end["Records"]] == [b"b"]
    assert "NextShardIterator" not in end
    assert end["MillisBehindLatest"] == 0
    assert [(c["ShardId"], c["ParentShards"]) for c in end["ChildShards"]] == [
        ("shardId-000000000001", [SHARD]),
        ("shardId-000000000002", [SHARD]),
    ]
    assert "NextShardIterator" not in client.get_records(ShardIterator=place(client, "LATEST"))


def test_trimmed_records_are_skipped_silently(kinesis: LocalKinesis, client: KinesisClient) -> None:
    """A place below the trim horizon goes on at the oldest record left, as on the service."""
    numbers = [
        client.put_record(StreamName="one", PartitionKey="k", Data=b"%d" % n)["SequenceNumber"]
        for n in range(5)
    ]
    assert kinesis.engine.trim("one", SHARD, int(numbers[3])) == 3
    assert datas(client, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[0]) == [b"3", b"4"]


def test_put_records_answers_in_request_order() -> None:
    """Results of PutRecords stand in request order with shard and number of each record."""
    with local_kinesis("s", shards=4) as kinesis:
        client = kinesis.client()
        entries: list[Any] = [{"PartitionKey": str(n), "Data": b"%d" % n} for n in range(500)]
        reply = client.put_records(StreamName="s", Records=entries)
        assert reply["FailedRecordCount"] == 0
        stored = {(r.shard_id, r.sequence_number): r.data for r in read_all(client, "s")}
        assert [stored[r["ShardId"], int(r["SequenceNumber"])] for r in reply["Records"]] == [
            each["Data"] for each in entries
        ]


@pytest.mark.slow
def test_bounds_on_what_is_put(kinesis: LocalKinesis, client: KinesisClient) -> None:
    """Record size counts data and key, request size all records; a refused request stores nothing."""
    client.put_record(StreamName="one", PartitionKey="kk", Data=bytes(MIB - 2))
    refused(
        "ValidationException", client.put_record, StreamName="one", PartitionKey="kk", Data=bytes(MIB - 1)
    )
    entries: list[Any] = [{"PartitionKey": "k", "Data": b""}, {"PartitionKey": "k", "Data": bytes(MIB)}]
    refused("ValidationException", client.put_records, StreamName="one", Records=entries)
    many: list[Any] = [{"PartitionKey": "k", "Data": b""}] * 501
    refused("ValidationException", client.put_records, StreamName="one", Records=many)
    large: list[Any] = [{"PartitionKey": "k", "Data": bytes(MIB - 1)}] * 11
    refused("InvalidArgumentException", client.put_records, StreamName="one", Records=large)
    assert len(kinesis.engine.records("one")) == 1
    arn = kinesis.engine.stream("one").arn
    client.update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=2048)
    client.put_record(StreamName="one", PartitionKey="k", Data=bytes(2 * MIB - 1))
    refused("ValidationException", client.put_record, StreamName="one", PartitionKey="k" * 257, Data=b"")


@pytest.mark.parametrize(
    ("call", "body", "code"),
    [
        ("PutRecord", b"nonsense", "SerializationException"),
        ("PutRecord", b'{"StreamName":"one","PartitionKey":"k"}', "ValidationException"),
        ("PutRecord", b'{"StreamName":"one","PartitionKey":"k","Data":"?"}', "SerializationException"),
        ("PutRecord", b'{"StreamName":"one","PartitionKey":"k","Data":"AAA"}', "SerializationException"),
        ("PutRecord", b'{"StreamName":"one","PartitionKey":"k","Data":"A=AA"}', "SerializationException"),
        ("PutRecord", b'{"StreamName":"one","PartitionKey":"k","Data":7}', "SerializationException"),
        ("PutRecord", b'{"StreamName":"one","PartitionKey":"","Data":""}', "ValidationException"),
        ("PutRecord", b'{"StreamName":5,"PartitionKey":"k","Data":""}', "SerializationException"),
        ("PutRecord", b'{"StreamName":"o e","PartitionKey":"k","Data":""}', "ValidationException"),
        (
            "PutRecord",
            b'{"StreamName":"one","PartitionKey":"k","Data":"","ExplicitHashKey":"-1"}',
            "ValidationException",
        ),
        ("GetRecords", b'{"ShardIterator":"x","Limit":10001}', "ValidationException"),
        (
            "GetShardIterator",
            b'{"StreamName":"one","ShardId":"a","ShardIteratorType":"NOW"}',
            "ValidationException",
        ),
        ("", b"{}", "UnknownOperationException"),
    ],
)
def test_bad_requests_are_refused_by_type(kinesis: LocalKinesis, call: str, body: bytes, code: str) -> None:
    """Requests that boto3 would not send get HTTP 400 and the service's error type."""
    status, reply = raw(kinesis, call, body)
    assert (status, reply["__type"]) == (400, code)
    assert reply["message"]


def test_escaped_base64_is_read(kinesis: LocalKinesis) -> None:
    r"""Base64 text with `\/` is legal JSON and means the same data."""
    status, _ = raw(kinesis, "PutRecord", rb'{"StreamName":"one","PartitionKey":"k","Data":"\/\/8="}')
    assert status == 200
    assert [r.data for r in kinesis.engine.records("one")] == [b"\xff\xff"]


def test_write_limits_refuse_by_record(clock: ManualClock) -> None:
    """With limits on, a shard takes 1,000 records and 1 MiB a second; the rest fails record by record."""
    with local_kinesis("one", clock=clock, settings=Settings(limits=SERVICE_LIMITS)) as kinesis:
        client = kinesis.client()
        entries: list[Any] = [{"PartitionKey": "k", "Data": b""}] * 500
        assert [
            client.put_records(StreamName="one", Records=entries)["FailedRecordCount"] for _ in range(3)
        ] == [
            0,
            0,
            500,
        ]
        clock.advance(1000)
        large: list[Any] = [{"PartitionKey": "k", "Data": bytes(MIB // 4 - 1)}] * 6
        reply = client.put_records(StreamName="one", Records=large)
        assert [r.get("ErrorCode") for r in reply["Records"]] == [None] * 4 + [
            "ProvisionedThroughputExceededException"
        ] * 2


def test_read_limits_per_shard(clock: ManualClock) -> None:
    """With limits on, a shard gives 5 replies a second; a 10 MiB reply is paid for over 5 seconds."""
    with local_kinesis("one", clock=clock, settings=Settings(limits=Limits(5, 2 * MIB))) as kinesis:
        client = kinesis.client()
        for _ in range(5):
            client.get_records(ShardIterator=place(client, "TRIM_HORIZON"))
        refused(
            "ProvisionedThroughputExceededException",
            client.get_records,
            ShardIterator=place(client, "TRIM_HORIZON"),
        )
        for _ in range(11):
            kinesis.engine.put("one", "k", bytes(MIB - 1))
        clock.advance(1000)
        reply = client.get_records(ShardIterator=place(client, "TRIM_HORIZON"))
        assert len(reply["Records"]) == 10
        clock.advance(3900)
        refused(
            "ProvisionedThroughputExceededException",
            client.get_records,
            ShardIterator=reply["NextShardIterator"],
        )
        clock.advance(200)
        assert len(client.get_records(ShardIterator=reply["NextShardIterator"])["Records"]) == 1
