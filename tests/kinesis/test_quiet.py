"""Idle shards are asked no more often than can matter, and no record waits longer for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headpond.kinesis.planning.planner import Planner
from headpond.localkinesis.testing import ManualClock, local_kinesis
from tests.kinesis.source_kit import STREAM, Driver, held, put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.kinesis.reading.positions import Offset
    from headpond.localkinesis import LocalKinesis

BOUNDS = ["64 MiB", "none"]


@pytest.fixture
def kinesis(clock: ManualClock) -> Iterator[LocalKinesis]:
    with local_kinesis(STREAM, shards=3, clock=clock) as running:
        yield running


class Asked:
    """A planner whose calls are counted and whose clock is the stream's."""

    def __init__(self, kinesis: LocalKinesis, clock: ManualClock, **options: str) -> None:
        self.driver = Driver(kinesis, probeLag="500 ms", shardDiscoveryInterval="1 hour", **options)
        self.made: list[str] = []
        calls: Any = self.driver.calls
        for name in ("iterator", "page"):
            self._count(calls, name)
        # The server's clock is known from its replies to a second only; here it is known.
        calls.now_ms = clock
        self.driver.planner = Planner(self.driver.calls, self.driver.settings, clock=lambda: clock() / 1000)

    def _count(self, calls: Any, name: str) -> None:
        before = getattr(calls, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            self.made.append(name)
            return before(*arguments, **named)

        setattr(calls, name, counted)

    def next(self, at: Offset) -> tuple[Offset, dict[str, int]]:
        """Plan, and say which calls that took."""
        self.made.clear()
        end = self.driver.next(at)
        return end, {name: self.made.count(name) for name in set(self.made)}


@pytest.mark.parametrize("bound", BOUNDS)
def test_an_idle_stream_is_asked_once_in_probe_lag(
    kinesis: LocalKinesis, clock: ManualClock, bound: str
) -> None:
    """Not at all within it, and then with one GetRecords a shard; what comes is found at the same moment."""
    put(kinesis, 30)
    clock.advance(10_000)
    asked = Asked(kinesis, clock, maxBytesPerTrigger=bound)
    at, _ = asked.driver.run(asked.driver.initial())
    clock.advance(500)
    assert asked.next(at)[0] == at
    assert asked.next(at) == (at, {})
    clock.advance(499)
    assert asked.next(at) == (at, {})
    clock.advance(1)
    assert asked.next(at) == (at, {"page": 3})
    put(kinesis, 30, first=30)
    clock.advance(499)
    assert asked.next(at) == (at, {})
    clock.advance(1)
    end, made = asked.next(at)
    assert {shard for shard, _, _ in asked.driver.read(at, end)} == {shard for shard, _, _ in held(kinesis)}
    assert len(asked.driver.read(at, end)) == 30
    assert made["page"] >= 3


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_stream_that_is_kept_up_with_takes_one_call_a_shard(
    kinesis: LocalKinesis, clock: ManualClock, bound: str
) -> None:
    """Where a plan reached the tip the next goes on from there, and asks for as much as it may find."""
    asked = Asked(kinesis, clock, maxBytesPerTrigger=bound)
    at = asked.driver.initial()
    for first in range(0, 90, 30):
        put(kinesis, 30, first=first)
        clock.advance(10_000)
        at, made = asked.next(at)
        assert first == 0 or made == {"page": 3}
    assert {shard for shard, _, _ in held(kinesis)} == set(at.shards)
    assert len(asked.driver.read(asked.driver.initial(), at)) == 90


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_young_record_is_taken_as_soon_as_it_is_old_enough(
    kinesis: LocalKinesis, clock: ManualClock, bound: str
) -> None:
    """A shard whose first record is too young is asked again when it no longer is, not later."""
    put(kinesis, 30)
    clock.advance(10_000)
    asked = Asked(kinesis, clock, maxBytesPerTrigger=bound)
    at, _ = asked.driver.run(asked.driver.initial())
    clock.advance(10_000)
    put(kinesis, 30, first=30)
    clock.advance(300)
    assert asked.next(at)[0] == at
    clock.advance(199)
    assert asked.next(at) == (at, {})
    clock.advance(1)
    end, _ = asked.next(at)
    assert len(asked.driver.read(at, end)) == 30


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.slow
def test_shards_that_are_at_their_fixed_end_are_left_alone(
    kinesis: LocalKinesis, clock: ManualClock, bound: str
) -> None:
    """With AvailableNow a shard is not asked again once it was read to the end that was taken."""
    put(kinesis, 30)
    clock.advance(10_000)
    asked = Asked(kinesis, clock, maxBytesPerTrigger=bound)
    start = asked.driver.initial()
    asked.driver.planner.fix_ends()
    at, batches = asked.driver.run(start)
    assert sorted(row for rows in batches for row in rows) == held(kinesis)
    clock.advance(10_000)
    put(kinesis, 30, first=30)
    assert asked.next(at) == (at, {})


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_plan_lists_the_shards_once_and_describes_the_stream_once_a_minute(
    kinesis: LocalKinesis, clock: ManualClock, bound: str
) -> None:
    """However often that is asked for within it; again only where a shard's first records are planned."""
    put(kinesis, 30)
    clock.advance(10_000)
    driver = Driver(kinesis, maxBytesPerTrigger=bound)
    made: list[str] = []
    calls: Any = driver.calls
    for name in ("describe", "list_shards"):
        before = getattr(calls, name)

        def counted(name: str = name, before: Any = before) -> Any:
            made.append(name)
            return before()

        setattr(calls, name, counted)
    start = driver.initial()
    assert made == ["describe", "list_shards"]
    at = driver.next(start)
    assert made[2:] == ["list_shards", "describe"]
    for _ in range(3):
        put(kinesis, 30)
        clock.advance(10_000)
        made.clear()
        at = driver.next(at)
        driver.planner.ranges(start, at)
        assert made == ["list_shards"]


def test_a_task_asks_for_no_more_than_its_range_holds(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """A planned batch is read without a record beyond its end; a restarted planner's is read all the same."""
    put(kinesis, 60)
    clock.advance(10_000)
    driver = Driver(kinesis, maxRecordsPerTrigger="20")
    start = driver.initial()
    end = driver.next(start)
    limits: list[int] = []
    calls: Any = driver.calls
    page = calls.page

    def noted(iterator: str, shard_id: str, limit: int) -> Any:
        limits.append(limit)
        return page(iterator, shard_id, limit)

    calls.page = noted
    rows = driver.read(start, end)
    assert sum(limits) == len(rows) == 20
    again = Driver(kinesis, maxRecordsPerTrigger="20")
    assert again.read(start, end) == rows


@pytest.mark.slow
def test_the_ends_of_now_have_the_records_of_the_last_moment() -> None:
    """What was acknowledged before the ends were taken is before them, however much it is."""
    with local_kinesis(STREAM, shards=1) as kinesis:
        for first in range(0, 120, 40):
            put(kinesis, 40, 25_000, first=first)
        driver = Driver(kinesis)
        driver.planner.fix_ends()
        _, batches = driver.run(driver.initial())
        assert sum(map(len, batches)) == 120
