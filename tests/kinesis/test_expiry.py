"""What expires while nobody reads, moments to come, and streams made anew: told, never passed over."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from headpond.core.errors import ConfigurationError, ServiceFailure
from headpond.kinesis.reading.cursor import LossRule, ShardCursor
from headpond.kinesis.reading.positions import END, HORIZON, Offset, after, at_time, read_offset
from tests.kinesis.expiry_kit import BOUNDS, HOUR_MS, SHARD, numbers
from tests.kinesis.source_kit import STREAM, WAYS, Driver, put, read_both_ways

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headpond.localkinesis import LocalKinesis
    from headpond.localkinesis.testing import ManualClock


@pytest.fixture(params=WAYS)
def kinesis(clock: ManualClock, request: pytest.FixtureRequest) -> Iterator[LocalKinesis]:
    """A stream of one shard, whose batches are read by polling and by subscription alike."""
    with read_both_ways(request.param, clock) as running:
        yield running


class TestTimesToCome:
    """A moment that has not come yet is refused, unless clocks may just differ; it never ends a shard."""

    @pytest.mark.slow
    @pytest.mark.parametrize("fatal", ["true", "false"])
    @pytest.mark.parametrize("bound", BOUNDS)
    @pytest.mark.parametrize("available_now", [False, True])
    def test_a_future_start_is_refused(
        self, kinesis: LocalKinesis, fatal: str, bound: str, *, available_now: bool
    ) -> None:
        """By the rule, per shard, and in a batch read; with the service's time and what to do."""
        put(kinesis, 10)
        later = '{"shardId-000000000000": {"p": "TS", "t": "4070908800000"}}'
        for start in ("AT_TIMESTAMP 2030-01-01T00:00:00Z", later):
            options = {"startingPosition": start, "failOnDataLoss": fatal, "maxBytesPerTrigger": bound}
            driver = Driver(kinesis, **options)
            if available_now:
                driver.planner.fix_ends()
            with pytest.raises(ConfigurationError, match=r"has not come yet.*2026-01-01T00:00:00Z") as caught:
                driver.initial()
            assert caught.value.facts["option"] == "startingPosition"
            with pytest.raises(ConfigurationError, match="has not come yet"):
                Driver(kinesis, **options).planner.span()

    @pytest.mark.parametrize("fatal", ["true", "false"])
    @pytest.mark.parametrize("bound", BOUNDS)
    def test_a_checkpoint_of_the_future_is_refused(
        self, kinesis: LocalKinesis, fatal: str, bound: str
    ) -> None:
        """One that was written before this was refused, or by a clock that is far off."""
        created_ms = kinesis.engine.stream(STREAM).created_ms
        at = Offset(STREAM, created_ms, {SHARD: at_time(created_ms + HOUR_MS)})
        with pytest.raises(
            ConfigurationError, match="position of shardId-000000000000 in orders is the time"
        ):
            Driver(kinesis, failOnDataLoss=fatal, maxBytesPerTrigger=bound).next(at)

    @pytest.mark.slow
    @pytest.mark.parametrize("fatal", ["true", "false"])
    @pytest.mark.parametrize("bound", BOUNDS)
    @pytest.mark.parametrize("available_now", [False, True])
    def test_a_clock_that_is_a_little_ahead_is_waited_for(
        self, kinesis: LocalKinesis, clock: ManualClock, fatal: str, bound: str, *, available_now: bool
    ) -> None:
        """What comes from the moment on is read, and nothing from before."""
        put(kinesis, 5)
        text = datetime.fromtimestamp((clock() + 3_000) / 1000, UTC).isoformat()
        options = {
            "failOnDataLoss": fatal,
            "maxBytesPerTrigger": bound,
            "startingPosition": f"AT_TIMESTAMP {text}",
        }
        driver = Driver(kinesis, **options)
        start = driver.initial()
        assert driver.next(start) == start
        clock.advance(5_000)
        put(kinesis, 5, first=5)
        clock.advance(1_000)
        if available_now:
            driver = Driver(kinesis, **options)
            driver.planner.fix_ends()
        _, batches = driver.run(driver.initial())
        assert numbers(batches) == [5, 6, 7, 8, 9]
        assert driver.planner.tolerated_losses == 0

    def test_reading_waits_in_both_modes(self, kinesis: LocalKinesis, clock: ManualClock) -> None:
        """A cursor at the moment gives nothing, is not closed, and goes on when the moment comes."""
        driver = Driver(kinesis)
        driver.calls.describe()
        with driver.reading() as calls:
            loss = LossRule(STREAM, 24 * HOUR_MS)
            cursor = ShardCursor(calls, SHARD, at_time(clock() + 3_000), loss)
            assert (cursor.next_page(), cursor.closed, cursor.at_tip) == ([], False, True)
            clock.advance(4_000)
            put(kinesis, 1)
            found = cursor.next_page()
        assert [record.data[:1] for record in found] == [b"0"]


class TestRefusals:
    """A refusal is loss, told with both sides, and the end of a shard only where the shard is gone."""

    @pytest.mark.parametrize("bound", BOUNDS)
    def test_a_refused_position_is_gone_on_from(
        self, kinesis: LocalKinesis, caplog: pytest.LogCaptureFixture, bound: str
    ) -> None:
        """An open shard stays open; all that is left is read, and the gap counted."""
        put(kinesis, 5)
        oldest = kinesis.engine.records(STREAM)[0].sequence_number
        created_ms = kinesis.engine.stream(STREAM).created_ms
        at = Offset(STREAM, created_ms, {SHARD: after("7", 1)})
        driver = Driver(kinesis, failOnDataLoss="false", maxBytesPerTrigger=bound)
        end, batches = driver.run(at)
        assert numbers(batches) == [0, 1, 2, 3, 4]
        assert end.shards[SHARD].kind == "SEQ"
        assert driver.planner.tolerated_losses == 1
        assert "does not start at 7 (arrived 1970-01-01T00:00:00Z) any more (InvalidArg" in caplog.text
        assert f"the oldest record left is {oldest}" in caplog.text

    @pytest.mark.parametrize("fatal", ["true", "false"])
    def test_an_open_shard_that_refuses_everything_is_a_failure(
        self, kinesis: LocalKinesis, fatal: str
    ) -> None:
        """Neither an end nor a loss: the listing says that it is there."""
        put(kinesis, 5)
        driver = Driver(kinesis, failOnDataLoss=fatal)
        start = driver.initial()
        kinesis.faults.refuse("InvalidArgumentException", calls=("GetShardIterator",))
        with pytest.raises(ServiceFailure, match="lists shardId-000000000000 of orders as open"):
            driver.next(start)

    def test_a_shard_that_goes_while_it_is_read(
        self, kinesis: LocalKinesis, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its last position and its end are the two sides of the gap."""
        put(kinesis, 5)
        driver = Driver(kinesis)
        number = kinesis.engine.records(STREAM)[1].sequence_number
        for fatal in (True, False):
            loss = LossRule(STREAM, 24 * HOUR_MS, fatal)
            cursor = ShardCursor(driver.calls, SHARD, HORIZON, loss)
            assert len(cursor.next_page(2)) == 2
            if fatal:
                clock.advance(1_000)
                kinesis.engine.split_shard(STREAM, SHARD)
            if not fatal:
                shard = kinesis.engine.stream(STREAM).shards.pop(SHARD)
                with caplog.at_level("WARNING"):
                    assert cursor.next_page() == []
                assert cursor.closed
                kinesis.engine.stream(STREAM).shards[SHARD] = shard
                assert f"all that followed is gone, from after {number} to its end" in caplog.text


class TestAnotherStream:
    """A stream that was deleted and made anew is refused at once, not taken for loss, and never read."""

    @pytest.mark.slow
    @pytest.mark.parametrize("fatal", ["true", "false"])
    @pytest.mark.parametrize("bound", BOUNDS)
    @pytest.mark.parametrize("kind", ["SEQ", "TS", "HORIZON", "planned", "initial"])
    def test_within_a_minute(
        self, kinesis: LocalKinesis, clock: ManualClock, fatal: str, bound: str, kind: str
    ) -> None:
        """Wherever the running query stands, and whether a batch is planned or not."""
        options = {
            "startingPosition": "LATEST" if kind == "TS" else "TRIM_HORIZON",
            "failOnDataLoss": fatal,
            "maxBytesPerTrigger": bound,
        }
        clock.advance(1_000)
        if kind in ("SEQ", "planned", "initial"):
            put(kinesis, 5)
        driver = Driver(kinesis, **options)
        start = at = driver.initial()
        if kind == "planned":
            at = driver.next(start)
        elif kind != "initial":
            at, _ = driver.run(at)
        if kind == "planned":
            driver.settings = replace(driver.settings, consumer_name=None)  # it went with the stream
        assert kind not in ("SEQ", "TS") or at.shards[SHARD].kind == kind
        kinesis.engine.delete_stream(STREAM)
        clock.advance(5_000)
        kinesis.engine.create_stream(STREAM, 1)
        put(kinesis, 7, first=100)
        clock.advance(2_000)
        step: Callable[[], object] = (
            (lambda: driver.next(at)) if kind != "planned" else (lambda: driver.read(start, at))
        )
        with pytest.raises(ConfigurationError, match="again: the checkpoint is of one created at 20"):
            step()


@pytest.mark.parametrize("span", ["none", "10 min"])
def test_gaps_are_found_before_a_task_meets_them(
    kinesis: LocalKinesis, clock: ManualClock, caplog: pytest.LogCaptureFixture, span: str
) -> None:
    """In a closed shard, going on and up to now: it counts."""
    put(kinesis, 10)
    driver = Driver(kinesis)
    at, _ = driver.run(driver.initial())
    clock.advance(30 * HOUR_MS)
    put(kinesis, 10, first=10)
    clock.advance(1_000)
    kinesis.engine.split_shard(STREAM, SHARD)
    for available_now in (False, True):
        tolerant = Driver(kinesis, failOnDataLoss="false", maxSpanPerTrigger=span)
        if available_now:
            tolerant.planner.fix_ends()
        caplog.clear()
        tolerant.next(at)
        assert tolerant.planner.tolerated_losses == 1
        assert f"the position {at.shards[SHARD].number} is gone, and the oldest record left is" in caplog.text


def test_notes_do_not_tell_positions_apart() -> None:
    """What is noted beside a position is kept in the checkpoint, and is not part of where a reader stands."""
    noted = replace(after("5", 1), until_ms=9, first="3")
    offset = Offset(
        STREAM, 1, {SHARD: noted, "b": replace(HORIZON, until_ms=4), "c": replace(END, first="0")}
    )
    value = offset.to_json()
    assert value["v"] == 2
    assert value["shards"][SHARD] == {"p": "SEQ", "s": "5", "t": "1", "u": "9", "f": "3"}
    again = read_offset(value)
    assert again.to_json() == value
    assert again == offset == Offset(STREAM, 1, {SHARD: after("5", 1), "b": HORIZON, "c": END})
