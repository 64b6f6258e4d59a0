"""The batch engine against the record-by-record one: random streams, random rules, random cuts."""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from headpond.kstreams import BufferFormat, JoinRecord, JoinRules, JoinStores, JoinWindows, Side, StreamJoin
from headpond.kstreams.bytes.headers_arrow import decode_headers_column
from headpond.kstreams.bytes.window_values import ValueFormat
from headpond.kstreams.join import arrivals, chunk_codec
from headpond.kstreams.join.by_batch import BatchJoin, initial_state
from headpond.kstreams.join.chunk_codec import (
    decode_chunk,
    encode_chunk,
    encode_manifest,
    read_manifest,
    state_of,
)
from headpond.kstreams.join.rules import JoinClock, JoinCounters
from tests.kit.support import share_of
from tests.kstreams.join_cuts import SCHEMAS, arrivals_of
from tests.kstreams.join_lines import random_records, random_rules

if TYPE_CHECKING:
    from headpond.kstreams.join.chunks import TaskState


Batches = list[tuple[list[JoinRecord], int]]


def by_record(rules: JoinRules, batches: Batches) -> tuple[list[object], JoinCounters, JoinClock]:
    """What the reference engine gives."""
    with StreamJoin(rules, JoinStores.build(rules, buffer_format=BufferFormat.HEADERS, join="j")) as join:
        out: list[object] = []
        for batch, now_ms in batches:
            for record in batch:
                out += [tuple(result) for result in join.process(record, now_ms)]
        return out, join.counters, join.clock


def by_batch(
    rules: JoinRules, batches: Batches, *, stored: bool, max_pairs: int
) -> tuple[list[object], TaskState, JoinCounters]:
    """What the batch engine gives; with `stored` its state is written and read back after every batch."""
    join = BatchJoin(rules, SCHEMAS, max_pairs=max_pairs)
    state, counters, out = initial_state(rules), JoinCounters(), []
    for batch, now_ms in batches:
        arrived = arrivals_of([(r.side, r.key, r.value, r.timestamp, list(r.headers)) for r in batch])
        for step in join.steps(state, arrived, now_ms):
            for results in step.results.batches(max_rows=7):
                headers = decode_headers_column(results.column("headers")).to_pylist()
                for row, listed in zip(results.to_pylist(), headers, strict=True):
                    pairs = tuple((each["key"], each["value"]) for each in listed)
                    out.append((row["key"], row["left_value"], row["right_value"], row["timestamp"], pairs))
            counters.add(step.counters)
            state = step.state
        if stored:
            state = written_and_read(state, rules)
    return out, state, counters


def written_and_read(state: TaskState, rules: JoinRules) -> TaskState:
    chunks = {
        chunk.number: encode_chunk(chunk.data, ValueFormat.PLAIN_HEADERS) for _, chunk in state.chunks()
    }
    for _, chunk in state.chunks():
        chunk.bytes = len(chunks[chunk.number])
    document = read_manifest(encode_manifest(state, {"rules": rules.fingerprint}))
    return state_of(
        document,
        tuple(state.sides),
        cache(lambda side, number, _uid, **_: decode_chunk(chunks[number], SCHEMAS[side])),
    )


def one_case(seed: int) -> None:
    chance = random.Random(seed)
    rules = random_rules(chance)
    records = random_records(chance, rules, chance.choice([10, 60, 200]))
    batches, now_ms, at = [], 0, 0
    while at < len(records):
        size = chance.choice([1, 1, 2, 5, 17, 1000])
        batches.append((records[at : at + size], now_ms))
        at += size
        now_ms += chance.choice([0, 1, 3, 10])
    agree(rules, batches, stored=chance.random() < 0.5, max_pairs=chance.choice([3, 1 << 20]))


def agree(rules: JoinRules, batches: Batches, *, stored: bool, max_pairs: int = 1 << 20) -> None:
    wanted, wanted_counters, clock = by_record(rules, batches)
    found, state, counters = by_batch(rules, batches, stored=stored, max_pairs=max_pairs)
    assert found == wanted
    assert counters == wanted_counters
    assert state.clock.stream_time == clock.stream_time
    assert (state.clock.min_time, state.clock.next_emit_ms) == (clock.min_time, clock.next_emit_ms)
    for side in state.sides:
        assert state.clock.observed[side] == clock.observed[side]


@pytest.fixture(params=[False, True], ids=["good hashes", "bad hashes"])
def hashes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes as they are, or all the same."""
    if request.param:
        for module in (arrivals, chunk_codec):
            monkeypatch.setattr(module, "hash_keys", lambda keys: np.zeros(len(keys), np.uint64))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_records_of_one_time_and_key_are_one_entry_where_a_round_stops(size: int) -> None:
    """The buffer has a list of them: the round's last look is at the entry behind it, at 104."""
    rules = JoinRules("outer", JoinWindows(0, 0, 10))
    times = [(Side.RIGHT, b"x", 95), (Side.RIGHT, b"b", 100), (Side.LEFT, b"a", 101), (Side.LEFT, b"a", 101),
             (Side.LEFT, b"c", 104), (Side.RIGHT, b"y", 106), (Side.LEFT, b"y", 114)]  # fmt: skip
    records = [JoinRecord(side, key, b"%d" % number, ts) for number, (side, key, ts) in enumerate(times)]
    cut = [(records[start : start + size], 0) for start in range(0, len(records), size)]
    agree(rules, cut, stored=True)
    assert by_record(rules, cut)[2].min_time == 104


@pytest.mark.slow
def test_both_engines_agree(hashes: None) -> None:
    """Results in order, headers, times, counters and clock."""
    for seed in range(12):
        one_case(seed)


@pytest.mark.thorough
def test_both_engines_agree_on_many_streams(hashes: None) -> None:
    """The same on many more."""
    for seed in range(1000, 1000 + share_of(400)):
        one_case(seed)
