"""The producer against the local Kinesis: in good weather, under faults, and through reshards."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from headpond.errors import ConfigurationError, UsageError
from headpond.formats.hash_keys import InvalidHashKey
from headpond.formats.kpl import Aggregate, InvalidUserRecord, UserRecord, decode, encode
from headpond.kinesis.client import ConnectionSettings
from headpond.kinesis.local import SERVICE_LIMITS, LocalKinesis, Settings
from headpond.kinesis.producer import (
    BlockingProducer,
    MemoryMetrics,
    Producer,
    ProducerSettings,
    PutFailed,
    PutResult,
)
from headpond.kinesis.testing import local_kinesis

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

THROTTLED = "ProvisionedThroughputExceededException"
QUICK = ProducerSettings(record_max_buffered_time_ms=20, rate_limit=100_000)
FIRST = "shardId-000000000000"


class Stored(NamedTuple):
    """A user record as it lies in the stream."""

    shard_id: str
    sequence_number: str
    sub_sequence_number: int
    partition_key: str
    data: bytes
    company: int


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    with local_kinesis("s", shards=2, seed=11) as running:
        yield running


def stored(kinesis: LocalKinesis) -> list[Stored]:
    """Everything in the stream, aggregates opened, by shard and then oldest first."""
    found = []
    for shard in kinesis.engine.shards("s"):
        for record in kinesis.engine.records("s", shard.shard_id):
            opened = decode(record.data)
            inner = (
                opened.records
                if isinstance(opened, Aggregate)
                else (UserRecord(record.partition_key, record.data),)
            )
            number = str(record.sequence_number)
            found += [
                Stored(shard.shard_id, number, n, each.partition_key, each.data, len(inner))
                for n, each in enumerate(inner)
            ]
    return found


def check_acknowledged(kinesis: LocalKinesis, put: list[tuple[str, bytes]], results: list[Any]) -> None:
    """Every acknowledged record lies where its result says; every other one has failed with a reason."""
    at = {
        (s.shard_id, s.sequence_number, s.sub_sequence_number): (s.partition_key, s.data)
        for s in stored(kinesis)
    }
    assert len(put) == len(results)
    for record, result in zip(put, results, strict=True):
        if isinstance(result, PutResult):
            assert at[result[:3]] == record
            assert result.attempts[-1].code is None
            assert all(attempt.code for attempt in result.attempts[:-1])
        else:
            assert isinstance(result, PutFailed)
            assert result.reason


def connection(kinesis: LocalKinesis) -> ConnectionSettings:
    return ConnectionSettings(stream_name="s", endpoint_url=kinesis.endpoint_url)


def run(
    kinesis: LocalKinesis,
    work: Callable[[Producer], Awaitable[Any]],
    settings: ProducerSettings = QUICK,
    **more: Any,
) -> Any:
    async def inside() -> Any:
        async with Producer(connection(kinesis), settings, seed=5, **more) as producer:
            result = await work(producer)
        assert producer.outstanding == 0
        return result

    return asyncio.run(asyncio.wait_for(inside(), 60))


async def put_each(producer: Producer, records: list[tuple[str, bytes]]) -> list[Any]:
    futures = [await producer.submit(*record) for record in records]
    return await asyncio.gather(*futures, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


async def until_the_map_is_ready(producer: Producer) -> None:
    await until(lambda: producer._map.state == "READY")


def records_of(count: int, keys: int = 50, size: int = 20) -> list[tuple[str, bytes]]:
    return [(f"key-{n % keys}", b"%06d" % n + bytes(size)) for n in range(count)]


def copies(kinesis: LocalKinesis) -> Counter[bytes]:
    return Counter(each.data for each in stored(kinesis))


def assert_order_within_keys(kinesis: LocalKinesis) -> None:
    by_key: dict[str, list[bytes]] = defaultdict(list)
    for each in stored(kinesis):
        by_key[each.partition_key].append(each.data)
    assert all(datas == sorted(datas) for datas in by_key.values())


def test_one_record_is_sent_raw_and_tells_where_it_is(kinesis: LocalKinesis) -> None:
    """A record alone is no aggregate; its result has shard, sequence number and the one attempt."""
    result = run(kinesis, lambda producer: producer.put("key", b"data"))
    [found] = stored(kinesis)
    assert result[:3] == found[:3]
    assert (found.data, found.partition_key, found.company) == (b"data", "key", 1)
    [attempt] = result.attempts
    assert attempt.end_ms >= attempt.start_ms


def test_many_records_are_aggregated_by_shard_and_in_order(kinesis: LocalKinesis) -> None:
    """Many small records become few Kinesis records under the key "a", each in its own shard and in order."""
    put = records_of(3000)
    results = run(kinesis, lambda producer: put_each(producer, put))
    check_acknowledged(kinesis, put, results)
    assert set(copies(kinesis).values()) == {1}
    assert len(kinesis.engine.records("s")) <= 12
    assert {r.partition_key for r in kinesis.engine.records("s")} == {"a"}
    assert_order_within_keys(kinesis)
    for shard in kinesis.engine.shards("s"):
        for each in stored(kinesis):
            if each.shard_id == shard.shard_id:
                assert kinesis.engine.stream("s").shard_for(_hash(each.partition_key)) is shard


def _hash(key: str) -> int:
    return int(encode([UserRecord(key, b"")]).explicit_hash_key)


def test_explicit_hash_keys_choose_the_shard(kinesis: LocalKinesis) -> None:
    """The explicit hash key decides, in any spelling of the number, and is kept in the aggregate."""

    async def work(producer: Producer) -> list[PutResult]:
        return await producer.put_many(
            [("k", b"low", " 007 "), ("k", b"high", str(2**128 - 1)), ("k", b"low2", "0")]
        )

    low, high, low2 = run(kinesis, work)
    assert (low.shard_id, high.shard_id) == (FIRST, "shardId-000000000001")
    assert (low.sequence_number, low.sub_sequence_number + 1) == (
        low2.sequence_number,
        low2.sub_sequence_number,
    )
    [aggregate] = [decode(r.data) for r in kinesis.engine.records("s", FIRST)]
    assert isinstance(aggregate, Aggregate)
    assert [r.explicit_hash_key for r in aggregate.records] == ["7", "0"]


@pytest.mark.thorough
def test_without_the_shard_map_records_go_singly(kinesis: LocalKinesis) -> None:
    """While shards cannot be listed nothing is aggregated; order within keys holds throughout."""
    rule = kinesis.faults.refuse("AccessDeniedException", calls=("ListShards",))
    put = records_of(400)

    async def work(producer: Producer) -> list[Any]:
        first = await put_each(producer, put[:200])
        kinesis.faults.remove(rule)
        later = []
        for start in range(200, 400, 20):
            if start == 380:
                await until_the_map_is_ready(producer)  # it tries again after 1 s, then ever later
            later += [await producer.submit(*record) for record in put[start : start + 20]]
            await asyncio.sleep(0.05)
        return [*first, *await asyncio.gather(*later)]

    check_acknowledged(kinesis, put, run(kinesis, work))
    alone = {each.data for each in stored(kinesis) if each.company == 1}
    assert alone >= {data for _, data in put[:200]}
    assert len(alone) < 400
    assert set(copies(kinesis).values()) == {1}
    assert_order_within_keys(kinesis)


def test_aggregation_can_be_off(kinesis: LocalKinesis) -> None:
    """Without aggregation each record is a Kinesis record, and shards are never listed."""
    rule = kinesis.faults.refuse("AccessDeniedException", calls=("ListShards",))
    put = records_of(1200)
    settings = ProducerSettings(aggregation_enabled=False, record_max_buffered_time_ms=20)
    check_acknowledged(kinesis, put, run(kinesis, lambda producer: put_each(producer, put), settings))
    assert rule.hits == 0
    assert {each.company for each in stored(kinesis)} == {1}
    assert_order_within_keys(kinesis)


def test_a_lone_record_that_looks_like_an_aggregate_is_wrapped(kinesis: LocalKinesis) -> None:
    """Data that is itself a valid aggregate comes out as it was put, not opened."""
    looks = encode([UserRecord("x", b"1"), UserRecord("y", b"2")]).data
    run(kinesis, lambda producer: producer.put("key", looks))
    assert [(each.partition_key, each.data) for each in stored(kinesis)] == [("key", looks)]


def test_after_a_split_only_what_landed_wrong_goes_again(kinesis: LocalKinesis) -> None:
    """Records of a stale aggregate that fit the child are acknowledged there; only the others go again."""
    put = records_of(300)
    metrics = MemoryMetrics()

    async def work(producer: Producer) -> list[Any]:
        kinesis.engine.split_shard("s", FIRST)
        results = await put_each(producer, put)
        assert [r.shard_id for r in await producer.put_many(put[:1])] == [right(put[0][0])]
        return results

    def right(key: str) -> str:
        return kinesis.engine.stream("s").shard_for(_hash(key)).shard_id

    results = run(kinesis, work, metrics=metrics)
    check_acknowledged(kinesis, put, results)
    found = copies(kinesis)
    again = {data for data, number in found.items() if number == 2} - {put[0][1]}
    assert again
    for (key, data), result in zip(put, results, strict=True):
        assert result.shard_id == right(key)
        if data in again:
            assert [a.code for a in result.attempts] == ["Wrong Shard", None]
        else:
            assert [a.code for a in result.attempts] == [None]
    assert metrics.of("ErrorsByCode", code="Wrong Shard").times >= 1


def test_after_a_merge_nothing_goes_again(kinesis: LocalKinesis) -> None:
    """A merged shard takes all records of its parents: nothing is sent twice, though it was never seen."""
    put = records_of(300)

    async def work(producer: Producer) -> list[Any]:
        kinesis.engine.merge_shards("s", FIRST, "shardId-000000000001")
        return await put_each(producer, put)

    check_acknowledged(kinesis, put, run(kinesis, work))
    assert set(copies(kinesis).values()) == {1}


def test_the_map_refreshes_for_a_single_record_too(kinesis: LocalKinesis) -> None:
    """A single record in a child never seen is acknowledged; what follows is aggregated for the child."""

    async def work(producer: Producer) -> None:
        kinesis.engine.split_shard("s", FIRST)
        await producer.put("k", b"", "0")
        await until_the_map_is_ready(producer)
        results = await producer.put_many([("k", b"%d" % n, "1") for n in range(10)])
        assert {(r.shard_id, len(r.attempts)) for r in results} == {("shardId-000000000002", 1)}
        assert len({r.sequence_number for r in results}) == 1

    run(kinesis, work)


def test_a_child_that_was_split_again_is_still_judged(kinesis: LocalKinesis) -> None:
    """A shard that opened and closed between two listings is found among all, and its records judged."""
    put = [("k", b"%d" % n, str(n)) for n in range(20)]

    async def work(producer: Producer) -> list[Any]:
        kinesis.engine.split_shard("s", FIRST)
        kinesis.faults.delay(300, calls=("ListShards",))
        kinesis.faults.delay(100, calls=("PutRecords",), times=1)
        waiting = asyncio.gather(*[await producer.submit(*record) for record in put])
        await until(lambda: bool(kinesis.engine.records("s")))
        kinesis.engine.split_shard("s", "shardId-000000000002")
        return list(await waiting)

    results = run(kinesis, work)
    assert {r.shard_id for r in results} == {"shardId-000000000002"}
    assert len(stored(kinesis)) == 20


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


def test_refusals_fail_at_once(kinesis: LocalKinesis) -> None:
    """A missing stream or right is not tried again until the record expires."""
    kinesis.faults.refuse("AccessDeniedException", calls=("PutRecords",), message="secret words")
    with pytest.raises(PutFailed, match="AccessDeniedException") as caught:
        run(kinesis, lambda producer: producer.put("k", b"x"))
    assert len(caught.value.attempts) == 1
    assert "secret" not in str(caught.value)


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


def test_put_many_tells_counts_and_reasons(kinesis: LocalKinesis) -> None:
    """When some of many fail, one error tells how many, why, and which."""
    settings = ProducerSettings(
        record_max_buffered_time_ms=10, fail_if_throttled=True, aggregation_enabled=False
    )
    kinesis.faults.fail_entries(times=2)
    with pytest.raises(PutFailed, match=rf"2 of 10 records .* 2 {THROTTLED}") as caught:
        run(kinesis, lambda producer: producer.put_many(records_of(10)), settings)
    assert len(caught.value.facts["failures"]) == 2
    assert caught.value.facts["reasons"] == {THROTTLED: 2}
    assert len(stored(kinesis)) == 8


@pytest.mark.parametrize(
    "bounds", [{"max_outstanding_records": 10}, {"max_outstanding_bytes": 260}], ids=["records", "bytes"]
)
def test_back_pressure(kinesis: LocalKinesis, bounds: dict[str, int]) -> None:
    """Above the bound on what is outstanding, putting waits; several waiters all get their turn."""
    kinesis.faults.delay(5, calls=("PutRecords",))
    settings = ProducerSettings(record_max_buffered_time_ms=1, **bounds)
    most = 0

    async def work(producer: Producer) -> None:
        async def feed(name: int) -> None:
            nonlocal most
            for n in range(25):
                await producer.submit(f"{name}", b"%026d" % n)
                most = max(most, producer.outstanding)

        await asyncio.gather(*[feed(name) for name in range(4)])

    run(kinesis, work, settings)
    assert len(stored(kinesis)) == 100
    assert 8 <= most <= 11


def test_flush_does_not_wait_for_company(kinesis: LocalKinesis) -> None:
    """Flushing sends at once what would otherwise wait, and returns when it is settled."""

    async def work(producer: Producer) -> None:
        future = await producer.submit("k", b"x")
        await producer.flush()
        assert future.done()

    # `run` gives up after a minute.
    run(kinesis, work, ProducerSettings(record_max_buffered_time_ms=250_000, record_ttl_ms=250_000))


def test_leaving_by_an_exception_still_flushes(kinesis: LocalKinesis) -> None:
    """What was taken in is put even if the block ends with an error."""

    async def work(producer: Producer) -> None:
        await producer.submit("k", b"x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(kinesis, work)
    assert len(stored(kinesis)) == 1


def test_a_cancelled_close_fails_what_is_left(kinesis: LocalKinesis) -> None:
    """If flushing is cancelled, every record still outstanding fails: none is left without an answer."""
    kinesis.faults.throttle(calls=("PutRecords",))

    async def work() -> list[Any]:
        producer = Producer(connection(kinesis), QUICK)
        await producer.start()
        futures = [await producer.submit("k", b"x") for _ in range(5)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.close(), 0.2)
        with pytest.raises(UsageError, match="not running"):
            await producer.put("k", b"")
        return await asyncio.gather(*futures, return_exceptions=True)

    assert [result.reason for result in asyncio.run(work())] == ["Closed"] * 5


def test_a_fault_of_ours_fails_records_and_is_seen(kinesis: LocalKinesis) -> None:
    """If something breaks inside, records fail instead of waiting for ever, and the loop is told."""

    class Broken:
        def put_records(self, **_: Any) -> Any:
            raise ZeroDivisionError

        def list_shards(self, **arguments: Any) -> Any:
            return kinesis.client().list_shards(**arguments)

    seen: list[Any] = []

    async def work() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))
        async with Producer(connection(kinesis), QUICK, client=Broken()) as producer:  # type: ignore[arg-type]
            results = await asyncio.gather(producer.put("k", b""), return_exceptions=True)
            late = await asyncio.gather(producer.put("k", b""), return_exceptions=True)
        return [*results, *late]

    assert [result.reason for result in asyncio.run(work())] == ["InternalError"] * 2
    assert [type(error) for error in seen] == [ZeroDivisionError]


def test_wrong_input_is_refused_before_it_enters(kinesis: LocalKinesis) -> None:
    """Keys, hash keys and data out of bounds raise at the call; the producer goes on."""

    async def work(producer: Producer) -> None:
        for wrong in (
            ("", b""),
            ("k" * 257, b""),
            ("\ud800", b""),
            ("k", "text"),
            ("k", bytes(1024 * 1024 + 1)),
        ):
            with pytest.raises(InvalidUserRecord):
                await producer.put(*wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidHashKey):
            await producer.put("k", b"", str(2**128))
        assert producer.outstanding == 0
        await producer.put("k", b"fine")

    run(kinesis, work)


def test_use_outside_the_block_is_an_error(kinesis: LocalKinesis) -> None:
    """A producer that was not started, or twice, says so; no region is said at the start."""

    async def work() -> None:
        producer = Producer(connection(kinesis))
        with pytest.raises(UsageError, match="async with"):
            await producer.put("k", b"")
        async with producer:
            with pytest.raises(UsageError, match="before"):
                await producer.start()
        await producer.close()

    asyncio.run(work())


def test_no_region_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """What the configuration lacks is an error of starting, not of the first record."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    async def work() -> None:
        async with Producer(ConnectionSettings(stream_name="s")):
            pass

    with pytest.raises(ConfigurationError, match="region"):
        asyncio.run(work())
    with (
        pytest.raises(ConfigurationError, match="region"),
        BlockingProducer(ConnectionSettings(stream_name="s")),
    ):
        pass


def test_metrics_add_up(kinesis: LocalKinesis) -> None:
    """The KPL's names are filled, and their sums are what was put."""
    metrics = MemoryMetrics()
    put = records_of(500)
    run(kinesis, lambda producer: put_each(producer, put), metrics=metrics)
    assert metrics.of("UserRecordsReceived").total == 500
    assert metrics.of("UserRecordsPut").total == 500
    assert metrics.of("UserRecordsDataPut").total == sum(len(data) for _, data in put)
    records = kinesis.engine.records("s")
    assert metrics.of("KinesisRecordsPut").total == len(records)
    assert metrics.of("KinesisRecordsDataPut").total == sum(len(r.data) for r in records)
    assert metrics.of("UserRecordsPut", shard_id=FIRST).total == sum(
        1 for e in stored(kinesis) if e.shard_id == FIRST
    )
    assert metrics.of("UserRecordsPerKinesisRecord").total == 500
    assert metrics.of("RetriesPerRecord").total == 0
    assert metrics.of("BufferingTime").times == 500
    assert metrics.of("RequestTime").times == metrics.of("KinesisRecordsPerPutRecordsRequest").times
    assert metrics.of("AllErrors").times == 0


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
        assert shards[result.shard_id].low <= _hash(key) <= shards[result.shard_id].high


def test_blocking_face(kinesis: LocalKinesis) -> None:
    """For scripts: put gives a future, put_all the results in order; leaving flushes."""
    put = records_of(12_000)
    with BlockingProducer(connection(kinesis), QUICK) as producer:
        future = producer.put("first", b"x")
        assert future.result(10).shard_id
        results = producer.put_all(iter(put))
        producer.put("last", b"y")
    producer.close()
    assert producer.acknowledged == 12_002
    assert producer.failed == {}
    check_acknowledged(kinesis, put, results)
    assert_order_within_keys(kinesis)
    with pytest.raises(UsageError):
        producer.put("k", b"")
    with pytest.raises(UsageError):
        producer.flush()


def test_blocking_failures(kinesis: LocalKinesis) -> None:
    """Failures come out of the future, and out of put_all as one error with their places."""
    settings = ProducerSettings(
        record_max_buffered_time_ms=10, fail_if_throttled=True, aggregation_enabled=False
    )
    with BlockingProducer(connection(kinesis), settings) as producer:
        with pytest.raises(InvalidUserRecord):
            producer.put("", b"").result(10)
        kinesis.faults.fail_entries(skip=6000, times=3)
        with pytest.raises(PutFailed, match="3 of 8000") as caught:
            producer.put_all(records_of(8000))
        failed = caught.value.facts["failures"]
        assert len(failed) == 3
        missing = {data for _, data in records_of(8000)} - {each.data for each in stored(kinesis)}
        assert {records_of(8000)[index][1] for index in failed} == missing
        assert producer.failed == {THROTTLED: 3}


def test_an_interrupt_while_flushing_answers_and_closes_all(kinesis: LocalKinesis) -> None:
    """Ctrl-C in a script that cannot put its records: nobody waits for ever, and nothing is left open."""
    kinesis.faults.throttle(calls=("PutRecords",))

    class Interrupted(BlockingProducer):
        def _call(self, work: Any) -> Any:
            if work.__name__ != "close":
                return super()._call(work)
            asyncio.run_coroutine_threadsafe(work, self._running())
            raise KeyboardInterrupt

    producer = Interrupted(connection(kinesis), QUICK)
    producer.start()
    thread, inner = producer._thread, producer._producer
    futures = [producer.put("k", b"%d" % n) for n in range(5)]
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    assert [future.cancelled() for future in futures] == [True] * 5
    assert producer.failed == {"Closed": 5}
    assert thread is not None
    assert not thread.is_alive()
    assert inner._pool is None


def test_blocking_back_pressure(kinesis: LocalKinesis) -> None:
    """The blocking put waits for room, too."""
    kinesis.faults.delay(20, calls=("PutRecords",))
    settings = ProducerSettings(record_max_buffered_time_ms=1, max_outstanding_records=5)
    with BlockingProducer(connection(kinesis), settings) as producer:
        futures = []
        for n in range(30):
            futures.append(producer.put("k", b"%d" % n))
            assert sum(not future.done() for future in futures) <= 6
    assert len(stored(kinesis)) == 30


def test_waiters_take_turns_and_may_leave(kinesis: LocalKinesis) -> None:
    """Waiting for room is first come first served; one who gives up, or puts nonsense, blocks nobody."""
    kinesis.faults.delay(30, calls=("PutRecords",))
    settings = ProducerSettings(record_max_buffered_time_ms=1, max_outstanding_records=1)

    async def work(producer: Producer) -> None:
        tasks = [asyncio.ensure_future(producer.put("k", b"%02d" % n)) for n in range(12)]
        nonsense = asyncio.ensure_future(producer.put("", b""))
        await asyncio.sleep(0.02)
        tasks[5].cancel()
        await asyncio.sleep(0.1)
        tasks[9].cancel()
        results = await asyncio.gather(*tasks, nonsense, return_exceptions=True)
        assert [type(r).__name__ for r in results[-1:]] == ["InvalidUserRecord"]
        assert sum(isinstance(r, PutResult) for r in results) == 10

    run(kinesis, work, settings)
    datas = [each.data for each in stored(kinesis)]
    assert datas == sorted(datas)
    assert len(datas) >= 10


@pytest.mark.thorough
def test_sending_without_results_stops_at_the_first_failure(kinesis: LocalKinesis) -> None:
    """`send_all` counts; after a failure it takes no more, and what it took is in the stream or named."""
    with BlockingProducer(connection(kinesis), QUICK) as producer:
        assert producer.send_all(iter(records_of(12_000))) == 12_000
    taken = 0

    def endless() -> Iterator[tuple[str, bytes]]:
        nonlocal taken
        while True:
            taken += 1
            yield "k", b"x"

    kinesis.faults.refuse("AccessDeniedException", calls=("PutRecords",))
    with BlockingProducer(connection(kinesis)) as producer, pytest.raises(PutFailed) as caught:
        producer.send_all(endless())
    assert caught.value.facts["reasons"] == {"AccessDeniedException": taken}
