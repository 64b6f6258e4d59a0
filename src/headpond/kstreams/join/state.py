"""States of join tasks handed over: from Kafka Streams, and to another number of tasks.

A state is one partition's. Tasks get the records of their keys, in the order in which they arrived::

    task 0 of 2: keys 0 2 4 6 …   ─┬─► task 0 of 3        a key's task is its hash modulo the tasks
    task 1 of 2: keys 1 3 5 7 …   ─┴─► …

and of all old tasks whose keys may have come to them the greatest stream time and observed times, as if they
had been one task: what was too late for one of them is too late for the new one. With as many tasks as there
were partitions, and keys partitioned as Kafka does it, each task continues its own partition's state.
Source: spec "window store", sections 4.4, 8 and 8.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import gcd

import numpy as np

from headpond.core.arrow import distinct
from headpond.core.errors import UsageError
from headpond.core.hashes import task_of
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.alignment import dealt
from headpond.kstreams.join.chunks import Kept, TaskState, compacted, cut
from headpond.kstreams.join.pairs import Bool, Rows
from headpond.kstreams.join.rules import JoinClock, JoinRules


@dataclass(frozen=True, slots=True)
class JoinState:
    """What a Kafka Streams application's join task held.

    Args:
        fingerprint: `JoinRules.fingerprint` of the join that it belongs to.
        task: The state: times, and per side the records that still matter.
    """

    fingerprint: str
    task: TaskState


def adopted(states: Sequence[JoinState], tasks: int, rules: JoinRules) -> list[TaskState]:
    """Make task states of handed-over ones, in the order of their partitions.

    Raises:
        UsageError: There is none, or one belongs to another join.
    """
    if not states:
        raise UsageError("There is no initial state to start from.", next_step="Leave initial_state out.")
    for state in states:
        if state.fingerprint != rules.fingerprint:
            raise UsageError(
                f"The state is that of the join {state.fingerprint}, and this one is {rules.fingerprint}.",
                next_step="Continue it with the same type, windows and emission.",
            )
    each = [state.task for state in states]
    return each if len(each) == tasks == 1 else rescaled(each, tasks, rules)


def rescaled(states: Sequence[TaskState], tasks: int, rules: JoinRules) -> list[TaskState]:
    """Distribute the states of all tasks among `tasks` new ones."""
    old = len(states)
    step = gcd(old, tasks)
    next_seq = max(state.next_seq for state in states) * old + old
    sides = tuple(states[0].sides)
    shares = {side: _shares(states, side, tasks) for side in sides}
    found = []
    inputs = dealt(states, tasks)
    for task in range(tasks):
        clock = _clock([states[each] for each in range(task % step, old, step)])
        numbers = count(0)
        state = {side: _side(shares[side][task], clock.observed[side], rules, numbers) for side in sides}
        held = {
            each_side: tuple(
                replace(each, chunk=replace(each.chunk, number=next(numbers))) for each in chunks
            )
            for each_side, chunks in inputs[task].held.items()
        }
        mine = replace(inputs[task], held=held)
        # Numbers of results go on above those of all tasks: none of a task's comes twice.
        results = max(each.results for each in states)
        found.append(TaskState(clock, next_seq, next(numbers), state, mine, results))
    return found


def _shares(states: Sequence[TaskState], side: Side, tasks: int) -> list[list[tuple[Rows, Bool]]]:
    """Return one side's records, and which of them wait, by new task."""
    shares: list[list[tuple[Rows, Bool]]] = [[] for _ in range(tasks)]
    for number, state in enumerate(states):
        for chunk, waits in state.sides[side]:
            rows = chunk.data
            moved = Rows(rows.records, rows.ts, rows.seq * len(states) + number, rows.hashes)
            where = task_of(rows.records.column("key"), tasks)
            for task in distinct(where):
                chosen = np.flatnonzero(where == task)
                shares[task].append((moved.take(chosen), waits.flags[chosen]))
    return shares


def _side(
    parts: list[tuple[Rows, Bool]], observed: int, rules: JoinRules, numbers: Iterator[int]
) -> tuple[Kept, ...]:
    """Cut a side's records part by part: of a state beyond memory no two parts are needed at once."""
    found: list[Kept] = []
    for rows, waiting in parts:
        matters = np.flatnonzero((rows.ts >= observed - rules.retention_ms + 1) | waiting)
        found += cut(rows.take(matters), waiting[matters], rules.retention_ms, numbers)
    return compacted(found, numbers)


def _clock(states: list[TaskState]) -> JoinClock:
    clocks = [state.clock for state in states]
    return JoinClock(
        max(clock.stream_time for clock in clocks),
        {side: max(clock.observed[side] for clock in clocks) for side in clocks[0].observed},
        min(clock.min_time for clock in clocks),
        max(clock.next_emit_ms for clock in clocks),
    )
