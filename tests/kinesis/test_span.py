"""Batches bounded by a span of arrival: exact, repeatable, and planned without reading what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headpond.localkinesis.testing import ManualClock, local_kinesis
from tests.kinesis.source_kit import STREAM, Driver, Row, held, put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.kinesis.reading.positions import Offset
    from headpond.localkinesis import LocalKinesis

pytestmark = pytest.mark.thorough

MINUTE_MS = 60_000
FILLER = bytes(105_000)  # a MiB, which is always looked at, has nine records
SPAN = {"maxSpanPerTrigger": "10 min"}


@pytest.fixture
def kinesis(clock: ManualClock) -> Iterator[LocalKinesis]:
    """Two shards."""
    with local_kinesis(STREAM, shards=2, clock=clock) as running:
        yield running


def put_for(kinesis: LocalKinesis, clock: ManualClock, minutes: int) -> None:
    """Put a record into each open shard every minute."""
    for minute in range(minutes):
        for shard in kinesis.engine.shards(STREAM):
            if shard.closed_ms is None:
                kinesis.engine.put(STREAM, "k", b"%d" % minute + FILLER, explicit_hash_key=shard.low)
        clock.advance(MINUTE_MS)


def minutes_of(kinesis: LocalKinesis, batches: list[list[Row]]) -> list[list[int]]:
    """For each batch and shard with rows, the minutes from its first record to its last."""
    arrivals = {
        (shard.shard_id, record.sequence_number): record.arrival_ms
        for shard in kinesis.engine.shards(STREAM)
        for record in kinesis.engine.records(STREAM, shard.shard_id)
    }
    found = []
    for batch in batches:
        times: dict[str, list[int]] = {}
        for shard_id, number, _ in batch:
            times.setdefault(shard_id, []).append(arrivals[shard_id, number])
        found.append([(max(each) - min(each)) // MINUTE_MS for each in times.values()])
    return found


def flat(batches: list[list[Row]]) -> list[Row]:
    return sorted(row for batch in batches for row in batch)


def test_a_batch_ends_with_the_first_record_after_its_span(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """An hour is read in spans of ten minutes, each closed by one record; so by a new planner every time."""
    put_for(kinesis, clock, 60)
    driver = Driver(kinesis, **SPAN)
    end, batches = driver.run(driver.initial())
    assert flat(batches) == held(kinesis)
    assert minutes_of(kinesis, batches) == [[10, 10]] * 5 + [[4, 4]]
    at, again = driver.initial(), []
    while at != end:
        fresh = Driver(kinesis, **SPAN)
        to = fresh.next(at)
        again.append(fresh.read(at, to))
        at = to
    assert again == batches


def test_available_now_goes_to_its_ends_in_spans(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """What had come before the run is in it; what came later waits for the next run."""
    put_for(kinesis, clock, 45)
    driver = Driver(kinesis, **SPAN)
    start = driver.initial()
    driver.planner.fix_ends()
    there = held(kinesis)
    clock.advance(3_000)
    put_for(kinesis, clock, 5)
    end, batches = driver.run(start)
    assert flat(batches) == there
    assert minutes_of(kinesis, batches) == [[10, 10]] * 4 + [[0, 0]]
    _, rest = Driver(kinesis, **SPAN).run(end)
    assert flat(batches + rest) == held(kinesis)


def test_closed_shards_are_read_in_spans_too(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """A parent's last span ends at its end, and its children follow."""
    put_for(kinesis, clock, 25)
    kinesis.engine.merge_shards(STREAM, "shardId-000000000000", "shardId-000000000001")
    put_for(kinesis, clock, 25)
    driver = Driver(kinesis, **SPAN)
    _, batches = driver.run(driver.initial())
    assert flat(batches) == held(kinesis)
    assert minutes_of(kinesis, batches) == [[10, 10], [10, 10], [2, 2], [10], [10], [2]]


def test_few_records_of_a_long_time_are_one_batch(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """What is looked at anyhow, a MiB in earnest, is taken however long it took to come."""
    for _ in range(3):
        put_for(kinesis, clock, 1)
        clock.advance(60 * MINUTE_MS)
    driver = Driver(kinesis, **SPAN)
    _, batches = driver.run(driver.initial())
    assert len(batches) == 1
    assert flat(batches) == held(kinesis)


def test_what_a_span_holds_is_not_read_to_plan_it(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """However full a span is, its plan takes a few calls and a handful of records a shard."""
    for _ in range(30):
        put(kinesis, 6, size_bytes=len(FILLER))
        clock.advance(MINUTE_MS)
    driver = Driver(kinesis, **SPAN)
    seen: list[int] = []
    calls: Any = driver.calls
    page = calls.page

    def counted(*arguments: Any) -> Any:
        found = page(*arguments)
        seen.append(len(found.records))
        return found

    calls.page = counted
    start = driver.initial()
    end = driver.next(start)
    assert sum(seen) <= 2 * (1 + 9 + 1)
    assert len(seen) == 4
    assert len(driver.read(start, end)) >= 60


@pytest.mark.parametrize("bound", [{"maxSpanPerTrigger": "10 min"}, {"maxRecordsPerTrigger": "20"}])
def test_how_far_planning_is_behind(kinesis: LocalKinesis, clock: ManualClock, bound: dict[str, str]) -> None:
    """Per shard, the age of the oldest unread record, or of the newest read one; 0 at the tip."""
    put_for(kinesis, clock, 30)
    low, high = (shard.shard_id for shard in kinesis.engine.shards(STREAM))
    driver = Driver(kinesis, **bound)
    assert driver.planner.behind_ms() == {}
    at = driver.next(driver.initial())
    # Each shard's span ends with the record of minute 10, and the next one was seen; the bound of 20 records
    # ends with the record of minute 9, and no more was looked at. The server's now is known to a second.
    left_ms = pytest.approx((19 if "maxSpanPerTrigger" in bound else 21) * MINUTE_MS, abs=1_000)
    assert driver.planner.behind_ms() == {low: left_ms, high: left_ms}
    driver.run(at)
    assert driver.planner.behind_ms() == {low: 0, high: 0}
    kinesis.engine.merge_shards(STREAM, low, high)
    at, _ = driver.run(driver.next(driver.initial()))
    (child,) = set(at.shards) - {low, high}
    assert driver.planner.behind_ms() == {child: 0}


def test_everything_is_asked_for_without_a_span(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Trigger `once` means all there is, and so does `none`."""
    put_for(kinesis, clock, 60)
    driver = Driver(kinesis, **SPAN)
    start = driver.initial()
    assert sorted(driver.read(start, driver.everything(start))) == held(kinesis)
    unbound = Driver(kinesis, maxSpanPerTrigger="none")
    _, batches = unbound.run(unbound.initial())
    assert len(batches) == 1


@pytest.mark.parametrize("available_now", [False, True])
def test_times_that_fall_back_lose_and_repeat_nothing(
    kinesis: LocalKinesis,
    clock: ManualClock,
    available_now: bool,  # noqa: FBT001 (a case)
) -> None:
    """Arrival times are approximate: where they jump back, each record is still read once."""
    for number in range(120):
        put(kinesis, 1, size_bytes=len(FILLER), first=number)
        clock.advance(-90_000 if number % 3 == 2 else 70_000)
    clock.advance(10 * MINUTE_MS)
    driver = Driver(kinesis, maxSpanPerTrigger="1 min")
    at: Offset = driver.initial()
    if available_now:
        driver.planner.fix_ends()
    _, batches = driver.run(at)
    assert flat(batches) == held(kinesis)
    assert len(batches) > 3


def test_without_a_bound_a_batch_has_about_a_gibibyte(
    kinesis: LocalKinesis, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The denser the records are that were looked at, the shorter the span; here about 4 MiB of 40."""
    monkeypatch.setattr("headpond.kinesis.planning.options.DEFAULT_ABOUT_BYTES", 4 << 20)
    for _ in range(200):
        put_for(kinesis, clock, 1)
        clock.advance(1_000 - MINUTE_MS)
    clock.advance(MINUTE_MS)
    driver = Driver(kinesis)
    start = driver.initial()
    size_bytes = sum(len(row[2]) for row in driver.read(start, driver.next(start)))
    assert 3 << 20 < size_bytes < 6 << 20
    _, batches = driver.run(start)
    assert flat(batches) == held(kinesis)
