"""The service's limits per shard, each switchable; all off by default.

Reads: 5 calls and 2 MiB a second; a large reply is given whole and paid for by refusing the calls of
the following seconds, as the service does. Writes: 1 MiB and 1,000 records a second, refused at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from headpond.kinesis.bucket import Bucket
from headpond.kinesis.local.refusal import ServiceRefusalError

__all__ = ["NO_LIMITS", "SERVICE_LIMITS", "Limits", "ShardMeter", "check_scaling"]

THROTTLED = "ProvisionedThroughputExceededException"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a shard takes and gives a second, and what one change of a stream may do; None is no limit.

    Attributes:
        reads_per_second: GetRecords calls.
        read_bytes_per_second: Bytes of data and keys out.
        write_bytes_per_second: Bytes of data and keys in.
        write_records_per_second: Records in.
        scale_factor: One UpdateShardCount takes at most so many times the open shards, and leaves no less
            than that part of them.
    """

    reads_per_second: int | None = None
    read_bytes_per_second: int | None = None
    write_bytes_per_second: int | None = None
    write_records_per_second: int | None = None
    scale_factor: int | None = None


NO_LIMITS = Limits()
SERVICE_LIMITS = Limits(5, 2 * 1024 * 1024, 1024 * 1024, 1000, scale_factor=2)
"""What the service documents for a provisioned stream and its shards."""


def check_scaling(limits: Limits, stream: str, before: int, target: int) -> None:
    """Refuse an UpdateShardCount that goes too far at once, counted in open shards."""
    factor = limits.scale_factor
    if factor is not None and not before <= target * factor <= before * factor**2:
        raise ServiceRefusalError(
            "LimitExceededException",
            f"UpdateShardCount takes stream {stream} from {before} open shards to no more than "
            f"{before * factor} and no less than {-(-before // factor)}, not to {target}.",
        )


class ShardMeter:
    """Counts one shard's traffic against the limits."""

    def __init__(self, limits: Limits, shard_id: str, stream: str, account: str, now_ms: int) -> None:
        self._where = f"shard {shard_id} in stream {stream} under account {account}"

        def bucket(rate: int | None) -> Bucket | None:
            return None if rate is None else Bucket(rate, now_ms=now_ms)

        self._reads = bucket(limits.reads_per_second)
        self._read_bytes = bucket(limits.read_bytes_per_second)
        self._write_bytes = bucket(limits.write_bytes_per_second)
        self._write_records = bucket(limits.write_records_per_second)

    def start_read(self, now_ms: int) -> None:
        """Count a read call, or refuse it."""
        calls, volume = self._reads, self._read_bytes
        if (calls and calls.level(now_ms) < 1) or (volume and volume.level(now_ms) <= 0):
            raise ServiceRefusalError(THROTTLED, f"Rate exceeded for {self._where}.")
        if calls:
            calls.take(1)

    def end_read(self, size_bytes: int) -> None:
        """Count what a read gave, into overdraft if need be."""
        if self._read_bytes:
            self._read_bytes.take(size_bytes)

    def write(self, size_bytes: int, now_ms: int) -> None:
        """Count one record written, or refuse it."""
        records, volume = self._write_records, self._write_bytes
        # A record above the rate is let in by a full bucket: large records exist.
        if (records and records.level(now_ms) < 1) or (
            volume and volume.level(now_ms) < min(size_bytes, volume.capacity)
        ):
            raise ServiceRefusalError(THROTTLED, f"Rate exceeded for {self._where}.")
        if records:
            records.take(1)
        if volume:
            volume.take(size_bytes)
