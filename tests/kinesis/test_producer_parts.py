"""The pure parts of the producer: settings, aggregates, limits, collection, routing, judging."""

from __future__ import annotations

import asyncio
import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.bucket import Bucket
from headpond.core.errors import ConfigurationError
from headpond.kinesis.api.shards import Shard
from headpond.kinesis.producer import ProducerSettings
from headpond.kinesis.producer.lanes import Lane, Router, ShardLimiter, backoff_ms, choose
from headpond.kinesis.producer.records import Bundle, Pending
from headpond.kinesis.producer.sender import inside, remedy
from headpond.kinesis.producer.shard_map import OpenShards, tile
from headpond.kpl import Aggregator, Tag, alone, encode
from headpond.kpl.hash_keys import HashKeyRange, hash_key
from tests.kit.support import share_of

HALF = 1 << 127
MAX = (1 << 128) - 1
TWO = [
    Shard("shardId-0", hash_keys=HashKeyRange(0, HALF - 1)),
    Shard("shardId-1", hash_keys=HashKeyRange(HALF, MAX)),
]
_LOOP = asyncio.new_event_loop()


@pytest.fixture(scope="module", autouse=True)
def _close_loop() -> Any:
    yield
    _LOOP.close()


def pending(
    key: str = "k",
    data: bytes = b"",
    hashed: str | None = None,
    *,
    at: float = 0,
    serial: int = 0,
    ttl: float = 1e9,
    tags: tuple[Tag, ...] = (),
) -> Pending:
    return Pending(key, data, hashed, at, at + 100, at + ttl, serial, _LOOP.create_future(), tags)


def bundle(size: int, **more: Any) -> Bundle:
    return Bundle([pending(data=bytes(size), **more)], size)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.just("t" * 130)
RECORDS = st.lists(
    st.builds(
        lambda key, size, hashed, tags: (key, bytes(size), hashed, tags),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5) | st.just("k" * 200),
        st.integers(0, 300) | st.sampled_from([127, 128, 16383, 16384, 20000]),
        st.none() | st.integers(0, MAX).map(str),
        st.just(()) | st.lists(st.builds(Tag, TEXTS, st.none() | TEXTS), max_size=2).map(tuple),
    ),
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=share_of(150))
@given(RECORDS, st.integers(64, 5000), st.integers(1, 50))
def test_aggregates_have_the_size_they_claim(records: Any, max_size: int, max_count: int) -> None:
    """Whatever is put, aggregates keep order and bounds, and their size is that of the encoded bytes."""
    aggregate: Aggregator[Pending] = Aggregator(max_size, max_count)
    put = [pending(*record, serial=n, tags=tags) for n, (*record, tags) in enumerate(records)]
    complete = [packed for record in put for packed in aggregate.add(record)]
    last = aggregate.close()
    bundles = [Bundle(*packed) for packed in [*complete, *([last] if last else [])]]
    assert [record for each in bundles for record in each.records] == put
    for each in bundles:
        encoded: Any = encode(each.records, with_tags=True)  # type: ignore[arg-type]
        assert len(encoded.data) == each.data_bytes
        assert each.size_bytes == each.data_bytes + len(encoded.partition_key.encode())
        assert len(each.records) <= max_count
        assert each.data_bytes <= max_size or len(each.records) == 1
    for full, after in pairwise(bundles):
        # No room was wasted: the next record would not have fitted.
        more: Any = [*full.records, after.records[0]]
        assert (
            len(full.records) == max_count
            or len(encode(more, with_tags=True).data) > max_size
            or full.data_bytes >= max_size - 30
        )
    assert aggregate.close() is None


@given(st.binary(max_size=40), st.just(()) | st.just((Tag("a", "b"),)))
def test_a_record_sent_alone_has_the_size_it_claims(data: bytes, tags: tuple[Tag, ...]) -> None:
    """Raw without tags, wrapped with them."""
    made = Bundle(*alone(pending("key", data, tags=tags)))
    encoded: Any = encode(made.records, with_tags=True)  # type: ignore[arg-type]
    assert (made.data_bytes, made.size_bytes) == (
        len(encoded.data),
        len(encoded.data) + len(encoded.partition_key),
    )


def test_an_aggregate_is_due_with_its_first_record() -> None:
    """The deadline of an aggregate is the smallest of its records, also when a later one is more urgent."""
    lane = Lane(ProducerSettings(), "s", None)
    assert lane.open_deadline_ms == math.inf
    lane.add(pending(at=50))
    lane.add(pending(at=20))
    assert lane.open_deadline_ms == 120
    lane.close_due(119)
    assert not lane.ready
    lane.close_due(120)
    assert len(lane.ready) == 1
    assert lane.ready[0].deadline_ms == 120


def test_a_lane_without_shard_never_aggregates() -> None:
    """While the shard is unknown each record is a Kinesis record of its own."""
    lane = Lane(ProducerSettings())
    assert all(lane.add(pending()) for _ in range(3))
    assert [len(each.records) for each in lane.ready] == [1, 1, 1]


def test_expired_records_leave_their_aggregates() -> None:
    """Expired records leave what waits; what is left stays in order, in aggregates of right size."""
    lane = Lane(ProducerSettings(), "s", None)
    ttls = [10, 1000, 10, 1000, 1000]
    records = [pending(data=b"%d" % n, ttl=ttl, serial=n) for n, ttl in enumerate(ttls)]
    for record in records[:4]:
        lane.add(record)
    lane.close_open()
    lane.add(records[4])
    lane.close_open()
    assert lane.take_expired(9) == []
    assert lane.take_expired(10) == [records[0], records[2]]
    assert [r.serial for each in lane.ready for r in each.records] == [1, 3, 4]
    sizes = [(len(encode(each.records).data), each.data_bytes) for each in lane.ready]  # type: ignore[arg-type]
    assert all(real == claimed for real, claimed in sizes)
    assert lane.ready_bytes == sum(each.size_bytes for each in lane.ready)


def test_put_back_keeps_order() -> None:
    """Kinesis records that failed go in front again, as they were."""
    lane = Lane(ProducerSettings())
    for n in range(4):
        lane.add(pending(serial=n))
    taken = [lane.pop(), lane.pop()]
    lane.put_back(taken)
    assert [each.records[0].serial for each in lane.ready] == [0, 1, 2, 3]


def test_bucket_fills_drains_and_tells_waits() -> None:
    """A bucket starts full, fills with time up to its capacity, may be overdrawn, and tells the wait."""
    bucket = Bucket(10, now_ms=0)
    assert bucket.level(0) == 10
    bucket.take(15)
    assert bucket.level(0) == -5
    assert bucket.wait_ms(1, 0) == 600
    assert bucket.level(600) == 1
    assert bucket.level(500) == 1
    assert bucket.level(10_000) == 10
    assert bucket.wait_ms(100, 10_000) == 0


def test_limiter_lets_a_burst_and_then_the_rate_through() -> None:
    """1,000 records at once, then 1,500 a second at 150 percent; 10 MiB at once, then 1.5 MiB a second."""
    limiter = ShardLimiter(150, 0)
    small, large = bundle(10), bundle(1024 * 1024)
    for _ in range(1000):
        assert limiter.wait_ms(small, 0) == 0
        limiter.take(small)
    assert limiter.wait_ms(small, 0) == pytest.approx(1000 / 1500)
    limiter = ShardLimiter(100, 0)
    sent = 0
    while limiter.wait_ms(large, 0) == 0:
        limiter.take(large)
        sent += 1
    assert sent == 9
    assert limiter.wait_ms(large, 0) == pytest.approx(1, abs=100)


@given(st.integers(1, 10_000), st.integers())
def test_backoff_doubles_within_bounds(tries: int, seed: int) -> None:
    """Backoff is jittered, grows with tries, and never exceeds two seconds."""
    pause = backoff_ms(tries, random.Random(seed))
    whole = min(2000, 50 * 2 ** min(tries - 1, 10))
    assert whole / 2 <= pause <= whole


def lanes_of(*sizes: list[int], at: float = 0) -> list[Lane]:
    found = []
    for each in sizes:
        lane = Lane(ProducerSettings())
        for size in each:
            lane.add(pending(data=bytes(size), at=at))
        found.append(lane)
    return found


def test_a_request_waits_for_company_until_it_is_due() -> None:
    """Nothing goes before a deadline unless there is enough, or flushing hurries."""
    lanes = lanes_of([10, 10])
    assert choose(lanes, ProducerSettings(), 99) == ([], 100)
    parts, _ = choose(lanes, ProducerSettings(), 100)
    assert len(parts) == 2
    assert lanes[0].in_flight
    lanes = lanes_of([10, 10])
    parts, _ = choose(lanes, ProducerSettings(), 0, hurry=True)
    assert len(parts) == 2


def test_enough_goes_at_once() -> None:
    """256 KiB for one shard, 5 MiB in all, or 500 records make a request go."""
    settings_ = ProducerSettings()
    assert choose(lanes_of([256 * 1024]), settings_, 0)[0]
    assert choose(lanes_of([1] * 500), settings_, 0)[0]
    assert not choose(lanes_of([1] * 499), settings_, 0)[0]
    assert choose(lanes_of(*[[200_000]] * 27), settings_, 0)[0]
    assert not choose(lanes_of(*[[200_000]] * 20), settings_, 0)[0]


@pytest.mark.slow
@settings(max_examples=share_of(150))
@given(
    st.lists(st.lists(st.integers(0, 3000), max_size=40), max_size=8),
    st.integers(1, 50),
    st.integers(52_224, 60_000),
    st.integers(1, 9000),
)
def test_requests_hold_their_bounds_and_lose_nothing(
    sizes: list[list[int]], count: int, total: int, shard: int
) -> None:
    """Requests hold count and size, take each lane's records in order, one request per lane at a time."""
    chosen = ProducerSettings(
        collection_max_count=count, collection_max_size=total, collection_max_shard_size=shard
    )
    lanes = lanes_of(*sizes)
    before = {id(lane): list(lane.ready) for lane in lanes}
    sent: dict[int, list[Bundle]] = {id(lane): [] for lane in lanes}
    for _ in range(sum(map(len, sizes)) + 1):
        parts, _ = choose(lanes, chosen, 1000)
        if not parts:
            break
        assert len(parts) <= count
        assert sum(part.bundle.size_bytes for part in parts) <= total
        assert choose([part.lane for part in parts], chosen, 1000)[0] == []
        for part in parts:
            sent[id(part.lane)].append(part.bundle)
            part.lane.in_flight = False
    assert sent == before


def test_a_record_in_doubt_goes_alone() -> None:
    """A record that the service refused in company gets a request of its own."""
    lanes = lanes_of([1, 2, 3])
    lanes[0].ready[1].alone = True
    taken = []
    for _ in range(3):
        parts, _ = choose(lanes, ProducerSettings(), 1000)
        taken.append([len(part.bundle.records[0].data) for part in parts])
        lanes[0].in_flight = False
    assert taken == [[1], [2], [3]]


def test_a_held_or_limited_lane_tells_when() -> None:
    """A lane that may not send yet is passed over, and the time to look again is told."""
    held, limited = lanes_of([1], [1])
    held.held_until_ms = 1500
    limited.limiter = ShardLimiter(100, 1000)
    for _ in range(1000):
        limited.limiter.take(bundle(1))
    parts, again = choose([held, limited], ProducerSettings(), 1000)
    assert parts == []
    assert again == pytest.approx(1001)
    parts, again = choose([held], ProducerSettings(), 1000)
    assert (parts, again) == ([], 1500)


def test_ranges_find_and_tile() -> None:
    """The shard of a hash key is the one whose range holds it; gaps and overlaps are noticed."""
    shards = OpenShards(reversed(TWO))
    for number, shard in [(0, "shardId-0"), (HALF - 1, "shardId-0"), (HALF, "shardId-1"), (MAX, "shardId-1")]:
        assert shards.find(number.to_bytes(16, "big")) == shard
    assert tile(TWO)
    assert not tile(TWO[:1])
    assert not tile(TWO[1:])
    assert not tile([*TWO, TWO[0]])
    assert not tile([])


@settings(max_examples=share_of(60))
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.none() | st.integers(0, MAX).map(str)), max_size=60)
)
def test_a_change_of_shards_keeps_order_by_key(puts: list[tuple[str, str | None]]) -> None:
    """When shards change, all that waits moves: nothing is lost, and order within a key and shard holds."""
    router = Router(ProducerSettings(), 0)
    for serial, (key, hashed) in enumerate(puts):
        router.add(pending(key, b"", hashed, serial=serial))
        if serial == 20:
            router.change(OpenShards(TWO), 0)
        if serial == 40:
            router.change(None, 0)
    router.change(OpenShards(TWO), 0)
    seen: list[int] = []
    for lane in router.busy:
        by_key: dict[str, int] = {}
        for record in lane.take_all():
            number = (
                hash_key(record.partition_key)
                if record.explicit_hash_key is None
                else int(record.explicit_hash_key)
            )
            assert (lane.shard_id == "shardId-1") == (number >= HALF)
            assert by_key.get(record.partition_key, -1) < record.serial
            by_key[record.partition_key] = record.serial
            seen.append(record.serial)
    assert sorted(seen) == list(range(len(puts)))


def test_inside_splits_an_aggregate_by_range() -> None:
    """Places of the records inside a range are told, and the records outside."""
    records = [pending(hashed=str(n)) for n in (0, HALF, HALF - 1, MAX)]
    places, outside = inside(Bundle(records, 1), TWO[0].hash_keys)
    assert places == [0, 2]
    assert outside == [records[1], records[3]]


@pytest.mark.parametrize(
    ("code", "fail_if_throttled", "entries", "expected"),
    [
        ("ProvisionedThroughputExceededException", False, 5, "again"),
        ("ProvisionedThroughputExceededException", True, 5, "fail"),
        ("InternalFailure", True, 5, "again"),
        ("ConnectTimeoutError", False, 5, "again"),
        ("SomethingNew", False, 5, "again"),
        ("ResourceNotFoundException", False, 5, "fail"),
        ("AccessDeniedException", False, 5, "fail"),
        ("KMSDisabledException", False, 5, "fail"),
        ("Record Count Mismatch", False, 5, "fail"),
        ("ValidationException", False, 5, "alone"),
        ("ValidationException", False, 1, "fail"),
    ],
)
def test_remedies(code: str, fail_if_throttled: bool, entries: int, expected: str) -> None:  # noqa: FBT001 - a case
    """Passing failures go again, refusals fail at once, doubtful ones go alone before they fail."""
    assert remedy(code, fail_if_throttled=fail_if_throttled, entries=entries) == expected


@pytest.mark.parametrize(
    ("given_", "named"),
    [
        ({"aggregation_max_size": 63}, "aggregation_max_size is 63"),
        ({"collection_max_count": 501}, "1 to 500"),
        ({"rate_limit": 0}, "rate_limit"),
        ({"record_ttl_ms": -1}, "record_ttl_ms"),
        ({"max_connections": "many"}, "max_connections"),
    ],
)
def test_settings_out_of_bounds_are_refused(given_: dict[str, Any], named: str) -> None:
    """A setting out of its bounds is refused with name, bounds and value."""
    with pytest.raises(ConfigurationError, match=named):
        ProducerSettings(**given_)


def test_settings_from_text() -> None:
    """Options as text, in any case, with or without underscores; others are not ours to judge."""
    found = ProducerSettings.from_options(
        {"aggregationEnabled": "false", "RECORD_TTL_MS": "5000", "failifthrottled": "true", "streamName": "x"}
    )
    assert found == ProducerSettings(aggregation_enabled=False, record_ttl_ms=5000, fail_if_throttled=True)
    for wrong in ({"rateLimit": "fast"}, {"aggregationEnabled": "1"}, {"rateLimit": "-1"}):
        with pytest.raises(ConfigurationError, match="expected"):
            ProducerSettings.from_options(wrong)
