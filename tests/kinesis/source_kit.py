"""A source on the local Kinesis without Spark: plan, read, plan on, as Spark would.

Where the stream has the consumer CONSUMER, batches are read through its subscriptions, else by polling.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from headpond.kinesis.api.calls import ServiceCalls
from headpond.kinesis.api.retry import Patience
from headpond.kinesis.consumers import Consumers
from headpond.kinesis.fanout import FanOut
from headpond.kinesis.planning.options import Limits, read_options
from headpond.kinesis.planning.planner import Planner
from headpond.kinesis.planning.stream_state import refuse_another
from headpond.kinesis.reading.cursor import LossRule
from headpond.kinesis.reading.positions import Offset, read_offset
from headpond.kinesis.reading.reader import ShardRange, in_batches, read_pages
from headpond.localkinesis import Settings
from headpond.localkinesis.testing import local_kinesis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.kinesis.api.calls import StreamCalls
    from headpond.localkinesis import LocalKinesis
    from headpond.localkinesis.testing import ManualClock

STREAM = "orders"
CONSUMER = "app"
Row = tuple[str, int, bytes]
"""Shard, sequence number, data."""
WAYS = ["polling", pytest.param("efo", marks=pytest.mark.thorough)]
"""How `read_both_ways` may have batches read."""


@contextmanager
def read_both_ways(way: str, clock: ManualClock, *, shards: int = 1) -> Iterator[LocalKinesis]:
    """A stream whose batches are read by polling (`polling`) or by subscription (`efo`)."""
    settings = Settings(resubscribe_ms=0, heartbeat_ms=5)
    with local_kinesis(STREAM, shards=shards, clock=clock, settings=settings) as running:
        if way == "efo":
            running.engine.consumers.register(STREAM, CONSUMER)
        yield running


class Driver:
    """Plans and reads like one run of a query; offsets go through JSON, as in a checkpoint."""

    def __init__(self, kinesis: LocalKinesis, **options: str) -> None:
        given = {
            "streamName": STREAM,
            "endpointUrl": kinesis.endpoint_url,
            "startingPosition": "TRIM_HORIZON",
            "probeLag": "0 ms",
            "shardDiscoveryInterval": "0 ms",
            **(self._consumer(kinesis)),
            **options,
        }
        self.settings = read_options(given)
        self.calls = ServiceCalls(
            self.settings.connection,
            client=kinesis.client(),
            patience=Patience(0.001, 0.002, 1.0, 1.0),
            sleep=lambda _seconds: None,
        )
        self.planner = Planner(self.calls, self.settings)

    @staticmethod
    def _consumer(kinesis: LocalKinesis) -> dict[str, str]:
        names = [each.name for each in kinesis.engine.consumers.of_stream(STREAM)]
        return {"consumerMode": "efo", "consumerName": CONSUMER} if names == [CONSUMER] else {}

    @contextmanager
    def reading(self) -> Iterator[StreamCalls]:
        """The calls that a task reads with; turns are not waited for."""
        if self.settings.consumer_name is None:
            yield self.calls
            return
        arn = Consumers(self.calls, self.settings.connection).find(self.settings.consumer_name)
        connection = self.settings.connection
        with closing(FanOut(self.calls, connection, arn, sleep=lambda _seconds: None)) as calls:
            yield calls

    def initial(self) -> Offset:
        return through_json(self.planner.initial())

    def next(self, start: Offset) -> Offset:
        return through_json(self.planner.latest(start))

    def everything(self, start: Offset) -> Offset:
        return through_json(self.planner.latest(start, Limits()))

    def read(self, start: Offset, end: Offset) -> list[Row]:
        ranges = self.planner.ranges(start, end)
        with self.reading() as calls:
            return [row for wanted in ranges for row in self._rows(calls, wanted, end)]

    def _rows(self, calls: StreamCalls, wanted: ShardRange, end: Offset) -> list[Row]:
        def check() -> None:
            refuse_another(STREAM, end.created_ms, self.calls.describe().created_ms)

        loss = LossRule(STREAM, self.planner.retention_ms, self.settings.fail_on_data_loss, check=check)
        pages = read_pages(
            calls,
            wanted,
            loss,
            records_per_page=self.settings.records_per_page,
            sleep=lambda _seconds: None,
        )
        return [
            (row["shard_id"], int(row["sequence_number"]), row["data"])
            for batch in in_batches(((wanted.shard_id, page) for page in pages), STREAM)
            for row in batch.to_pylist()
        ]

    def run(self, start: Offset, most: int = 200) -> tuple[Offset, list[list[Row]]]:
        """Plan and read until nothing is new; each batch is read twice and must give the same."""
        batches = []
        for _ in range(most):
            end = self.next(start)
            if end == start:
                return end, batches
            rows = self.read(start, end)
            assert rows == self.read(start, end)
            batches.append(rows)
            start = end
        raise AssertionError("the stream does not end")


def through_json(offset: Offset) -> Offset:
    import json

    value: Any = json.loads(json.dumps(offset.to_json()))
    again = read_offset(value)
    assert again == offset
    return again


def held(kinesis: LocalKinesis) -> list[Row]:
    """Everything in the stream, as rows."""
    from headpond.localkinesis.testing import read_all

    return sorted((r.shard_id, r.sequence_number, r.data) for r in read_all(kinesis.client(), STREAM))


def put(kinesis: LocalKinesis, count: int, size_bytes: int = 10, first: int = 0) -> None:
    """Put records with keys k0, k1, … ."""
    from headpond.localkinesis.testing import put_all

    put_all(
        kinesis.client(),
        STREAM,
        [(f"k{n}", str(n).encode().ljust(size_bytes, b".")) for n in range(first, first + count)],
    )
