"""A shard as the service describes it, for readers and producers alike; this needs nothing but the codec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headpond.kpl.hash_keys import FULL_RANGE, HashKeyRange


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard as ListShards describes it."""

    shard_id: str
    parents: tuple[str, ...] = ()  # none, one (split) or two (merge)
    closed: bool = False
    hash_keys: HashKeyRange = FULL_RANGE


def shard_of(value: Mapping[str, Any]) -> Shard:
    """Read a shard of ListShards' answer."""
    parents = (value.get("ParentShardId"), value.get("AdjacentParentShardId"))
    keys = value["HashKeyRange"]
    return Shard(
        value["ShardId"],
        tuple(parent for parent in parents if parent),
        "EndingSequenceNumber" in value["SequenceNumberRange"],
        HashKeyRange(int(keys["StartingHashKey"]), int(keys["EndingHashKey"])),
    )
