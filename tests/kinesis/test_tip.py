"""The newest record of a shard: exact, and with little reading however the records are spread."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from headpond.kinesis.planning.shard_state import UNBOUNDED, ShardState
from headpond.kinesis.reading.cursor import LossRule
from headpond.kinesis.reading.positions import END, HORIZON, Position
from headpond.localkinesis import Engine
from headpond.localkinesis.testing import ManualClock
from tests.kinesis.source_kit import STREAM
from tests.kinesis.test_plan_histories import EngineCalls

if TYPE_CHECKING:
    from headpond.kinesis.api.replies import Page

SHARD = "shardId-000000000000"
LOSS = LossRule(STREAM, 24 * 3_600_000)


def tip_of(calls: EngineCalls, newest_ms: int = UNBOUNDED) -> Position:
    """Plan up to the tip from the horizon."""
    state = ShardState(calls, SHARD, HORIZON, LOSS)
    state.begin(newest_ms)
    state.reach(None)
    return state.position


LARGE = b64encode(bytes(300_000)).decode()  # three of them are about a MiB


class Counted(EngineCalls):
    """Calls and records that a search takes."""

    calls, records = 0, 0

    def page(self, iterator: object, shard_id: str, limit: int) -> Page:
        found = super().page(iterator, shard_id, limit)
        self.calls += 1
        self.records += len(found.records)
        return found


class CountedLarge(Counted):
    """The same, where all records are large."""

    def page(self, iterator: object, shard_id: str, limit: int) -> Page:
        found = super().page(iterator, shard_id, limit)
        return replace(found, records=[replace(record, text=LARGE) for record in found.records])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pauses_ms", "calls", "records"),
    [
        ([5] * 2000, 25, 60),  # dense: ten seconds of 200 a second
        ([60_000] * 2000, 25, 30),  # sparse: a day and a third
        ([1] * 1000 + [7_200_000] + [1] * 1000, 30, 110),  # two bursts, hours apart
        ([60_000] * 1000 + [1] * 1000, 30, 110),
        ([1] * 1000 + [60_000] * 5, 30, 30),
        ([0] * 300, 50, 310),  # all at one moment: nothing but reading tells
    ],
    ids=["dense", "sparse", "bursts", "burst last", "burst first", "moment"],
)
@pytest.mark.parametrize("age_ms", [0, 1_500, 3_600_000])
def test_the_newest_record_is_found(
    pauses_ms: list[int],
    calls: int,
    records: int,
    age_ms: int,
) -> None:
    """The last one there is, and where some are too young the last that is not."""
    clock = ManualClock()
    engine = Engine(clock=clock)
    engine.create_stream(STREAM, 1)
    for number, pause_ms in enumerate(pauses_ms):
        clock.advance(pause_ms)
        engine.put(STREAM, "k", b"%d" % number)
    clock.advance(age_ms)
    kept = engine.records(STREAM, SHARD)
    made = CountedLarge(engine)
    found = tip_of(made)
    assert found.number == kept[-1].sequence_number
    assert made.calls <= calls
    assert made.records <= records
    newest_ms = kept[len(kept) // 2].arrival_ms
    found = tip_of(made, newest_ms)
    assert found.number == max(r.sequence_number for r in kept if r.arrival_ms <= newest_ms)


@pytest.mark.parametrize(("pause_ms", "calls"), [(50, 7), (200, 5), (5_000, 5), (60_000, 5), (3_600_000, 7)])
def test_of_a_long_past_little_is_read(pause_ms: int, calls: int) -> None:
    """A look at its beginning, and one at the last seconds, or at ever more where they are empty."""
    clock = ManualClock()
    engine = Engine(clock=clock)
    engine.create_stream(STREAM, 1)
    for number in range(2_000):
        engine.put(STREAM, "k", b"%d" % number)
        clock.advance(pause_ms)
    made = CountedLarge(engine)
    found = tip_of(made)
    assert found.number == engine.records(STREAM, SHARD)[-1].sequence_number
    assert made.calls <= calls
    assert made.records <= 10 + 12  # the first look and about as much again: what is left is for tasks


@pytest.mark.parametrize("age_ms", [0, 60_000])
def test_the_end_of_a_shard_without_records_or_closed(age_ms: int) -> None:
    """An empty shard's end is its horizon; one that closed meanwhile is told to be."""
    clock = ManualClock()
    engine = Engine(clock=clock)
    engine.create_stream(STREAM, 1)
    clock.advance(age_ms)
    assert tip_of(EngineCalls(engine)) == HORIZON
    engine.put(STREAM, "k", b"1")
    clock.advance(age_ms)
    engine.split_shard(STREAM, SHARD)
    assert tip_of(EngineCalls(engine)) == END
