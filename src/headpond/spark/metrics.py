"""What is measured, once for every exporter: names, units, labels, and how a batch's report becomes values.

::

    BatchReport ─► observations ─► Prometheus (metrics_prometheus)
                                └► OpenTelemetry (metrics_otel)

Labels are bounded in number whatever records hold: tables that are not configured share one label, and so do
shards and reasons beyond `MOST_SHARDS` and `MOST_REASONS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from headpond.tables.lake import OWN_FOLDER
from headpond.tables.measured import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from headpond.tables.measured import BatchReport

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
    """One thing that is measured.

    Attributes:
        name: in OpenTelemetry's form; Prometheus has `_` for `.`, the unit, and `_total` for counters.
        kind: a counter only grows, a gauge is what it is, a histogram counts durations.
        unit: in UCUM, as OpenTelemetry has it; `{record}` and the like count things.
        words: what it is.
        labels: beside `pipeline`, which all have.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    words: str
    labels: tuple[str, ...] = ()


class Observation(NamedTuple):
    """A value of an instrument: what a counter grows by, what a gauge is, or what a histogram counts."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


INSTRUMENTS = {
    one.name: one
    for one in (
        Instrument("headpond.batches", "counter", "{batch}", "Micro-batches done."),
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
            "Changes, by what became of them.",
            ("table", "outcome"),
        ),
        Instrument("headpond.quarantined", "counter", "{record}", "Records refused, by reason.", ("reason",)),
        Instrument(
            "headpond.tolerated_losses", "gauge", "{gap}", "Gaps gone on over (fail_on_data_loss = false)."
        ),
        Instrument(
            "headpond.shard.lag", "gauge", "s", "How far reading is behind the tip of each shard.", ("shard",)
        ),
        Instrument("headpond.lag", "gauge", "s", "Lag of the shard that is furthest behind."),
        Instrument("headpond.batch.last_end", "gauge", "s", "When the last batch was done, since 1970."),
        Instrument("headpond.batch.last_id", "gauge", "{id}", "Number of the last batch that is done."),
        Instrument("headpond.table.rows", "gauge", "{row}", "Rows of each table.", ("table",)),
        Instrument("headpond.table.size", "gauge", "By", "Bytes of each table's data files.", ("table",)),
        Instrument("headpond.table.files", "gauge", "{file}", "Data files of each table.", ("table",)),
        Instrument("headpond.state.rows", "gauge", "{row}", "Rows in Spark's state stores."),
        Instrument("headpond.state.size", "gauge", "By", "Memory that Spark's state stores take."),
    )
}
"""Everything that is measured, by its name."""

_MS = 1000


def observations(report: BatchReport, configured: Collection[str]) -> Iterator[Observation]:
    """Give the values of a batch.

    Args:
        report: the batch.
        configured: names of the pipeline's tables: the only ones that are labels.
    """
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
    yield Observation("headpond.batch.last_end", report.ended_ms / _MS)
    yield Observation("headpond.batch.last_id", report.batch_id)
    yield from _sizes(report, configured)
    yield Observation("headpond.state.rows", report.state_rows)
    yield Observation("headpond.state.size", report.state_bytes)


def _lags(report: BatchReport) -> Iterator[Observation]:
    """The shards that are furthest behind, each; the rest as one."""
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
