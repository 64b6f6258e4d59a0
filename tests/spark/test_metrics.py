"""Metrics: what Prometheus and OpenTelemetry are told of a batch, and that labels stay few."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from headpond.core.errors import MissingRequirement
from headpond.lake.delta import Size
from headpond.lake.state.run_mark import mark_in, newest_of
from headpond.spark.metrics.exporters import (
    INSTRUMENTS,
    MOST_SHARDS,
    NOT_CONFIGURED,
    OTHER,
    OWN,
    OpenTelemetry,
    Prometheus,
    observations,
    prometheus_name,
)
from headpond.spark.metrics.sinks import MarkOfRun
from tests.lake.test_batch_log import REPORT, report

TABLES = ["public.t", "public.log"]
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def values(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of an exposition but those of when series were made."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def labels(**given: str) -> frozenset[tuple[str, str]]:
    return frozenset((given | {"pipeline": "orders"}).items())


@pytest.mark.thorough
def test_an_endpoint_serves_what_batches_did() -> None:
    """Counters grow with each batch, gauges are those of the last."""
    sink = Prometheus("orders", TABLES, "127.0.0.1:0")
    try:
        sink.batch(REPORT)
        sink.batch(replace(REPORT, batch_id=8, lags_ms={"shardId-000000000001": 10}, sizes=None))
        host, port = sink.address
        assert host == "127.0.0.1"
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as reply:
            found = values(reply.read().decode())
        rebound = urllib.request.Request(f"http://{host}:{port}/metrics", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(rebound, timeout=10)
    finally:
        sink.close()
    assert found["headpond_batches_total", labels()] == 2
    assert found["headpond_records_total", labels()] == 20
    assert found["headpond_data_bytes_total", labels()] == 8_000
    assert found["headpond_changes_total", labels(table="public.t", outcome="upserts")] == 6
    assert found["headpond_changes_total", labels(table="public.log", outcome="stale")] == 0
    assert found["headpond_quarantined_total", labels(reason="cast_error")] == 4
    assert found["headpond_batch_duration_seconds_sum", labels()] == pytest.approx(1.624)
    assert found["headpond_lag_seconds", labels()] == 0.01
    assert found["headpond_batch_last_end_seconds", labels()] == pytest.approx(1_767_225_600.935)
    # A shard that is not told of any more is gone; sizes that were not looked at stay.
    assert ("headpond_shard_lag_seconds", labels(shard="shardId-000000000000")) not in found
    assert found["headpond_table_size_bytes", labels(table="public.t")] == 2_048


@pytest.mark.thorough
def test_a_port_in_use_is_said() -> None:
    """At the start, with the key to correct."""
    first = Prometheus("orders", TABLES, "127.0.0.1:0")
    try:
        with pytest.raises(MissingRequirement, match=r"cannot be served at 127\.0\.0\.1:"):
            Prometheus("orders", TABLES, f"127.0.0.1:{first.address[1]}")
    finally:
        first.close()


def test_labels_are_bounded_whatever_records_hold() -> None:
    """A thousand shards, unknown tables and reasons make no more series than the bounds say."""
    many = replace(
        REPORT,
        tables={f"unknown:t{number}": {"appended": 1} for number in range(1_000)},
        lags_ms={f"shardId-{number:012}": number for number in range(1_000)},
        reasons={f"reason_{number:04}": 1 for number in range(1_000)},
        sizes={f"_headpond/unknown/t{number}": Size(1, 10, 1) for number in range(1_000)}
        | {"_headpond/quarantine": Size(2, 20, 1)},
    )
    told = list(observations(many, TABLES))
    series: dict[str, set[tuple[str, ...]]] = {}
    for name, _, found in told:
        series.setdefault(name, set()).add(found)
    assert max(map(len, series.values())) <= MOST_SHARDS + 1
    assert series["headpond.changes"] == {(NOT_CONFIGURED, "appended")}
    assert series["headpond.table.rows"] == {(NOT_CONFIGURED,), (OWN,)}
    assert sum(value for name, value, _ in told if name == "headpond.changes") == 1_000
    assert sum(value for name, value, _ in told if name == "headpond.quarantined") == 1_000
    rest = [value for name, value, found in told if name == "headpond.shard.lag" and found == (OTHER,)]
    assert rest == [0.799]  # the furthest behind of those without a label


def test_tables_that_are_configured_say_how_fresh_they_are() -> None:
    """When the newest change was committed, and how much later it was sent, where that is known."""
    fresh = {"public.t": (1_500_000_000, 250_000_000), "public.log": (2_000_000_000, None), "other.t": (1, 1)}
    found = {
        (name, labels): value
        for name, value, labels in observations(replace(REPORT, newest=fresh), TABLES)
        if name in ("headpond.table.newest_commit", "headpond.table.source_delay")
    }
    assert found == {
        ("headpond.table.newest_commit", ("public.t",)): 1.5,
        ("headpond.table.source_delay", ("public.t",)): 0.25,
        ("headpond.table.newest_commit", ("public.log",)): 2.0,
    }


def test_opentelemetry_gets_the_same() -> None:
    """Counters, the histogram and observed gauges, with the names and units of the list."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    sink = OpenTelemetry("orders", TABLES, provider.get_meter("test"))
    sink.batch(REPORT)
    sink.batch(replace(REPORT, sizes=None))
    found: dict[str, Any] = {
        metric.name: metric
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    provider.shutdown()
    assert set(found) == set(INSTRUMENTS)
    assert {name: metric.unit for name, metric in found.items()} == {
        name: one.unit for name, one in INSTRUMENTS.items()
    }
    (records,) = found["headpond.records"].data.data_points
    assert (records.value, dict(records.attributes)) == (20, {"pipeline": "orders"})
    lags = {p.attributes["shard"]: p.value for p in found["headpond.shard.lag"].data.data_points}
    assert lags == {"shardId-000000000000": 1.5, "shardId-000000000001": 0.04}
    (duration,) = found["headpond.batch.duration"].data.data_points
    assert (duration.count, duration.sum) == (2, pytest.approx(1.624))
    (size,) = found["headpond.table.size"].data.data_points
    assert (size.value, size.attributes["table"]) == (2_048, "public.t")


def test_every_metric_is_documented() -> None:
    """With its name for either, its labels, and no other."""
    text = PAGE.read_text()
    for one in INSTRUMENTS.values():
        name = prometheus_name(one) + ("_total" if one.kind == "counter" else "")
        told = ", ".join(f"`{label}`" for label in one.labels)
        assert f"| `{name}` | `{one.name}` | {one.kind} | {told} |" in text, one.name
    assert text.count("| `headpond_") == len(INSTRUMENTS)


def test_the_mark_of_a_run_keeps_what_the_one_before_knew(tmp_path: Path) -> None:
    """A table that does not change any more is not forgotten by a start."""
    mark = mark_in(str(tmp_path))
    first = MarkOfRun(mark)
    first.batch(report(1, newest={"a": (40, -3), "b": (7, None)}))
    first.ended("finished")
    second = MarkOfRun(mark)
    second.batch(report(2, newest={"b": (9, 1)}))
    second.ended("finished")
    assert newest_of(mark.read()) == {"a": (40, -3), "b": (9, 1)}
    assert newest_of(None) == {}
