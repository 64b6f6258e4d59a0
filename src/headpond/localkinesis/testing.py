"""Helpers for your own tests against the local Kinesis; needs no test framework.

::

    with local_kinesis("orders", shards=2) as kinesis:
        put_all(kinesis.client(), "orders", [("key", b"data")])
        job(endpoint_url=kinesis.endpoint_url)
        assert [r.data for r in read_all(kinesis.client(), "orders")] == [b"data"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from headpond.localkinesis.server import LocalKinesis
from headpond.localkinesis.settings import wall_clock_ms

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient
    from mypy_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef

    from headpond.localkinesis.settings import Settings

__all__ = ["ManualClock", "ReadRecord", "local_kinesis", "put_all", "read_all"]

_ENTRIES = 500


class ManualClock:
    """A clock that a test moves; pass it to the local Kinesis to test retention and expiry."""

    def __init__(self, now_ms: int = 1_767_225_600_000) -> None:
        self._now_ms = now_ms

    def __call__(self) -> int:
        """Return the time in epoch milliseconds."""
        return self._now_ms

    def advance(self, by_ms: int) -> None:
        """Move the clock."""
        self._now_ms += by_ms


class ReadRecord(NamedTuple):
    """A record as a reader finds it; `sequence_number` is comparable."""

    shard_id: str
    sequence_number: int
    partition_key: str
    data: bytes


@contextmanager
def local_kinesis(
    *streams: str,
    shards: int = 1,
    settings: Settings | None = None,
    clock: Callable[[], int] = wall_clock_ms,
    seed: int = 0,
) -> Iterator[LocalKinesis]:
    """Run a local Kinesis with these streams, each of this many shards, until the block ends."""
    with LocalKinesis(settings=settings, clock=clock, seed=seed) as kinesis:
        for stream in streams:
            kinesis.engine.create_stream(stream, shards)
        yield kinesis


def put_all(client: KinesisClient, stream: str, records: Iterable[tuple[str, bytes]]) -> None:
    """Put (partition key, data) pairs in order.

    Raises:
        RuntimeError: Some were refused.
    """
    entries: list[PutRecordsRequestEntryTypeDef] = [
        {"PartitionKey": key, "Data": data} for key, data in records
    ]
    for start in range(0, len(entries), _ENTRIES):
        reply = client.put_records(StreamName=stream, Records=entries[start : start + _ENTRIES])
        if reply.get("FailedRecordCount"):
            raise RuntimeError(f"{reply['FailedRecordCount']} records were refused.")


def read_all(client: KinesisClient, stream: str) -> list[ReadRecord]:
    """Read all records of all shards, parents before children, each shard to its end or tip."""
    found: list[ReadRecord] = []
    pages = client.get_paginator("list_shards").paginate(StreamName=stream)
    for shard in sorted((s for page in pages for s in page["Shards"]), key=lambda each: each["ShardId"]):
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )
        place: str | None = iterator["ShardIterator"]
        while place is not None:
            reply = client.get_records(ShardIterator=place)
            found += [
                ReadRecord(shard["ShardId"], int(r["SequenceNumber"]), r["PartitionKey"], r["Data"])
                for r in reply["Records"]
            ]
            place = reply.get("NextShardIterator")
            if not reply["Records"] and not reply["MillisBehindLatest"]:
                break
    return found
