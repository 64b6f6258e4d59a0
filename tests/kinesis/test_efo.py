"""Reading by subscription: renewed, cut, taken over and refused, without loss, repeats or haste."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import (
    ConfigurationError,
    EndpointUnreachable,
    MissingRequirement,
    ServiceFailure,
)
from headpond.kinesis.api.calls import ServiceCalls
from headpond.kinesis.api.client import connect
from headpond.kinesis.api.replies import Page
from headpond.kinesis.api.retry import Patience, PositionRejected
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.consumers import Consumers
from headpond.kinesis.fanout import FanOut, reading_calls
from headpond.kinesis.planning.options import read_options
from headpond.kinesis.reading.cursor import LossRule
from headpond.kinesis.reading.positions import HORIZON, after
from headpond.kinesis.reading.reader import ShardRange, read_pages
from headpond.localkinesis import LocalKinesis, Settings
from headpond.localkinesis.testing import ManualClock, local_kinesis
from tests.kinesis.source_kit import CONSUMER, STREAM, Driver, held, put

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARD = "shardId-000000000000"


class Timed(ServiceCalls):
    """Calls that note when each subscription was asked for and whether it was given."""

    def __init__(self, kinesis: LocalKinesis, clock: ManualClock, **patience: float) -> None:
        self.connection = ConnectionSettings(stream_name=STREAM, endpoint_url=kinesis.endpoint_url)
        self.clock = clock
        self.asked: list[tuple[int, str]] = []
        super().__init__(
            self.connection,
            client=connect(self.connection),
            patience=Patience(first_wait_s=0.1, **patience),
            sleep=self.wait,
        )

    def wait(self, seconds: float) -> None:
        self.clock.advance(round(seconds * 1000))

    def once(self, doing: str, operation: str, **arguments: Any) -> Any:
        if operation != "subscribe_to_shard":
            return super().once(doing, operation, **arguments)
        asked_ms = self.clock()
        try:
            reply = super().once(doing, operation, **arguments)
        except Exception as error:
            self.asked.append((asked_ms, type(error).__name__))
            raise
        self.asked.append((asked_ms, "given"))
        return reply

    def fan_out(self) -> FanOut:
        arn = Consumers(self, self.connection).find(CONSUMER)
        return FanOut(self, self.connection, arn, sleep=self.wait)


@pytest.fixture
def kinesis(clock: ManualClock) -> Iterator[LocalKinesis]:
    """A stream of one shard with a consumer, whose events hold three records of ten bytes."""
    settings = Settings(event_bytes=36, heartbeat_ms=5)
    with local_kinesis(STREAM, clock=clock, settings=settings, seed=5) as running:
        running.engine.consumers.register(STREAM, CONSUMER)
        yield running


def data_of(fan_out: FanOut, count: int) -> list[bytes]:
    """So many records, over as many pages as it takes."""
    found: list[bytes] = []
    while len(found) < count:
        found += [record.data for record in fan_out.page(SHARD, SHARD, 10).records]
    return found


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def stripped(data: list[bytes]) -> list[bytes]:
    return [each.rstrip(b".") for each in data]


def test_a_subscription_is_renewed_where_it_was(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """After five minutes it is made anew at the continuation: nothing lost, nothing twice."""
    calls = Timed(kinesis, clock)
    fan_out = calls.fan_out()
    put(kinesis, 7)
    place = fan_out.iterator(SHARD, "TRIM_HORIZON")
    assert stripped(data_of(fan_out, 7)) == numbered(0, 7)
    clock.advance(300_000)
    put(kinesis, 5, first=7)
    assert stripped(data_of(fan_out, 5)) == numbered(7, 5)
    clock.advance(300_000)
    for _ in range(5):
        assert fan_out.page(place, SHARD, 10).records == []
    assert [outcome for _, outcome in calls.asked] == ["given"] * 3
    fan_out.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["cut_events", "fail_events", "throttled", "unavailable"])
def test_faults_lose_and_repeat_nothing(kinesis: LocalKinesis, clock: ManualClock, fault: str) -> None:
    """Under each fault a range gives the records that polling gives; who comes too soon waits."""
    put(kinesis, 40)
    calls = Timed(kinesis, clock, unreachable_s=300.0)
    loss = LossRule(STREAM, 86_400_000)
    newest = kinesis.engine.records(STREAM)[-1]
    wanted = ShardRange(SHARD, HORIZON, after(str(newest.sequence_number), newest.arrival_ms))
    put(kinesis, 10, first=40)  # after the end: not of this range
    if fault == "cut_events":
        kinesis.faults.cut_events(0.3)
    elif fault == "fail_events":
        kinesis.faults.fail_events(0.2)
        kinesis.faults.fail_events(0.1, code="KMSThrottlingException")
    elif fault == "throttled":
        kinesis.faults.refuse("LimitExceededException", 0.5, calls=("SubscribeToShard",))
        kinesis.faults.cut_events(0.2)
    else:
        kinesis.faults.internal_failure(0.3, calls=("SubscribeToShard",))
        kinesis.faults.cut(0.3, when="reply", calls=("SubscribeToShard",))
        kinesis.faults.cut(0.2, when="after", calls=("SubscribeToShard",))
        kinesis.faults.cut_events(0.1)
    fan_out = calls.fan_out()
    pages = list(read_pages(fan_out, wanted, loss, sleep=lambda _seconds: None))
    assert stripped([record.data for page in pages for record in page]) == numbered(0, 40)
    times = [asked_ms for asked_ms, outcome in calls.asked if outcome == "given"]
    assert len(calls.asked) > 2
    assert min((later - earlier for earlier, later in pairwise(times)), default=5_000) >= 5_000
    assert sum(rule.hits for rule in kinesis.faults.rules) > 0
    fan_out.close()


def test_two_readers_take_the_shard_from_each_other(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """Two tasks on one shard, each unaware of the other, both read everything in order."""
    calls = Timed(kinesis, clock)
    kinesis.faults.delay(1, calls=("SubscribeToShard",))
    one, other = calls.fan_out(), calls.fan_out()
    place = one.iterator(SHARD, "TRIM_HORIZON")
    other.iterator(SHARD, "TRIM_HORIZON")
    found: dict[FanOut, list[bytes]] = {one: [], other: []}
    for number in range(12):
        put(kinesis, 1, first=number)
        for reader, data in found.items():
            data += [record.data for record in reader.page(place, SHARD, 10).records]
    for reader, data in found.items():
        while len(data) < 12:
            data += [record.data for record in reader.page(place, SHARD, 10).records]
        assert stripped(data) == numbered(0, 12)
        reader.close()


def test_the_end_of_a_shard_ends_the_reading(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """A closed shard gives its rest and no further place; an empty one just ends."""
    put(kinesis, 2)
    low, _ = kinesis.engine.split_shard(STREAM, SHARD)
    fan_out = Timed(kinesis, clock).fan_out()
    fan_out.iterator(SHARD, "TRIM_HORIZON")
    page = fan_out.page(SHARD, SHARD, 10)
    assert (len(page.records), page.next_iterator) == (2, None)
    kinesis.engine.split_shard(STREAM, low.shard_id)
    fan_out.iterator(low.shard_id, "TRIM_HORIZON")
    assert fan_out.page(low.shard_id, low.shard_id, 10) == Page([], None, 0)


@pytest.mark.slow
def test_places_are_refused_as_by_polling(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """No such shard, no such position: the same exception, at once."""
    fan_out = Timed(kinesis, clock).fan_out()
    with pytest.raises(PositionRejected, match="ResourceNotFound"):
        fan_out.iterator("shardId-000000000009", "TRIM_HORIZON")
    with pytest.raises(PositionRejected, match="InvalidArgument"):
        fan_out.iterator(SHARD, "AT_SEQUENCE_NUMBER", number="1")


def test_a_missing_consumer_is_refused_with_what_to_do(kinesis: LocalKinesis, clock: ManualClock) -> None:
    """The name, the stream and the command that registers it; also when it goes in mid-batch."""
    calls = Timed(kinesis, clock)
    with pytest.raises(MissingRequirement, match="orders has no registered consumer nobody") as caught:
        Consumers(calls, calls.connection).find("nobody")
    arn = kinesis.engine.stream(STREAM).arn
    assert f"there is {CONSUMER}" in caught.value.message
    assert "headpond consumers register orders nobody" in caught.value.next_step
    by_arn = ConnectionSettings(stream_arn=arn, endpoint_url=kinesis.endpoint_url)
    assert Consumers(calls, by_arn).find(CONSUMER).startswith(f"{arn}/consumer/{CONSUMER}:")
    fan_out = calls.fan_out()
    fan_out.page(fan_out.iterator(SHARD, "LATEST"), SHARD, 10)
    kinesis.engine.consumers.deregister(kinesis.engine.consumers.of_stream(STREAM)[0])
    # An event that was under way may still come.
    with pytest.raises(MissingRequirement, match="was deregistered"):
        data_of(fan_out, 1)


def test_a_consumer_that_is_being_made_is_waited_for(clock: ManualClock) -> None:
    """CREATING passes by itself."""
    with local_kinesis(STREAM, clock=clock, settings=Settings(settle_ms=20_000, heartbeat_ms=5)) as kinesis:
        clock.advance(20_000)
        kinesis.engine.consumers.register(STREAM, CONSUMER)
        fan_out = Timed(kinesis, clock).fan_out()
        fan_out.iterator(SHARD, "TRIM_HORIZON")
        assert fan_out.page(SHARD, SHARD, 10).records == []
        fan_out.close()


@pytest.mark.parametrize(
    ("rule", "kind"),
    [("cut_events", EndpointUnreachable), ("fail_events", ServiceFailure), ("refused", ServiceFailure)],
)
def test_patience_ends(kinesis: LocalKinesis, clock: ManualClock, rule: str, kind: type[Exception]) -> None:
    """Subscriptions that never give an event are given up in one sentence."""
    calls = Timed(kinesis, clock, throttled_s=60.0, unreachable_s=30.0)
    fan_out = calls.fan_out()
    if rule == "refused":
        kinesis.faults.throttle(calls=("SubscribeToShard",))
    else:
        getattr(kinesis.faults, rule)()
    began_ms = clock()
    with pytest.raises(kind, match=f"reading {SHARD} by subscription"):
        fan_out.page(fan_out.iterator(SHARD, "TRIM_HORIZON"), SHARD, 10)
    assert 30_000 <= clock() - began_ms <= 75_000


def test_options_need_each_other() -> None:
    """A mode without a consumer, and a consumer without the mode, are refused."""
    base = {"streamName": STREAM, "region": "eu-west-1"}
    assert read_options(base).consumer_name is None
    assert read_options({**base, "consumermode": "EFO", "consumername": "app"}).consumer_name == "app"
    for wrong in ({"consumerMode": "efo"}, {"consumerName": "app"}, {"consumerMode": "push"}):
        with pytest.raises(ConfigurationError, match="consumer"):
            read_options({**base, **wrong})


def test_a_whole_stream_by_subscription() -> None:
    """Driver and tasks as in a query: everything once, through a split and a merge."""
    with local_kinesis(STREAM, settings=Settings(resubscribe_ms=0, heartbeat_ms=5)) as kinesis:
        kinesis.engine.consumers.register(STREAM, CONSUMER)
        put(kinesis, 20)
        low, high = kinesis.engine.split_shard(STREAM, SHARD)
        put(kinesis, 20, first=20)
        kinesis.engine.merge_shards(STREAM, low.shard_id, high.shard_id)
        put(kinesis, 20, first=40)
        for bound in ("none", "300"):
            driver = Driver(kinesis, maxBytesPerTrigger=bound)
            _, batches = driver.run(driver.initial())
            assert sorted(row for batch in batches for row in batch) == held(kinesis)


@pytest.mark.slow
def test_what_tasks_read_with(kinesis: LocalKinesis) -> None:
    """Polling where no consumer is named, else its subscriptions, which tell the same of the stream."""
    put(kinesis, 20)
    driver = Driver(kinesis, maxBytesPerTrigger="none")
    assert driver.settings.consumer_name == CONSUMER
    connection = driver.settings.connection
    with reading_calls(connection, None) as polling:
        assert not isinstance(polling, FanOut)
    arn = Consumers(driver.calls, connection).find(CONSUMER)
    with reading_calls(connection, arn) as calls:
        assert isinstance(calls, FanOut)
        assert calls.list_shards() == driver.calls.list_shards()
        calls.iterator(SHARD, "TRIM_HORIZON")
        assert len(calls.page(SHARD, SHARD, 10).records) == 3
        assert abs(calls.now_ms() - driver.calls.date_ms()) < 60_000
