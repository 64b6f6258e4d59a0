"""The local Kinesis through boto3: making, describing, listing and reshaping streams."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import MissingRequirement
from headpond.localkinesis import LocalKinesis, Settings
from headpond.localkinesis.testing import ManualClock, local_kinesis, put_all, read_all
from tests.localkinesis.local_kit import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX = 2**128 - 1
HALF = 2**127


@pytest.fixture
def kinesis(clock: ManualClock) -> Iterator[LocalKinesis]:
    with local_kinesis("orders", shards=2, clock=clock) as running:
        yield running


def shard_ids(kinesis: LocalKinesis, **arguments: Any) -> list[int]:
    reply = kinesis.client().list_shards(StreamName="orders", **arguments)
    return [int(shard["ShardId"].rpartition("-")[2]) for shard in reply["Shards"]]


def test_create_describe_delete(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """A stream is there from CreateStream to DeleteStream, with its creation time, ARN and shard ranges."""
    client = kinesis.client()
    client.create_stream(StreamName="new", ShardCount=3)
    summary = client.describe_stream_summary(StreamName="new")["StreamDescriptionSummary"]
    assert summary["StreamStatus"] == "ACTIVE"
    assert summary["OpenShardCount"] == 3
    assert summary["RetentionPeriodHours"] == 24
    assert summary["StreamCreationTimestamp"] == datetime.fromtimestamp(clock() / 1000, UTC)
    assert summary["StreamModeDetails"] == {"StreamMode": "PROVISIONED"}
    described = client.describe_stream(StreamName="new", Limit=2)["StreamDescription"]
    assert described["HasMoreShards"]
    rest = client.describe_stream(StreamName="new", ExclusiveStartShardId=described["Shards"][-1]["ShardId"])
    shards = described["Shards"] + rest["StreamDescription"]["Shards"]
    edges = [
        (int(s["HashKeyRange"]["StartingHashKey"]), int(s["HashKeyRange"]["EndingHashKey"])) for s in shards
    ]
    assert edges[0][0] == 0
    assert edges[-1][1] == MAX
    assert [high + 1 for _, high in edges[:-1]] == [low for low, _ in edges[1:]]
    assert summary["StreamARN"].endswith(":stream/new")
    assert client.describe_stream_summary(StreamARN=summary["StreamARN"])
    client.delete_stream(StreamName="new")
    refused("ResourceNotFoundException", client.describe_stream_summary, StreamName="new")


def test_on_demand_stream_needs_no_shard_count(kinesis: LocalKinesis) -> None:
    """An on-demand stream starts with four shards; a provisioned one must say how many."""
    client = kinesis.client()
    client.create_stream(StreamName="free", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    summary = client.describe_stream_summary(StreamName="free")["StreamDescriptionSummary"]
    assert (summary["OpenShardCount"], summary["StreamModeDetails"]["StreamMode"]) == (4, "ON_DEMAND")
    assert "ShardCount" in refused("ValidationException", client.create_stream, StreamName="fixed")


def test_names_are_unique_and_found_again(kinesis: LocalKinesis) -> None:
    """A second stream of one name is refused; a missing stream and a missing shard are told apart."""
    client = kinesis.client()
    assert "orders" in refused(
        "ResourceInUseException", client.create_stream, StreamName="orders", ShardCount=1
    )
    assert "nope" in refused("ResourceNotFoundException", client.list_shards, StreamName="nope")
    message = refused(
        "ResourceNotFoundException",
        client.get_shard_iterator,
        StreamName="orders",
        ShardId="shardId-000000000009",
        ShardIteratorType="LATEST",
    )
    assert "shardId-000000000009" in message
    refused("InvalidArgumentException", client.describe_stream_summary)


def test_list_streams_in_pages(kinesis: LocalKinesis) -> None:
    """Names come sorted, in pages, by token or by name."""
    for name in ("b", "a", "c"):
        kinesis.engine.create_stream(name)
    client = kinesis.client()
    first = client.list_streams(Limit=2)
    assert (first["StreamNames"], first["HasMoreStreams"]) == (["a", "b"], True)
    assert client.list_streams(Limit=2, NextToken=first["NextToken"])["StreamNames"] == ["c", "orders"]
    assert client.list_streams(ExclusiveStartStreamName="b")["StreamNames"] == ["c", "orders"]
    assert [n for page in client.get_paginator("list_streams").paginate() for n in page["StreamNames"]] == [
        "a",
        "b",
        "c",
        "orders",
    ]


def test_settling_shows_in_the_status(clock: ManualClock) -> None:
    """With `settle_ms` a stream says CREATING, then ACTIVE, and UPDATING after a change."""
    with local_kinesis("orders", clock=clock, settings=Settings(settle_ms=1000)) as kinesis:
        client = kinesis.client()

        def status() -> str:
            return client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"][
                "StreamStatus"
            ]

        assert status() == "CREATING"
        clock.advance(1000)
        assert status() == "ACTIVE"
        kinesis.engine.split_shard("orders", "shardId-000000000000")
        assert status() == "UPDATING"
        clock.advance(1000)
        assert status() == "ACTIVE"


def test_split_closes_the_parent_and_opens_two_children(kinesis: LocalKinesis) -> None:
    """A split parent's records lie below its ending number, and its children start above it."""
    client = kinesis.client()
    put_all(client, "orders", [(str(n), b"x") for n in range(50)])
    client.split_shard(
        StreamName="orders", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(HALF // 4)
    )
    shards = {s["ShardId"]: s for s in client.list_shards(StreamName="orders")["Shards"]}
    parent = shards["shardId-000000000000"]
    children = [s for s in shards.values() if s.get("ParentShardId") == "shardId-000000000000"]
    assert [c["HashKeyRange"] for c in children] == [
        {"StartingHashKey": "0", "EndingHashKey": str(HALF // 4 - 1)},
        {"StartingHashKey": str(HALF // 4), "EndingHashKey": str(HALF - 1)},
    ]
    end = int(parent["SequenceNumberRange"]["EndingSequenceNumber"])
    assert all(int(c["SequenceNumberRange"]["StartingSequenceNumber"]) > end for c in children)
    mine = [r for r in read_all(client, "orders") if r.shard_id == "shardId-000000000000"]
    assert mine
    assert all(r.sequence_number < end for r in mine)
    refused(
        "InvalidArgumentException",
        client.split_shard,
        StreamName="orders",
        ShardToSplit="shardId-000000000000",
        NewStartingHashKey=str(HALF // 4),
    )
    refused(
        "InvalidArgumentException",
        client.split_shard,
        StreamName="orders",
        ShardToSplit="shardId-000000000001",
        NewStartingHashKey="5",
    )


def test_merge_names_both_parents(kinesis: LocalKinesis) -> None:
    """A merge closes two neighbours, in either order, and its child names both; others cannot be merged."""
    client = kinesis.client()
    client.merge_shards(
        StreamName="orders", ShardToMerge="shardId-000000000001", AdjacentShardToMerge="shardId-000000000000"
    )
    child = client.list_shards(StreamName="orders")["Shards"][-1]
    assert child["ParentShardId"] == "shardId-000000000001"
    assert child["AdjacentParentShardId"] == "shardId-000000000000"
    assert child["HashKeyRange"] == {"StartingHashKey": "0", "EndingHashKey": str(MAX)}
    kinesis.engine.create_stream("three", 3)
    refused(
        "InvalidArgumentException",
        client.merge_shards,
        StreamName="three",
        ShardToMerge="shardId-000000000000",
        AdjacentShardToMerge="shardId-000000000002",
    )


@pytest.mark.parametrize("target", [1, 3, 4, 5])
def test_update_shard_count_ends_even(kinesis: LocalKinesis, target: int) -> None:
    """UpdateShardCount ends with so many even open shards that tile the key space."""
    reply = kinesis.client().update_shard_count(
        StreamName="orders", TargetShardCount=target, ScalingType="UNIFORM_SCALING"
    )
    assert (reply["CurrentShardCount"], reply["TargetShardCount"]) == (2, target)
    shards = kinesis.engine.stream("orders").open_shards
    assert len(shards) == target
    assert shards[0].low == 0
    assert shards[-1].high == MAX
    assert all(low.high + 1 == high.low for low, high in pairwise(shards))
    widths = [shard.high - shard.low for shard in shards]
    assert max(widths) - min(widths) <= 1


def test_shard_filters(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Each filter lets through the shards that were open at, or from, its moment."""
    begun = clock()
    clock.advance(10_000)
    kinesis.engine.split_shard("orders", "shardId-000000000000")
    clock.advance(10_000)
    kinesis.engine.merge_shards("orders", "shardId-000000000003", "shardId-000000000001")
    clock.advance(10_000)

    def at(offset_ms: int) -> datetime:
        return datetime.fromtimestamp((begun + offset_ms) / 1000, UTC)

    def ids(kind: str, **more: Any) -> list[int]:
        return shard_ids(kinesis, ShardFilter={"Type": kind, **more})

    assert shard_ids(kinesis) == [0, 1, 2, 3, 4]
    assert ids("AT_LATEST") == [2, 4]
    assert ids("AT_TRIM_HORIZON") == [0, 1]
    assert ids("FROM_TRIM_HORIZON") == [0, 1, 2, 3, 4]
    assert ids("AFTER_SHARD_ID", ShardId="shardId-000000000002") == [3, 4]
    assert ids("AT_TIMESTAMP", Timestamp=at(15_000)) == [1, 2, 3]
    assert ids("FROM_TIMESTAMP", Timestamp=at(15_000)) == [1, 2, 3, 4]
    assert ids("AT_TIMESTAMP", Timestamp=at(25_000)) == [2, 4]
    assert shard_ids(kinesis, ExclusiveStartShardId="shardId-000000000001") == [2, 3, 4]
    client = kinesis.client()
    refused(
        "InvalidArgumentException",
        client.list_shards,
        StreamName="orders",
        ShardFilter={"Type": "AT_TIMESTAMP", "Timestamp": at(99_000)},
    )
    refused(
        "InvalidArgumentException",
        client.list_shards,
        StreamName="orders",
        ShardFilter={"Type": "AFTER_SHARD_ID"},
    )


def test_shard_pages_keep_their_filter(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """A paging token carries stream and filter, refuses company, and expires."""
    kinesis.engine.update_shard_count("orders", 4)
    client = kinesis.client()
    arguments: dict[str, Any] = {"ShardFilter": {"Type": "AT_LATEST"}, "MaxResults": 3}
    first = client.list_shards(StreamName="orders", **arguments)
    assert len(first["Shards"]) == 3
    token = first["NextToken"]
    rest = client.list_shards(NextToken=token, MaxResults=3)
    assert len(rest["Shards"]) == 1
    assert "NextToken" not in rest
    refused("InvalidArgumentException", client.list_shards, StreamName="orders", NextToken=token)
    refused("InvalidArgumentException", client.list_shards, NextToken="nonsense")
    clock.advance(300_001)
    refused("ExpiredNextTokenException", client.list_shards, NextToken=token)


def test_a_stream_made_anew_is_another_stream(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Creation time, iterators and sequence numbers of a deleted stream do not fit its successor."""
    client = kinesis.client()
    created = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
    number = client.put_record(StreamName="orders", PartitionKey="k", Data=b"x", ExplicitHashKey="0")
    place = client.get_shard_iterator(
        StreamName="orders", ShardId=number["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    client.delete_stream(StreamName="orders")
    clock.advance(1)
    client.create_stream(StreamName="orders", ShardCount=2)
    refused("ResourceNotFoundException", client.get_records, ShardIterator=place)
    refused(
        "ResourceNotFoundException",
        client.list_shards,
        StreamName="orders",
        StreamCreationTimestamp=created["StreamCreationTimestamp"],
    )
    refused(
        "InvalidArgumentException",
        client.get_shard_iterator,
        StreamName="orders",
        ShardId=number["ShardId"],
        ShardIteratorType="AFTER_SEQUENCE_NUMBER",
        StartingSequenceNumber=number["SequenceNumber"],
    )


def test_retention_drops_records_and_then_closed_shards(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Records leave after the retention, closed shards when all they held has left."""
    client = kinesis.client()
    put_all(client, "orders", [("a", b"old")])
    kinesis.engine.split_shard("orders", "shardId-000000000000")
    client.increase_stream_retention_period(StreamName="orders", RetentionPeriodHours=48)
    clock.advance(25 * 3_600_000)
    assert [r.data for r in read_all(client, "orders")] == [b"old"]
    client.decrease_stream_retention_period(StreamName="orders", RetentionPeriodHours=24)
    assert read_all(client, "orders") == []
    assert shard_ids(kinesis) == [1, 2, 3]
    for change, hours in (
        (client.increase_stream_retention_period, 9000),
        (client.increase_stream_retention_period, 23),
        (client.decrease_stream_retention_period, 48),
        (client.decrease_stream_retention_period, 23),
    ):
        refused("InvalidArgumentException", change, StreamName="orders", RetentionPeriodHours=hours)


def test_replies_carry_the_service_time(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """The Date header is the service's clock, from which readers take their time."""
    clock.advance(timedelta(days=3) // timedelta(milliseconds=1))
    headers = kinesis.client().list_streams()["ResponseMetadata"]["HTTPHeaders"]
    assert headers["date"] == datetime.fromtimestamp(clock() // 1000, UTC).strftime(
        "%a, %d %b %Y %H:%M:%S GMT"
    )


def test_calls_it_does_not_know(kinesis: LocalKinesis) -> None:
    """A call that the local Kinesis lacks is refused by name."""
    client = kinesis.client()
    assert "ListTagsForStream" in refused(
        "UnknownOperationException", client.list_tags_for_stream, StreamName="orders"
    )


def test_limits_on_streams_and_shards() -> None:
    """The bounds on streams and shards are settings."""
    with local_kinesis("a", settings=Settings(max_streams=2, max_shards=5)) as kinesis:
        client = kinesis.client()
        refused("LimitExceededException", client.create_stream, StreamName="b", ShardCount=5)
        client.create_stream(StreamName="b", ShardCount=4)
        refused("LimitExceededException", client.create_stream, StreamName="c", ShardCount=1)


def test_a_taken_port_is_one_sentence() -> None:
    """A port that cannot be bound is an error that names it; the server can be started again later."""
    with LocalKinesis() as first:
        second = LocalKinesis(port=first.port)
        with pytest.raises(MissingRequirement, match=f"127.0.0.1:{first.port}"):
            second.start()
        second.stop()
    second.start()
    second.stop()
