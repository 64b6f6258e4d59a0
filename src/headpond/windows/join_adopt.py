"""States that an application of Kafka Streams left, as the states of a join's tasks here.

One state (of `join_handover`) is one partition's. Dealt out by the keys' hashes: with as many tasks as there
were partitions, and keys partitioned as Kafka does it, each task goes on with its own partition's state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headpond.errors import UsageError
from headpond.formats.header_batch import canonical_headers, split_prefix
from headpond.formats.outer_join_buffer import Side
from headpond.windows.join_batch_runs import Rows
from headpond.windows.join_chunks import Numbers, SideState, TaskState, cut
from headpond.windows.join_keys import hash_keys
from headpond.windows.join_rescale import rescaled
from headpond.windows.rules import JoinClock, JoinType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headpond.windows.join_state import JoinState
    from headpond.windows.rules import JoinRules

RECORD_SCHEMA = pa.schema([(name, pa.binary()) for name in ("key", "headers", "value")])


def adopted(states: Sequence[JoinState], tasks: int, rules: JoinRules) -> list[TaskState]:
    """Make task states of handed-over ones, in the order of their partitions.

    Raises:
        UsageError: There is none, or one belongs to another join.
        SerializationError: The headers of a record are damaged.
    """
    if not states:
        raise UsageError("There is no initial state to start from.", next_step="Leave initial_state out.")
    for state in states:
        state.check(rules)
    each = [_task_state(state, rules) for state in states]
    return each if len(each) == tasks == 1 else rescaled(each, tasks, rules)


def _task_state(state: JoinState, rules: JoinRules) -> TaskState:
    sides = (Side.LEFT,) if rules.type is JoinType.SELF else (Side.LEFT, Side.RIGHT)
    numbers = Numbers(0)
    found = {}
    for side in sides:
        mine = state.records.filter(pa.array(np.asarray(state.records.column("side")) == side.value))
        mine = mine.sort_by("seq")
        keys = _binary(mine.column("key"))
        blocks, values = split_prefix(_binary(mine.column("payload")))
        records = pa.RecordBatch.from_arrays([keys, canonical_headers(blocks), values], schema=RECORD_SCHEMA)
        rows = Rows(
            records,
            np.asarray(mine.column("timestamp"), np.int64),
            np.asarray(mine.column("seq"), np.int64),
            hash_keys(keys),
        )
        waiting = np.asarray(mine.column("buffered"), np.bool_)
        chunks = list(cut(rows, waiting, rules.retention_ms, numbers))
        found[side] = SideState(tuple(chunk for chunk, _ in chunks), tuple(rows for _, rows in chunks))
    clock = state.clock
    observed = {side: clock.observed[side] for side in sides}
    times = JoinClock(clock.stream_time, observed, clock.min_time, clock.next_emit_ms)
    return TaskState(times, state.next_seq, numbers.following, found)


def _binary(column: pa.ChunkedArray) -> pa.Array:
    cast = column.cast(pa.binary())
    return cast.combine_chunks() if cast.num_chunks != 1 else cast.chunk(0)
