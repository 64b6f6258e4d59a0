"""The producer's map of shards and its metrics, apart from any stream."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from headpond.core.errors import MissingRequirement
from headpond.kinesis.api.shards import Shard
from headpond.kinesis.producer import MemoryMetrics, OpenTelemetryMetrics
from headpond.kinesis.producer.metrics import COUNTS, DISTRIBUTIONS
from headpond.kinesis.producer.shard_map import OpenShards, ShardMap
from headpond.kpl.hash_keys import HashKeyRange

HALF = 1 << 127
MAX = (1 << 128) - 1
TWO = [
    Shard("shardId-0", hash_keys=HashKeyRange(0, HALF - 1)),
    Shard("shardId-1", hash_keys=HashKeyRange(HALF, MAX)),
]


class Listing:
    """A stream's shards as a producer lists them, with failures."""

    def __init__(self) -> None:
        self.open: list[Shard] = list(TWO)
        self.closed: list[Shard] = []
        self.failures = 0
        self.calls = 0
        self.pauses: list[float] = []
        self.paused = asyncio.Event()
        self.ready = asyncio.Event()
        self.changes: list[list[str] | None] = []
        self.now_ms = 0.0
        self.map = ShardMap(self.list, (OSError,), self.changed, lambda: self.now_ms, self.pause)

    async def list(self) -> list[Shard]:
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise OSError
        return [*self.open, *self.closed]

    async def pause(self, ms: float) -> None:
        self.pauses.append(ms)
        self.paused.set()
        await asyncio.sleep(0)

    def changed(self, shards: OpenShards | None) -> None:
        self.changes.append(None if shards is None else [shard.shard_id for shard in shards.shards])
        (self.ready.clear if shards is None else self.ready.set)()

    async def settle(self) -> None:
        await self.ready.wait()


def test_the_map_tries_again_with_growing_pauses() -> None:
    """A failed listing is tried after 1 s, growing by half up to 30 s; until then no shard is known."""

    async def run() -> Listing:
        listing = Listing()
        listing.failures = 12
        listing.map.start()
        assert listing.map.state == "UPDATING"
        await listing.settle()
        return listing

    listing = asyncio.run(run())
    assert listing.map.state == "READY"
    assert listing.changes == [None, ["shardId-0", "shardId-1"]]
    assert listing.pauses[:3] == [1000, 1500, 2250]
    assert max(listing.pauses) == 30_000


def test_the_map_waits_for_a_listing_that_tiles() -> None:
    """A listing caught between two states of a reshard is not taken for the shards."""

    async def run() -> Listing:
        listing = Listing()
        listing.open = TWO[:1]
        listing.map.start()
        await listing.paused.wait()
        assert listing.map.state == "UPDATING"
        listing.open = list(TWO)
        await listing.settle()
        return listing

    assert asyncio.run(run()).changes[-1] == ["shardId-0", "shardId-1"]


def test_doubts_refresh_only_when_they_are_news() -> None:
    """A result older than the map does not refresh it; a newer one, or a shard never seen, does."""

    async def run() -> Listing:
        listing = Listing()
        listing.now_ms = 100
        listing.map.start()
        await listing.settle()
        listing.map.doubt("shardId-1", 50)
        assert listing.map.state == "READY"
        listing.map.doubt("shardId-1", 101)
        assert listing.map.state == "UPDATING"
        await listing.settle()
        assert listing.calls == 2
        listing.closed = [Shard("shardId-7", closed=True, hash_keys=HashKeyRange(5, 9))]
        listing.map.doubt("shardId-7", 50)
        await listing.settle()
        return listing

    listing = asyncio.run(run())
    assert listing.calls == 3
    assert listing.map.range_of("shardId-7") == HashKeyRange(5, 9)


def test_ranges_of_closed_shards_are_known_as_long_as_they_are_listed() -> None:
    """And no longer; they take no records."""

    async def run() -> None:
        listing = Listing()
        listing.map.start()
        await listing.settle()
        listing.open = [Shard("shardId-2", hash_keys=HashKeyRange(0, MAX))]
        listing.closed = [replace(shard, closed=True) for shard in TWO]
        listing.map.start()
        await listing.settle()
        assert listing.changes[-1] == ["shardId-2"]
        assert listing.map.range_of("shardId-0") == TWO[0].hash_keys
        listing.closed = []
        listing.map.start()
        await listing.settle()
        assert listing.map.range_of("shardId-0") is None
        assert listing.map.range_of("shardId-2") is not None

    asyncio.run(run())


def test_memory_metrics_by_name_shard_and_code() -> None:
    """Statistics are kept over all, and per shard or code."""
    metrics = MemoryMetrics()
    metrics.observe("UserRecordsPut", 1, 5, shard_id="a")
    metrics.observe("UserRecordsPut", 1, 2, shard_id="b")
    metrics.observe("RequestTime", 10)
    metrics.observe("RequestTime", 30)
    assert metrics.of("UserRecordsPut").total == 7
    assert metrics.of("UserRecordsPut", shard_id="a").times == 5
    found = metrics.of("RequestTime")
    assert (found.least, found.most, found.mean) == (10, 30, 20)
    assert metrics.of("nothing").mean == 0


class FakeMeter:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, float, dict[str, str]]] = []

    def create_counter(self, name: str, unit: str) -> Any:
        return self._instrument("add", name, unit)

    def create_histogram(self, name: str, unit: str) -> Any:
        return self._instrument("record", name, unit)

    def _instrument(self, verb: str, name: str, unit: str) -> Any:
        assert unit

        def note(_: Any, value: float, attributes: dict[str, str]) -> None:
            self.seen.append((verb, name, value, attributes))

        return type("Instrument", (), {verb: note})()


def test_opentelemetry_counters_and_histograms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts become counters, distributions histograms; a missing package is one sentence."""
    meter = FakeMeter()
    metrics = OpenTelemetryMetrics("orders", meter)
    metrics.observe("UserRecordsPut", 1, 3, shard_id="s")
    metrics.observe("RequestTime", 12.5, code="x")
    assert meter.seen == [
        ("add", "kinesis.producer.UserRecordsPut", 3, {"stream": "orders", "shard_id": "s"}),
        ("record", "kinesis.producer.RequestTime", 12.5, {"stream": "orders", "code": "x"}),
    ]
    for name in [*COUNTS, *DISTRIBUTIONS]:
        metrics.observe(name, 1)
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.metrics", None)
    with pytest.raises(MissingRequirement, match="opentelemetry"):
        OpenTelemetryMetrics("orders")


def test_a_broken_listing_leaves_the_map_invalid() -> None:
    """A fault that is no failed call is not tried again: starting goes on, and the loop's handler is told."""
    seen: list[Any] = []

    async def run() -> Listing:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))
        listing = Listing()
        listing.open = [("nonsense",)]  # type: ignore[list-item]
        listing.map.start()
        await listing.map.first_try()
        await asyncio.sleep(0)
        await listing.map.stop()
        return listing

    listing = asyncio.run(run())
    assert listing.map.state == "INVALID"
    assert listing.changes == [None]
    assert len(seen) == 1
