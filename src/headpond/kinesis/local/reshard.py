"""Splitting, merging and rescaling of a stream's shards, as changes to the model."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from headpond.kinesis.local.model import MAX_HASH_KEY
from headpond.kinesis.local.refusal import ServiceRefusalError

if TYPE_CHECKING:
    from headpond.kinesis.local.model import Shard, Stream

__all__ = ["even_ranges", "merge", "rescale", "split"]


def even_ranges(count: int) -> list[tuple[int, int]]:
    """The whole hash key space in so many nearly equal ranges, both ends inclusive."""
    edges = [(MAX_HASH_KEY + 1) * index // count for index in range(count + 1)]
    return [(low, above - 1) for low, above in pairwise(edges)]


def split(stream: Stream, shard: Shard, new_start: int, now_ms: int) -> list[Shard]:
    """Close a shard and open two below it, the second of which starts at `new_start`, as SplitShard does."""
    _must_be_open(shard)
    if not shard.low + 1 < new_start < shard.high:
        raise ServiceRefusalError(
            "InvalidArgumentException",
            f"NewStartingHashKey {new_start} used in SplitShard() on shard {shard.shard_id} in stream "
            f"{stream.name} is not both greater than one plus the shard's StartingHashKey {shard.low} and "
            f"less than the shard's EndingHashKey {shard.high}.",
        )
    return _split(stream, shard, new_start, now_ms)


def merge(stream: Stream, shard: Shard, adjacent: Shard, now_ms: int) -> Shard:
    """Close two neighbours and open one below both."""
    _must_be_open(shard)
    _must_be_open(adjacent)
    low, high = sorted((shard, adjacent), key=lambda each: each.low)
    if low.high + 1 != high.low:
        raise ServiceRefusalError(
            "InvalidArgumentException",
            f"Shards {shard.shard_id} and {adjacent.shard_id} in stream {stream.name} are not an adjacent "
            "pair of shards eligible for merging.",
        )
    return stream.open_shard_ranges([(low.low, high.high)], now_ms, (shard, adjacent))[0]


def rescale(stream: Stream, target: int, now_ms: int) -> None:
    """Split and merge until so many even shards are open, as UpdateShardCount does."""
    ranges = even_ranges(target)
    for low, _ in ranges[1:]:
        shard = stream.shard_for(low)
        if shard.low < low:
            _split(stream, shard, low, now_ms)
    for low, high in ranges:
        while (shard := stream.shard_for(low)).high < high:
            merge(stream, shard, stream.shard_for(shard.high + 1), now_ms)


def _split(stream: Stream, shard: Shard, new_start: int, now_ms: int) -> list[Shard]:
    # Even shards of uneven ones may begin one key above an old one, where SplitShard would not cut.
    return stream.open_shard_ranges([(shard.low, new_start - 1), (new_start, shard.high)], now_ms, (shard,))


def _must_be_open(shard: Shard) -> None:
    if shard.closed_ms is not None:
        raise ServiceRefusalError(
            "InvalidArgumentException",
            f"Shard {shard.shard_id} is closed: only an open shard may be resharded.",
        )
