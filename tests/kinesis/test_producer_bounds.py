"""The producer where callers reuse buffers, wait for room while it closes, or copy aggregates."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from headpond import kpl
from headpond.core.errors import UsageError
from headpond.kinesis.producer import BlockingProducer, Producer, ProducerSettings
from headpond.kpl import InvalidUserRecord, UserRecord
from headpond.kpl.hash_keys import InvalidHashKey
from headpond.localkinesis.testing import read_all
from tests.kinesis.producer_kit import QUICK, connection, run, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.localkinesis import LocalKinesis

WANTED = [b"%04d" % n for n in range(5)]


def reused() -> Iterator[tuple[str, Any]]:
    """One buffer, filled anew for each record."""
    buffer = bytearray(4)
    for wanted in WANTED:
        buffer[:] = wanted
        yield "k", buffer


@pytest.mark.slow
def test_a_buffer_may_be_used_again_as_soon_as_put_returns(kinesis: LocalKinesis) -> None:
    """What is stored is what the buffer held then, whoever puts and however."""

    async def work(producer: Producer) -> None:
        for key, buffer in reused():
            await producer.submit(key, buffer)
        await producer.put_many(reused())

    run(kinesis, work)
    with BlockingProducer(connection(kinesis), QUICK) as producer:
        for key, buffer in reused():
            producer.put(key, memoryview(buffer))
        producer.put_all(reused())
    assert sorted(one.data for one in stored(kinesis)) == sorted(WANTED * 4)


def test_flush_and_close_send_what_waits_for_room(kinesis: LocalKinesis) -> None:
    """Whatever was put before is sent, also where it did not fit yet; later puts are refused."""
    settings = ProducerSettings(record_max_buffered_time_ms=10, max_outstanding_records=10)

    async def work() -> list[Any]:
        producer = Producer(connection(kinesis), settings)
        await producer.start()
        tasks = [asyncio.create_task(producer.put("k", b"%d" % n)) for n in range(100)]
        await asyncio.sleep(0)
        await producer.flush()
        assert producer.acknowledged == 100
        tasks += [asyncio.create_task(producer.put("k", b"%d" % n)) for n in range(100, 200)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        with pytest.raises(UsageError):
            await producer.put("k", b"too late")
        await closing
        return await asyncio.gather(*tasks)

    assert len(asyncio.run(asyncio.wait_for(work(), 60))) == 200
    assert sorted(int(one.data) for one in stored(kinesis)) == list(range(200))


def test_a_wait_for_room_that_is_given_up_does_not_keep_flush_waiting(kinesis: LocalKinesis) -> None:
    """Cancelled waiters leave nothing behind, whether their turn had come or not."""

    async def work(producer: Producer) -> None:
        await producer.submit("k", b"first")
        tasks = [asyncio.create_task(producer.put("k", b"x")) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await producer.flush()

    run(kinesis, work, ProducerSettings(record_max_buffered_time_ms=10, max_outstanding_records=1))
    assert [one.data for one in stored(kinesis)] == [b"first"]


@pytest.mark.slow
def test_a_blocking_put_waits_for_room_in_bytes(kinesis: LocalKinesis) -> None:
    """With nothing acknowledged, no more is taken in than the bound and one record."""
    kinesis.faults.throttle(calls=("PutRecords",))
    settings = ProducerSettings(
        record_max_buffered_time_ms=1, record_ttl_ms=2_000, max_outstanding_bytes=100_000
    )
    taken = []
    with BlockingProducer(connection(kinesis), settings) as producer:

        def feed() -> None:
            for _ in range(50):
                taken.append(producer.put("k", b"x" * 20_000))  # noqa: PERF401 - counted while it goes on

        feeder = threading.Thread(target=feed)
        feeder.start()
        feeder.join(1)
        assert feeder.is_alive()
        assert len(taken) <= 6
        kinesis.faults.clear()
        feeder.join(30)
    assert len(taken) == 50


def test_threads_that_put_while_another_closes_get_an_answer_each(kinesis: LocalKinesis) -> None:
    """In the stream, or not taken in: nothing hangs, and nothing but a UsageError comes out of `put`."""
    settings = ProducerSettings(record_max_buffered_time_ms=1, max_outstanding_records=3)
    taken: list[Any] = []
    refused: list[Exception] = []
    producer = BlockingProducer(connection(kinesis), settings)
    producer.start()

    def feed(thread: int) -> None:
        for n in count():
            try:
                taken.append(producer.put("k", b"%d-%d" % (thread, n)))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at below
                refused.append(error)
                return

    feeders = [threading.Thread(target=feed, args=(n,), daemon=True) for n in range(8)]
    for feeder in feeders:
        feeder.start()
    time.sleep(0.3)
    closers = [threading.Thread(target=producer.close, daemon=True) for _ in range(2)]
    for each in closers:
        each.start()
    for each in closers + feeders:
        each.join(30)
        assert not each.is_alive()
    assert [type(error) for error in refused] == [UsageError] * 8
    results = [future.result(0) for future in taken]
    assert len(stored(kinesis)) == len({result[:3] for result in results}) == len(taken) > 0
    with pytest.raises(UsageError):
        producer.flush()


def test_the_blocking_face_has_tags_a_time_out_and_what_is_outstanding(kinesis: LocalKinesis) -> None:
    """A flush that takes too long raises TimeoutError, and what it waited for is sent all the same."""
    kinesis.faults.throttle(calls=("PutRecords",))
    with BlockingProducer(connection(kinesis), QUICK) as producer:
        future = producer.put("k", b"x", None, (("trace", "17"),))
        with pytest.raises(TimeoutError):
            producer.flush(0.2)
        assert producer.outstanding == 1
        kinesis.faults.clear()
        producer.flush(30)
        assert producer.outstanding == 0
        assert future.result().shard_id
    (record,) = read_all(kinesis.client(), "s")
    opened = kpl.decode(record.data)
    assert isinstance(opened, kpl.Aggregate)
    assert opened.records[0].tags == (("trace", "17"),)


@pytest.mark.slow
def test_without_aggregation_an_aggregate_is_copied_as_it_is(kinesis: LocalKinesis) -> None:
    """Consumers open it as they opened the one it was copied from."""
    packed = kpl.encode([UserRecord("a", b"1"), UserRecord("b", b"2")])

    async def work(producer: Producer) -> None:
        await producer.put(packed.partition_key, packed.data, packed.explicit_hash_key)

    run(kinesis, work, ProducerSettings(record_max_buffered_time_ms=1, aggregation_enabled=False))
    (record,) = read_all(kinesis.client(), "s")
    assert record.data == packed.data


@pytest.mark.slow
@pytest.mark.parametrize("hash_key", [7, 7.0, b"7"])
def test_a_hash_key_that_is_no_text_is_refused_by_name(kinesis: LocalKinesis, hash_key: Any) -> None:
    """As other wrong input is, by both faces."""

    async def work(producer: Producer) -> None:
        await producer.put("k", b"x", hash_key)

    with pytest.raises(InvalidHashKey, match=repr(hash_key)):
        run(kinesis, work)
    with BlockingProducer(connection(kinesis)) as producer:
        with pytest.raises(InvalidHashKey):
            producer.put("k", b"x", hash_key).result()
        with pytest.raises(InvalidUserRecord):
            producer.put("k", 5)  # type: ignore[arg-type]
