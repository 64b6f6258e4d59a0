"""What every answer needs at hand: the engine, the faults in force, and how shards are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headpond.kinesis.local.engine import Engine
    from headpond.kinesis.local.faults import Faults
    from headpond.kinesis.local.model import Shard

__all__ = ["Desk", "Pieces", "range_json", "shard_json"]


class Pieces(list[bytes]):
    """A reply in pieces, which go out one by one where they are large: stored records are not copied."""

    @property
    def size_bytes(self) -> int:
        """Length of the whole."""
        return sum(map(len, self))


@dataclass(frozen=True, slots=True)
class Desk:
    """Where calls are answered."""

    engine: Engine
    faults: Faults

    @property
    def now_ms(self) -> int:
        """The service's time."""
        return self.engine.clock()

    @property
    def lifetime_ms(self) -> int:
        """Age at which iterators and paging tokens expire."""
        return self.engine.settings.iterator_lifetime_ms


def shard_json(shard: Shard) -> dict[str, Any]:
    """A shard as ListShards and DescribeStream write it."""
    numbers = {"StartingSequenceNumber": str(shard.starting_sequence_number)}
    if shard.closed_ms is not None:
        numbers["EndingSequenceNumber"] = str(shard.ending_sequence_number)
    described: dict[str, Any] = {
        "ShardId": shard.shard_id,
        "HashKeyRange": range_json(shard),
        "SequenceNumberRange": numbers,
    }
    # One parent after a split, two after a merge.
    described.update(zip(("ParentShardId", "AdjacentParentShardId"), shard.parents, strict=False))
    return described


def range_json(shard: Shard) -> dict[str, str]:
    """A shard's hash keys, both ends inclusive, as decimal text."""
    return {"StartingHashKey": str(shard.low), "EndingHashKey": str(shard.high)}
