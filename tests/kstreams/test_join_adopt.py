"""The batch engine finishes what an application of Kafka Streams began."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from headpond.core.errors import UsageError
from headpond.kstreams import JoinRules, JoinWindows
from headpond.kstreams.join.state import adopted
from tests.kstreams.join_cuts import run
from tests.kstreams.test_join_kafka_state import NAMES, Handover, held

if TYPE_CHECKING:
    from pathlib import Path

    from headpond.kstreams import JoinState


def expected(handover: Handover) -> list[tuple[object, ...]]:
    return [
        (each["key"], each["value"], each["timestamp"], each["headers"])
        for step in handover.expected
        for each in step
    ]


def found(handover: Handover, state: JoinState, cuts: int) -> list[tuple[object, ...]]:
    """The second half in batches of so many records."""
    steps = handover.after.steps
    records = [(s.side, s.key, s.value, s.timestamp, list(s.headers)) for s in steps]
    bounds = [*range(0, len(records), cuts), len(records)]
    # The wall clock moves by the record, as in the tests of the other engine.
    batches = [(records[start:stop], start) for start, stop in pairwise(bounds)]
    out, _, _ = run(handover.rules, batches, adopted([state], 1, handover.rules)[0])
    return [
        (
            None if key is None else key.decode(),
            value.decode(),
            timestamp,
            [[name, None if data is None else data.hex()] for name, data in headers],
        )
        for key, value, timestamp, headers in out
    ]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["directories", "changelogs"])
@pytest.mark.parametrize("name", NAMES)
def test_the_second_half_in_batches(name: str, source: str, tmp_path: Path) -> None:
    """Outputs, order, times and headers are those of Kafka Streams' undivided run."""
    handover = Handover(name)
    state = handover.from_directories(tmp_path) if source == "directories" else handover.from_changelogs()
    for cuts in (13, 1 << 30):
        assert found(handover, state, cuts) == expected(handover)


@pytest.mark.parametrize("name", NAMES)
def test_dealt_out_among_several_tasks_nothing_is_lost(name: str) -> None:
    """Each record lies in the task of its key, waiting or not, with the stream time of its partition."""
    handover = Handover(name)
    state = handover.from_changelogs()
    tasks = adopted([state], 3, handover.rules)
    rows = Counter(
        (side.value, key, ts, bool(waits.flags[row]))
        for task in tasks
        for side, each in task.sides.items()
        for chunk, waits in each
        for row, (key, ts) in enumerate(
            zip(chunk.records.column("key").to_pylist(), chunk.data.ts.tolist(), strict=True)
        )
    )
    whole = held(state.task, handover.rules)
    assert rows == Counter((each.side, each.key, each.timestamp, each.waits) for each in whole)
    assert {task.clock.stream_time for task in tasks} == {state.task.clock.stream_time}


def test_the_state_of_another_join_is_not_adopted() -> None:
    """Nor no state at all."""
    handover = Handover("inner-headers")
    with pytest.raises(UsageError, match="state is that of the join"):
        adopted([handover.from_changelogs()], 1, JoinRules("inner", JoinWindows(1, 2)))
    with pytest.raises(UsageError, match="no initial state"):
        adopted([], 1, handover.rules)
