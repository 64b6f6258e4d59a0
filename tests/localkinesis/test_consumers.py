"""Enhanced fan-out of the local Kinesis as boto3 meets it: consumers, subscriptions, what cuts them."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, EventStreamError
from urllib3.exceptions import ProtocolError

from headpond.localkinesis import LocalKinesis, Settings
from headpond.localkinesis.testing import ManualClock, local_kinesis, put_all
from tests.localkinesis.local_kit import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

STREAM = "orders"
SHARD = "shardId-000000000000"
OPENED: list[Any] = []


@pytest.fixture(autouse=True)
def _close_streams() -> Iterator[None]:
    """A test may leave an event stream in any state; none may be left open."""
    yield
    while OPENED:
        OPENED.pop().close()


@pytest.fixture
def kinesis(clock: ManualClock) -> Iterator[LocalKinesis]:
    with local_kinesis(STREAM, clock=clock, settings=Settings(heartbeat_ms=20)) as running:
        yield running


def arn_of(kinesis: LocalKinesis) -> str:
    return kinesis.engine.stream(STREAM).arn


def registered(kinesis: LocalKinesis, name: str = "app") -> str:
    """The ARN of a new consumer."""
    reply = kinesis.client().register_stream_consumer(StreamARN=arn_of(kinesis), ConsumerName=name)
    assert reply["Consumer"]["ConsumerStatus"] == "CREATING"
    return reply["Consumer"]["ConsumerARN"]


def subscribed(kinesis: LocalKinesis, consumer: str, kind: str = "TRIM_HORIZON", **at: Any) -> Any:
    """The event stream of a new subscription."""
    reply = kinesis.client(read_timeout=20).subscribe_to_shard(
        ConsumerARN=consumer, ShardId=SHARD, StartingPosition={"Type": kind, **at}
    )
    OPENED.append(reply["EventStream"])
    return reply["EventStream"]


def some(stream: Any, count: int) -> list[Any]:
    """So many events, and the stream closed."""
    with closing(stream):
        return [event["SubscribeToShardEvent"] for event in islice(stream, count)]


def put(kinesis: LocalKinesis, *data: bytes) -> None:
    put_all(kinesis.client(), STREAM, [("k", each) for each in data])


def test_consumers_are_registered_listed_and_deregistered(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """A consumer is CREATING, then ACTIVE, found by name and ARN, counted, listed in pages, then gone."""
    client, stream = kinesis.client(), arn_of(kinesis)
    arn = registered(kinesis)
    assert arn == f"{stream}/consumer/app:{clock() // 1000}"
    found = client.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]
    by_name = client.describe_stream_consumer(StreamARN=stream, ConsumerName="app")["ConsumerDescription"]
    assert found == by_name
    assert (found["ConsumerStatus"], found["StreamARN"]) == ("ACTIVE", stream)
    assert found["ConsumerCreationTimestamp"] == datetime.fromtimestamp(clock() // 1000, UTC)
    refused("ResourceInUseException", client.register_stream_consumer, StreamARN=stream, ConsumerName="app")
    for name in ("b", "c"):
        registered(kinesis, name)
    page = client.list_stream_consumers(StreamARN=stream, MaxResults=2)
    rest = client.list_stream_consumers(StreamARN=stream, NextToken=page["NextToken"])
    assert [each["ConsumerName"] for each in page["Consumers"] + rest["Consumers"]] == ["app", "b", "c"]
    assert "NextToken" not in rest
    summary = client.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]
    assert summary["ConsumerCount"] == 3
    client.deregister_stream_consumer(ConsumerARN=arn)
    refused("ResourceNotFoundException", client.describe_stream_consumer, ConsumerARN=arn)
    refused(
        "ResourceNotFoundException", client.register_stream_consumer, StreamARN=stream + "x", ConsumerName="x"
    )
    refused("InvalidArgumentException", client.describe_stream_consumer, StreamARN=stream)
    refused("ResourceInUseException", client.delete_stream, StreamName=STREAM)
    client.delete_stream(StreamName=STREAM, EnforceConsumerDeletion=True)


def test_states_last_and_numbers_are_limited(clock: ManualClock) -> None:
    """States last as long as told; five may be in CREATING, twenty there at all."""
    with local_kinesis(STREAM, clock=clock, settings=Settings(settle_ms=1_000)) as kinesis:
        client, stream = kinesis.client(), arn_of(kinesis)
        for number in range(20):
            if number == 5:
                refused(
                    "LimitExceededException",
                    client.register_stream_consumer,
                    StreamARN=stream,
                    ConsumerName="x",
                )
            if number % 5 == 0:
                clock.advance(1_000)
            registered(kinesis, f"c{number:02}")
        clock.advance(1_000)
        refused("LimitExceededException", client.register_stream_consumer, StreamARN=stream, ConsumerName="x")
        client.deregister_stream_consumer(StreamARN=stream, ConsumerName="c00")
        statuses = [
            each["ConsumerStatus"] for each in client.list_stream_consumers(StreamARN=stream)["Consumers"]
        ]
        assert (statuses[0], set(statuses[1:])) == ("DELETING", {"ACTIVE"})
        arn = client.describe_stream_consumer(StreamARN=stream, ConsumerName="c00")["ConsumerDescription"]
        refused(
            "ResourceInUseException",
            client.subscribe_to_shard,
            ConsumerARN=arn["ConsumerARN"],
            ShardId=SHARD,
            StartingPosition={"Type": "LATEST"},
        )
        clock.advance(1_000)
        refused(
            "ResourceNotFoundException",
            client.describe_stream_consumer,
            StreamARN=stream,
            ConsumerName="c00",
        )


@pytest.mark.slow
def test_events_carry_records_as_they_come(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """A subscription gives what is there, then what comes, with a continuation also where nothing does."""
    put(kinesis, b"one", b"\x00\xff")
    stream = subscribed(kinesis, registered(kinesis))
    events = iter(stream)
    first = next(events)["SubscribeToShardEvent"]
    assert [record["Data"] for record in first["Records"]] == [b"one", b"\x00\xff"]
    assert first["Records"][0]["PartitionKey"] == "k"
    assert first["Records"][0]["ApproximateArrivalTimestamp"] == datetime.fromtimestamp(clock() / 1000, UTC)
    assert first["ContinuationSequenceNumber"] == first["Records"][-1]["SequenceNumber"]
    assert first["MillisBehindLatest"] == 0
    idle = next(events)["SubscribeToShardEvent"]
    assert (idle["Records"], idle["ContinuationSequenceNumber"]) == ([], first["ContinuationSequenceNumber"])
    put(kinesis, b"two")
    later = next(event for event in events if event["SubscribeToShardEvent"]["Records"])
    assert [record["Data"] for record in later["SubscribeToShardEvent"]["Records"]] == [b"two"]


def test_all_kinds_of_start(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """The five kinds of position start where GetShardIterator's do; a continuation is one of them."""
    consumer = registered(kinesis)
    for number in range(4):
        put(kinesis, b"%d" % number)
        clock.advance(1_000)
    records = kinesis.engine.records(STREAM)
    number = str(records[1].sequence_number)
    starts: list[tuple[str, dict[str, Any], list[bytes]]] = [
        ("TRIM_HORIZON", {}, [b"0", b"1", b"2", b"3"]),
        ("AT_SEQUENCE_NUMBER", {"SequenceNumber": number}, [b"1", b"2", b"3"]),
        ("AFTER_SEQUENCE_NUMBER", {"SequenceNumber": number}, [b"2", b"3"]),
        (
            "AT_TIMESTAMP",
            {"Timestamp": datetime.fromtimestamp(records[2].arrival_ms / 1000, UTC)},
            [b"2", b"3"],
        ),
        ("LATEST", {}, []),
    ]
    for kind, at, wanted in starts:
        clock.advance(5_000)
        (event,) = some(subscribed(kinesis, consumer, kind, **at), 1)
        assert [record["Data"] for record in event["Records"]] == wanted
        clock.advance(5_000)
        (again,) = some(
            subscribed(
                kinesis,
                consumer,
                "AFTER_SEQUENCE_NUMBER",
                SequenceNumber=event["ContinuationSequenceNumber"],
            ),
            1,
        )
        assert again["Records"] == []
    kinesis.engine.trim(STREAM, SHARD, records[3].sequence_number)
    clock.advance(5_000)
    (event,) = some(subscribed(kinesis, consumer, "AT_SEQUENCE_NUMBER", SequenceNumber=number), 1)
    assert [record["Data"] for record in event["Records"]] == [b"3"]


def test_a_closed_shard_ends_with_its_children(kinesis: LocalKinesis) -> None:
    """The last event names the children, has no continuation, and ends the stream."""
    put(kinesis, b"one")
    kinesis.engine.split_shard(STREAM, SHARD)
    stream = subscribed(kinesis, registered(kinesis))
    (event,) = [each["SubscribeToShardEvent"] for each in stream]
    assert len(event["Records"]) == 1
    assert "ContinuationSequenceNumber" not in event
    assert [child["ParentShards"] for child in event["ChildShards"]] == [[SHARD], [SHARD]]


@pytest.mark.slow
def test_five_seconds_between_subscriptions(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Within 5 s the shard is in use; after that the new subscription takes over and the old one ends."""
    consumer, client = registered(kinesis), kinesis.client()
    old = subscribed(kinesis, consumer)
    next(iter(old))
    wanted = {"ConsumerARN": consumer, "ShardId": SHARD, "StartingPosition": {"Type": "LATEST"}}
    clock.advance(4_999)
    refused("ResourceInUseException", client.subscribe_to_shard, **wanted)
    clock.advance(1)
    new = subscribed(kinesis, consumer)
    with pytest.raises(EventStreamError, match="ResourceInUseException"):
        list(old)
    assert next(iter(new))
    other = registered(kinesis, "other")
    assert len(some(subscribed(kinesis, other), 1)) == 1


def test_a_subscription_ends_after_five_minutes(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """The stream ends by itself and cleanly."""
    stream = subscribed(kinesis, registered(kinesis))
    next(iter(stream))
    clock.advance(300_000)
    list(stream)


def test_consumers_and_streams_that_go_end_subscriptions(kinesis: LocalKinesis) -> None:
    """Deregistering ends a subscription with an exception; unknown consumers and shards are refused."""
    consumer, client = registered(kinesis), kinesis.client()
    wanted: dict[str, Any] = {"ConsumerARN": consumer, "StartingPosition": {"Type": "LATEST"}}
    refused("ResourceNotFoundException", client.subscribe_to_shard, **wanted, ShardId="shardId-000000000009")
    stream = subscribed(kinesis, consumer)
    next(iter(stream))
    client.deregister_stream_consumer(ConsumerARN=consumer)
    with pytest.raises(EventStreamError, match="ResourceNotFoundException"):
        list(stream)
    refused("ResourceNotFoundException", client.subscribe_to_shard, **wanted, ShardId=SHARD)


def test_faults_strike_subscriptions(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Refused before it begins, cut in the first frame or in mid-event, ended by an exception."""
    consumer = registered(kinesis)
    put(kinesis, b"x" * 1000)
    kinesis.faults.refuse("LimitExceededException", calls=("SubscribeToShard",), times=1)
    with pytest.raises(ClientError, match="LimitExceeded"):
        subscribed(kinesis, consumer)
    kinesis.faults.cut(when="reply", calls=("SubscribeToShard",), times=1)
    with pytest.raises(ProtocolError):
        subscribed(kinesis, consumer)
    clock.advance(5_000)
    kinesis.faults.cut_events(skip=1, times=1)
    events = iter(subscribed(kinesis, consumer))
    assert len(next(events)["SubscribeToShardEvent"]["Records"]) == 1
    with pytest.raises(ProtocolError):
        list(events)
    clock.advance(5_000)
    kinesis.faults.fail_events(times=1)
    with pytest.raises(EventStreamError, match="InternalFailure"):
        list(subscribed(kinesis, consumer))


@pytest.mark.slow
def test_events_are_bounded(clock: ManualClock) -> None:
    """An event holds so many bytes of data and keys, or one record."""
    settings = Settings(event_bytes=250, heartbeat_ms=20)
    with local_kinesis(STREAM, clock=clock, settings=settings) as kinesis:
        put(kinesis, *[b"x" * 99] * 5, b"y" * 999)
        events = some(subscribed(kinesis, registered(kinesis)), 4)
        assert [len(event["Records"]) for event in events] == [2, 2, 1, 1]
