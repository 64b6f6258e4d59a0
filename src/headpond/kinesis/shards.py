"""The shards of a stream as a graph: who came of whom, and which may be read now.

::

    0 ──split──► 2          A shard is read when every parent that is still listed was read to its end.
      └────────► 3 ─┐       Parents that are no longer listed have expired, and hold nobody up.
    1 ──merge───────┴► 4    A merge's child waits for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headpond.formats.hash_keys import FULL_RANGE, HashKeyRange
from headpond.kinesis.positions import END, HORIZON, Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard as ListShards tells it."""

    shard_id: str
    parents: tuple[str, ...] = ()  # none, one (split) or two (merge)
    closed: bool = False
    hash_keys: HashKeyRange = FULL_RANGE


Listing = dict[str, Shard]
"""Shard id → shard, all that are listed."""


def listing(shards: Iterable[Shard]) -> Listing:
    """Sort shards by id, which is the order of their creation."""
    return {shard.shard_id: shard for shard in sorted(shards, key=lambda shard: shard.shard_id)}


def position_of(positions: Mapping[str, Position], shard_id: str) -> Position:
    """Return a shard's position; one not named starts at its horizon."""
    return positions.get(shard_id, HORIZON)


def readable(shards: Listing, positions: Mapping[str, Position], *, parent_first: bool) -> list[str]:
    """List the shards to go on with: not at their end, and with `parent_first` all parents at theirs."""
    return [
        shard_id
        for shard_id, shard in shards.items()
        if position_of(positions, shard_id) != END
        and not (
            parent_first
            and any(parent in shards and position_of(positions, parent) != END for parent in shard.parents)
        )
    ]


def vanished(shards: Listing, positions: Mapping[str, Position]) -> list[str]:
    """List the shards that were not read to their end and are not listed any more."""
    return [shard_id for shard_id, at in positions.items() if shard_id not in shards and at != END]


def ancestors(shards: Listing, shard_ids: Iterable[str]) -> set[str]:
    """Return all listed shards that the given ones descend from."""
    found: set[str] = set()
    waiting = list(shard_ids)
    while waiting:
        shard = shards.get(waiting.pop())
        for parent in shard.parents if shard is not None else ():
            if parent in shards and parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found
