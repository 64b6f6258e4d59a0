"""Bounds and identity of the local Kinesis, and what its engine answers with."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headpond.kinesis.local.limits import NO_LIMITS, Limits

if TYPE_CHECKING:
    from headpond.kinesis.local.model import Record, Shard
    from headpond.kinesis.local.tokens import Position

__all__ = ["Placed", "Reading", "Settings", "wall_clock_ms"]

_MIB = 1024 * 1024


def wall_clock_ms() -> int:
    """The machine's time in epoch milliseconds."""
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


class Placed(NamedTuple):
    """Where a record was stored."""

    shard_id: str
    sequence_number: int


class Reading(NamedTuple):
    """What a read gives.

    Attributes:
        records: Oldest first.
        position: Where to go on; None at the end of a closed shard.
        behind_ms: Time between what was read and the tip of the shard; 0 at the tip.
        children: Shards below this one, at its end only.
    """

    records: list[Record]
    position: Position | None
    behind_ms: int
    children: list[Shard]
