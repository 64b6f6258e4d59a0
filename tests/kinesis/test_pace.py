"""Pacing: a reader on its own is never refused for its rate, and waits no longer than it must."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from headpond.kinesis.api.calls import ServiceCalls
from headpond.kinesis.api.retry import Pace, Patience
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.planning.shard_state import ShardState
from headpond.kinesis.reading.cursor import LossRule
from headpond.kinesis.reading.positions import END, HORIZON
from headpond.kinesis.reading.reader import ShardRange, read_pages
from headpond.localkinesis import SERVICE_LIMITS, Limits, Settings
from headpond.localkinesis.testing import ManualClock, local_kinesis
from tests.kinesis.source_kit import STREAM, held, put

if TYPE_CHECKING:
    from headpond.localkinesis import LocalKinesis

SHARD = "shardId-000000000000"
READS = Limits(SERVICE_LIMITS.reads_per_second, SERVICE_LIMITS.read_bytes_per_second)


class Paced:
    """Calls with a pace on the service's clock; counts refusals and what was slept."""

    def __init__(self, kinesis: LocalKinesis, clock: ManualClock, pace: Pace | None) -> None:
        self.refused: list[str] = []
        self.slept_s = 0.0
        self.clock = clock
        client = kinesis.client()
        client.meta.events.register("after-call.kinesis", self.look)
        settings = ConnectionSettings(stream_name=STREAM, endpoint_url=kinesis.endpoint_url)
        self.calls = ServiceCalls(settings, client=client, pace=pace, sleep=self.sleep)

    def look(self, parsed: dict[str, Any], **_: Any) -> None:
        if "Error" in parsed:
            self.refused.append(parsed["Error"]["Code"])

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.clock.advance(math.ceil(seconds * 1000))


def read(paced: Paced, page: int) -> int:
    loss = LossRule(STREAM, 86_400_000)
    wanted = ShardRange(SHARD, HORIZON, END)
    pages = read_pages(paced.calls, wanted, loss, records_per_page=page, sleep=lambda _seconds: None)
    return sum(map(len, pages))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "size_bytes", "page", "least_s", "most_s"),
    [
        (50, 10, 2, 4.6, 5.4),  # 25 pages and the end, five a second
        (60, 200_000, 10_000, 3.9, 5.5),  # 12 MB: the first reply has 10 MiB, paid for before the next
    ],
)
def test_a_lone_reader_is_not_refused(
    count: int, size_bytes: int, page: int, least_s: float, most_s: float
) -> None:
    """Small and large pages keep to the limits; without a pace the service refuses."""
    for with_pace in (True, False):
        clock = ManualClock()
        with local_kinesis(STREAM, clock=clock, settings=Settings(limits=READS)) as kinesis:
            for first in range(0, count, 30):
                put(kinesis, min(30, count - first), size_bytes, first)
            kinesis.engine.split_shard(STREAM, SHARD)
            paced = Paced(kinesis, clock, Pace(clock=clock) if with_pace else None)
            assert read(paced, page) == count
        assert bool(paced.refused) is not with_pace
        if with_pace:
            assert least_s <= paced.slept_s <= most_s


def test_a_throttled_shard_is_asked_again_within_a_second() -> None:
    """Its debt is paid by then; to wait longer would leave it idle."""
    assert max(Patience().wait_s(attempt) for attempt in range(40)) <= 1.0


def test_finding_a_tip_keeps_the_pace() -> None:
    """The probes of a plan are spaced, too; each shard has an account of its own."""
    clock = ManualClock()
    with local_kinesis(STREAM, shards=2, clock=clock, settings=Settings(limits=READS)) as kinesis:
        for first in range(0, 40, 4):
            put(kinesis, 4, first=first)
            clock.advance(60_000)
        paced = Paced(kinesis, clock, Pace(clock=clock))
        for shard_id in (SHARD, "shardId-000000000001"):
            state = ShardState(paced.calls, shard_id, HORIZON, LossRule(STREAM, 86_400_000))
            state.reach(None)
            assert state.position.number == max(n for shard, n, _ in held(kinesis) if shard == shard_id)
    assert paced.refused == []
    assert paced.slept_s > 0


def test_only_a_service_elsewhere_is_paced_by_itself() -> None:
    """On this machine limits are off by default, so no time is lost to them."""
    local = ConnectionSettings(stream_name=STREAM, endpoint_url="http://127.0.0.1:9")
    away = ConnectionSettings(stream_name=STREAM, region="eu-west-1")
    keep = [ServiceCalls(each, client=Mock())._keeps_pace for each in (local, away)]
    assert keep == [False, True]


def test_a_stand_in_with_limits_is_kept_to_from_the_first_refusal_on() -> None:
    """What was read before counts: there is one refusal, and one wait as long as the limits ask for."""
    clock = ManualClock()
    with local_kinesis(STREAM, clock=clock, settings=Settings(limits=READS)) as kinesis:
        for first in range(0, 60, 30):
            put(kinesis, 30, 200_000, first)
        kinesis.engine.split_shard(STREAM, SHARD)
        paced = Paced(kinesis, clock, None)
        paced.calls._pace = Pace(clock=clock)
        assert read(paced, 10_000) == 60
    assert paced.refused == ["ProvisionedThroughputExceededException"]
    assert 3.9 <= paced.slept_s <= 4.3
