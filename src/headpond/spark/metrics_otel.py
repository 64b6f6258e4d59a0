"""Measurements to OpenTelemetry; needs the extra `headpond[otel]`, as the producer's do.

Which SDK and exporter is the application's choice: `opentelemetry-instrument headpond run FILE` configures
one from the environment.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headpond.errors import EnvironmentLacks
from headpond.spark.metrics import INSTRUMENTS, observations

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from headpond.tables.measured import BatchReport


class OpenTelemetry:
    """A sink (`progress.Sink`): counters, a histogram and observed gauges with the names of `INSTRUMENTS`.

    Args:
        pipeline: goes with every value as `pipeline`.
        configured: names of the tables that may be labels.
        meter: of your provider; that of the global provider unless told.

    Raises:
        EnvironmentLacks: OpenTelemetry is not installed.
    """

    def __init__(self, pipeline: str, configured: Collection[str], meter: Any = None) -> None:
        try:
            library: Any = import_module("opentelemetry.metrics")
        except ImportError as error:
            raise EnvironmentLacks(
                "The package opentelemetry-api is not installed.",
                next_step='Install it with: pip install "headpond[otel]".',
            ) from error
        meter = meter if meter is not None else library.get_meter("headpond.spark")
        self._pipeline, self._configured, self._library = pipeline, frozenset(configured), library
        self._now: dict[str, list[tuple[float, dict[str, str]]]] = {}
        self._added: dict[str, Callable[..., None]] = {}
        for name, one in INSTRUMENTS.items():
            if one.kind == "counter":
                self._added[name] = meter.create_counter(name, unit=one.unit, description=one.words).add
            elif one.kind == "histogram":
                self._added[name] = meter.create_histogram(name, unit=one.unit, description=one.words).record
            else:
                meter.create_observable_gauge(
                    name, callbacks=[self._observed(name)], unit=one.unit, description=one.words
                )

    def batch(self, report: BatchReport) -> None:
        """Take in a batch."""
        now: dict[str, list[tuple[float, dict[str, str]]]] = {}
        for name, value, labels in observations(report, self._configured):
            attributes = {"pipeline": self._pipeline}
            attributes |= dict(zip(INSTRUMENTS[name].labels, labels, strict=True))
            if name in self._added:
                self._added[name](value, attributes)
            else:
                now.setdefault(name, []).append((value, attributes))
        # Sizes are not looked at with every batch: what is not told stays.
        self._now = self._now | now

    def idle(self) -> None:
        """Nothing to take in."""

    def tick(self) -> None:
        """Nothing to do: readers ask by themselves."""

    def close(self) -> None:
        """Nothing to do: the provider belongs to the application."""

    def _observed(self, name: str) -> Callable[[Any], Iterable[Any]]:
        def observe(options: Any) -> list[Any]:
            del options
            return [self._library.Observation(value, labels) for value, labels in self._now.get(name, ())]

        return observe
