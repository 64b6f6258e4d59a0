"""The newest record of a shard: exact, and with little reading however the records are spread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from source_kit import STREAM
from test_plan_histories import EngineCalls

from headpond.kinesis import tip
from headpond.kinesis.cursor import LossRule
from headpond.kinesis.local import Engine
from headpond.kinesis.positions import HORIZON
from headpond.kinesis.testing import ManualClock

if TYPE_CHECKING:
    from headpond.kinesis.replies import Page

SHARD = "shardId-000000000000"
LOSS = LossRule(STREAM, 24 * 3_600_000)


class Counted(EngineCalls):
    """Calls and records that a search takes."""

    calls, records = 0, 0

    def page(self, iterator: object, shard_id: str, limit: int) -> Page:
        found = super().page(iterator, shard_id, limit)
        self.calls += 1
        self.records += len(found.records)
        return found


@pytest.mark.parametrize(
    ("pauses_ms", "calls", "records"),
    [
        ([5] * 2000, 25, 60),  # dense: ten seconds of 200 a second
        ([60_000] * 2000, 25, 30),  # sparse: a day and a third
        ([1] * 1000 + [7_200_000] + [1] * 1000, 30, 110),  # two bursts, hours apart
        ([60_000] * 1000 + [1] * 1000, 30, 110),
        ([1] * 1000 + [60_000] * 5, 30, 30),
        ([0] * 300, 30, 310),  # all at one moment: nothing but reading tells
    ],
    ids=["dense", "sparse", "bursts", "burst last", "burst first", "moment"],
)
@pytest.mark.parametrize("age_ms", [0, 1_500, 3_600_000])
@pytest.mark.parametrize("recent_first", [False, True], ids=["", "recent"])
def test_the_newest_record_is_found(
    pauses_ms: list[int],
    calls: int,
    records: int,
    age_ms: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    recent_first: bool,
) -> None:
    """The last one there is, and where some are too young the last that is not."""
    monkeypatch.setattr(tip, "_PEEK_RECORDS", 3)
    clock = ManualClock()
    engine = Engine(clock=clock)
    engine.create_stream(STREAM, 1)
    for number, pause_ms in enumerate(pauses_ms):
        clock.advance(pause_ms)
        engine.put(STREAM, "k", b"%d" % number)
    clock.advance(age_ms)
    kept = engine.records(STREAM, SHARD)
    made = Counted(engine)
    found = tip.find_tip(made, SHARD, HORIZON, LOSS, recent_first=recent_first)
    assert found.end.number == kept[-1].sequence_number
    assert made.calls <= calls + recent_first  # the look that finds nothing
    assert made.records <= records
    newest_ms = kept[len(kept) // 2].arrival_ms
    found = tip.find_tip(made, SHARD, HORIZON, LOSS, newest_ms=newest_ms, recent_first=recent_first)
    assert found.end.number == max(r.sequence_number for r in kept if r.arrival_ms <= newest_ms)


def test_of_a_live_shard_hardly_more_than_the_end_is_read() -> None:
    """However much lies before it: the oldest record, and those of the last seconds."""
    clock = ManualClock()
    engine = Engine(clock=clock)
    engine.create_stream(STREAM, 1)
    for number in range(2_000):
        clock.advance(100)
        engine.put(STREAM, "k", b"%d" % number)
    clock.advance(50)
    made = Counted(engine)
    found = tip.find_tip(made, SHARD, HORIZON, LOSS, recent_first=True)
    assert found.end.number == engine.records(STREAM, SHARD)[-1].sequence_number
    assert (made.calls, made.records) == (3, 1 + 1 + 40)
    assert found.oldest_ms == engine.records(STREAM, SHARD)[0].arrival_ms
