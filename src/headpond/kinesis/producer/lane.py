"""A lane: everything that waits for one shard, in order, with at most one request under way.

::

    put ─► open aggregate ─► ready Kinesis records ─► (limiter) ─► request
                             ▲                                       │
                             └────────── failed, in front again ◄────┘

One request at a time is what keeps order within a partition key: two requests under way could reach the
shard in either order. A lane without a shard takes records while the shard map is not known, each alone.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from headpond.kinesis.producer.aggregator import OpenAggregate, alone

if TYPE_CHECKING:
    from headpond.kinesis.producer.limiter import ShardLimiter
    from headpond.kinesis.producer.records import Bundle, Pending
    from headpond.kinesis.producer.settings import ProducerSettings

__all__ = ["Lane"]

_ROOM_BYTES = 64
"""Part of an aggregate fits where all of it did; a record sent raw lacked the framing."""


class Lane:
    """What waits for one shard.

    Args:
        settings: Bounds of aggregates.
        shard_id: The shard predicted; None while that is unknown: then nothing is aggregated or limited.
        limiter: The shard's; None without a shard.

    Attributes:
        in_flight: Whether a request with something of this lane is under way.
        ready: Kinesis records that may be sent.
        ready_bytes: Their size.
        held_until_ms: Nothing leaves before: the shard was throttled, or a try failed.
    """

    __slots__ = ("_open", "held_until_ms", "in_flight", "limiter", "ready", "ready_bytes", "shard_id")

    def __init__(
        self, settings: ProducerSettings, shard_id: str | None = None, limiter: ShardLimiter | None = None
    ) -> None:
        self.shard_id = shard_id
        self.limiter = limiter
        self.in_flight = False
        self.ready: deque[Bundle] = deque()
        self.ready_bytes = 0
        self.held_until_ms = -math.inf
        self._open = (
            None
            if shard_id is None
            else OpenAggregate(settings.aggregation_max_size, settings.aggregation_max_count)
        )

    def add(self, record: Pending) -> bool:
        """Take a record in; tells whether a Kinesis record became ready."""
        if self._open is None:
            self._append(alone(record))
            return True
        closed = self._open.add(record)
        for bundle in closed:
            self._append(bundle)
        return bool(closed)

    def put_back(self, bundles: list[Bundle]) -> None:
        """Put Kinesis records that failed in front again, in their old order."""
        for bundle in reversed(bundles):
            self.ready.appendleft(bundle)
            self.ready_bytes += bundle.size_bytes

    def close_due(self, now_ms: float) -> None:
        """Make the open aggregate ready if its first record may wait no longer."""
        if self._open is not None and self._open.deadline_ms <= now_ms:
            self.close_open()

    def close_open(self) -> None:
        """Make the open aggregate ready."""
        bundle = self._open.close() if self._open is not None else None
        if bundle is not None:
            self._append(bundle)

    def wait_ms(self, now_ms: float) -> float:
        """Milliseconds until the first ready Kinesis record may leave; 0 or less is now."""
        wait_ms = self.held_until_ms - now_ms
        return wait_ms if self.limiter is None else max(wait_ms, self.limiter.wait_ms(self.ready[0], now_ms))

    def pop(self) -> Bundle:
        """Take the first ready Kinesis record, and count it."""
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
                self._append(bundle)
                continue
            expired += [record for record in bundle.records if record.expiry_ms <= now_ms]
            left = OpenAggregate(bundle.size_bytes + _ROOM_BYTES, len(bundle.records))
            for record in bundle.records:
                if record.expiry_ms > now_ms:
                    for closed in left.add(record):
                        self._append(closed)
            rest = left.close()
            if rest is not None:
                self._append(rest)
        return expired

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self.ready and (self._open is None or not self._open.records)

    @property
    def open_deadline_ms(self) -> float:
        """When the open aggregate must become ready; infinite if there is none."""
        return math.inf if self._open is None else self._open.deadline_ms

    def _append(self, bundle: Bundle) -> None:
        self.ready.append(bundle)
        self.ready_bytes += bundle.size_bytes
