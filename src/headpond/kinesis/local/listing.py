"""Which shards a ListShards filter means, as a pure choice over a stream's shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headpond.kinesis.local.refusal import ServiceRefusalError

if TYPE_CHECKING:
    from headpond.kinesis.local.model import Shard, Stream

__all__ = ["ShardFilter", "choose_shards"]


@dataclass(frozen=True, slots=True)
class ShardFilter:
    """A filter of ListShards; `shard_id` and `timestamp_ms` as its type needs them."""

    type: str
    shard_id: str | None = None
    timestamp_ms: int | None = None


def choose_shards(stream: Stream, chosen: ShardFilter | None, now_ms: int) -> list[Shard]:
    """The shards the filter lets through, by shard number.

    `AT_…` are the shards open at a moment, `FROM_…` those open at it or later. The trim horizon is the
    end of the retention, but not before the stream began.
    """
    shards = sorted(stream.shards.values(), key=lambda shard: shard.number)
    if chosen is None:
        return shards
    if chosen.type == "AFTER_SHARD_ID":
        if chosen.shard_id is None:
            raise _lacks("ShardId", chosen)
        return [shard for shard in shards if shard.shard_id > chosen.shard_id]
    if chosen.type == "AT_LATEST":
        return [shard for shard in shards if shard.closed_ms is None]
    if chosen.type in {"AT_TIMESTAMP", "FROM_TIMESTAMP"}:
        if chosen.timestamp_ms is None:
            raise _lacks("Timestamp", chosen)
        if chosen.timestamp_ms > now_ms:
            raise ServiceRefusalError(
                "InvalidArgumentException", "Timestamp of the shard filter lies in the future."
            )
        moment_ms = chosen.timestamp_ms
    else:
        moment_ms = 0
    moment_ms = max(moment_ms, stream.created_ms, stream.horizon_ms(now_ms))
    shards = [shard for shard in shards if shard.closed_ms is None or shard.closed_ms >= moment_ms]
    if chosen.type.startswith("AT_"):
        shards = [shard for shard in shards if shard.opened_ms <= moment_ms]
    return shards


def _lacks(member: str, chosen: ShardFilter) -> ServiceRefusalError:
    return ServiceRefusalError(
        "InvalidArgumentException", f"{member} must be given with shard filter type {chosen.type}."
    )
