"""The local Kinesis through boto3: what it refuses for its size, its name, its state or its make."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from botocore.exceptions import ClientError

from headpond.localkinesis import SERVICE_LIMITS, Limits, LocalKinesis, Settings
from headpond.localkinesis.testing import ManualClock, local_kinesis
from tests.localkinesis.local_kit import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP = 2**128 - 1
FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


@pytest.fixture
def kinesis(clock: ManualClock) -> Iterator[LocalKinesis]:
    with local_kinesis("orders", shards=2, clock=clock) as running:
        yield running


def rescale(kinesis: LocalKinesis, target: int) -> Any:
    return kinesis.client().update_shard_count(
        StreamName="orders", TargetShardCount=target, ScalingType="UNIFORM_SCALING"
    )


def test_resharding_keeps_to_the_shards_of_the_account() -> None:
    """SplitShard and UpdateShardCount are bound as CreateStream is; merging always works."""
    with local_kinesis("orders", "other", shards=2, settings=Settings(max_shards=5)) as kinesis:
        client = kinesis.client()
        message = refused(
            "LimitExceededException",
            client.update_shard_count,
            StreamName="orders",
            TargetShardCount=4,
            ScalingType="UNIFORM_SCALING",
        )
        assert "Current shard count for the account: 4. Limit: 5." in message
        assert "resulted from this request: 2." in message
        client.split_shard(StreamName="orders", ShardToSplit=FIRST, NewStartingHashKey="1000")
        more = {"StreamName": "orders", "ShardToSplit": SECOND, "NewStartingHashKey": str(3 << 126)}
        refused("LimitExceededException", client.split_shard, **more)
        assert rescale(kinesis, 2)["CurrentShardCount"] == 3
        client.split_shard(
            StreamName="orders",
            ShardToSplit=kinesis.engine.stream("orders").open_shards[1].shard_id,
            NewStartingHashKey=str(3 << 126),
        )


def test_a_huge_target_is_refused_and_not_tried(kinesis: LocalKinesis) -> None:
    """A count beyond all limits is answered at once."""
    refused(
        "LimitExceededException",
        kinesis.client().update_shard_count,
        StreamName="orders",
        TargetShardCount=2_000_000_000,
        ScalingType="UNIFORM_SCALING",
    )


@pytest.mark.parametrize(("target", "taken"), [(2, False), (3, True), (5, True), (10, True), (11, False)])
def test_one_rescaling_goes_to_double_or_half(target: int, *, taken: bool) -> None:
    """With the service's limits a stream of 5 shards goes to 3 to 10 of them; without, anywhere."""
    for limits in (SERVICE_LIMITS, Limits()):
        with local_kinesis("orders", shards=5, settings=Settings(limits=limits)) as kinesis:
            if taken or limits != SERVICE_LIMITS:
                assert rescale(kinesis, target)["TargetShardCount"] == target
            else:
                with pytest.raises(ClientError, match="to no more than 10 and no less than 3") as caught:
                    rescale(kinesis, target)
                assert caught.value.response["Error"]["Code"] == "LimitExceededException"


def test_a_hash_key_beyond_the_ring_refuses_the_whole_request(kinesis: LocalKinesis) -> None:
    """PutRecords fails single entries only for rate and for failures of the service."""
    entries = [
        {"PartitionKey": "k", "Data": b"1"},
        {"PartitionKey": "k", "Data": b"2", "ExplicitHashKey": str(TOP + 1)},
    ]
    client = kinesis.client()
    assert str(TOP) in refused(
        "InvalidArgumentException", client.put_records, StreamName="orders", Records=entries
    )
    assert kinesis.engine.records("orders") == []
    entries[1]["ExplicitHashKey"] = str(TOP)
    assert client.put_records(StreamName="orders", Records=entries)["FailedRecordCount"] == 0


def test_an_arn_is_an_arn_and_names_the_stream_that_is_named(kinesis: LocalKinesis) -> None:
    """A bare name is no ARN; a name, an iterator or a token of another stream does not go with one."""
    kinesis.engine.create_stream("other", 2)
    arn, client = kinesis.engine.stream("orders").arn, kinesis.client()
    for wrong in ("orders", "arn:aws:s3:::orders", arn.replace(":stream/", ":table/")):
        refused("ValidationException", client.describe_stream_summary, StreamARN=wrong)
        refused("ValidationException", client.register_stream_consumer, StreamARN=wrong, ConsumerName="c")
    refused("ValidationException", client.describe_stream_consumer, ConsumerARN=arn)
    elsewhere = arn.replace(":000000000000:", ":111111111111:")
    refused("ResourceNotFoundException", client.describe_stream_summary, StreamARN=elsewhere)
    assert client.describe_stream_summary(StreamARN=arn, StreamName="orders")
    refused("InvalidArgumentException", client.list_shards, StreamARN=arn, StreamName="other")
    place = client.get_shard_iterator(StreamName="other", ShardId=FIRST, ShardIteratorType="LATEST")
    refused(
        "InvalidArgumentException", client.get_records, ShardIterator=place["ShardIterator"], StreamARN=arn
    )
    token = client.list_shards(StreamName="other", MaxResults=1)["NextToken"]
    refused("InvalidArgumentException", client.list_shards, NextToken=token, StreamARN=arn)
    other = kinesis.engine.stream("other").arn
    assert len(client.list_shards(NextToken=token, StreamARN=other)["Shards"]) == 1
    refused(
        "InvalidArgumentException",
        client.list_shards,
        NextToken=token,
        StreamCreationTimestamp=datetime.now(UTC),
    )


@pytest.mark.parametrize("edge", [0, 1, 2**127 - 1])
def test_a_split_leaves_more_than_one_key_on_each_side(kinesis: LocalKinesis, edge: int) -> None:
    """The new start must be above one plus the shard's start and below its end, as the message says."""
    message = refused(
        "InvalidArgumentException",
        kinesis.client().split_shard,
        StreamName="orders",
        ShardToSplit=FIRST,
        NewStartingHashKey=str(edge),
    )
    assert "greater than one plus" in message
    kinesis.engine.split_shard("orders", FIRST, 2)


def test_rescaling_may_cut_beside_an_old_edge(kinesis: LocalKinesis) -> None:
    """Even shards come out also where their edges lie one key beside those of uneven ones."""
    kinesis.engine.split_shard("orders", FIRST, 2**126 - 1)
    kinesis.engine.split_shard("orders", SECOND, 3 * 2**126 + 1)
    rescale(kinesis, 4)
    assert [shard.low for shard in kinesis.engine.stream("orders").open_shards] == [
        n << 126 for n in range(4)
    ]


def test_a_throttled_call_names_its_account() -> None:
    """The message of a limit has the account of the settings."""
    settings = Settings(account="123456789012", limits=Limits(reads_per_second=1))
    with local_kinesis("orders", settings=settings, clock=ManualClock()) as kinesis:
        client = kinesis.client()
        place = client.get_shard_iterator(StreamName="orders", ShardId=FIRST, ShardIteratorType="LATEST")
        client.get_records(ShardIterator=place["ShardIterator"])
        assert "under account 123456789012" in refused(
            "ProvisionedThroughputExceededException",
            client.get_records,
            ShardIterator=place["ShardIterator"],
        )


def forged(*values: object) -> str:
    return urlsafe_b64encode(orjson.dumps(values)).decode()


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("iterator", 1),
        ("iterator", 1, "orders", 1, FIRST, "x"),
        ("iterator", 1, "orders", "soon", FIRST, "1"),
        ("iterator", 1, "orders", 1, FIRST, "1", 2),
        ("page", 1),
        ("page", 1, ["orders", 1]),
        ("page", 1, ["orders", 1, "", None, []]),
    ],
)
def test_a_forged_token_is_refused_like_any_other(kinesis: LocalKinesis, values: tuple[object, ...]) -> None:
    """A token that this server has not made is an error of the caller, whatever is in it."""
    client = kinesis.client()
    refused("InvalidArgumentException", client.get_records, ShardIterator=forged(*values))
    refused("InvalidArgumentException", client.list_shards, NextToken=forged(*values))


def test_a_stream_in_the_making_takes_nothing(clock: ManualClock) -> None:
    """CREATING: not there for records, in use for changes; UPDATING: records yes, changes no."""
    with local_kinesis("orders", shards=2, clock=clock, settings=Settings(settle_ms=1000)) as kinesis:
        client = kinesis.client()
        put: dict[str, Any] = {"StreamName": "orders", "PartitionKey": "k", "Data": b"x"}
        at = {"StreamName": "orders", "ShardId": FIRST, "ShardIteratorType": "LATEST"}
        split = {"StreamName": "orders", "ShardToSplit": FIRST, "NewStartingHashKey": "1000"}
        merge = {"StreamName": "orders", "ShardToMerge": FIRST, "AdjacentShardToMerge": SECOND}
        scale = {"StreamName": "orders", "TargetShardCount": 4, "ScalingType": "UNIFORM_SCALING"}
        longer = {"StreamName": "orders", "RetentionPeriodHours": 48}
        changes: list[tuple[Any, dict[str, Any]]] = [
            (client.split_shard, split),
            (client.merge_shards, merge),
            (client.update_shard_count, scale),
            (client.increase_stream_retention_period, longer),
        ]
        refused("ResourceNotFoundException", client.put_record, **put)
        refused("ResourceNotFoundException", client.get_shard_iterator, **at)
        for change, arguments in changes:
            assert "CREATING" in refused("ResourceInUseException", change, **arguments)
        clock.advance(1000)
        client.split_shard(**split)
        client.put_record(**put)
        client.get_shard_iterator(**at)
        for change, arguments in changes:
            assert "UPDATING" in refused("ResourceInUseException", change, **arguments)
        clock.advance(1000)
        client.update_shard_count(**scale)
