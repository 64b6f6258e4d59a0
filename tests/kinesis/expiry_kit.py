"""What tests of records that expire share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kinesis.source_kit import STREAM

if TYPE_CHECKING:
    from headpond.localkinesis import LocalKinesis
    from tests.kinesis.source_kit import Row

HOUR_MS = 3_600_000
SHARD = "shardId-000000000000"
BOUNDS = ["none", "64 MiB"]


def numbers(batches: list[list[Row]]) -> list[int]:
    """The numbers that `put` wrote into the records."""
    return sorted(int(data.rstrip(b".")) for batch in batches for _, _, data in batch)


def trim_first(kinesis: LocalKinesis, count: int) -> int:
    """Let the oldest records expire; gives the number of the oldest one left."""
    oldest = kinesis.engine.records(STREAM)[count].sequence_number
    kinesis.engine.trim(STREAM, SHARD, oldest)
    return oldest
