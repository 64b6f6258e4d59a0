"""What is measured, once for every exporter, and the exporters: Prometheus and OpenTelemetry.

::

    BatchReport ─► observations ─► Prometheus      headpond[prometheus]: an endpoint
                                └► OpenTelemetry   headpond[otel]: the application's SDK and exporter

Labels are bounded in number whatever records hold: tables that are not configured share one label, and so do
shards and reasons beyond `MOST_SHARDS` and `MOST_REASONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from headpond.core.errors import MissingRequirement
from headpond.core.hosts import may_ask
from headpond.core.lazy import needed
from headpond.lake.reports import OUTCOMES, BatchReport
from headpond.lake.state.run_mark import OWN_FOLDER

MOST_SHARDS = 200
MOST_REASONS = 100
OTHER = "(other)"
NOT_CONFIGURED = "(not configured)"
OWN = "(headpond)"
"""The label of the pipeline's own tables taken together."""

BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Bounds of the histogram of batch durations, seconds."""


@dataclass(frozen=True, slots=True)
class Instrument:
    """One thing that is measured."""

    name: str  # in OpenTelemetry's form; Prometheus has `_` for `.`, the unit, and `_total` for counters
    kind: Literal["counter", "gauge", "histogram"]
    unit: str  # in UCUM, as OpenTelemetry has it; `{record}` and the like count things
    words: str
    labels: tuple[str, ...] = ()  # in addition to `pipeline`


class Observation(NamedTuple):
    """A value of an instrument: what a counter grows by, what a gauge is, or what a histogram counts."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


INSTRUMENTS = {
    one.name: one
    for one in (
        Instrument("headpond.batches", "counter", "{batch}", "Micro-batches completed."),
        Instrument("headpond.batch.duration", "histogram", "s", "Time from a batch's start to its commit."),
        Instrument(
            "headpond.batch.phase",
            "counter",
            "s",
            "Time of the phases of batches, as Spark names them.",
            ("phase",),
        ),
        Instrument("headpond.records", "counter", "{record}", "User records read."),
        Instrument("headpond.data", "counter", "By", "Bytes of the data of user records read."),
        Instrument(
            "headpond.changes",
            "counter",
            "{change}",
            "Changes, by outcome.",
            ("table", "outcome"),
        ),
        Instrument(
            "headpond.quarantined", "counter", "{record}", "Records quarantined, by reason.", ("reason",)
        ),
        Instrument(
            "headpond.tolerated_losses", "gauge", "{gap}", "Gaps skipped (fail_on_data_loss = false)."
        ),
        Instrument(
            "headpond.shard.lag", "gauge", "s", "How far reading is behind the tip of each shard.", ("shard",)
        ),
        Instrument("headpond.lag", "gauge", "s", "Lag of the shard that is furthest behind."),
        Instrument(
            "headpond.table.newest_commit",
            "gauge",
            "s",
            "When the newest change of each table was committed, since 1970.",
            ("table",),
        ),
        Instrument(
            "headpond.table.source_delay",
            "gauge",
            "s",
            "How much later the source sent that change.",
            ("table",),
        ),
        Instrument("headpond.batch.last_end", "gauge", "s", "When the last batch ended, since 1970."),
        Instrument("headpond.batch.last_id", "gauge", "{id}", "Number of the last completed batch."),
        Instrument("headpond.table.rows", "gauge", "{row}", "Rows of each table.", ("table",)),
        Instrument("headpond.table.size", "gauge", "By", "Bytes of each table's data files.", ("table",)),
        Instrument("headpond.table.files", "gauge", "{file}", "Data files of each table.", ("table",)),
        Instrument("headpond.state.rows", "gauge", "{row}", "Rows in Spark's state stores."),
        Instrument("headpond.state.size", "gauge", "By", "Memory used by Spark's state stores."),
    )
}
"""Everything that is measured, by its name."""

_MS = 1000


class Sink:
    """Where measurements go; called by one thread. What may fail belongs into `tick` and `close`."""

    def batch(self, report: BatchReport) -> None:
        """Note a batch that is done."""

    def idle(self) -> None:
        """Note that the query goes on, with nothing to read."""

    def works(self) -> None:
        """Note that a batch in flight makes progress."""

    def tick(self) -> None:
        """Write what is to be written: after each batch, and about once a second without one.

        One that raises is called again later, and must then try again what it could not do.
        """

    def close(self) -> None:
        """Nothing more comes; may be called again."""


def observations(report: BatchReport, configured: Collection[str]) -> Iterator[Observation]:
    """Yield the values of a batch; only tables that are `configured` are labels."""
    yield Observation("headpond.batches", 1)
    yield Observation("headpond.batch.duration", report.duration_ms / _MS)
    for phase, took in report.phases_ms.items():
        yield Observation("headpond.batch.phase", took / _MS, (phase,))
    yield Observation("headpond.records", report.records)
    yield Observation("headpond.data", report.data_bytes)
    for table, figures in report.tables.items():
        label = table if table in configured else NOT_CONFIGURED
        for outcome in OUTCOMES:
            if figures.get(outcome):
                yield Observation("headpond.changes", figures[outcome], (label, outcome))
    for rank, (reason, number) in enumerate(sorted(report.reasons.items())):
        yield Observation("headpond.quarantined", number, (reason if rank < MOST_REASONS else OTHER,))
    yield Observation("headpond.tolerated_losses", report.tolerated_losses)
    yield from _lags(report)
    for table, (commit_ns, delay_ns) in report.newest.items():
        if table in configured:
            yield Observation("headpond.table.newest_commit", commit_ns / 1e9, (table,))
            if delay_ns is not None:
                yield Observation("headpond.table.source_delay", delay_ns / 1e9, (table,))
    yield Observation("headpond.batch.last_end", report.ended_ms / _MS)
    yield Observation("headpond.batch.last_id", report.batch_id)
    yield from _sizes(report, configured)
    yield Observation("headpond.state.rows", report.state_rows)
    yield Observation("headpond.state.size", report.state_bytes)


def _lags(report: BatchReport) -> Iterator[Observation]:
    """Yield the shards that are furthest behind, each; the rest as one."""
    if report.most_lag_ms is None:
        return
    yield Observation("headpond.lag", report.most_lag_ms / _MS)
    behind = sorted(report.lags_ms.items(), key=lambda item: (-item[1], item[0]))
    for shard, lag in behind[:MOST_SHARDS]:
        yield Observation("headpond.shard.lag", lag / _MS, (shard,))
    if len(behind) > MOST_SHARDS:
        yield Observation("headpond.shard.lag", behind[MOST_SHARDS][1] / _MS, (OTHER,))


def _sizes(report: BatchReport, configured: Collection[str]) -> Iterator[Observation]:
    if report.sizes is None:
        return
    totals: dict[str, tuple[int, int, int]] = {}
    for name, size in report.sizes.items():
        label = name if name in configured else OWN
        if name.startswith(f"{OWN_FOLDER}/unknown/"):
            label = NOT_CONFIGURED
        rows, taken, files = totals.get(label, (0, 0, 0))
        totals[label] = (rows + size.rows, taken + size.bytes, files + size.files)
    for label, (rows, taken, files) in totals.items():
        yield Observation("headpond.table.rows", rows, (label,))
        yield Observation("headpond.table.size", taken, (label,))
        yield Observation("headpond.table.files", files, (label,))


_UNITS = {"s": "_seconds", "By": "_bytes"}


def prometheus_name(instrument: Instrument) -> str:
    """Spell a name as Prometheus does, without the `_total` that counters get in the text."""
    return instrument.name.replace(".", "_") + _UNITS.get(instrument.unit, "")


class Prometheus(Sink):
    """A sink with a registry of its own.

    Args:
        pipeline: goes with every value as `pipeline`.
        configured: names of the tables that may be labels.
        listen: `HOST:PORT` to serve at; port 0 takes a free one.

    Raises:
        MissingRequirement: prometheus-client is not installed, or the address cannot be had.
    """

    def __init__(self, pipeline: str, configured: Collection[str], listen: str) -> None:
        self._library = needed("prometheus_client", "[monitor] with Prometheus", "headpond[prometheus]")
        self._pipeline, self._configured = pipeline, frozenset(configured)
        self.registry = self._library.CollectorRegistry()
        self._metrics = {name: self._metric(one) for name, one in INSTRUMENTS.items()}
        for table in self._configured:  # a rate over what was never there is not known, over 0 it is
            for outcome in OUTCOMES:
                self._metrics["headpond.changes"].labels(pipeline, table, outcome)
        host, _, port = listen.rpartition(":")
        try:
            self._server, _thread = self._library.start_http_server(
                int(port), addr=host.strip("[]"), registry=self.registry
            )
        except OSError as error:
            raise MissingRequirement(
                f"Measurements cannot be served at {listen}: {error.strerror or error}.",
                next_step="Correct monitor.prometheus, or end what listens there.",
                address=listen,
            ) from error
        self.address: tuple[str, int] = self._server.server_address[:2]
        self._server.set_app(_answering(self._server.get_app(), self.address[0]))

    def batch(self, report: BatchReport) -> None:
        """Note a batch."""
        cleared: set[str] = set()
        for name, value, labels in observations(report, self._configured):
            metric, kind = self._metrics[name], INSTRUMENTS[name].kind
            if kind == "gauge" and name not in cleared:
                # Shards end and tables go: what is not reported any more is gone.
                metric.clear()
                cleared.add(name)
            child = metric.labels(self._pipeline, *labels)
            if kind == "counter":
                child.inc(value)
            elif kind == "gauge":
                child.set(value)
            else:
                child.observe(value)

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()

    def _metric(self, one: Instrument) -> Any:
        labels = ("pipeline", *one.labels)
        name = prometheus_name(one)
        if one.kind == "histogram":
            return self._library.Histogram(name, one.words, labels, registry=self.registry, buckets=BUCKETS_S)
        made = self._library.Counter if one.kind == "counter" else self._library.Gauge
        return made(name, one.words, labels, registry=self.registry)


def _answering(app: Any, listens_on: str) -> Any:
    """Return the application for those who may ask."""

    def guarded(environ: Any, start_response: Any) -> Any:
        if may_ask(listens_on, environ.get("HTTP_HOST", "")):
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"This server answers to names of its own machine alone."]

    return guarded


class OpenTelemetry(Sink):
    """Counters, a histogram and observed gauges with the names of `INSTRUMENTS`.

    Raises:
        MissingRequirement: OpenTelemetry is not installed.
    """

    def __init__(self, pipeline: str, configured: Collection[str], meter: Any = None) -> None:
        library = needed("opentelemetry.metrics", "[monitor] with OpenTelemetry", "headpond[otel]")
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
        """Note a batch."""
        now: dict[str, list[tuple[float, dict[str, str]]]] = {}
        for name, value, labels in observations(report, self._configured):
            attributes = {"pipeline": self._pipeline}
            attributes |= dict(zip(INSTRUMENTS[name].labels, labels, strict=True))
            if name in self._added:
                self._added[name](value, attributes)
            else:
                now.setdefault(name, []).append((value, attributes))
        # Sizes are not looked at with every batch: what is not reported stays.
        self._now = self._now | now

    def _observed(self, name: str) -> Callable[[Any], Iterable[Any]]:
        def observe(options: Any) -> list[Any]:
            del options
            return [self._library.Observation(value, labels) for value, labels in self._now.get(name, ())]

        return observe
