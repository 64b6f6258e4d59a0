"""The engine of the local Kinesis under random histories of puts, reshards, reads and time."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.localkinesis import Engine, ServiceRefusalError, Settings
from headpond.localkinesis.model import Shard, Start, first_number
from headpond.localkinesis.testing import ManualClock
from tests.kit.support import share_of

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2**128 - 1)),
        st.tuples(st.just("split"), st.integers(0, 100)),
        st.tuples(st.just("merge"), st.integers(0, 100)),
        st.tuples(st.just("rescale"), st.integers(1, 6)),
        st.tuples(st.just("wait"), st.integers(-2, 1000)),
    ),
    max_size=40,
)


def play(steps: list[tuple[str, int]]) -> tuple[Engine, list[tuple[int, bytes]]]:
    """Run a history; gives the engine and what was put, as (hash key, data)."""
    clock = ManualClock()
    engine = Engine(clock=clock)
    engine.create_stream("s", 2)
    put: list[tuple[int, bytes]] = []
    for action, number in steps:
        shards = engine.stream("s").open_shards
        if action == "put":
            put.append((number, b"%d" % len(put)))
            engine.put("s", "k", put[-1][1], explicit_hash_key=number)
        elif action == "split":
            engine.split_shard("s", shards[number % len(shards)].shard_id)
        elif action == "merge" and len(shards) > 1:
            at = number % (len(shards) - 1)
            engine.merge_shards("s", shards[at].shard_id, shards[at + 1].shard_id)
        elif action == "rescale":
            engine.update_shard_count("s", number)
        elif action == "wait":
            clock.advance(number)
    return engine, put


@settings(max_examples=share_of(120))
@given(STEPS, st.integers(1, 5))
@pytest.mark.slow
def test_reading_every_shard_gives_every_record_once(steps: list[tuple[str, int]], limit: int) -> None:
    """Whatever the history, reading all shards in small replies gives each record once, in order."""
    engine, put = play(steps)
    seen: list[bytes] = []
    for shard in engine.shards("s"):
        position = engine.position("s", shard.shard_id, Start("TRIM_HORIZON"))
        last = shard.starting_sequence_number
        for _ in range(len(put) + 2):
            reading = engine.read(position, limit)
            assert len(reading.records) <= limit
            for record in reading.records:
                assert last < record.sequence_number < shard.ending_sequence_number
                assert shard.low <= record.hash_key <= shard.high
                last = record.sequence_number
                seen.append(record.data)
            if reading.position is None:
                assert shard.closed_ms is not None
                assert [child.shard_id for child in reading.children] == shard.children
                break
            assert bool(reading.behind_ms) == bool(engine.read(reading.position).records)
            position = reading.position
        else:
            assert shard.closed_ms is None
    assert sorted(seen) == sorted(data for _, data in put)


@settings(max_examples=share_of(120))
@given(STEPS)
@pytest.mark.slow
def test_open_shards_always_tile_the_key_space(steps: list[tuple[str, int]]) -> None:
    """Open shards cover every hash key once; children lie below their parents and start above their ends."""
    engine, _ = play(steps)
    stream = engine.stream("s")
    edge = 0
    for shard in stream.open_shards:
        assert shard.low == edge
        edge = shard.high + 1
    assert edge == 2**128
    for shard in stream.shards.values():
        for parent in shard.parents:
            assert stream.shards[parent].ending_sequence_number < shard.starting_sequence_number
            assert shard.shard_id in stream.shards[parent].children


@settings(max_examples=share_of(120))
@given(STEPS, st.integers(-1000, 2000))
@pytest.mark.slow
def test_a_time_place_gives_what_arrived_from_then(steps: list[tuple[str, int]], offset: int) -> None:
    """AT_TIMESTAMP gives exactly the records that arrived at or after the time."""
    engine, _ = play(steps)
    moment = min(engine.stream("s").created_ms + offset, engine.clock())
    for shard in engine.shards("s"):
        position = engine.position("s", shard.shard_id, Start("AT_TIMESTAMP", timestamp_ms=moment))
        assert engine.read(position).records == [r for r in shard.records if r.arrival_ms >= moment]


@given(*(st.integers(0, 10**digits - 2) for digits in (14, 8, 12)))
def test_a_sequence_number_has_56_digits_and_one_shard(created: int, generation: int, number: int) -> None:
    """A shard knows its own from those of its neighbours, of its children and of another stream."""
    mine = Shard(number, 0, 0, first_number(created, generation, number), 0)
    assert len(str(mine.starting_sequence_number)) == 56
    assert mine.gives(mine.ending_sequence_number)
    for others in (
        first_number(created, generation, number + 1),
        first_number(created, generation + 1, number),
        first_number(created + 1, generation, number),
    ):
        assert not mine.gives(others)


def test_threads_may_share_the_engine() -> None:
    """Puts from several threads while shards are split lose nothing."""
    engine = Engine()
    engine.create_stream("s")
    failures: list[Any] = []

    def work(thread: int) -> None:
        try:
            for n in range(300):
                engine.put("s", f"{thread}-{n}", b"x")
        except ServiceRefusalError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        engine.split_shard("s", engine.stream("s").open_shards[0].shard_id)
    for thread in threads:
        thread.join()
    assert not failures
    assert len(engine.records("s")) == 1200


def test_forgotten_shards_are_gone() -> None:
    """A closed shard can be made to expire for a test; an open one cannot."""
    engine = Engine(Settings())
    engine.create_stream("s")
    with pytest.raises(ServiceRefusalError, match="open"):
        engine.forget_shard("s", "shardId-000000000000")
    engine.split_shard("s", "shardId-000000000000")
    engine.forget_shard("s", "shardId-000000000000")
    with pytest.raises(ServiceRefusalError, match="does not exist"):
        engine.position("s", "shardId-000000000000", Start("TRIM_HORIZON"))
