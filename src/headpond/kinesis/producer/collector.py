"""Which Kinesis records the next PutRecords carries: a pure choice over the lanes.

A request goes when a record in it is due, when a lane has enough for its shard, or when the request
would be full. It then takes along whatever else is ready and fits, from the lane with the earliest
deadline on, in each lane's order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headpond.kinesis.producer.lane import Lane
    from headpond.kinesis.producer.records import Bundle
    from headpond.kinesis.producer.settings import ProducerSettings

__all__ = ["Part", "choose"]


class Part(NamedTuple):
    """One entry of a request and the lane it came from."""

    lane: Lane
    bundle: Bundle


def choose(
    lanes: Iterable[Lane], settings: ProducerSettings, now_ms: float, *, hurry: bool = False
) -> tuple[list[Part], float]:
    """Take the next request's entries out of the lanes, and mark these as under way.

    Args:
        lanes: Those that may have something ready.
        settings: Bounds of a request.
        now_ms: The time.
        hurry: Send what is ready without waiting for more.

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
    if not (hurry or due_ms <= now_ms or _has_enough(free, settings)):
        return [], min(look_again_ms, due_ms)
    return _fill(free, settings, now_ms), now_ms


def _has_enough(free: list[Lane], settings: ProducerSettings) -> bool:
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
