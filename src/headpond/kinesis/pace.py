"""Keep to a shard's limits before the service has to refuse: 5 reads and 2 MiB a second.

A read of 10 MiB is answered whole and paid for by the seconds after it, so the next one waits. Each
process keeps its own account; what several of them ask for together the service may still refuse, and
then it is waited out (`calls`).
"""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING, Literal

from headpond.kinesis.bucket import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Pace"]

CALLS_PER_SECOND = 5
BYTES_PER_SECOND = 2 << 20

Call = Literal["iterator", "page"]


class Pace:
    """The reads of all shards, one by one.

    Args:
        calls_per_second: GetShardIterator, and GetRecords, per shard; evenly spaced.
        bytes_per_second: Data and keys per shard.
        clock: Milliseconds of any origin, never falling.
    """

    def __init__(
        self,
        calls_per_second: float = CALLS_PER_SECOND,
        bytes_per_second: float = BYTES_PER_SECOND,
        *,
        clock: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._calls_per_second, self._bytes_per_second = calls_per_second, bytes_per_second
        self._clock = clock
        self._lock = Lock()
        self._calls: dict[tuple[str, Call], Bucket] = {}
        self._bytes: dict[str, Bucket] = {}

    def wait_s(self, shard_id: str, call: Call) -> float:
        """Count a call that is about to be made, and say how long it has to wait."""
        with self._lock:
            now_ms = self._clock()
            calls = self._calls.get((shard_id, call))
            if calls is None:
                calls = Bucket(self._calls_per_second, capacity=1, now_ms=now_ms)
                self._calls[shard_id, call] = calls
            wait_ms = calls.wait_ms(1, now_ms)
            calls.take(1)
            volume = self._bytes.get(shard_id) if call == "page" else None
            if volume is not None:
                wait_ms = max(wait_ms, volume.wait_ms(1, now_ms))
            return wait_ms / 1000

    def count(self, shard_id: str, size_bytes: int) -> None:
        """Count what a read gave."""
        if not size_bytes:
            return
        with self._lock:
            now_ms = self._clock()
            volume = self._bytes.get(shard_id)
            if volume is None:
                volume = self._bytes[shard_id] = Bucket(self._bytes_per_second, now_ms=now_ms)
            volume.level(now_ms)
            volume.take(size_bytes)
