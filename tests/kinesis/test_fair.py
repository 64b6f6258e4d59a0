"""Fair batches under exact bounds: every shard gets its turn, no room is left, lag is that of what waits."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.kinesis.planning.options import read_options
from headpond.kinesis.planning.planner import Planner
from headpond.kinesis.reading.cursor import LossRule
from headpond.kinesis.reading.reader import read_pages
from headpond.localkinesis import Engine
from headpond.localkinesis.testing import ManualClock, local_kinesis
from tests.kinesis.source_kit import STREAM, Driver, Row
from tests.kinesis.test_plan_histories import EngineCalls
from tests.kit.support import share_of

if TYPE_CHECKING:
    from headpond.localkinesis import LocalKinesis

KEY = "k"
HOUR_MS = 3_600_000


def put_into(kinesis: LocalKinesis, shard: int, size_bytes: int) -> None:
    """Put a record of so many bytes, its key included, into a shard."""
    keys = kinesis.client().list_shards(StreamName=STREAM)["Shards"][shard]["HashKeyRange"]
    kinesis.client().put_record(
        StreamName=STREAM,
        PartitionKey=KEY,
        ExplicitHashKey=keys["StartingHashKey"],
        Data=b"x" * (size_bytes - len(KEY)),
    )


def size_of(row: Row) -> int:
    return len(row[2]) + len(KEY)


def check_batches(
    batches: list[list[Row]], waiting: dict[str, list[int]], most_records: int, most_bytes: int
) -> None:
    """Compare batches with the rules; `waiting` has the sizes that each shard holds."""
    missed = dict.fromkeys(waiting, 0)
    for batch in batches:
        used = sum(map(size_of, batch))
        assert len(batch) <= most_records
        assert used <= most_bytes or len(batch) == 1
        for shard_id, sizes in waiting.items():
            mine = [size_of(row) for row in batch if row[0] == shard_id]
            assert sizes[: len(mine)] == mine
            missed[shard_id] = 0 if mine or not sizes else missed[shard_id] + 1
            assert missed[shard_id] < len(waiting)
            del sizes[: len(mine)]
        if len(batch) < most_records:
            assert not [sizes for sizes in waiting.values() if sizes and used + sizes[0] <= most_bytes]
    assert not any(waiting.values())


RECORDS = st.lists(st.tuples(st.integers(0, 11), st.integers(2, 300)), min_size=1, max_size=60)


@pytest.mark.slow
@settings(max_examples=share_of(100))
@given(RECORDS, st.integers(1, 12), st.integers(1, 9), st.integers(10, 700))
def test_no_shard_waits_and_no_room_is_left(
    records: list[tuple[int, int]], shards: int, most: int, size_bytes: int
) -> None:
    """Any sizes, bounds and shards: one waits for fewer batches than there are shards; what fits goes.

    The batch begins with the oldest of the records whose shards have waited longest, and lag is the age of
    the oldest record that is left.
    """
    clock = ManualClock()
    engine = Engine(clock=clock)
    engine.create_stream(STREAM, shards)
    names = [shard.shard_id for shard in engine.shards(STREAM)]
    waiting: dict[str, list[int]] = {name: [] for name in names}
    arrivals: dict[str, list[int]] = {name: [] for name in names}
    for number, size in records:
        shard = engine.shards(STREAM)[number % shards]
        engine.put(STREAM, KEY, b"x" * (size - len(KEY)), explicit_hash_key=shard.low)
        waiting[shard.shard_id].append(size)
        arrivals[shard.shard_id].append(clock())
        clock.advance(10)
    given = {"maxRecordsPerTrigger": str(most), "maxBytesPerTrigger": str(size_bytes), "probeLag": "0 ms"}
    chosen = read_options({"streamName": STREAM, "startingPosition": "TRIM_HORIZON", **given})
    with closing(Planner(EngineCalls(engine), chosen, clock=lambda: clock() / 1000)) as planner:
        at, batches, missed = planner.initial(), [], dict.fromkeys(names, 0)
        while (end := planner.latest(at)) != at:
            rows: list[Row] = []
            for wanted in planner.ranges(at, end):
                for page in read_pages(
                    EngineCalls(engine),
                    wanted,
                    LossRule(STREAM, HOUR_MS),
                ):
                    rows += [(wanted.shard_id, record.number, record.data) for record in page]
            left = {name: times for name, times in arrivals.items() if times}
            turn = min(left, key=lambda name: (-missed[name], left[name][0]))
            assert turn in {row[0] for row in rows}
            for name in left:
                count = sum(row[0] == name for row in rows)
                missed[name] = 0 if count else missed[name] + 1
                del arrivals[name][:count]
            oldest_ms = min((times[0] for times in arrivals.values() if times), default=clock())
            assert max(planner.behind_ms().values()) >= clock() - oldest_ms
            batches.append(rows)
            at = end
    check_batches(batches, waiting, most, size_bytes)


def test_a_shard_that_is_written_to_all_the_time_starves_no_other(clock: ManualClock) -> None:
    """Records larger than a share, one in each of three shards, while a fourth gets more with each batch."""
    with local_kinesis(STREAM, shards=4, clock=clock) as kinesis:
        for shard in range(4):
            put_into(kinesis, shard, 30_000)
        driver = Driver(kinesis, maxBytesPerTrigger="100000")
        at, seen, counts = driver.initial(), set(), []
        for _ in range(4):
            put_into(kinesis, 0, 30_000)
            clock.advance(1000)
            end = driver.next(at)
            rows = driver.read(at, end)
            counts.append(len(rows))
            seen |= {row[0] for row in rows}
            at = end
        assert len(seen) == 4
        assert counts == [3, 3, 1, 1]


def test_lag_is_the_age_of_what_waits(clock: ManualClock) -> None:
    """A record that had no room counts, although it was looked at."""
    with local_kinesis(STREAM, shards=2, clock=clock) as kinesis:
        for shard in (0, 1):
            put_into(kinesis, shard, 80_000)
        clock.advance(60_000)
        driver = Driver(kinesis, maxBytesPerTrigger="100000")
        at = driver.next(driver.initial())
        none, lag_ms = sorted(driver.planner.behind_ms().values())
        assert none == 0
        assert 60_000 <= lag_ms < 70_000
        driver.next(at)
        assert list(driver.planner.behind_ms().values()) == [0, 0]
