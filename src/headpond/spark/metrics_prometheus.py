"""Measurements for Prometheus: an HTTP endpoint, a file for node_exporter's textfile collector, or both.

Needs the extra `headpond[prometheus]`. Names are those of `metrics.INSTRUMENTS` as Prometheus spells
them: `headpond.batch.duration` is `headpond_batch_duration_seconds`, `headpond.records` is
`headpond_records_total`.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headpond.errors import EnvironmentLacks
from headpond.spark.metrics import BUCKETS_S, INSTRUMENTS, observations
from headpond.tables.measured import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Collection

    from headpond.spark.metrics import Instrument
    from headpond.tables.measured import BatchReport

_UNITS = {"s": "_seconds", "By": "_bytes"}
_TEXTFILE_S = 10.0
"""The file is written with each batch, and so often without one, so that its age tells."""


def prometheus_name(instrument: Instrument) -> str:
    """Spell a name as Prometheus does, without the `_total` that counters get in the text."""
    return instrument.name.replace(".", "_") + _UNITS.get(instrument.unit, "")


class Prometheus:
    """A sink (`progress.Sink`) with a registry of its own.

    Args:
        pipeline: goes with every value as `pipeline`.
        configured: names of the tables that may be labels.
        listen: `HOST:PORT` to serve at; port 0 takes a free one; null serves nothing.
        textfile: a file to keep; null keeps none.

    Raises:
        EnvironmentLacks: prometheus-client is not installed, or the address cannot be had.
    """

    def __init__(
        self,
        pipeline: str,
        configured: Collection[str],
        *,
        listen: str | None = None,
        textfile: str | None = None,
    ) -> None:
        try:
            self._library = import_module("prometheus_client")
        except ImportError as error:
            raise EnvironmentLacks(
                "The package prometheus-client is not installed.",
                next_step='Install it with: pip install "headpond[prometheus]".',
            ) from error
        self._pipeline, self._configured, self._textfile = pipeline, frozenset(configured), textfile
        self.registry = self._library.CollectorRegistry()
        self._metrics = {name: self._metric(one) for name, one in INSTRUMENTS.items()}
        for table in self._configured:  # a rate over what was never there is not known, over 0 it is
            for outcome in OUTCOMES:
                self._metrics["headpond.changes"].labels(pipeline, table, outcome)
        self._server: Any = None
        self.address: tuple[str, int] | None = None
        self._written_at = 0.0
        self._is_written = False  # the file holds what is known
        if listen is not None:
            self._serve(listen)
        self._write()

    def batch(self, report: BatchReport) -> None:
        """Take in a batch."""
        cleared: set[str] = set()
        for name, value, labels in observations(report, self._configured):
            metric, kind = self._metrics[name], INSTRUMENTS[name].kind
            if kind == "gauge" and name not in cleared:
                # Shards end and tables go: what is not told any more is not there any more.
                metric.clear()
                cleared.add(name)
            child = metric.labels(self._pipeline, *labels)
            if kind == "counter":
                child.inc(value)
            elif kind == "gauge":
                child.set(value)
            else:
                child.observe(value)
        self._is_written = False

    def idle(self) -> None:
        """Nothing to take in."""

    def tick(self) -> None:
        """Write the file after a batch, and now and then."""
        if not self._is_written or time.monotonic() - self._written_at >= _TEXTFILE_S:
            self._write()

    def close(self) -> None:
        """Serve no more, and write the file a last time."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._write()

    def _metric(self, one: Instrument) -> Any:
        labels = ("pipeline", *one.labels)
        name = prometheus_name(one)
        if one.kind == "histogram":
            return self._library.Histogram(name, one.words, labels, registry=self.registry, buckets=BUCKETS_S)
        made = self._library.Counter if one.kind == "counter" else self._library.Gauge
        return made(name, one.words, labels, registry=self.registry)

    def _serve(self, listen: str) -> None:
        host, _, port = listen.rpartition(":")
        try:
            self._server, _thread = self._library.start_http_server(
                int(port), addr=host.strip("[]"), registry=self.registry
            )
        except OSError as error:
            raise EnvironmentLacks(
                f"Measurements cannot be served at {listen}: {error.strerror or error}.",
                next_step="Correct monitor.prometheus, or end what listens there.",
                address=listen,
            ) from error
        self.address = self._server.server_address[:2]

    def _write(self) -> None:
        self._is_written = False
        if self._textfile is not None:
            try:
                self._library.write_to_textfile(self._textfile, self.registry)
            except OSError as error:
                raise EnvironmentLacks(
                    f"Measurements cannot be written to {self._textfile}: {error.strerror or error}.",
                    next_step="Correct monitor.textfile, or the folder's rights.",
                    path=self._textfile,
                ) from error
        self._is_written, self._written_at = True, time.monotonic()
