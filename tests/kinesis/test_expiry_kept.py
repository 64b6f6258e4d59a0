"""What expires while nobody reads, by retention; repeats of such batches: told, never passed over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import DataLoss
from headpond.kinesis.reading.positions import END, HORIZON, read_offset
from headpond.localkinesis.testing import ManualClock, local_kinesis
from tests.kinesis.expiry_kit import BOUNDS, HOUR_MS, SHARD, numbers, trim_first
from tests.kinesis.source_kit import STREAM, WAYS, Driver, held, put, read_both_ways

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.localkinesis import LocalKinesis


@pytest.fixture(params=WAYS)
def kinesis(clock: ManualClock, request: pytest.FixtureRequest) -> Iterator[LocalKinesis]:
    """A stream of one shard, whose batches are read by polling and by subscription alike."""
    with read_both_ways(request.param, clock) as running:
        yield running


class TestRetention:
    """A query that was away longer than records are kept says so, wherever it stood."""

    @pytest.mark.parametrize("bound", BOUNDS)
    @pytest.mark.parametrize("left", [5, 0])
    @pytest.mark.slow
    def test_at_a_time(self, kinesis: LocalKinesis, clock: ManualClock, bound: str, left: int) -> None:
        """LATEST resolved, ten records, a pause beyond the retention; also where nothing is left to see."""
        options = {"startingPosition": "LATEST", "maxBytesPerTrigger": bound}
        clock.advance(5_000)
        driver = Driver(kinesis, **options)
        at = driver.next(driver.initial())
        assert at.shards[SHARD].kind == "TS"
        clock.advance(HOUR_MS)
        put(kinesis, 10)
        clock.advance(30 * HOUR_MS)
        put(kinesis, left, first=10) if left else None
        with pytest.raises(
            DataLoss, match=r"at 2026-01-01T00:00:05Z.*what came until 2026-01-01T07:00:0.Z may"
        ):
            Driver(kinesis, **options).next(at)
        tolerant = Driver(kinesis, **options, failOnDataLoss="false")
        _, batches = tolerant.run(at)
        assert numbers(batches) == list(range(10, 10 + left))
        assert tolerant.planner.tolerated_losses == 1

    @pytest.mark.parametrize("available_now", [False, True])
    @pytest.mark.slow
    def test_at_a_childs_horizon(
        self, kinesis: LocalKinesis, clock: ManualClock, *, available_now: bool
    ) -> None:
        """The parent was read to its end, and what its children got has expired with it."""
        put(kinesis, 3)
        clock.advance(1_000)
        driver = Driver(kinesis)
        at, _ = driver.run(driver.initial())
        kinesis.engine.split_shard(STREAM, SHARD)
        at = driver.next(at)
        assert [at.shards[name].kind for name in sorted(at.shards)] == ["END", "HORIZON", "HORIZON"]
        assert at.shards["shardId-000000000001"].until_ms is None
        again = Driver(kinesis)
        assert again.next(at) == at
        clock.advance(HOUR_MS)
        put(kinesis, 10, first=3)
        clock.advance(30 * HOUR_MS)
        put(kinesis, 5, first=13)
        for fatal in ("true", "false"):
            driver = Driver(kinesis, failOnDataLoss=fatal)
            if available_now:
                driver.planner.fix_ends()
            if fatal == "true":
                with pytest.raises(DataLoss, match="its parent shardId-000000000000 has expired"):
                    driver.next(at)
            else:
                _, batches = driver.run(at)
                assert numbers(batches) == list(range(13, 18))
                assert driver.planner.tolerated_losses == 2

    def test_at_the_horizon_of_a_stream_that_was_empty(
        self, kinesis: LocalKinesis, clock: ManualClock
    ) -> None:
        """The first batch writes down since when; one of an earlier headpond did not, and goes on."""
        driver = Driver(kinesis)
        at = driver.next(driver.initial())
        assert at.shards[SHARD] == HORIZON
        assert at.to_json()["v"] == 2
        clock.advance(HOUR_MS)
        put(kinesis, 10)
        clock.advance(30 * HOUR_MS)
        put(kinesis, 5, first=10)
        with pytest.raises(DataLoss, match="at its oldest record, nothing is known since 2026-01-01"):
            Driver(kinesis).next(at)
        value = at.to_json()
        old = read_offset({**value, "v": 1, "shards": {SHARD: {"p": "HORIZON"}}})
        _, batches = Driver(kinesis).run(old)
        assert numbers(batches) == list(range(10, 15))

    def test_an_idle_shard_beside_a_busy_one(self, clock: ManualClock) -> None:
        """The batches of the busy one write down until when nothing came to the idle one."""
        with local_kinesis(STREAM, shards=2, clock=clock) as kinesis:
            low, high = kinesis.engine.shards(STREAM)

            def put_one(shard: Any, text: bytes) -> None:
                kinesis.engine.put(STREAM, "k", text, explicit_hash_key=shard.low)
                clock.advance(1_000)

            put_one(low, b"0")
            driver = Driver(kinesis)
            at = driver.next(driver.initial())
            assert at.shards[high.shard_id].kind == "HORIZON"
            clock.advance(20 * HOUR_MS)
            driver.calls.describe()
            put_one(low, b"1")
            at = driver.next(at)
            until_ms = at.shards[high.shard_id].until_ms
            assert until_ms is not None
            assert abs(until_ms - clock()) < 5_000
            clock.advance(10 * HOUR_MS)
            put_one(high, b"2")
            kept = Driver(kinesis, failOnDataLoss="false")
            kept.next(at)
            assert kept.planner.tolerated_losses == 0
            clock.advance(20 * HOUR_MS)
            with pytest.raises(
                DataLoss, match="position is at its oldest record, nothing is known since 2026"
            ):
                Driver(kinesis).next(at)

    @pytest.mark.slow
    @pytest.mark.parametrize("bound", BOUNDS)
    @pytest.mark.parametrize("count", [0, 3])
    def test_a_quiet_stream_that_was_watched_is_no_loss(
        self, kinesis: LocalKinesis, clock: ManualClock, bound: str, count: int
    ) -> None:
        """Four times in a retention an offset is written anew, so that a restart knows what was known."""
        options = {"startingPosition": "TRIM_HORIZON" if count else "LATEST", "maxBytesPerTrigger": bound}
        if count:
            put(kinesis, count)
        clock.advance(5_000)
        driver = Driver(kinesis, **options)
        at = driver.next(driver.initial())
        written = 0
        for _ in range(72):
            clock.advance(HOUR_MS)
            driver.calls.describe()
            end = driver.next(at)
            assert end == at
            assert driver.read(at, end) == []
            written += end.to_json() != at.to_json()
            at = end
        assert 8 <= written <= 13
        clock.advance(10 * HOUR_MS)
        put(kinesis, 5, first=count)
        _, batches = Driver(kinesis, **options).run(at)
        assert numbers(batches) == list(range(count, count + 5))
        clock.advance(30 * HOUR_MS)
        with pytest.raises(DataLoss):
            Driver(kinesis, **options).next(at)

    def test_where_everything_expired_and_nothing_came(
        self, kinesis: LocalKinesis, clock: ManualClock
    ) -> None:
        """After the last record of an offset ten came and went unread: an empty shard does not hide it."""
        put(kinesis, 3)
        driver = Driver(kinesis)
        at, _ = driver.run(driver.initial())
        clock.advance(HOUR_MS)
        put(kinesis, 10, first=3)
        clock.advance(30 * HOUR_MS)
        for fixed in (False, True):
            driver = Driver(kinesis)
            if fixed:
                driver.planner.fix_ends()
            with pytest.raises(DataLoss):
                driver.next(at)

    @pytest.mark.slow
    @pytest.mark.parametrize("start", ["TRIM_HORIZON", "AT_TIMESTAMP 2020-01-01T00:00:00Z", "LATEST"])
    @pytest.mark.parametrize("bound", BOUNDS)
    def test_beginning_is_no_loss(
        self, kinesis: LocalKinesis, clock: ManualClock, start: str, bound: str
    ) -> None:
        """On an old stream that has forgotten much, with children of expired parents; and on an empty one."""
        put(kinesis, 5)
        kinesis.engine.split_shard(STREAM, SHARD)
        clock.advance(50 * HOUR_MS)
        for first in (5, 10):
            driver = Driver(kinesis, startingPosition=start, maxBytesPerTrigger=bound)
            at = driver.next(driver.initial())
            put(kinesis, 5, first=first)
            clock.advance(1_000)
            _, batches = driver.run(at)
            assert set(numbers(batches)) >= set(range(first, first + 5))


class TestRepeats:
    """A batch that begins at a time or a horizon gives the same rows again, or says what is gone."""

    @pytest.mark.slow
    @pytest.mark.parametrize("bound", [*BOUNDS, "span"])
    @pytest.mark.parametrize("start", ["TRIM_HORIZON", "LATEST"])
    @pytest.mark.parametrize("available_now", [False, True])
    def test_what_expires_after_planning_is_missed(
        self, kinesis: LocalKinesis, clock: ManualClock, bound: str, start: str, *, available_now: bool
    ) -> None:
        """By the same planner and by the one of a query that was started again."""
        options = {"startingPosition": start} | (
            {"maxSpanPerTrigger": "none"} if bound == "span" else {"maxBytesPerTrigger": bound}
        )
        clock.advance(5_000)
        driver = Driver(kinesis, **options)
        at = driver.initial()
        if start == "LATEST":
            at = driver.next(at)
            clock.advance(1_000)
        put(kinesis, 20)
        clock.advance(1_000)
        if available_now:
            driver.planner.fix_ends()
        end = driver.next(at)
        first = kinesis.engine.records(STREAM)[0].sequence_number
        assert numbers([driver.read(at, end)]) == list(range(20))
        oldest = trim_first(kinesis, 5)
        told = f"the position {first} is gone, and the oldest record left is {oldest}"
        for reader in (driver, Driver(kinesis, **options)):
            with pytest.raises(DataLoss, match=told):
                reader.read(at, end)
        tolerant = Driver(kinesis, **options, failOnDataLoss="false")
        assert numbers([tolerant.read(at, end)]) == list(range(5, 20))
        assert tolerant.planner.tolerated_losses == 1

    @pytest.mark.parametrize("bound", [*BOUNDS, "span"])
    def test_closed_shards_too(self, kinesis: LocalKinesis, bound: str) -> None:
        """A shard read from its horizon to its end; one without records has nothing to read at all."""
        options = {"maxSpanPerTrigger": "none"} if bound == "span" else {"maxBytesPerTrigger": bound}
        put(kinesis, 20)
        low, high = kinesis.engine.split_shard(STREAM, SHARD)
        kinesis.engine.merge_shards(STREAM, low.shard_id, high.shard_id)
        driver = Driver(kinesis, **options)
        start = driver.initial()
        end = driver.next(start)
        assert end.shards[SHARD] == END
        assert numbers([driver.read(start, end)]) == list(range(20))
        trim_first(kinesis, 5)
        with pytest.raises(DataLoss, match="is gone"):
            Driver(kinesis, **options).read(start, end)
        later = driver.next(end)
        assert later.shards[low.shard_id] == later.shards[high.shard_id] == END
        assert driver.planner.ranges(end, later) == []

    @pytest.mark.slow
    @pytest.mark.parametrize("bound", BOUNDS)
    def test_a_full_streams_oldest_records_are_left_out(
        self, kinesis: LocalKinesis, clock: ManualClock, bound: str
    ) -> None:
        """Those that expire within five minutes, when a query begins: its first batch can be repeated."""
        for number in range(30):
            put(kinesis, 1, first=number)
            clock.advance(60_000)
        clock.advance(24 * HOUR_MS - 30 * 60_000 - 500)
        driver = Driver(kinesis, maxBytesPerTrigger=bound)
        start = driver.initial()
        end = driver.next(start)
        rows = driver.read(start, end)
        assert numbers([rows]) == list(range(5, 30))
        clock.advance(4 * 60_000)
        assert len(held(kinesis)) == 26
        assert Driver(kinesis, maxBytesPerTrigger=bound).read(start, end) == rows
        clock.advance(2 * 60_000)
        with pytest.raises(DataLoss):
            Driver(kinesis, maxBytesPerTrigger=bound).read(start, end)

    @pytest.mark.parametrize("end", ["SEQ", "END"])
    def test_batches_of_older_offsets_are_read_as_they_were(self, kinesis: LocalKinesis, end: str) -> None:
        """Without a first record's number beside it, an end is read up to from the oldest record."""
        put(kinesis, 10)
        newest = kinesis.engine.records(STREAM)[-1]
        if end == "END":
            kinesis.engine.split_shard(STREAM, SHARD)
        created = str(kinesis.engine.stream(STREAM).created_ms)
        place = (
            {"p": "END"}
            if end == "END"
            else {"p": "SEQ", "s": str(newest.sequence_number), "t": str(newest.arrival_ms)}
        )
        old = {"v": 1, "stream": STREAM, "created": created, "shards": {SHARD: {"p": "HORIZON"}}}
        start, to = read_offset(old), read_offset({**old, "shards": {SHARD: place}})
        assert numbers([Driver(kinesis).read(start, to)]) == list(range(10))
