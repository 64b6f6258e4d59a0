"""The records of a batch in the order of their arrival (`alignment`), and what each of them meets there.

::

    arrivals left   ts at      ─┐  at = place in the order of arrival over both sides
    arrivals right  ts at      ─┴► ts, left, stream, observed: arrays of n, by place

Source: spec "window store", section 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headpond.core.arrow import int64_array
from headpond.core.errors import UsageError
from headpond.core.hashes import hash_keys
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.pairs import Bool, Int64, Rows
from headpond.kstreams.join.rules import MAX_TIMESTAMP_MS, NO_TIME, JoinCounters, JoinRules, StreamTime

if TYPE_CHECKING:
    from headpond.kstreams.join.chunks import TaskState


@dataclass(frozen=True)
class Arrivals:
    """The new records of one side.

    Attributes:
        records: `key`, `headers` (headersBytes, not null), `value`, then further columns.
        ts: timestamps, ms.
        at: place of each record in the order of arrival over both sides, 0 to n - 1; ascending.
        head: what the query's stream time is with each record (`alignment`); None: their timestamps.
    """

    records: pa.RecordBatch
    ts: Int64
    at: Int64
    head: Int64 | None = None

    def part(self, start: int, stop: int) -> Arrivals:
        """Return the records that arrive in [start, stop), counted from 0 again."""
        first, end = (int(each) for each in np.searchsorted(self.at, (start, stop)))
        return Arrivals(
            self.records.slice(first, end - first),
            self.ts[first:end],
            self.at[first:end] - start,
            None if self.head is None else self.head[first:end],
        )


@dataclass
class Arranged:
    """A batch in order of arrival; arrays of n unless said otherwise."""

    ts: Int64
    left: Bool
    has_key: Bool
    has_value: Bool
    row: Int64  # row among its side's records
    stream: Int64  # stream time, the record included
    observed: dict[Side, Int64]  # greatest timestamp of the side before the record
    incoming: dict[Side, Rows] = field(default_factory=dict)  # records with key and value, seq = arrival
    base: dict[Side, int] = field(default_factory=dict)  # first global row of the batch's records

    @property
    def valid(self) -> Bool:
        """Which records have a key and a value."""
        return self.has_key & self.has_value

    def of(self, side: Side) -> Bool:
        """Return which records are of a side."""
        return self.left if side is Side.LEFT else ~self.left


def arranged(
    state: TaskState, arrivals: Mapping[Side, Arrivals], schemas: Mapping[Side, pa.Schema], rules: JoinRules
) -> Arranged:
    """Put a batch into its order of arrival.

    Args:
        state: the task's state before it.
        arrivals: its records per side; a side may be missing.
        schemas: per side the schema of records; a self-join has the left side alone.
        rules: say what the stream time is.

    Raises:
        UsageError: a timestamp is negative or too great.
    """
    count = sum(len(each.ts) for each in arrivals.values())
    ts, row, head = (np.zeros(count, np.int64) for _ in range(3))
    left, has_key, has_value = (np.zeros(count, np.bool_) for _ in range(3))
    for side, each in arrivals.items():
        ts[each.at] = each.ts
        row[each.at] = np.arange(len(each.at))
        head[each.at] = each.ts if each.head is None else each.head
        left[each.at] = side is Side.LEFT
        has_key[each.at] = _present(each.records.column("key"))
        has_value[each.at] = _present(each.records.column("value"))
    if count and (ts.min() < 0 or ts.max() > MAX_TIMESTAMP_MS):
        bad = int(ts.min()) if ts.min() < 0 else int(ts.max())
        raise UsageError(
            f"A record has the timestamp {bad} ms; a join takes 0 to {MAX_TIMESTAMP_MS}.",
            next_step="Filter such records out before the join, or give them a time.",
            timestamp=bad,
        )
    if rules.stream_time is StreamTime.QUERY:
        counted = head
    else:
        # A self-join alone drops records before they count for the stream time.
        counted = np.where(has_key & has_value, ts, NO_TIME) if len(schemas) == 1 else ts
    stream = np.maximum.accumulate(np.append(state.clock.stream_time, counted))[1:]
    batch = Arranged(ts, left, has_key, has_value, row, stream, {})
    for side, schema in schemas.items():
        mine = batch.of(side) & batch.valid
        seen = np.append(state.clock.observed[side], np.where(mine, ts, NO_TIME))
        batch.observed[side] = np.maximum.accumulate(seen)[:-1]
        batch.base[side] = sum(chunk.rows for chunk, _ in state.sides[side])
        batch.incoming[side] = _incoming(arrivals.get(side), np.flatnonzero(mine), schema)
    return batch


def _incoming(arrivals: Arrivals | None, at: Int64, schema: pa.Schema) -> Rows:
    """Records with key and value in order of arrival."""
    if arrivals is None:
        empty = pa.RecordBatch.from_pylist([], schema)
        return Rows(empty, np.empty(0, np.int64), at, np.empty(0, np.uint64))
    records, ts = arrivals.records, arrivals.ts
    if len(at) != len(ts):
        rows = np.searchsorted(arrivals.at, at)
        records, ts = records.take(int64_array(rows)), ts[rows]
    return Rows(records, ts, at, hash_keys(records.column("key")))


def counted(batch: Arranged, rules: JoinRules) -> JoinCounters:
    """Count what needs no partner: records, lateness, drops."""
    after = np.where(batch.left, rules.after_ms(Side.LEFT), rules.after_ms(Side.RIGHT))
    null_key = ~batch.has_key
    shown = np.zeros(len(batch.ts), np.bool_)
    for side in batch.incoming:
        if rules.is_outer(side):
            shown |= batch.of(side) & null_key & batch.has_value
    counters = JoinCounters(
        records=len(batch.ts),
        out_of_order=int((batch.ts < batch.stream).sum()),
        late=int((batch.ts + after + rules.windows.grace_ms < batch.stream).sum()),
        dropped_null_key=int((null_key & ~shown).sum()),
        dropped_null_value=int((batch.has_key & ~batch.has_value).sum()),
    )
    for side in batch.incoming:
        mine = batch.incoming[side]
        observed = np.maximum(batch.observed[side][mine.seq], mine.ts)
        counters.dropped_late += int((mine.ts < observed - rules.retention_ms + 1).sum())
    return counters


def _present(column: pa.Array) -> Bool | bool:
    return True if not column.null_count else np.asarray(column.is_valid())
