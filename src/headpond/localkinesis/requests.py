"""What each call takes: one struct per call, decoded and checked in one go by msgspec.

Sizes, patterns and required members are those of the service's model. Members are spelt as in the API
(`stream_name` is `StreamName`); unknown ones are ignored, as the service does.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct, field

from headpond.localkinesis.settings import invalid_argument

Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")]
Arn = Annotated[
    str, Meta(min_length=1, max_length=2048, pattern=r"^arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/[^\s/]+$")
]
ConsumerArn = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=2048,
        pattern=r"^arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/[a-zA-Z0-9_.-]+/consumer/[a-zA-Z0-9_.-]+:\d+$",
    ),
]
HashKey = Annotated[str, Meta(pattern=r"^(0|[1-9]\d{0,38})$")]
Number = Annotated[str, Meta(pattern=r"^(0|[1-9]\d{0,128})$")]
PartitionKey = Annotated[str, Meta(min_length=1, max_length=256)]
Token = Annotated[str, Meta(min_length=1, max_length=1_048_576)]
FilterKind = Literal[
    "AFTER_SHARD_ID", "AT_TRIM_HORIZON", "FROM_TRIM_HORIZON", "AT_LATEST", "AT_TIMESTAMP", "FROM_TIMESTAMP"
]
StartKind = Literal["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"]
UpTo10000 = Annotated[int, Meta(ge=1, le=10_000)]


def check_same_stream(name: str, arn: str) -> None:
    """Refuse a call that names two streams."""
    if arn.rpartition("/")[2] != name:
        raise invalid_argument(f"StreamARN {arn} is not that of stream {name}: give one, or both of one.")


class _Request(Struct, rename="pascal"):
    """Members in the API's spelling; unknown ones are ignored."""


class OnStream(_Request):
    """A call on one stream, by name or ARN."""

    stream_name: Name | None = None
    stream_arn: Arn | None = field(default=None, name="StreamARN")

    def stream(self) -> str:
        """Return what the caller named the stream by."""
        if self.stream_arn is not None and self.stream_name is not None:
            check_same_stream(self.stream_name, self.stream_arn)
        named = self.stream_arn or self.stream_name
        if named is None:
            raise invalid_argument("Neither StreamName nor StreamARN was given: one of them must be.")
        return named


class Mode(_Request):
    """Provisioned or on-demand."""

    stream_mode: Literal["PROVISIONED", "ON_DEMAND"]


class CreateStream(_Request):
    """A new stream."""

    stream_name: Name
    shard_count: Annotated[int, Meta(ge=1)] | None = None
    stream_mode_details: Mode | None = None
    max_record_size_in_kib: Annotated[int, Meta(ge=1024, le=10240)] = field(
        default=1024, name="MaxRecordSizeInKiB"
    )


class DescribeStream(OnStream):
    """A stream with a page of its shards."""

    limit: UpTo10000 = 100
    exclusive_start_shard_id: Name | None = None


class ListStreams(_Request):
    """A page of stream names."""

    limit: UpTo10000 = 100
    exclusive_start_stream_name: Name | None = None
    next_token: Token | None = None


class Filter(_Request):
    """Which shards to list."""

    type: FilterKind
    shard_id: Name | None = None
    timestamp: float | None = None


class ListShards(OnStream):
    """A page of shards."""

    next_token: Token | None = None
    exclusive_start_shard_id: Name | None = None
    max_results: UpTo10000 = 1000
    shard_filter: Filter | None = None
    stream_creation_timestamp: float | None = None


class Entry(_Request, kw_only=True):
    """One record of a PutRecords."""

    data: Raw
    partition_key: PartitionKey
    explicit_hash_key: HashKey | None = None


class PutRecord(OnStream, kw_only=True):
    """One record."""

    data: Raw
    partition_key: PartitionKey
    explicit_hash_key: HashKey | None = None


class PutRecords(OnStream, kw_only=True):
    """Up to 500 records."""

    records: Annotated[list[Entry], Meta(min_length=1, max_length=500)]


class GetShardIterator(OnStream, kw_only=True):
    """A place to read from."""

    shard_id: Name
    shard_iterator_type: StartKind
    starting_sequence_number: Number | None = None
    timestamp: float | None = None


class GetRecords(_Request):
    """A reading from a place."""

    shard_iterator: Annotated[str, Meta(min_length=1, max_length=512)]
    limit: UpTo10000 | None = None
    stream_arn: Arn | None = field(default=None, name="StreamARN")


class RegisterStreamConsumer(_Request):
    """A new consumer of a stream."""

    stream_arn: Arn = field(name="StreamARN")
    consumer_name: Name


class OnConsumer(_Request):
    """A call on one consumer, by its ARN or by stream and name."""

    stream_arn: Arn | None = field(default=None, name="StreamARN")
    consumer_name: Name | None = None
    consumer_arn: ConsumerArn | None = field(default=None, name="ConsumerARN")


class ListStreamConsumers(_Request):
    """A page of consumers."""

    stream_arn: Arn = field(name="StreamARN")
    next_token: Token | None = None
    max_results: UpTo10000 = 100


class StartingPosition(_Request):
    """Where a subscription starts."""

    type: StartKind
    sequence_number: Number | None = None
    timestamp: float | None = None


class SubscribeToShard(_Request):
    """A consumer's subscription to a shard."""

    consumer_arn: ConsumerArn = field(name="ConsumerARN")
    shard_id: Name
    starting_position: StartingPosition


class DeleteStream(OnStream):
    """A stream to delete, with its consumers where that is asked for."""

    enforce_consumer_deletion: bool = False


class SplitShard(OnStream, kw_only=True):
    """One shard into two."""

    shard_to_split: Name
    new_starting_hash_key: HashKey


class MergeShards(OnStream, kw_only=True):
    """Two neighbours into one."""

    shard_to_merge: Name
    adjacent_shard_to_merge: Name


class UpdateShardCount(OnStream, kw_only=True):
    """Another number of even shards."""

    target_shard_count: Annotated[int, Meta(ge=1)]
    scaling_type: Literal["UNIFORM_SCALING"]


class Retention(OnStream, kw_only=True):
    """Another retention."""

    retention_period_hours: int


class UpdateMaxRecordSize(OnStream, kw_only=True):
    """Another bound on a record."""

    max_record_size_in_kib: Annotated[int, Meta(ge=1024, le=10240)] = field(name="MaxRecordSizeInKiB")
