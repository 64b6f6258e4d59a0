"""What one producer may send to one shard: two token buckets; and how long to pause after a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.kinesis.bucket import Bucket

if TYPE_CHECKING:
    import random

    from headpond.kinesis.producer.records import Bundle

__all__ = ["ShardLimiter", "backoff_ms"]

_RECORDS_PER_SECOND = 1000
_BYTES_PER_SECOND = 1024 * 1024
_BURST_BYTES = 10 * 1024 * 1024
_BACKOFF_BASE_MS = 50
_BACKOFF_MOST_MS = 2_000


def backoff_ms(tries: int, draw: random.Random) -> float:
    """A pause before try number `tries` + 1: doubling, bounded, and jittered between half and whole."""
    whole = min(_BACKOFF_MOST_MS, _BACKOFF_BASE_MS * 2.0 ** min(tries - 1, 10))
    return whole * draw.uniform(0.5, 1.0)


class ShardLimiter:
    """Lets 1,000 records and 1 MiB a second through, times `rate_limit` percent.

    Bursts may take a second's records and 10 MiB at once.
    """

    __slots__ = ("_bytes", "_records")

    def __init__(self, rate_limit: int, now_ms: float) -> None:
        share = rate_limit / 100
        self._records = Bucket(_RECORDS_PER_SECOND * share, capacity=_RECORDS_PER_SECOND, now_ms=now_ms)
        self._bytes = Bucket(_BYTES_PER_SECOND * share, capacity=_BURST_BYTES, now_ms=now_ms)

    def wait_ms(self, bundle: Bundle, now_ms: float) -> float:
        """Milliseconds until this Kinesis record may go; 0 is now."""
        return max(self._records.wait_ms(1, now_ms), self._bytes.wait_ms(bundle.size_bytes, now_ms))

    def take(self, bundle: Bundle) -> None:
        """Count one that goes now."""
        self._records.take(1)
        self._bytes.take(bundle.size_bytes)
