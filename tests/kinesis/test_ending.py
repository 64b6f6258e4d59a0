"""An end of reading: what arrived before a time, exactly, whatever becomes of the shards."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import ConfigurationError
from headpond.kinesis.planning.options import read_options
from headpond.kinesis.planning.planner import Planner
from headpond.localkinesis import Settings
from headpond.localkinesis.testing import ManualClock, local_kinesis
from tests.kinesis.source_kit import STREAM, Driver, Row, held, put
from tests.kit.support import share_of

if TYPE_CHECKING:
    from headpond.localkinesis import LocalKinesis

NO_BOUND = {"maxSpanPerTrigger": "none"}
BOUNDS = [
    NO_BOUND,
    {"maxSpanPerTrigger": "10 s"},
    {"maxRecordsPerTrigger": "7"},
    {"maxBytesPerTrigger": "50"},
]
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "wait", "split", "merge"]), st.integers(0, 60_000)),
    max_size=12,
)


def happen(kinesis: LocalKinesis, clock: ManualClock, steps: list[tuple[str, int]]) -> None:
    """Write, wait, split the largest open shard, merge two neighbours."""
    first = 0
    for what, amount in steps:
        shards = sorted(
            kinesis.client().list_shards(StreamName=STREAM, ShardFilter={"Type": "AT_LATEST"})["Shards"],
            key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]),
        )
        if what == "put":
            put(kinesis, amount % 9, first=first)
            first += amount % 9
        elif what == "wait":
            clock.advance(amount)
        elif what == "split" and len(shards) < 6:
            keys = shards[amount % len(shards)]["HashKeyRange"]
            start, end = int(keys["StartingHashKey"]), int(keys["EndingHashKey"])
            kinesis.client().split_shard(
                StreamName=STREAM,
                ShardToSplit=shards[amount % len(shards)]["ShardId"],
                NewStartingHashKey=str((start + end) // 2 + 1),
            )
        elif what == "merge" and len(shards) > 1:
            one = amount % (len(shards) - 1)
            kinesis.client().merge_shards(
                StreamName=STREAM,
                ShardToMerge=shards[one]["ShardId"],
                AdjacentShardToMerge=shards[one + 1]["ShardId"],
            )
        clock.advance(1)


def ending(end_ms: int) -> str:
    return f"AT_TIMESTAMP {datetime.fromtimestamp(end_ms / 1000, UTC).isoformat(timespec='milliseconds')}"


@pytest.mark.thorough
@settings(max_examples=share_of(12), deadline=None)
@given(STEPS, STEPS, st.sampled_from(BOUNDS))
def test_what_arrived_before_and_nothing_else(
    earlier: list[tuple[str, int]], later: list[tuple[str, int]], bound: dict[str, str]
) -> None:
    """Read at once or in batches, through splits and merges on both sides of the end."""
    clock = ManualClock()
    with local_kinesis(STREAM, shards=2, clock=clock) as kinesis:
        happen(kinesis, clock, earlier)
        end_ms, wanted = clock(), held(kinesis)
        happen(kinesis, clock, later)
        clock.advance(60_000)
        whole = Driver(kinesis, endingPosition=ending(end_ms), **bound)
        assert sorted(whole.read(*whole.planner.span())) == wanted
        found: list[Row] = []
        at = None
        for _ in range(200):  # each batch by a planner of its own, as after a restart
            driver = Driver(kinesis, endingPosition=ending(end_ms), **bound)
            at = driver.initial() if at is None else at
            driver.planner.fix_ends()
            planned = driver.next(at)
            if planned == at:
                break
            found += driver.read(at, planned)
            at = planned
        assert sorted(found) == wanted
        # A reader that begins there has the rest, each once.
        rest = Driver(kinesis, startingPosition=ending(end_ms), maxSpanPerTrigger="none")
        start, end = rest.planner.span()
        assert sorted(rest.read(start, end) + found) == held(kinesis)


def test_a_checkpoint_beyond_the_end_stays_where_it_is(clock: ManualClock) -> None:
    """Nothing more is read, and nothing is read again."""
    with local_kinesis(STREAM, shards=2, clock=clock) as kinesis:
        put(kinesis, 9)
        clock.advance(10_000)
        end_ms = clock()
        put(kinesis, 9, first=9)
        clock.advance(10_000)
        at, batches = Driver(kinesis).run(Driver(kinesis).initial())
        assert sum(map(len, batches)) == 18
        driver = Driver(kinesis, endingPosition=ending(end_ms))
        driver.planner.fix_ends()
        assert driver.next(at) == at


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_an_end_that_has_not_come(clock: ManualClock, bound: dict[str, str]) -> None:
    """A query that goes on reads what arrives before it, as it comes, and never more."""
    with local_kinesis(STREAM, clock=clock, settings=Settings()) as kinesis:
        put(kinesis, 3)
        end_ms = clock() + 120_000
        driver = Driver(kinesis, endingPosition=ending(end_ms), **bound)
        at, batches = driver.run(driver.initial())
        with pytest.raises(ConfigurationError, match=r"endingPosition is the time .* not come yet"):
            driver.planner.fix_ends()
        clock.advance(119_999)
        put(kinesis, 3, first=3)
        wanted = held(kinesis)
        clock.advance(1)
        put(kinesis, 3, first=6)
        kinesis.engine.split_shard(STREAM, "shardId-000000000000")
        clock.advance(10_000)
        put(kinesis, 3, first=9)
        at, more = driver.run(at)
        assert [row for batch in batches + more for row in batch] == wanted
        clock.advance(10_000)
        assert driver.next(at) == at


def test_another_clocks_moment_is_waited_for(clock: ManualClock) -> None:
    """A few seconds by the service's clock, not by ours."""
    with local_kinesis(STREAM, clock=clock) as kinesis:
        end_ms = clock() + 5_000
        driver = Driver(kinesis, endingPosition=ending(end_ms))

        def sleep(_seconds: float) -> None:
            clock.advance(1_000)
            driver.calls.describe()

        planner = Planner(driver.calls, driver.settings, sleep=sleep)
        planner.fix_ends()
        assert clock() >= end_ms


@pytest.mark.parametrize(
    ("text", "end_ms"),
    [
        ("LATEST", None),
        ("latest", None),
        ("AT_TIMESTAMP 2026-01-01T00:00:00Z", 1_767_225_600_000),
        ("at_timestamp 2026-01-01T01:00:00+01:00", 1_767_225_600_000),
        ("2026-01-01T00:00:00.250Z", 1_767_225_600_250),
    ],
)
def test_ends_are_read(text: str, end_ms: int | None) -> None:
    """LATEST, or a time with its zone, as of startingPosition or alone."""
    assert read_options({"streamName": STREAM, "endingPosition": text}).end_ms == end_ms


@pytest.mark.parametrize("text", ["tomorrow", "TRIM_HORIZON", "2026-01-01T00:00:00", "AT_TIMESTAMP"])
def test_ends_that_are_none_are_refused(text: str) -> None:
    """With what is wrong, and what to write."""
    with pytest.raises(ConfigurationError, match="ending position") as caught:
        read_options({"streamName": STREAM, "endingPosition": text})
    assert "AT_TIMESTAMP 2026" in caught.value.next_step


def test_an_end_before_the_start_is_refused() -> None:
    """It would read nothing, for ever."""
    given = {
        "startingPosition": "AT_TIMESTAMP 2026-01-02T00:00:00Z",
        "endingPosition": "2026-01-01T00:00:00Z",
    }
    with pytest.raises(ConfigurationError, match="to begin at 2026-01-02"):
        read_options({"streamName": STREAM, **given})
