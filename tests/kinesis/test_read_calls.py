"""The calls below planning: patience that ends, the server's clock, shards as listed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from headpond.core.errors import EndpointUnreachable, ServiceFailure
from headpond.kinesis.api.calls import ServiceCalls
from headpond.kinesis.api.retry import IteratorExpired, Patience, PositionRejected
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.reading.cursor import LossRule, ShardCursor
from headpond.kinesis.reading.positions import HORIZON, after
from headpond.localkinesis.testing import ManualClock, local_kinesis
from tests.kinesis.source_kit import STREAM, Driver, put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.localkinesis import LocalKinesis

SHARD = "shardId-000000000000"


@pytest.fixture
def kinesis(clock: ManualClock) -> Iterator[LocalKinesis]:
    with local_kinesis(STREAM, shards=1, clock=clock) as running:
        yield running


@pytest.mark.parametrize("effect", ["throttle", "internal_failure"])
def test_patience_ends_in_one_sentence(kinesis: LocalKinesis, effect: str) -> None:
    """A service that fails for ever is waited for as long as told, with growing waits, then named."""
    driver = Driver(kinesis)
    waits: list[float] = []
    calls = ServiceCalls(
        driver.settings.connection,
        client=kinesis.client(),
        patience=Patience(1.0, 8.0, 30.0, 30.0),
        sleep=waits.append,
    )
    getattr(kinesis.faults, effect)(1.0)
    with pytest.raises(ServiceFailure, match="listing the shards"):
        calls.list_shards()
    assert 30 <= sum(waits) <= 38
    assert max(waits) <= 8
    assert all(wait >= 0.1 for wait in waits)


def test_nobody_there_is_told_soon() -> None:
    """An endpoint that does not answer is given up after its own, shorter patience."""
    settings = ConnectionSettings(stream_name=STREAM, endpoint_url="http://127.0.0.1:9")
    waits: list[float] = []
    calls = ServiceCalls(settings, patience=Patience(1.0, 1.0, 1000.0, 2.0), sleep=waits.append)
    with pytest.raises(EndpointUnreachable):
        calls.describe()
    assert sum(waits) <= 3


def test_states_that_are_no_failures_are_told_apart(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """An expired iterator and an unknown place have their own exceptions, at once."""
    calls = Driver(kinesis).calls
    iterator = calls.iterator(SHARD, "TRIM_HORIZON")
    clock.advance(6 * 60_000)
    with pytest.raises(IteratorExpired):
        calls.page(iterator, SHARD, 10)
    with pytest.raises(PositionRejected, match="ResourceNotFound"):
        calls.iterator("shardId-000000000009", "TRIM_HORIZON")
    with pytest.raises(PositionRejected, match="InvalidArgument"):
        calls.iterator(SHARD, "AT_SEQUENCE_NUMBER", number="1")


def test_the_clock_is_the_servers(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Time comes from replies: whole seconds, never later than the server's clock."""
    calls = Driver(kinesis).calls
    clock.advance(777)
    calls.describe()
    assert calls.date_ms() == clock() // 1000 * 1000
    clock.advance(3_600_000)
    calls.describe()
    assert calls.date_ms() == clock() // 1000 * 1000
    assert abs(calls.now_ms() - clock()) < 60_000


def test_shards_are_listed_over_all_pages_with_their_parents(
    kinesis: LocalKinesis, clock: ManualClock
) -> None:
    """Splits have one parent, merges two; closed shards are marked."""
    low, high = kinesis.engine.split_shard(STREAM, SHARD)
    clock.advance(1000)
    kinesis.engine.merge_shards(STREAM, low.shard_id, high.shard_id)
    shards = {shard.shard_id: shard for shard in Driver(kinesis).calls.list_shards()}
    assert [shards[name].closed for name in sorted(shards)] == [True, True, True, False]
    assert [len(shards[name].parents) for name in sorted(shards)] == [0, 1, 1, 2]


def test_a_cursor_goes_on_over_an_expired_iterator(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """A reader that paused longer than an iterator lives goes on where it was."""
    put(kinesis, 10)
    calls = Driver(kinesis).calls
    cursor = ShardCursor(calls, SHARD, HORIZON, LossRule(STREAM, 86_400_000))
    first = cursor.next_page(4)
    clock.advance(6 * 60_000)
    rest = cursor.next_page(100)
    assert [record.data[:1] for record in first + rest] == [b"%d" % n for n in range(10)]
    start = after(first[-1].sequence_number, 0)
    again = ShardCursor(calls, SHARD, start, LossRule(STREAM, 86_400_000))
    # Expired before the position was proven: it is asked for again, and still dropped.
    kinesis.faults.expire_iterators(times=1)
    assert [record.sequence_number for record in again.next_page(100)] == [
        record.sequence_number for record in rest
    ]


def test_a_moment_is_asked_for_to_the_millisecond(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """boto3 before 1.44 asks in whole seconds: a busy shard would be read up to the moment one by one."""
    driver = Driver(kinesis)
    for number in range(10):
        put(kinesis, 1, first=number)
        clock.advance(10)
    iterator = driver.calls.iterator(SHARD, "AT_TIMESTAMP", time_ms=clock() - 30)
    assert [record.data[:1] for record in driver.calls.page(iterator, SHARD, 10).records] == [
        b"7",
        b"8",
        b"9",
    ]


@pytest.mark.slow
def test_a_stand_in_without_a_clock_has_this_machines() -> None:
    """Or nothing would ever be old enough to be read."""
    calls = ServiceCalls(ConnectionSettings(stream_name=STREAM, endpoint_url="http://127.0.0.1:9"))
    calls._learn_time({"ResponseMetadata": {"HTTPHeaders": {}}})
    assert abs(calls.date_ms() - time.time() * 1000) < 60_000
