"""Which shard takes a hash key: the open shards' ranges, and those of shards lately closed."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headpond.formats.hash_keys import HashKeyRange

__all__ = ["OpenShards", "ShardRange", "tile"]

_KEYS = 1 << 128


class ShardRange(NamedTuple):
    """A shard and its hash keys."""

    shard_id: str
    keys: HashKeyRange


class OpenShards:
    """The open shards of a stream at one moment, for looking up hash keys.

    Args:
        shards: Ranges that cover the whole hash key space.
    """

    def __init__(self, shards: Iterable[ShardRange]) -> None:
        self.shards = sorted(shards, key=lambda shard: shard.keys.end)
        # Big-endian bytes compare like the numbers, and MD5 gives bytes.
        self._ends = [shard.keys.end.to_bytes(16, "big") for shard in self.shards]

    def find(self, hash_key: bytes) -> str:
        """The shard that takes a hash key, given as 16 big-endian bytes."""
        return self.shards[bisect_left(self._ends, hash_key)].shard_id


def tile(shards: Iterable[ShardRange]) -> bool:
    """Whether the ranges cover the hash key space once; a listing caught in a reshard may not."""
    edge = 0
    for shard in sorted(shards, key=lambda each: each.keys.start):
        if shard.keys.start != edge:
            return False
        edge = shard.keys.end + 1
    return edge == _KEYS
