"""Measurements of the producer under the KPL's names, through one small protocol.

`COUNTS` are summed, `DISTRIBUTIONS` are not; each name has its unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple, Protocol

from headpond.core.lazy import needed

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
DISTRIBUTIONS = {
    "UserRecordsPending": "records",
    "RetriesPerRecord": "retries",
    "BufferingTime": "ms",
    "RequestTime": "ms",
    "UserRecordsPerKinesisRecord": "records",
    "KinesisRecordsPerPutRecordsRequest": "records",
    "UserRecordsPerPutRecordsRequest": "records",
}


class Metrics(Protocol):
    """Where measurements go. Called in the producer's event loop, so it must not block."""

    def observe(
        self, name: str, value: float, times: int = 1, *, shard_id: str | None = None, code: str | None = None
    ) -> None:
        """Add a value that was seen this many times."""


class NoMetrics(Metrics):
    """Forgets all of them."""

    def observe(self, *_: Any, **__: Any) -> None:
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
        """Add a value that was seen this many times."""
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
        """Return the statistics of a name, over all shards and codes unless one is given."""
        with self._lock:
            return self._seen.get((name, shard_id, code), Statistics())


class OpenTelemetryMetrics:
    """Counters and histograms named `kinesis.producer.<KPL name>`, with `shard_id` and `code` as attributes.

    OpenTelemetry's SDK exports names in lower case.

    Args:
        stream: Goes with every measurement as `stream`.
        meter: `opentelemetry.metrics.Meter` of your provider; by default that of the global provider.

    Raises:
        MissingRequirement: OpenTelemetry is not installed.
    """

    def __init__(self, stream: str, meter: Any = None) -> None:
        if meter is None:
            library = needed("opentelemetry.metrics", "OpenTelemetryMetrics", "headpond[otel]")
            meter = library.get_meter("headpond.kinesis.producer")
        self._stream = stream
        prefix = "kinesis.producer."
        self._counters = {name: meter.create_counter(prefix + name, unit) for name, unit in COUNTS.items()}
        self._histograms = {
            name: meter.create_histogram(prefix + name, unit) for name, unit in DISTRIBUTIONS.items()
        }

    def observe(
        self, name: str, value: float, times: int = 1, *, shard_id: str | None = None, code: str | None = None
    ) -> None:
        """Add a value; a distribution gets it once, since histograms have no weights."""
        attributes = {"stream": self._stream}
        if shard_id is not None:
            attributes["shard_id"] = shard_id
        if code is not None:
            attributes["code"] = code
        if name in self._counters:
            self._counters[name].add(value * times, attributes)
        else:
            self._histograms[name].record(value, attributes)
