"""What tests of the producer against the local Kinesis share."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.producer import Producer, ProducerSettings, PutFailed, PutResult
from headpond.kpl import Aggregate, UserRecord, decode, encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headpond.localkinesis import LocalKinesis


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


def hash_of(key: str) -> int:
    return int(encode([UserRecord(key, b"")]).explicit_hash_key)
