"""Bounds, limits and identity of the local Kinesis, and the error of a call that breaks one.

Limits per shard are those of the service, each switchable; all off by default. Reads: 5 calls and 2 MiB a
second; a large reply is sent whole and paid for by refusing the calls of the following seconds, as the
service does. Writes: 1 MiB and 1,000 records a second, refused at once.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial

from headpond.core.bucket import Bucket


class ServiceRefusalError(Exception):
    """A call that the service refuses; boto3 shows it as `botocore.exceptions.ClientError`."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


invalid_argument = partial(ServiceRefusalError, "InvalidArgumentException")
invalid = partial(ServiceRefusalError, "ValidationException")
"""The refusal of a member that breaks a bound."""
not_found = partial(ServiceRefusalError, "ResourceNotFoundException")
in_use = partial(ServiceRefusalError, "ResourceInUseException")
"""The refusal of a call on what cannot be changed now."""
limit_exceeded = partial(ServiceRefusalError, "LimitExceededException")
"""The refusal of a call that goes beyond a limit of the account."""

THROTTLED = "ProvisionedThroughputExceededException"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a shard takes and returns a second, and what one change of a stream may do; None means no limit.

    Attributes:
        reads_per_second: GetRecords calls.
        read_bytes_per_second: Bytes of data and keys out.
        write_bytes_per_second: Bytes of data and keys in.
        write_records_per_second: Records in.
        scale_factor: One UpdateShardCount takes at most this many times the open shards, and leaves no less
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
        raise limit_exceeded(
            f"UpdateShardCount takes stream {stream} from {before} open shards to no more than "
            f"{before * factor} and no less than {-(-before // factor)}, not to {target}."
        )


class ShardMeter:
    """Counts one shard's traffic against the limits."""

    def __init__(self, limits: Limits, where: str, now_ms: int) -> None:
        self._where = where

        def bucket(rate: int | None) -> Bucket:
            return Bucket(math.inf if rate is None else rate, now_ms=now_ms)

        self._reads = bucket(limits.reads_per_second)
        self._read_bytes = bucket(limits.read_bytes_per_second)
        self._write_bytes = bucket(limits.write_bytes_per_second)
        self._write_records = bucket(limits.write_records_per_second)

    def start_read(self, now_ms: int) -> None:
        """Count a read call, or refuse it."""
        if self._reads.level(now_ms) < 1 or self._read_bytes.level(now_ms) <= 0:
            raise self._throttled()
        self._reads.take(1)

    def end_read(self, size_bytes: int) -> None:
        """Count what a read returned, into overdraft if need be."""
        self._read_bytes.take(size_bytes)

    def write(self, size_bytes: int, now_ms: int) -> None:
        """Count one record written, or refuse it."""
        records, volume = self._write_records, self._write_bytes
        # A record above the rate is let in by a full bucket: large records exist.
        if records.level(now_ms) < 1 or volume.level(now_ms) < min(size_bytes, volume.capacity):
            raise self._throttled()
        records.take(1)
        volume.take(size_bytes)

    def _throttled(self) -> ServiceRefusalError:
        return ServiceRefusalError(THROTTLED, f"Rate exceeded for {self._where}.")


_MIB = 1024 * 1024


def wall_clock_ms() -> int:
    """Return the machine's time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds and identity of the local service.

    Attributes:
        region: Part of ARNs.
        account: Part of ARNs.
        limits: Traffic limits per shard; none by default.
        settle_ms: How long a stream says CREATING or UPDATING after a change.
        iterator_lifetime_ms: Age at which shard iterators and paging tokens expire.
        reply_bytes: Most bytes of data in one GetRecords reply; one record always fits.
        reply_records: Most records in one GetRecords reply.
        request_bytes: Most bytes of data and keys in one PutRecords request.
        max_streams: Most streams at a time.
        max_shards: Most open shards of all streams.
        max_consumers: Most registered consumers of a stream.
        max_creating_consumers: Most of them in CREATING.
        subscription_ms: How long a subscription to a shard lasts.
        resubscribe_ms: For how long after a subscription its consumer gets no other one to the shard.
        heartbeat_ms: Time between a subscription's events while there are no records.
        event_bytes: Most bytes of data in one event; one record always fits.
    """

    region: str = "us-east-1"
    account: str = "000000000000"
    limits: Limits = NO_LIMITS
    settle_ms: int = 0
    iterator_lifetime_ms: int = 300_000
    reply_bytes: int = 10 * _MIB
    reply_records: int = 10_000
    request_bytes: int = 10 * _MIB
    max_streams: int = 1_000
    max_shards: int = 20_000
    max_consumers: int = 20
    max_creating_consumers: int = 5
    subscription_ms: int = 300_000
    resubscribe_ms: int = 5_000
    heartbeat_ms: int = 5_000
    event_bytes: int = _MIB
