"""States of a join dealt out among another number of tasks."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headpond.core.hashes import task_of
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.by_batch import BatchJoin, initial_state
from headpond.kstreams.join.rules import JoinRules, JoinWindows
from headpond.kstreams.join.state import rescaled
from tests.kstreams.join_cuts import SCHEMAS, Record, arrivals_of, told

if TYPE_CHECKING:
    from headpond.kstreams.join.chunks import TaskState

KEYS = [b"key-%d" % number for number in range(12)]


def in_order(chance: random.Random, start: int, count: int) -> list[Record]:
    """Records in the order of their times: results then do not depend on who shares a task."""
    now, records = start, []
    for number in range(count):
        now += chance.choice([0, 1, 2])
        records.append(
            (
                chance.choice(list(Side)),
                chance.choice(KEYS),
                b"%d-%d" % (start, number),
                now,
                [("n", b"%d" % number)],
            )
        )
    return records


def run(
    rules: JoinRules, states: list[TaskState], records: list[Record]
) -> tuple[Counter[object], list[TaskState]]:
    out: Counter[object] = Counter()
    after = []
    for task, state in enumerate(states):
        mine = [
            r
            for r in records
            if r[1] is None or task_of(pa.array([r[1]], pa.binary()), len(states))[0] == task
        ]
        last = state
        for step in BatchJoin(rules, SCHEMAS).steps(state, arrivals_of(mine)):
            for batch in step.results.batches():
                out.update((key, value, ts, tuple(headers)) for key, value, ts, headers in told(batch))
            last = step.state
        after.append(last)
    return out, after


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["inner", "outer"])
@pytest.mark.parametrize("path", [(1, 3), (3, 1), (2, 4), (4, 2), (2, 3), (5, 3, 5)])
def test_rescaling_changes_no_result(kind: str, path: tuple[int, ...]) -> None:
    """Joined, unmatched, still waiting: all as if there had been one task from the beginning."""
    chance = random.Random(str(path))
    rules = JoinRules(kind, JoinWindows(6, 4, 3))
    parts: list[list[Record]] = []
    for _ in path:
        # Records near a cut have partners on its other side.
        parts.append(in_order(chance, parts[-1][-1][3] if parts else 50, 120))
    flush: list[Record] = [(Side.LEFT, key, b"flush", 10_000, []) for key in KEYS]
    parts[-1] = [*parts[-1], *flush]
    expected: Counter[object] = Counter()
    states = [initial_state(rules)]
    for part in parts:
        out, states = run(rules, states, part)
        expected += out
    found: Counter[object] = Counter()
    states = [initial_state(rules) for _ in range(path[0])]
    for number, (tasks, part) in enumerate(zip(path, parts, strict=True)):
        if number:
            before = Counter((s, k) for s, k in _records(states))
            states = rescaled(states, tasks, rules)
            assert Counter(_records(states)) <= before
        out, states = run(rules, states, part)
        found += out
    assert found == expected


def _records(states: list[TaskState]) -> list[tuple[Side, bytes]]:
    return [
        (side, value) for state in states for side, chunk in state.chunks()
        for value in chunk.records.column("value").to_pylist()
    ]  # fmt: skip
