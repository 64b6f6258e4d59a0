"""The producer's picture of the open shards: INVALID → UPDATING → READY, and again when it proves wrong.

While it is not ready nothing is aggregated. A failed listing is tried again after 1 s, then 1.5 times
longer each time, up to 30 s. Closed shards are listed as well, so that late results can be judged; a shard
that a result names and nobody knows makes the map refresh, too.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal

from headpond.kinesis.api.shards import Shard
from headpond.kpl.hash_keys import HashKeyRange

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE_MS = 1_000
_PAUSE_GROWTH = 1.5
_LONGEST_PAUSE_MS = 30_000
_KEYS = 1 << 128


class OpenShards:
    """The open shards of a stream at one moment, for looking up hash keys."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self.shards = sorted(shards, key=lambda shard: shard.hash_keys.end)
        # Big-endian bytes compare like the numbers, and MD5 gives bytes.
        self._ends = [shard.hash_keys.end.to_bytes(16, "big") for shard in self.shards]

    def find(self, hash_key: bytes) -> str:
        """Return the shard that takes a hash key, given as 16 big-endian bytes."""
        return self.shards[bisect_left(self._ends, hash_key)].shard_id


def tile(shards: Iterable[Shard]) -> bool:
    """Return whether the ranges cover the hash key space once; a listing caught in a reshard may not."""
    edge = 0
    for shard in sorted(shards, key=lambda each: each.hash_keys.start):
        if shard.hash_keys.start != edge:
            return False
        edge = shard.hash_keys.end + 1
    return edge == _KEYS


class ShardMap:
    """Keeps the open shards known.

    Args:
        list_shards: Lists all shards that are held; may raise any of `failures`.
        changed: Called with the new open shards, or with None as soon as they are in doubt.
    """

    def __init__(
        self,
        list_shards: Callable[[], Awaitable[list[Shard]]],
        failures: tuple[type[Exception], ...],
        changed: Callable[[OpenShards | None], None],
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = lambda ms: asyncio.sleep(ms / 1000),
    ) -> None:
        self.state: Literal["INVALID", "UPDATING", "READY"] = "INVALID"
        self.updated_ms = -1.0
        self._list_shards, self._failures = list_shards, failures
        self._changed, self._clock, self._pause = changed, clock, pause
        self._known: dict[str, HashKeyRange] = {}
        self._task: asyncio.Task[None] | None = None
        self._first_try = asyncio.Event()

    def start(self) -> None:
        """Begin to update, unless that is under way."""
        if self.state != "UPDATING":
            self.state = "UPDATING"
            self._changed(None)
            self._task = asyncio.get_running_loop().create_task(self._update())
            self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def first_try(self) -> None:
        """Wait until the shards were listed once, or could not be."""
        await self._first_try.wait()

    def range_of(self, shard_id: str) -> HashKeyRange | None:
        """Return the hash keys of a shard that was listed."""
        return self._known.get(shard_id)

    def doubt(self, shard_id: str, seen_ms: float) -> None:
        """A request that began at `seen_ms` found a record in this shard, which was not predicted."""
        # A result older than the map says nothing new, unless of a shard the map never saw.
        if shard_id not in self._known or seen_ms > self.updated_ms:
            self.start()

    async def _update(self) -> None:
        pause_ms: float = _FIRST_PAUSE_MS
        found: list[Shard] = []
        while not found:
            try:
                listed = await self._list_shards()
            except self._failures as error:
                _LOG.warning(
                    "Listing the shards failed (%s); next try in %d ms.", type(error).__name__, pause_ms
                )
            else:
                open_shards = [shard for shard in listed if not shard.closed]
                if tile(open_shards):  # else it was caught between two states of the stream
                    found = open_shards
                    self._known = {shard.shard_id: shard.hash_keys for shard in listed}
            self._first_try.set()
            if not found:
                await self._pause(pause_ms)
                pause_ms = min(pause_ms * _PAUSE_GROWTH, _LONGEST_PAUSE_MS)
        self.updated_ms = self._clock()
        self.state = "READY"
        self._changed(OpenShards(found))

    def _ended(self, task: asyncio.Task[None]) -> None:
        # Also after a fault that no retry helps against: records then go on singly, and the fault is raised.
        self._first_try.set()
        if not task.cancelled() and task.exception() is not None:
            self.state = "INVALID"
            task.result()
