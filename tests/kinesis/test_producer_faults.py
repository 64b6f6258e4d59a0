"""The producer against a local Kinesis that throttles, fails and refuses: what goes again."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest

from headpond.kinesis.producer import MemoryMetrics, Producer, ProducerSettings, PutFailed, PutResult
from headpond.localkinesis import SERVICE_LIMITS, LocalKinesis, Settings
from headpond.localkinesis.testing import local_kinesis
from tests.kinesis.producer_kit import (
    FIRST,
    THROTTLED,
    assert_order_within_keys,
    check_acknowledged,
    copies,
    hash_of,
    put_each,
    records_of,
    run,
    stored,
)


@pytest.mark.thorough
def test_throttled_entries_go_again_alone_with_backoff(kinesis: LocalKinesis) -> None:
    """Entries of a PutRecords that were throttled are sent again, the others are not; pauses grow."""
    kinesis.faults.fail_entries(0.5)
    put = records_of(400, size=2000)
    metrics = MemoryMetrics()
    results = run(kinesis, lambda producer: put_each(producer, put), metrics=metrics)
    check_acknowledged(kinesis, put, results)
    assert set(copies(kinesis).values()) == {1}
    pauses: dict[int, list[float]] = defaultdict(list)
    for result in results:
        assert {a.code for a in result.attempts[:-1]} <= {THROTTLED}
        for number, (before, after) in enumerate(zip(result.attempts, result.attempts[1:], strict=False)):
            pauses[number].append(after.start_ms - before.end_ms)
    assert len(set(pauses[0])) > 1
    # From half of 50 ms on, doubling; what a busy machine adds does not count.
    assert all(min(each) >= 24 * 2 ** min(number, 5) for number, each in pauses.items())
    assert len(pauses) > 2
    assert metrics.of("ErrorsByCode", code=THROTTLED).times > 0
    assert metrics.of("RetriesPerRecord").most >= 2


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["internal", "cut before", "cut reply", "throttle"])
def test_failed_requests_go_again_in_order(kinesis: LocalKinesis, fault: str) -> None:
    """A request that failed whole goes again; one request a shard at a time keeps the order."""
    if fault == "internal":
        kinesis.faults.internal_failure(0.3, calls=("PutRecords",))
    elif fault == "throttle":
        kinesis.faults.throttle(0.3, calls=("PutRecords",))
    else:
        kinesis.faults.cut(0.3, when="before" if "before" in fault else "reply", calls=("PutRecords",))
    put = records_of(1000, size=500)
    settings = ProducerSettings(
        record_max_buffered_time_ms=10, aggregation_max_size=5000, collection_max_shard_size=20_000
    )
    results = run(kinesis, lambda producer: put_each(producer, put), settings)
    check_acknowledged(kinesis, put, results)
    assert any(len(r.attempts) > 1 for r in results)
    if fault != "cut reply":
        assert set(copies(kinesis).values()) == {1}
        assert_order_within_keys(kinesis)


@pytest.mark.slow
def test_order_holds_with_slow_and_fast_requests(kinesis: LocalKinesis) -> None:
    """Requests of very different duration do not overtake each other within a key."""
    kinesis.faults.delay(60, 0.5, calls=("PutRecords",))
    settings = ProducerSettings(record_max_buffered_time_ms=5, aggregation_max_size=500)

    async def work(producer: Producer) -> list[Any]:
        futures = []
        for record in put:
            futures.append(await producer.submit(*record))
            if len(futures) % 20 == 0:
                await asyncio.sleep(0.005)
        return list(await asyncio.gather(*futures))

    put = records_of(1500)
    check_acknowledged(kinesis, put, run(kinesis, work, settings))
    assert_order_within_keys(kinesis)


def test_fail_if_throttled(kinesis: LocalKinesis) -> None:
    """With the setting, a throttled record fails at once with the code, and is not in the stream."""
    kinesis.faults.fail_entries(times=1)
    settings = ProducerSettings(record_max_buffered_time_ms=10, fail_if_throttled=True)
    with pytest.raises(PutFailed, match=THROTTLED) as caught:
        run(kinesis, lambda producer: producer.put("k", b"x"), settings)
    assert caught.value.reason == THROTTLED
    assert [a.code for a in caught.value.attempts] == [THROTTLED]
    assert stored(kinesis) == []


@pytest.mark.slow
def test_records_expire_with_their_attempts(kinesis: LocalKinesis) -> None:
    """A record that could not be put in its time fails as expired and tells all tries; nothing hangs."""
    kinesis.faults.throttle(calls=("PutRecords",))
    settings = ProducerSettings(record_max_buffered_time_ms=10, record_ttl_ms=2_000)
    metrics = MemoryMetrics()
    put = records_of(50)
    results = run(kinesis, lambda producer: put_each(producer, put), settings, metrics=metrics)
    for result in results:
        assert isinstance(result, PutFailed)
        assert result.reason == "Expired"
        assert len(result.attempts) >= 2
        assert {a.code for a in result.attempts} == {THROTTLED}
        assert "Expired" in str(result)
    assert metrics.of("UserRecordExpired").times == 50


@pytest.mark.slow
def test_refusals_fail_at_once(kinesis: LocalKinesis) -> None:
    """A missing stream or right is not tried again until the record expires."""
    kinesis.faults.refuse("AccessDeniedException", calls=("PutRecords",), message="secret words")
    with pytest.raises(PutFailed, match="AccessDeniedException") as caught:
        run(kinesis, lambda producer: producer.put("k", b"x"))
    assert len(caught.value.attempts) == 1
    assert "secret" not in str(caught.value)


@pytest.mark.slow
def test_one_wrong_record_does_not_take_others_along(kinesis: LocalKinesis) -> None:
    """A record that the stream does not take fails alone; those in the same request are put."""
    settings = ProducerSettings(record_max_buffered_time_ms=50, max_user_record_bytes=3 * 1024 * 1024)
    put = [("a", b"1"), ("b", bytes(2 * 1024 * 1024)), ("c", b"3")]
    one, two, three = run(kinesis, lambda producer: put_each(producer, put), settings)
    assert isinstance(one, PutResult)
    assert isinstance(three, PutResult)
    assert isinstance(two, PutFailed)
    assert two.reason == "ValidationException"
    assert "Kinesis record of 2,097,153 bytes with its key; a stream takes 1,048,576 unless" in str(two)


@pytest.mark.thorough
@pytest.mark.parametrize(("stream_bytes", "call_bytes"), [(1 << 20, 5 << 20), (10 << 20, 10 << 20)])
def test_records_as_large_as_a_stream_takes(stream_bytes: int, call_bytes: int) -> None:
    """To the byte, the key included, in as few calls as their bound on bytes lets; one more is refused."""
    settings = ProducerSettings(
        aggregation_enabled=False,
        max_user_record_bytes=stream_bytes,
        collection_max_size=call_bytes,
        collection_max_shard_size=call_bytes,
        record_max_buffered_time_ms=5_000,
        rate_limit=100_000,
    )
    each = min(stream_bytes, 1 << 20)
    fill = [("é", bytes(each - 2))] * (call_bytes // each)
    with local_kinesis() as kinesis:
        kinesis.engine.create_stream("s", max_record_bytes=stream_bytes)
        metrics = MemoryMetrics()
        put = [*fill, ("k", bytes(stream_bytes - 1)), ("k", bytes(stream_bytes))]
        results = run(kinesis, lambda producer: put_each(producer, put), settings, metrics=metrics)
        check_acknowledged(kinesis, put, results)
        assert [isinstance(result, PutResult) for result in results] == [True] * (len(put) - 1) + [False]
        assert metrics.of("KinesisRecordsPerPutRecordsRequest").most == len(fill)


@pytest.mark.thorough
def test_the_shard_limit_is_kept() -> None:
    """At 100 percent the producer keeps to the shard's limit after the first burst; little is throttled."""
    with local_kinesis("s", settings=Settings(limits=SERVICE_LIMITS)) as kinesis:
        put = [("k", b"%06d" % n) for n in range(2500)]
        settings = ProducerSettings(rate_limit=100, aggregation_max_count=1, record_max_buffered_time_ms=10)
        results = run(kinesis, lambda producer: put_each(producer, put), settings)
        check_acknowledged(kinesis, put, results)
        tries = sum(len(result.attempts) for result in results)
        assert tries < 2500 * 1.3
        span_ms = kinesis.engine.records("s")[-1].arrival_ms - kinesis.engine.records("s")[0].arrival_ms
        assert span_ms >= 1300


@pytest.mark.thorough
def test_every_record_is_acknowledged_or_fails_in_bad_weather(kinesis: LocalKinesis) -> None:
    """Throttling, partial failures, cuts, a split and a merge at once: every record has its answer."""
    faults = kinesis.faults
    faults.throttle(0.1, calls=("PutRecords",))
    faults.internal_failure(0.1, calls=("PutRecords", "ListShards"))
    faults.fail_entries(0.15)
    faults.fail_entries(0.05, code="InternalFailure")
    faults.cut(0.05, when="before", calls=("PutRecords",))
    faults.cut(0.03, when="after", calls=("PutRecords",))
    faults.cut(0.03, when="reply", calls=("PutRecords",))
    faults.delay(20, 0.3, calls=("PutRecords",))
    draw = random.Random(3)
    put = [(f"key-{draw.randrange(200)}", b"%06d" % n + bytes(draw.randrange(300))) for n in range(4000)]
    settings = ProducerSettings(
        record_max_buffered_time_ms=10, aggregation_max_size=4000, record_ttl_ms=55_000
    )

    async def work(producer: Producer) -> list[Any]:
        futures = []
        for n, record in enumerate(put):
            if n == 1000:
                kinesis.engine.split_shard("s", FIRST)
            if n == 2000:
                kinesis.engine.merge_shards("s", "shardId-000000000003", "shardId-000000000001")
            if n == 3000:
                kinesis.engine.update_shard_count("s", 3)
            futures.append(await producer.submit(*record))
            if n % 100 == 0:
                await asyncio.sleep(0.01)
        return await asyncio.gather(*futures, return_exceptions=True)

    results = run(kinesis, work, settings)
    check_acknowledged(kinesis, put, results)
    acknowledged = [r for r in results if isinstance(r, PutResult)]
    assert len(acknowledged) == len(put)
    shards = {shard.shard_id: shard for shard in kinesis.engine.shards("s")}
    for (key, _), result in zip(put, results, strict=True):
        assert shards[result.shard_id].low <= hash_of(key) <= shards[result.shard_id].high
