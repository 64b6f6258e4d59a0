"""Lanes: all that waits for one shard, in order; which lane a record takes; what the next request carries.

::

    put ─► Lanes ─► open aggregate ─► ready Kinesis records ─► (limiter) ─► choose ─► request
                                      ▲                                                 │
                                      └──────────── failed, in front again ◄────────────┘

At most one request of a lane is under way: two could reach the shard in either order, and order within a
partition key would be lost. Without the open shards known, records go alone through a few lanes by partition
key. When the shards change, all that waits moves, in order of arrival, into the new lanes.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from headpond.core.bucket import Bucket
from headpond.kinesis.producer.records import Bundle, Pending
from headpond.kinesis.producer.settings import ProducerSettings
from headpond.kinesis.producer.shard_map import OpenShards
from headpond.kpl import Aggregator, Packed, alone

_RECORDS_PER_SECOND = 1000
_BYTES_PER_SECOND = 1024 * 1024
_BURST_BYTES = 10 * 1024 * 1024
_BACKOFF_BASE_MS = 50
_BACKOFF_MOST_MS = 2_000
_LANES_WITHOUT_SHARD = 4
_MOST_CACHED_KEYS = 1 << 16


def backoff_ms(tries: int, draw: random.Random) -> float:
    """Return the pause before try number `tries` + 1: doubling, bounded, jittered between half and whole."""
    whole = min(_BACKOFF_MOST_MS, _BACKOFF_BASE_MS * 2.0 ** min(tries - 1, 10))
    return whole * draw.uniform(0.5, 1.0)


class ShardLimiter:
    """Lets 1,000 records and 1 MiB a second through, times `rate_limit` percent.

    Bursts may take a second's records and 10 MiB at once.
    """

    def __init__(self, rate_limit: int, now_ms: float) -> None:
        share = rate_limit / 100
        self._records = Bucket(_RECORDS_PER_SECOND * share, capacity=_RECORDS_PER_SECOND, now_ms=now_ms)
        self._bytes = Bucket(_BYTES_PER_SECOND * share, capacity=_BURST_BYTES, now_ms=now_ms)

    def wait_ms(self, bundle: Bundle, now_ms: float) -> float:
        """Return the milliseconds until this Kinesis record may go; 0 is now."""
        return max(self._records.wait_ms(1, now_ms), self._bytes.wait_ms(bundle.size_bytes, now_ms))

    def take(self, bundle: Bundle) -> None:
        """Count one that goes now."""
        self._records.take(1)
        self._bytes.take(bundle.size_bytes)


class Lane:
    """What waits for one shard.

    Args:
        shard_id: The shard predicted; None while that is unknown: then nothing is aggregated or limited.

    Attributes:
        in_flight: Whether a request with something of this lane is under way.
        ready: Kinesis records that may be sent.
        ready_bytes: Their size.
        held_until_ms: Nothing leaves before: the shard was throttled, or a try failed.
        open_deadline_ms: When the open aggregate must become ready; infinite if there is none.
    """

    def __init__(
        self, settings: ProducerSettings, shard_id: str | None = None, limiter: ShardLimiter | None = None
    ) -> None:
        self.shard_id = shard_id
        self.limiter = limiter
        self.in_flight = False
        self.ready: deque[Bundle] = deque()
        self.ready_bytes = 0
        self.held_until_ms = -math.inf
        self.open_deadline_ms = math.inf
        self._open: Aggregator[Pending] | None = None
        if shard_id is not None:
            self._open = Aggregator(settings.aggregation_max_size, settings.aggregation_max_count)

    def add(self, record: Pending) -> bool:
        """Add a record; return whether a Kinesis record became ready."""
        if self._open is None:
            self._append(alone(record))
            return True
        complete = self._open.add(record)
        if complete:
            for packed in complete:
                self._append(packed)
            self.open_deadline_ms = record.deadline_ms if self._open.records else math.inf
            return True
        if record.deadline_ms < self.open_deadline_ms:  # noqa: PLR1730 - the hot path: min() costs a call
            self.open_deadline_ms = record.deadline_ms
        return False

    def put_back(self, bundles: list[Bundle]) -> None:
        """Put Kinesis records that failed in front again, in their old order."""
        for bundle in reversed(bundles):
            self.ready.appendleft(bundle)
            self.ready_bytes += bundle.size_bytes

    def close_due(self, now_ms: float) -> None:
        """Make the open aggregate ready if its first record may wait no longer."""
        if self.open_deadline_ms <= now_ms:
            self.close_open()

    def close_open(self) -> None:
        """Make the open aggregate ready."""
        packed = self._open.close() if self._open is not None else None
        if packed is not None:
            self._append(packed)
            self.open_deadline_ms = math.inf

    def wait_ms(self, now_ms: float) -> float:
        """Return the milliseconds until the first ready Kinesis record may leave; 0 or less is now."""
        wait_ms = self.held_until_ms - now_ms
        return wait_ms if self.limiter is None else max(wait_ms, self.limiter.wait_ms(self.ready[0], now_ms))

    def pop(self) -> Bundle:
        """Remove and return the first ready Kinesis record, and count it."""
        bundle = self.ready.popleft()
        if self.limiter is not None:
            self.limiter.take(bundle)
        self.ready_bytes -= bundle.size_bytes
        return bundle

    def take_all(self) -> list[Pending]:
        """Empty the lane: all user records in it."""
        self.close_open()
        records = [record for bundle in self.ready for record in bundle.records]
        self.ready.clear()
        self.ready_bytes = 0
        return records

    def take_expired(self, now_ms: float) -> list[Pending]:
        """Remove the user records that expired while waiting; what is left of their aggregates stays."""
        expired: list[Pending] = []
        if not any(bundle.expiry_ms <= now_ms for bundle in self.ready):
            return expired
        bundles = list(self.ready)
        self.ready.clear()
        self.ready_bytes = 0
        for bundle in bundles:
            if bundle.expiry_ms > now_ms:
                self.ready.append(bundle)
                self.ready_bytes += bundle.size_bytes
                continue
            expired += [record for record in bundle.records if record.expiry_ms <= now_ms]
            left = [record for record in bundle.records if record.expiry_ms > now_ms]
            if left and self._open is not None:
                again = Aggregator[Pending]()
                for record in left:
                    again.add(record)
                self._append(Packed(left, again.data_bytes))
        return expired

    @property
    def is_empty(self) -> bool:
        """Return whether nothing waits."""
        return not self.ready and (self._open is None or not self._open.records)

    def _append(self, packed: Packed[Pending]) -> None:
        bundle = Bundle(packed.records, packed.data_bytes)
        self.ready.append(bundle)
        self.ready_bytes += bundle.size_bytes


class Router:
    """The lanes of the moment."""

    def __init__(self, settings: ProducerSettings, now_ms: float) -> None:
        self._settings = settings
        self._limiters: dict[str, ShardLimiter] = {}
        self._open: OpenShards | None = None
        self._lanes: dict[str, Lane] = {}
        self._unknown: list[Lane] = []
        self._by_key: dict[str, Lane] = {}
        self.busy: set[Lane] = set()
        self.change(None, now_ms)

    def change(self, open_shards: OpenShards | None, now_ms: float) -> None:
        """Go over to these open shards, or to none known."""
        waiting = [record for lane in self.busy for record in lane.take_all()]
        self.busy.clear()
        self._by_key.clear()
        self._open = open_shards
        self._unknown = [Lane(self._settings) for _ in range(_LANES_WITHOUT_SHARD)]
        self._lanes = {}
        if open_shards is not None:
            # A shard that stays open keeps the account of what it was sent.
            self._limiters = {
                shard.shard_id: self._limiters.get(shard.shard_id)
                or ShardLimiter(self._settings.rate_limit, now_ms)
                for shard in open_shards.shards
            }
            self._lanes = {
                shard_id: Lane(self._settings, shard_id, limiter)
                for shard_id, limiter in self._limiters.items()
            }
        for record in sorted(waiting, key=lambda each: each.serial):
            self.add(record)

    def add(self, record: Pending) -> tuple[Lane, bool]:
        """Add a record to its lane; return the lane, and whether a Kinesis record became ready."""
        if record.explicit_hash_key is None:
            lane = self._by_key.get(record.partition_key)
            if lane is None:
                lane = self._lane_of_key(record.partition_key)
        else:
            lane = self._lane_of(record.partition_key, int(record.explicit_hash_key).to_bytes(16, "big"))
        self.busy.add(lane)
        return lane, lane.add(record)

    def knows(self, partition_key: str) -> bool:
        """Return whether a record with this key came lately, so that the key need not be checked again."""
        return partition_key in self._by_key

    def _lane_of_key(self, partition_key: str) -> Lane:
        digest = hashlib.md5(partition_key.encode(), usedforsecurity=False).digest()
        lane = self._lane_of(partition_key, digest)
        if len(self._by_key) >= _MOST_CACHED_KEYS:
            self._by_key.clear()
        self._by_key[partition_key] = lane
        return lane

    def _lane_of(self, partition_key: str, hash_key: bytes) -> Lane:
        if self._open is None:
            return self._unknown[hash(partition_key) % len(self._unknown)]
        return self._lanes[self._open.find(hash_key)]


class Part(NamedTuple):
    """One entry of a request and the lane it came from."""

    lane: Lane
    bundle: Bundle


def choose(
    lanes: Iterable[Lane], settings: ProducerSettings, now_ms: float, *, hurry: bool = False
) -> tuple[list[Part], float]:
    """Remove the next request's entries from the lanes, and mark these as under way.

    With `hurry` what is ready is sent without waiting for more.

    Returns:
        The entries, none if nothing may go yet; and the time at which to look again.
    """
    free: list[Lane] = []
    look_again_ms = math.inf
    for lane in lanes:
        if not lane.ready or lane.in_flight:
            continue
        wait_ms = lane.wait_ms(now_ms)
        if wait_ms > 0:
            look_again_ms = min(look_again_ms, now_ms + wait_ms, lane.ready[0].expiry_ms)
        else:
            free.append(lane)
    if not free:
        return [], look_again_ms
    free.sort(key=lambda lane: lane.ready[0].deadline_ms)
    due_ms = free[0].ready[0].deadline_ms
    if not (hurry or due_ms <= now_ms or has_enough(free, settings)):
        return [], min(look_again_ms, due_ms)
    return _fill(free, settings, now_ms), now_ms


def has_enough(free: list[Lane], settings: ProducerSettings) -> bool:
    """Return whether what is ready makes up a request, which then goes at once."""
    return (
        any(lane.ready_bytes >= settings.collection_max_shard_size for lane in free)
        or sum(lane.ready_bytes for lane in free) >= settings.collection_max_size
        or sum(len(lane.ready) for lane in free) >= settings.collection_max_count
    )


def _fill(free: list[Lane], settings: ProducerSettings, now_ms: float) -> list[Part]:
    parts: list[Part] = []
    size_bytes = 0
    for lane in free:
        lane_bytes = 0
        while lane.ready and lane_bytes < settings.collection_max_shard_size:
            bundle = lane.ready[0]
            full = (
                len(parts) >= settings.collection_max_count
                or size_bytes + bundle.size_bytes > settings.collection_max_size
                or bundle.alone
            )
            # A record larger than a request may be goes in one of its own.
            if (parts and full) or lane.wait_ms(now_ms) > 0:
                break
            parts.append(Part(lane, lane.pop()))
            lane.in_flight = True
            size_bytes += bundle.size_bytes
            lane_bytes += bundle.size_bytes
            if bundle.alone:
                return parts
    return parts
