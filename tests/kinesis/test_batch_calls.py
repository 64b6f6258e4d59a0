"""The calls that a batch takes, from the plan to its rows; what expires between the two."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import DataLoss
from headpond.localkinesis.testing import local_kinesis
from tests.kinesis.source_kit import STREAM, Driver, held, put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.kinesis.reading.positions import Offset
    from headpond.localkinesis import LocalKinesis
    from headpond.localkinesis.testing import ManualClock

SHARDS = 3
HOUR_MS = 3_600_000
CALLS = {"GetShardIterator": "iterator", "GetRecords": "page"}


@pytest.fixture
def kinesis(clock: ManualClock) -> Iterator[LocalKinesis]:
    with local_kinesis(STREAM, shards=SHARDS, clock=clock) as running:
        yield running


class Counting(Driver):
    """A run of a query whose calls are counted."""

    def __init__(self, kinesis: LocalKinesis, **options: str) -> None:
        super().__init__(kinesis, **options)
        self.made = made = Counter[str]()

        def count(model: Any, **_: Any) -> None:
            if model.name in CALLS:
                made[CALLS[model.name]] += 1

        self.calls._client.meta.events.register("before-call.kinesis", count)

    def calls_of_reading(self, start: Offset, end: Offset) -> dict[str, int]:
        self.made.clear()
        self.read(start, end)
        return dict(self.made)


def batch_from(driver: Driver, kinesis: LocalKinesis, position: str) -> tuple[Offset, Offset]:
    """Plan a batch that begins at the horizon, or after records that were read before."""
    put(kinesis, 30)
    start = driver.initial()
    if position == "horizon":
        return start, driver.next(start)
    start, _ = driver.run(start)
    put(kinesis, 30, first=30)
    return start, driver.next(start)


BOUNDS = [{}, {"maxBytesPerTrigger": "64 MiB"}, {"maxSpanPerTrigger": "none"}]


@pytest.mark.slow
@pytest.mark.parametrize("position", ["horizon", "after records"])
@pytest.mark.parametrize("options", BOUNDS, ids=["span", "bytes", "unbounded"])
def test_a_task_finds_its_place_and_reads(
    kinesis: LocalKinesis, options: dict[str, str], position: str
) -> None:
    """Each shard's part takes one call, and is the same to who did not plan it."""
    driver = Counting(kinesis, **options)
    start, end = batch_from(driver, kinesis, position)
    rows = driver.read(start, end)
    assert driver.calls_of_reading(start, end) == {"page": SHARDS}
    assert Counting(kinesis, **options).read(start, end) == rows
    assert len(rows) == 30


@pytest.mark.parametrize("position", ["horizon", "after records"])
def test_a_task_whose_iterators_are_too_old_finds_its_place(
    kinesis: LocalKinesis, clock: ManualClock, position: str
) -> None:
    """A batch that is tried again after six minutes takes two calls a shard more, and has the same rows."""
    driver = Counting(kinesis)
    start, end = batch_from(driver, kinesis, position)
    rows = driver.read(start, end)
    clock.advance(6 * 60_000)
    assert driver.calls_of_reading(start, end) == {"page": 2 * SHARDS, "iterator": SHARDS}
    assert driver.read(start, end) == rows


@pytest.mark.parametrize("position", ["horizon", "after records"])
def test_an_iterator_of_the_planners_that_is_refused_is_no_loss(kinesis: LocalKinesis, position: str) -> None:
    """Such a refusal says nothing of the shard: the task asks for an iterator of its own first."""
    driver = Counting(kinesis)
    start, end = batch_from(driver, kinesis, position)
    rows = driver.read(start, end)
    kinesis.faults.refuse("InvalidArgumentException", calls=("GetRecords",), times=1)
    assert driver.calls_of_reading(start, end) == {"page": SHARDS + 1, "iterator": 1}
    assert driver.read(start, end) == rows


def test_a_part_that_begins_within_a_reply(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """An iterator would give what the batch before it took, too: the task asks for one of its own."""
    for _ in range(300):
        put(kinesis, SHARDS, 25_000)
        clock.advance(23)
    driver = Counting(kinesis, maxSpanPerTrigger="2 s")
    start, rows, given = driver.initial(), [], Counter[bool]()
    while (end := driver.next(start)) != start:
        given.update(wanted.iterator is not None for wanted in driver.planner.ranges(start, end))
        rows += driver.read(start, end)
        start = end
    assert sorted(rows) == held(kinesis)
    assert given[False]
    assert given[True]


def test_a_first_run_looks_at_each_beginning_once(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Up to now: two calls a shard to plan, where a look tells all, and one to read."""
    clock.advance(25 * HOUR_MS)  # so that the beginning is a moment
    put(kinesis, 9)
    driver = Counting(kinesis, maxSpanPerTrigger="1 min")
    start = driver.initial()
    driver.planner.fix_ends()
    assert dict(driver.made) == {}
    end = driver.next(start)
    assert dict(driver.made) == {"iterator": SHARDS, "page": SHARDS}
    assert driver.calls_of_reading(start, end) == {"page": SHARDS}
    assert sorted(driver.read(start, end)) == held(kinesis)


def test_asked_for_the_beginning_again_planning_knows_its_batch(
    kinesis: LocalKinesis, clock: ManualClock
) -> None:
    """Spark asks for the first offset more than once; the moment it stands for has moved on by then."""
    clock.advance(25 * HOUR_MS)
    put(kinesis, 30)
    driver = Counting(kinesis)
    start = driver.initial()
    end = driver.next(start)
    clock.advance(1_500)
    assert driver.initial() == start
    assert sum(wanted.records for wanted in driver.planner.ranges(start, end)) == 30


@pytest.mark.parametrize("later_ms", [180_000, 360_000], ids=["iterator alive", "iterator expired"])
@pytest.mark.parametrize("fatal", [True, False], ids=["fatal", "tolerated"])
@pytest.mark.slow
def test_what_expired_meanwhile_is_told_as_ever(
    kinesis: LocalKinesis, clock: ManualClock, later_ms: int, *, fatal: bool
) -> None:
    """The batch's first records go between planning and reading; what is left begins with others."""
    put(kinesis, 9)
    driver = Counting(kinesis, failOnDataLoss=str(fatal).lower())
    start, _ = driver.run(driver.initial())
    clock.advance(1_000)
    put(kinesis, 30, first=9)
    clock.advance(HOUR_MS)
    put(kinesis, 30, first=39)
    clock.advance(23 * HOUR_MS - 120_000)
    end = driver.everything(start)
    assert len(driver.read(start, end)) == 60
    clock.advance(later_ms)
    if fatal:
        with pytest.raises(DataLoss, match="is gone"):
            driver.read(start, end)
    else:
        assert sorted(driver.read(start, end)) == held(kinesis)
        assert len(held(kinesis)) == 30


def test_where_nothing_follows_a_cut_the_end_is_looked_for_before_it(
    kinesis: LocalKinesis, clock: ManualClock
) -> None:
    """A stream that has been idle for twelve hours: nobody halves these twelve hours again and again."""
    clock.advance(HOUR_MS)
    for _ in range(30):
        put(kinesis, 60, 50_000)
        clock.advance(1_000)
    clock.advance(12 * HOUR_MS)
    driver = Counting(kinesis)
    start = driver.initial()
    driver.planner.fix_ends()
    end = driver.next(start)
    assert sorted(driver.read(start, end)) == held(kinesis)
    assert driver.made["iterator"] <= 20 * SHARDS


def test_a_little_behind_a_cut_takes_no_batch_of_its_own(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """An hour after the backlog's span, two more in each shard: one look sees that they are all."""
    put(kinesis, 60, 50_000)
    clock.advance(HOUR_MS)
    for shard in range(SHARDS):
        for _ in range(2):
            kinesis.engine.put(STREAM, "late", b"late", explicit_hash_key=(shard << 128) // SHARDS)
            clock.advance(10_000)
    clock.advance(HOUR_MS)
    driver = Counting(kinesis, maxSpanPerTrigger="1 min")
    start = driver.initial()
    driver.planner.fix_ends()
    end = driver.next(start)
    # How much that is follows from the backlog, not from the few behind it: tasks are dealt out by it.
    assert sum(each.size_bytes for each in driver.planner.ranges(start, end)) > 60 * 50_000 / 2
    assert sorted(driver.read(start, end)) == held(kinesis)
    assert driver.next(end) == end


def test_what_a_plan_estimated_is_read_in_one_reply(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """An estimate a record short takes no second one, which would wait for what the first one took."""
    for _ in range(300):
        put(kinesis, SHARDS, 25_000)
        clock.advance(23)
    driver = Counting(kinesis, maxSpanPerTrigger="5 s")
    start = driver.initial()
    end = driver.next(start)
    assert 600 < len(driver.read(start, end)) < 800
    assert driver.calls_of_reading(start, end) == {"page": SHARDS}
