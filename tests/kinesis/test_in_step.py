"""Sources in step: batches of two streams end at one arrival time, whatever their bounds and backlogs are."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headpond.core.in_step import APPLICATION
from headpond.localkinesis.testing import local_kinesis
from tests.kinesis.source_kit import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.kinesis.reading.positions import Offset
    from headpond.localkinesis import LocalKinesis
    from headpond.localkinesis.testing import ManualClock
    from tests.kinesis.source_kit import Row

STREAMS = ("orders", "payments")
BURST = 3
"""After this turn more comes than a batch takes."""
BOUNDS = [
    {"maxRecordsPerTrigger": "7"},
    {"maxBytesPerTrigger": "9 KB"},
    {"maxSpanPerTrigger": "2 s"},
    {"maxSpanPerTrigger": "none"},
    {},
]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What planners tell each other lies in a folder of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def kinesis(clock: ManualClock) -> Iterator[LocalKinesis]:
    """Two streams of two shards."""
    with local_kinesis(*STREAMS, shards=2, clock=clock) as running:
        yield running


def put(kinesis: LocalKinesis, clock: ManualClock, chance: random.Random, count: int) -> None:
    """Put records of both streams, of other sizes and at other rates, in the order of their arrival."""
    for _ in range(count):
        stream = chance.choices(STREAMS, (chance.choice((1, 9)), 3))[0]
        size = chance.randrange(1, 3_000 if stream == "orders" else 30)
        kinesis.engine.put(stream, f"k{chance.randrange(9)}", bytes(size))
        clock.advance(chance.choice((0, 1, 40, 1_500)))


def arrivals(kinesis: LocalKinesis, stream: str) -> dict[tuple[str, int], int]:
    return {
        (shard.shard_id, int(record.sequence_number)): record.arrival_ms
        for shard in kinesis.engine.shards(stream)
        for record in kinesis.engine.records(stream, shard.shard_id)
    }


def driver(kinesis: LocalKinesis, stream: str, bounds: dict[str, str]) -> Driver:
    return Driver(kinesis, streamName=stream, inStep="paid orders", **bounds)


def check_in_step(kinesis: LocalKinesis, clock: ManualClock, seed: int) -> None:
    """Run turns to the end of both streams, with restarts and new records between."""
    chance = random.Random(seed)
    put(kinesis, clock, chance, 60)
    bounds = [chance.choice(BOUNDS) for _ in STREAMS]
    offsets: list[Offset] = []
    read: list[list[Row]] = [[], []]
    resting = restarts = 0
    drivers: list[Driver] = []
    turn = 0
    while resting < 2:
        if not drivers or (chance.random() < 0.05 and restarts < 2):
            for each in drivers:
                each.planner.close()
            drivers = [driver(kinesis, name, bound) for name, bound in zip(STREAMS, bounds, strict=True)]
            offsets = offsets or [each.initial() for each in drivers]
            turn, restarts = 0, restarts + 1
        new: list[list[Row]] = []
        for place, each in enumerate(drivers):
            end = each.next(offsets[place])
            new.append(each.read(offsets[place], end))
            offsets[place] = end
            read[place] += new[-1]
        resting = 0 if any(new) else resting + 1
        there = [arrivals(kinesis, name) for name in STREAMS]
        if turn not in (0, BURST + 1) and any(new):
            # Then nobody knows yet what the others have; whoever is ahead afterwards waits.
            last_ms = max(there[place][row[:2]] for place in range(2) for row in new[place])
            seen = [{row[:2] for row in rows} for rows in read]
            left = [ms for place in range(2) for at, ms in there[place].items() if at not in seen[place]]
            assert all(ms >= last_ms for ms in left), (seed, turn)  # a bound may cut within a millisecond
        if turn == BURST:
            put(kinesis, clock, chance, 20)
        turn += 1
        assert turn < 300
    for place, name in enumerate(STREAMS):
        assert sorted(row[:2] for row in read[place]) == sorted(arrivals(kinesis, name))
    for each in drivers:
        each.planner.close()


@pytest.mark.parametrize("seed", range(3))
def test_batches_end_at_one_arrival_time(kinesis: LocalKinesis, clock: ManualClock, seed: int) -> None:
    """Every record once; nothing is left that arrived before what a turn has read."""
    check_in_step(kinesis, clock, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3, 40))
def test_many_streams_in_step(kinesis: LocalKinesis, clock: ManualClock, seed: int) -> None:
    """The same, of many streams and bounds."""
    check_in_step(kinesis, clock, seed)


def test_who_is_ahead_waits_and_who_has_ended_is_not_waited_for(
    kinesis: LocalKinesis, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another application, group or time nobody is waited for."""
    put(kinesis, clock, random.Random(1), 40)
    slow = driver(kinesis, "orders", {"maxRecordsPerTrigger": "1"})
    fast = driver(kinesis, "payments", {})
    slow.next(slow.initial())
    start = fast.initial()
    first = fast.next(start)
    assert len(fast.read(start, first)) < len(arrivals(kinesis, "payments"))
    slow.planner.close()
    end = fast.next(first)
    assert len(fast.read(start, end)) == len(arrivals(kinesis, "payments"))

    slow = driver(kinesis, "orders", {"maxRecordsPerTrigger": "1"})
    slow.next(slow.initial())
    monkeypatch.setenv(APPLICATION, "another")
    free = driver(kinesis, "payments", {})
    assert len(free.read(start, free.next(start))) == len(arrivals(kinesis, "payments"))


def test_without_a_group_there_is_nothing_to_tell(kinesis: LocalKinesis) -> None:
    """And no folder."""
    single = Driver(kinesis, streamName="orders")
    single.next(single.initial())
    assert not list(Path(tempfile.gettempdir()).glob("headpond-in-step-*"))
