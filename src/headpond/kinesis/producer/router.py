"""Which lane a user record takes, and what happens to those that wait when the shards change.

With the open shards known there is a lane per shard; without, records go alone through a few lanes by
partition key, so that their order holds and several requests may still be under way. At each change all that
waits moves, in order of arrival, into the new lanes.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from headpond.kinesis.producer.lane import Lane
from headpond.kinesis.producer.limiter import ShardLimiter

if TYPE_CHECKING:
    from headpond.kinesis.producer.ranges import OpenShards
    from headpond.kinesis.producer.records import Pending
    from headpond.kinesis.producer.settings import ProducerSettings

__all__ = ["Router"]

_LANES_WITHOUT_SHARD = 4
_MOST_CACHED_KEYS = 1 << 16


class Router:
    """The lanes of the moment.

    Args:
        settings: Bounds of aggregates, and the rate limit.
        now_ms: The time.
    """

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
        """Let a record wait in its lane; gives the lane, and whether a Kinesis record became ready."""
        if record.explicit_hash_key is None:
            lane = self._by_key.get(record.partition_key)
            if lane is None:
                lane = self._lane_of_key(record.partition_key)
        else:
            lane = self._lane_of(record.partition_key, int(record.explicit_hash_key).to_bytes(16, "big"))
        self.busy.add(lane)
        return lane, lane.add(record)

    def knows(self, partition_key: str) -> bool:
        """Whether a record with this key came lately, so that the key need not be checked again."""
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
