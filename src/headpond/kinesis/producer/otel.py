"""Producer metrics to OpenTelemetry; needs the extra `headpond[otel]`."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from headpond.errors import EnvironmentLacks
from headpond.kinesis.producer.metrics import COUNTS, DISTRIBUTIONS

__all__ = ["OpenTelemetryMetrics"]


class Meter(Protocol):
    """What is used of `opentelemetry.metrics.Meter`, which an installation may lack."""

    def create_counter(self, name: str, unit: str) -> Any:
        """Make something with `add`."""
        ...

    def create_histogram(self, name: str, unit: str) -> Any:
        """Make something with `record`."""
        ...


class OpenTelemetryMetrics:
    """Counters and histograms named `kinesis.producer.<KPL name>`, with `shard_id` and `code` as attributes.

    OpenTelemetry's SDK exports names in lower case.

    Args:
        stream: Goes with every measurement as `stream`.
        meter: Of your provider; that of the global provider unless told.

    Raises:
        EnvironmentLacks: OpenTelemetry is not installed.
    """

    def __init__(self, stream: str, meter: Meter | None = None) -> None:
        if meter is None:
            try:
                meter = import_module("opentelemetry.metrics").get_meter("headpond.kinesis.producer")
            except ImportError as error:
                raise EnvironmentLacks(
                    "The package opentelemetry-api is not installed.",
                    next_step='Install it with: pip install "headpond[otel]".',
                ) from error
        assert meter is not None
        self._stream = stream
        prefix = "kinesis.producer."
        self._counters = {name: meter.create_counter(prefix + name, unit) for name, unit in COUNTS.items()}
        self._histograms = {
            name: meter.create_histogram(prefix + name, unit) for name, unit in DISTRIBUTIONS.items()
        }

    def observe(
        self, name: str, value: float, times: int = 1, *, shard_id: str | None = None, code: str | None = None
    ) -> None:
        """Take in a value; a distribution gets it once, since histograms have no weights."""
        attributes = {"stream": self._stream}
        if shard_id is not None:
            attributes["shard_id"] = shard_id
        if code is not None:
            attributes["code"] = code
        if name in self._counters:
            self._counters[name].add(value * times, attributes)
        else:
            self._histograms[name].record(value, attributes)
