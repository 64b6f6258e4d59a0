"""One script of calls, the same to every stand-in for Kinesis; its answers in a form that can be compared.

A step gives plain values: what differs between two right servers (sequence numbers, times, tokens) is left
out or counted. A refusal is the service's error code.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable

STREAM = "orders"
FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"
TOP = (1 << 128) - 1
MIB = 1 << 20
PATIENCE_S = 8.0
STEPS: dict[str, Any] = {}


def step(function: Callable[[World], Any]) -> Callable[[World], Any]:
    """Take a function into the script, under its name."""
    STEPS[function.__name__] = function
    return function


class Never(Exception):
    """What a step waits for did not come."""


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise Never
        time.sleep(0.1)


class World:
    """A server and what the script has put there."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.numbers: list[str] = []

    def run(self) -> dict[str, Any]:
        """Run every step in order."""
        answers: dict[str, Any] = {}
        for name, function in STEPS.items():
            try:
                answers[name] = function(self)
            except Never:
                answers[name] = "never"
            except ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                code = error.response["Error"]["Code"]
                answers[name] = f"refused: {code if status < 500 else status}"
        return answers

    def settle(self) -> dict[str, Any]:
        """Wait until the stream is active; gives its summary."""

        def summary() -> dict[str, Any]:
            found = self.client.describe_stream_summary(StreamName=STREAM)
            return found["StreamDescriptionSummary"]  # type: ignore[no-any-return]

        wait_until(lambda: summary()["StreamStatus"] == "ACTIVE")
        return summary()

    def shards(self, **arguments: Any) -> list[dict[str, Any]]:
        return self.client.list_shards(StreamName=STREAM, **arguments)["Shards"]  # type: ignore[no-any-return]

    def iterator(self, kind: str, shard_id: str = FIRST, **more: Any) -> str:
        found = self.client.get_shard_iterator(
            StreamName=STREAM, ShardId=shard_id, ShardIteratorType=kind, **more
        )
        return found["ShardIterator"]  # type: ignore[no-any-return]

    def read(self, place: str, **more: Any) -> tuple[list[str], bool]:
        """Read once: data as text, and whether that was all."""
        reply = self.client.get_records(ShardIterator=place, **more)
        data = [record["Data"].decode() for record in reply["Records"]]
        return data, reply["MillisBehindLatest"] == 0


def shape(shards: list[dict[str, Any]]) -> list[list[Any]]:
    """A listing without its sequence numbers."""
    return [
        [
            shard["ShardId"],
            shard["HashKeyRange"]["StartingHashKey"],
            shard["HashKeyRange"]["EndingHashKey"],
            shard.get("ParentShardId"),
            shard.get("AdjacentParentShardId"),
            "EndingSequenceNumber" in shard["SequenceNumberRange"],
        ]
        for shard in shards
    ]


@step
def create(world: World) -> Any:
    world.client.create_stream(StreamName=STREAM, ShardCount=2)
    found = world.settle()
    return [
        found["OpenShardCount"],
        found["RetentionPeriodHours"],
        found["StreamModeDetails"]["StreamMode"],
        found["EncryptionType"],
        found["StreamARN"].rpartition("/")[2],
    ]


@step
def create_again(world: World) -> Any:
    world.client.create_stream(StreamName=STREAM, ShardCount=1)


@step
def list_streams(world: World) -> Any:
    return world.client.list_streams()["StreamNames"]


@step
def list_shards(world: World) -> Any:
    return shape(world.shards())


@step
def keys_choose_the_shard(world: World) -> Any:
    replies = [
        world.client.put_record(StreamName=STREAM, PartitionKey=f"k{n}", Data=b"%d" % n) for n in range(8)
    ]
    world.numbers = [reply["SequenceNumber"] for reply in replies if reply["ShardId"] == FIRST]
    return [reply["ShardId"] for reply in replies]


@step
def numbers_rise(world: World) -> Any:
    return [int(number) for number in world.numbers] == sorted(map(int, world.numbers))


@step
def numbers_have_56_digits(world: World) -> Any:
    return {len(number) for number in world.numbers} == {56}


@step
def hash_key_0(world: World) -> Any:
    return world.client.put_record(StreamName=STREAM, PartitionKey="h", ExplicitHashKey="0", Data=b"low")[
        "ShardId"
    ]


@step
def hash_key_at_the_top(world: World) -> Any:
    return world.client.put_record(
        StreamName=STREAM, PartitionKey="h", ExplicitHashKey=str(TOP), Data=b"high"
    )["ShardId"]


@step
def hash_key_beyond_the_top(world: World) -> Any:
    world.client.put_record(StreamName=STREAM, PartitionKey="h", ExplicitHashKey=str(TOP + 1), Data=b"x")


@step
def hash_key_beyond_the_top_among_others(world: World) -> Any:
    entries = [
        {"PartitionKey": "h", "ExplicitHashKey": str(TOP + 1), "Data": b"x"},  # first: moto stores as it goes
        {"PartitionKey": "h", "Data": b"x"},
    ]
    return world.client.put_records(StreamName=STREAM, Records=entries)["FailedRecordCount"]


@step
def put_records(world: World) -> Any:
    entries = [{"PartitionKey": f"p{n}", "Data": b"%d" % (100 + n)} for n in range(4)]
    reply = world.client.put_records(StreamName=STREAM, Records=entries)
    return [
        reply["FailedRecordCount"],
        [[each.get("ShardId"), each.get("ErrorCode")] for each in reply["Records"]],
    ]


@step
def more_than_500_records(world: World) -> Any:
    entries = [{"PartitionKey": "p", "Data": b""} for _ in range(501)]
    return world.client.put_records(StreamName=STREAM, Records=entries)["FailedRecordCount"]


@step
def key_of_257_characters(world: World) -> Any:
    return world.client.put_record(StreamName=STREAM, PartitionKey="k" * 257, Data=b"x")["ShardId"]


@step
def record_over_1_mib(world: World) -> Any:
    return world.client.put_record(StreamName=STREAM, PartitionKey="k", Data=bytes(MIB + 1))["ShardId"]


@step
def read_from_the_horizon(world: World) -> Any:
    return world.read(world.iterator("TRIM_HORIZON"))


@step
def read_with_a_limit(world: World) -> Any:
    reply = world.client.get_records(ShardIterator=world.iterator("TRIM_HORIZON"), Limit=2)
    more, _ = world.read(reply["NextShardIterator"], Limit=2)
    return [record["Data"].decode() for record in reply["Records"]], more


@step
def limit_over_10000(world: World) -> Any:
    return world.read(world.iterator("TRIM_HORIZON"), Limit=10_001)


@step
def read_at_a_number(world: World) -> Any:
    return world.read(world.iterator("AT_SEQUENCE_NUMBER", StartingSequenceNumber=world.numbers[1]))


@step
def read_after_a_number(world: World) -> Any:
    return world.read(world.iterator("AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=world.numbers[1]))


@step
def read_at_a_time(world: World) -> Any:
    return world.read(world.iterator("AT_TIMESTAMP", Timestamp=datetime.now(UTC) - timedelta(hours=1)))


@step
def read_at_a_time_to_come(world: World) -> Any:
    return world.read(world.iterator("AT_TIMESTAMP", Timestamp=datetime.now(UTC) + timedelta(hours=1)))


@step
def read_the_latest(world: World) -> Any:
    place = world.iterator("LATEST")
    nothing = world.read(place)
    world.client.put_record(StreamName=STREAM, PartitionKey="h", ExplicitHashKey="0", Data=b"new")
    return nothing, world.read(place)


@step
def number_of_another_shard(world: World) -> Any:
    return world.read(
        world.iterator("AT_SEQUENCE_NUMBER", shard_id=SECOND, StartingSequenceNumber=world.numbers[0])
    )


@step
def number_of_no_stream(world: World) -> Any:
    return world.read(world.iterator("AT_SEQUENCE_NUMBER", StartingSequenceNumber="7"))


@step
def iterator_that_is_none(world: World) -> Any:
    return world.read("A" * 200)


@step
def shard_that_is_none(world: World) -> Any:
    return world.iterator("TRIM_HORIZON", shard_id="shardId-000000000099")


@step
def stream_that_is_none(world: World) -> Any:
    return world.client.describe_stream_summary(StreamName="nowhere")


@step
def listing_in_pages(world: World) -> Any:
    found, reply = [], world.client.list_shards(StreamName=STREAM, MaxResults=1)
    for _ in range(5):
        found.append([shard["ShardId"] for shard in reply["Shards"]])
        if "NextToken" not in reply:
            break
        reply = world.client.list_shards(NextToken=reply["NextToken"], MaxResults=1)
    return found


@step
def split(world: World) -> Any:
    world.client.split_shard(StreamName=STREAM, ShardToSplit=FIRST, NewStartingHashKey=str(1 << 126))
    world.settle()
    return shape(world.shards())


@step
def split_a_closed_shard(world: World) -> Any:
    world.client.split_shard(StreamName=STREAM, ShardToSplit=FIRST, NewStartingHashKey=str(1 << 125))


@step
def arn_that_is_none(world: World) -> Any:
    world.client.describe_stream_summary(StreamARN=STREAM)


@step
def children_begin_above_their_parent(world: World) -> Any:
    ranges = {shard["ShardId"]: shard["SequenceNumberRange"] for shard in world.shards()}
    end = int(ranges[FIRST]["EndingSequenceNumber"])
    return [int(ranges[f"shardId-00000000000{n}"]["StartingSequenceNumber"]) > end for n in (2, 3)]


@step
def end_of_a_closed_shard(world: World) -> Any:
    place, found = world.iterator("TRIM_HORIZON"), []
    for _ in range(5):
        reply = world.client.get_records(ShardIterator=place)
        found += [record["Data"].decode() for record in reply["Records"]]
        place = reply.get("NextShardIterator")
        if place is None:
            children = [[c["ShardId"], c["ParentShards"]] for c in reply["ChildShards"]]
            return [found, reply["MillisBehindLatest"], sorted(children)]
    return [found, "no end"]


@step
def put_after_a_split(world: World) -> Any:
    return [
        world.client.put_record(StreamName=STREAM, PartitionKey="h", ExplicitHashKey=str(at), Data=b"after")[
            "ShardId"
        ]
        for at in (0, 1 << 126)
    ]


@step
def open_shards_only(world: World) -> Any:
    return [shard["ShardId"] for shard in world.shards(ShardFilter={"Type": "AT_LATEST"})]


@step
def shards_after_a_shard(world: World) -> Any:
    chosen = world.shards(ShardFilter={"Type": "AFTER_SHARD_ID", "ShardId": SECOND})
    return [shard["ShardId"] for shard in chosen]


@step
def shards_from_the_horizon(world: World) -> Any:
    return [shard["ShardId"] for shard in world.shards(ShardFilter={"Type": "FROM_TRIM_HORIZON"})]


@step
def merge(world: World) -> Any:
    world.client.merge_shards(
        StreamName=STREAM, ShardToMerge="shardId-000000000002", AdjacentShardToMerge="shardId-000000000003"
    )
    world.settle()
    return shape(world.shards())[-1]


@step
def merge_what_is_not_adjacent(world: World) -> Any:
    world.client.merge_shards(StreamName=STREAM, ShardToMerge=SECOND, AdjacentShardToMerge=FIRST)


@step
def update_shard_count(world: World) -> Any:
    reply = world.client.update_shard_count(
        StreamName=STREAM, TargetShardCount=4, ScalingType="UNIFORM_SCALING"
    )
    return [reply["CurrentShardCount"], reply["TargetShardCount"], world.settle()["OpenShardCount"]]


@step
def open_shards_cover_the_ring(world: World) -> Any:
    ranges = sorted(
        (int(shard["HashKeyRange"]["StartingHashKey"]), int(shard["HashKeyRange"]["EndingHashKey"]))
        for shard in world.shards()
        if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    )
    ends = [0, *(high + 1 for _, high in ranges)]
    return [low for low, _ in ranges] == ends[:-1] and ends[-1] == TOP + 1


@step
def retention(world: World) -> Any:
    world.client.increase_stream_retention_period(StreamName=STREAM, RetentionPeriodHours=48)
    longer = world.settle()["RetentionPeriodHours"]
    world.client.decrease_stream_retention_period(StreamName=STREAM, RetentionPeriodHours=24)
    return longer, world.settle()["RetentionPeriodHours"]


@step
def retention_below_a_day(world: World) -> Any:
    world.client.decrease_stream_retention_period(StreamName=STREAM, RetentionPeriodHours=12)


@step
def consumers(world: World) -> Any:
    arn = world.settle()["StreamARN"]
    made = world.client.register_stream_consumer(StreamARN=arn, ConsumerName="reader")["Consumer"]

    def status() -> list[str]:
        listed = world.client.list_stream_consumers(StreamARN=arn)["Consumers"]
        return [each["ConsumerStatus"] for each in listed]

    wait_until(lambda: status() == ["ACTIVE"])
    return [made["ConsumerName"], f":stream/{STREAM}/consumer/reader:" in made["ConsumerARN"]]


@step
def consumer_again(world: World) -> Any:
    arn = world.settle()["StreamARN"]
    world.client.register_stream_consumer(StreamARN=arn, ConsumerName="reader")


@step
def consumer_gone(world: World) -> Any:
    arn = world.settle()["StreamARN"]
    world.client.deregister_stream_consumer(StreamARN=arn, ConsumerName="reader")
    wait_until(lambda: not world.client.list_stream_consumers(StreamARN=arn)["Consumers"])
    return world.client.describe_stream_consumer(StreamARN=arn, ConsumerName="reader")


@step
def larger_records(world: World) -> Any:
    arn = world.settle()["StreamARN"]
    world.client.update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=2048)
    world.settle()
    return world.client.put_record(
        StreamName=STREAM, PartitionKey="k", ExplicitHashKey="0", Data=bytes(MIB + 1)
    )["ShardId"][:8]


@step
def delete(world: World) -> Any:
    world.client.delete_stream(StreamName=STREAM, EnforceConsumerDeletion=True)
    wait_until(lambda: not world.client.list_streams()["StreamNames"])
    return world.client.describe_stream_summary(StreamName=STREAM)
