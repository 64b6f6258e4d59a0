"""The states of a join's tasks, dealt out anew among another number of tasks.

::

    task 0 of 2: keys 0 2 4 6 …   ─┬─► task 0 of 3        a key's task is its hash modulo the tasks
    task 1 of 2: keys 1 3 5 7 …   ─┴─► …

A new task gets the records of its keys, in the order in which they arrived, and of all old tasks whose keys
may have come to it the greatest stream time and observed times, as if they had been one task: what was too
late for one of them is too late for the new one. A key lies in one old task, so that numbers of arrival need
only keep their order within each old task.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headpond.windows.join_batch_runs import Int64, Rows
from headpond.windows.join_chunks import Numbers, SideState, TaskState, cut
from headpond.windows.join_keys import task_of
from headpond.windows.rules import JoinClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headpond.formats.outer_join_buffer import Side
    from headpond.windows.join_batch_runs import Bool
    from headpond.windows.rules import JoinRules


def rescaled(states: Sequence[TaskState], tasks: int, rules: JoinRules) -> list[TaskState]:
    """Deal the states of all tasks out among `tasks` new ones."""
    old = len(states)
    step = gcd(old, tasks)
    next_seq = max(state.next_seq for state in states) * old + old
    sides = tuple(states[0].sides)
    shares = {side: _shares(states, side, tasks) for side in sides}
    found = []
    for task in range(tasks):
        clock = _clock([states[each] for each in range(task % step, old, step)])
        numbers = Numbers(0)
        state = {side: _side(shares[side][task], clock.observed[side], rules, numbers) for side in sides}
        found.append(TaskState(clock, next_seq, numbers.following, state))
    return found


def _shares(states: Sequence[TaskState], side: Side, tasks: int) -> list[list[tuple[Rows, Bool]]]:
    """One side's records, and which of them wait, by new task."""
    shares: list[list[tuple[Rows, Bool]]] = [[] for _ in range(tasks)]
    for number, state in enumerate(states):
        kept = state.sides[side]
        for chunk, waiting in zip(kept.chunks, kept.waiting, strict=True):
            rows = chunk.data
            flags = np.zeros(len(rows), np.bool_)
            flags[waiting] = True
            moved = Rows(rows.records, rows.ts, rows.seq * len(states) + number, rows.hashes)
            where = task_of(rows.records.column("key"), tasks)
            for task in np.unique(where):
                chosen = np.flatnonzero(where == task)
                shares[task].append((moved.take(chosen), flags[chosen]))
    return shares


def _side(parts: list[tuple[Rows, Bool]], observed: int, rules: JoinRules, numbers: Numbers) -> SideState:
    if not parts:
        return SideState()
    seq = np.concatenate([rows.seq for rows, _ in parts])
    order: Int64 = np.argsort(seq, kind="stable")
    waiting = np.concatenate([flags for _, flags in parts])[order]
    table = pa.Table.from_batches([rows.records for rows, _ in parts]).combine_chunks()
    together = Rows(
        table.to_batches()[0].take(pa.array(order)),
        np.concatenate([rows.ts for rows, _ in parts])[order],
        seq[order],
        np.concatenate([rows.hashes for rows, _ in parts])[order],
    )
    matters = np.flatnonzero((together.ts >= observed - rules.retention_ms + 1) | waiting)
    chunks = list(cut(together.take(matters), waiting[matters], rules.retention_ms, numbers))
    return SideState(tuple(chunk for chunk, _ in chunks), tuple(rows for _, rows in chunks))


def _clock(states: list[TaskState]) -> JoinClock:
    clocks = [state.clock for state in states]
    return JoinClock(
        max(clock.stream_time for clock in clocks),
        {side: max(clock.observed[side] for clock in clocks) for side in clocks[0].observed},
        min(clock.min_time for clock in clocks),
        max(clock.next_emit_ms for clock in clocks),
    )
