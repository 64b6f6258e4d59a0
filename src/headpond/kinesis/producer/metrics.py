"""Measurements of the producer under the KPL's names, through one small protocol.

Counts (their sum matters): UserRecordsReceived, UserRecordsPut, UserRecordsDataPut, UserRecordExpired,
KinesisRecordsPut, KinesisRecordsDataPut, ErrorsByCode, AllErrors. Distributions: UserRecordsPending,
RetriesPerRecord, BufferingTime (ms), RequestTime (ms), UserRecordsPerKinesisRecord,
KinesisRecordsPerPutRecordsRequest, UserRecordsPerPutRecordsRequest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple, Protocol

__all__ = ["COUNTS", "DISTRIBUTIONS", "MemoryMetrics", "Metrics", "NoMetrics", "Statistics"]

COUNTS = {
    "UserRecordsReceived": "records",
    "UserRecordsPut": "records",
    "UserRecordsDataPut": "bytes",
    "UserRecordExpired": "records",
    "KinesisRecordsPut": "records",
    "KinesisRecordsDataPut": "bytes",
    "ErrorsByCode": "errors",
    "AllErrors": "errors",
}
"""Names whose sum matters, and their units."""
DISTRIBUTIONS = {
    "UserRecordsPending": "records",
    "RetriesPerRecord": "retries",
    "BufferingTime": "ms",
    "RequestTime": "ms",
    "UserRecordsPerKinesisRecord": "records",
    "KinesisRecordsPerPutRecordsRequest": "records",
    "UserRecordsPerPutRecordsRequest": "records",
}
"""Names whose spread matters, and their units."""


class Metrics(Protocol):
    """Where measurements go. Called in the producer's event loop, so it must not block."""

    def observe(
        self, name: str, value: float, times: int = 1, *, shard_id: str | None = None, code: str | None = None
    ) -> None:
        """Take in a value that was seen so many times."""


class NoMetrics:
    """Forgets all of them."""

    def observe(
        self, name: str, value: float, times: int = 1, *, shard_id: str | None = None, code: str | None = None
    ) -> None:
        """Do nothing."""


class Statistics(NamedTuple):
    """What was seen of one name, `times` times."""

    times: int = 0
    total: float = 0.0
    least: float = float("inf")
    most: float = float("-inf")

    @property
    def mean(self) -> float:
        """Average; 0 before the first value."""
        return self.total / self.times if self.times else 0.0


@dataclass
class MemoryMetrics:
    """Keeps statistics by name, and by name with shard or error code; may be read from any thread."""

    _seen: dict[tuple[str, str | None, str | None], Statistics] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def observe(
        self, name: str, value: float, times: int = 1, *, shard_id: str | None = None, code: str | None = None
    ) -> None:
        """Take in a value that was seen so many times."""
        with self._lock:
            for key in {(name, None, None), (name, shard_id, code)}:
                old = self._seen.get(key, Statistics())
                self._seen[key] = Statistics(
                    old.times + times,
                    old.total + value * times,
                    min(old.least, value),
                    max(old.most, value),
                )

    def of(self, name: str, *, shard_id: str | None = None, code: str | None = None) -> Statistics:
        """The statistics of a name, over all shards and codes unless one is given."""
        with self._lock:
            return self._seen.get((name, shard_id, code), Statistics())
