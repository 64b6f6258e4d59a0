"""The producer's measurements as OpenTelemetry's own SDK exports them."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint

from headpond.core.errors import MissingRequirement
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.producer import OpenTelemetryMetrics, Producer, ProducerSettings
from headpond.kinesis.producer.metrics import COUNTS, DISTRIBUTIONS
from headpond.localkinesis.testing import local_kinesis

if TYPE_CHECKING:
    from headpond.localkinesis import LocalKinesis

QUICK = ProducerSettings(record_max_buffered_time_ms=20, rate_limit=100_000)
RECORDS = [(f"key-{number % 17}", b"x" * (number % 90)) for number in range(300)]


def exported(reader: InMemoryMetricReader) -> dict[str, Any]:
    """Collect once: metric by the KPL's name; the SDK writes names in lower case."""
    data = reader.get_metrics_data()
    assert data is not None
    names = {f"kinesis.producer.{name}".lower(): name for name in (*COUNTS, *DISTRIBUTIONS)}
    return {
        names[metric.name]: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def total(metric: Any, **attributes: str) -> float:
    """Add up the points that carry these attributes."""
    found: float = 0
    for point in metric.data.data_points:
        if attributes.items() <= dict(point.attributes).items():
            found += point.sum if isinstance(point, HistogramDataPoint) else point.value
    return found


def put_all(kinesis: LocalKinesis, metrics: OpenTelemetryMetrics) -> None:
    """Put RECORDS and wait until all are acknowledged."""

    async def inside() -> None:
        connection = ConnectionSettings(stream_name="s", endpoint_url=kinesis.endpoint_url)
        async with Producer(connection, QUICK, seed=5, metrics=metrics) as producer:
            await producer.put_many(RECORDS)

    asyncio.run(asyncio.wait_for(inside(), 60))


@pytest.mark.slow
def test_the_sdk_exports_what_was_put() -> None:
    """Measurements have the KPL's names, units, stream and shard, and add up to what was put."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with local_kinesis("s", shards=2, seed=11) as kinesis:
        put_all(kinesis, OpenTelemetryMetrics("s", provider.get_meter("test")))
        shards = {
            shard.shard_id: kinesis.engine.records("s", shard.shard_id)
            for shard in kinesis.engine.shards("s")
        }
    metrics = exported(reader)
    provider.shutdown()
    units = {**COUNTS, **DISTRIBUTIONS}
    assert {name: metric.unit for name, metric in metrics.items()} == {name: units[name] for name in metrics}
    assert total(metrics["UserRecordsReceived"], stream="s") == len(RECORDS)
    assert total(metrics["UserRecordsPut"]) == len(RECORDS)
    assert total(metrics["UserRecordsDataPut"]) == sum(len(data) for _, data in RECORDS)
    assert total(metrics["UserRecordsPerKinesisRecord"]) == len(RECORDS)
    for shard_id, records in shards.items():
        assert records
        assert total(metrics["KinesisRecordsPut"], shard_id=shard_id) == len(records)
    times = metrics["RequestTime"].data.data_points
    assert all(isinstance(point, HistogramDataPoint) for point in times)
    assert sum(point.count for point in times) >= 1


def test_errors_carry_their_code() -> None:
    """A count with a code comes out as a point of its own, with the count as often as it was seen."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = OpenTelemetryMetrics("s", provider.get_meter("test"))
    metrics.observe("ErrorsByCode", 1, 3, code="Expired")
    metrics.observe("ErrorsByCode", 1, code="Wrong Shard")
    metrics.observe("RetriesPerRecord", 2, 40, shard_id="shardId-000000000001")
    found = exported(reader)
    provider.shutdown()
    points = found["ErrorsByCode"].data.data_points
    assert all(isinstance(point, NumberDataPoint) for point in points)
    assert {(point.attributes["code"], point.value) for point in points} == {
        ("Expired", 3),
        ("Wrong Shard", 1),
    }
    (retries,) = found["RetriesPerRecord"].data.data_points
    assert (retries.count, retries.sum) == (1, 2)
    assert retries.attributes == {"stream": "s", "shard_id": "shardId-000000000001"}


def test_without_a_meter_the_global_provider_serves() -> None:
    """Without a provider set up, measurements go to OpenTelemetry's own default, which drops them."""
    metrics = OpenTelemetryMetrics("s")
    metrics.observe("UserRecordsPut", 1)
    metrics.observe("RequestTime", 2.5)


def test_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the extra is not installed the error names it; with a meter of one's own it is not needed."""
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(MissingRequirement, match="opentelemetry") as caught:
        OpenTelemetryMetrics("s")
    assert "headpond[otel]" in caught.value.next_step
    OpenTelemetryMetrics("s", MeterProvider().get_meter("test")).observe("AllErrors", 1)
