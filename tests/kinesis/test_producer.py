"""The producer against the local Kinesis: in good weather, and through reshards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from headpond.kinesis.producer import MemoryMetrics, Producer, ProducerSettings, PutResult
from headpond.kpl import Aggregate, UserRecord, decode, encode
from tests.kinesis.producer_kit import (
    FIRST,
    assert_order_within_keys,
    check_acknowledged,
    copies,
    hash_of,
    put_each,
    records_of,
    run,
    stored,
    until,
    until_the_map_is_ready,
)

if TYPE_CHECKING:
    from headpond.localkinesis import LocalKinesis


def test_one_record_is_sent_raw_and_tells_where_it_is(kinesis: LocalKinesis) -> None:
    """A record alone is no aggregate; its result has shard, sequence number and the one attempt."""
    result = run(kinesis, lambda producer: producer.put("key", b"data"))
    [found] = stored(kinesis)
    assert result[:3] == found[:3]
    assert (found.data, found.partition_key, found.company) == (b"data", "key", 1)
    [attempt] = result.attempts
    assert attempt.end_ms >= attempt.start_ms


@pytest.mark.slow
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
                assert kinesis.engine.stream("s").shard_for(hash_of(each.partition_key)) is shard


@pytest.mark.slow
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


@pytest.mark.slow
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
        return kinesis.engine.stream("s").shard_for(hash_of(key)).shard_id

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


@pytest.mark.slow
def test_after_a_merge_nothing_goes_again(kinesis: LocalKinesis) -> None:
    """A merged shard takes all records of its parents: nothing is sent twice, though it was never seen."""
    put = records_of(300)

    async def work(producer: Producer) -> list[Any]:
        kinesis.engine.merge_shards("s", FIRST, "shardId-000000000001")
        return await put_each(producer, put)

    check_acknowledged(kinesis, put, run(kinesis, work))
    assert set(copies(kinesis).values()) == {1}


@pytest.mark.slow
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


@pytest.mark.slow
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
