"""Using the producer: bounds, flushing, closing, wrong input, metrics, and its blocking face."""

from __future__ import annotations

import asyncio
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import ConfigurationError, UsageError
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.producer import (
    BlockingProducer,
    MemoryMetrics,
    Producer,
    ProducerSettings,
    PutFailed,
    PutResult,
)
from headpond.kpl import InvalidUserRecord
from headpond.kpl.hash_keys import InvalidHashKey
from tests.kinesis.producer_kit import (
    FIRST,
    QUICK,
    THROTTLED,
    assert_order_within_keys,
    check_acknowledged,
    connection,
    put_each,
    records_of,
    run,
    stored,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.localkinesis import LocalKinesis


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_leaving_by_an_exception_still_flushes(kinesis: LocalKinesis) -> None:
    """What was taken in is put even if the block ends with an error."""

    async def work(producer: Producer) -> None:
        await producer.submit("k", b"x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(kinesis, work)
    assert len(stored(kinesis)) == 1


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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

    producer = BlockingProducer(connection(kinesis), QUICK)
    producer.start()
    thread, inner = producer._thread, producer._producer
    futures = [producer.put("k", b"%d" % n) for n in range(5)]
    interrupt = partial(signal.pthread_kill, threading.main_thread().ident, signal.SIGINT)
    threading.Timer(0.2, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    assert [future.cancelled() for future in futures] == [True] * 5
    assert producer.failed == {"Closed": 5}
    assert thread is not None
    assert not thread.is_alive()
    assert inner._pool is None


@pytest.mark.slow
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


@pytest.mark.slow
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
