"""The windowed join, a batch at a time: (state, arrivals) → (state, results), without a step per record.

::

    arrivals ─► order of arrival, running stream time and observed times
        ├─► probes of each side ─► runs of the other side: chunks of the state, and the batch itself
        │                            └─► pairs (trigger, partner): keys compared, partner before trigger
        ├─► records of an outer side without a pair: leave at once, or wait
        ├─► rounds over those that wait (join_batch_expiry)
        └─► what can still be read or still waits ─► new chunks

Results come in the order in which a record-by-record engine gives them: by the record that triggers them;
within one, first what expired, then its pairs by the partner's (timestamp, arrival). Everything is a function
of the state and the order of arrival: how a stream is cut into batches changes nothing.
Source: spec "window store", section 8; "join on Spark", section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.errors import UsageError
from headpond.formats.outer_join_buffer import Side
from headpond.windows.join_batch_expiry import BEFORE, NEVER, Expiry
from headpond.windows.join_batch_results import Pairs, ResultRows, Results, Source
from headpond.windows.join_batch_runs import Bool, Int64, Probes, Rows
from headpond.windows.join_batch_waiting import OTHER_SIDE, Candidates, walk_order
from headpond.windows.join_chunks import Numbers, SideState, TaskState, next_side_state
from headpond.windows.join_keys import hash_keys
from headpond.windows.rules import (
    MAX_TIMESTAMP_MS,
    NO_TIME,
    Emit,
    JoinClock,
    JoinCounters,
    JoinRules,
    JoinType,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PAIRS = 4_000_000
"""How many pairs are held at once; a batch that has more is worked off in parts. Some 50 bytes each."""


@dataclass(frozen=True)
class Arrivals:
    """The new records of one side.

    Attributes:
        records: `key`, `headers` (headersBytes, not null), `value`, then further columns.
        ts: timestamps, ms.
        at: place of each record in the order of arrival over both sides, 0 to n - 1; ascending.
    """

    records: pa.RecordBatch
    ts: Int64
    at: Int64

    def part(self, start: int, stop: int) -> Arrivals:
        """Give the records that arrive in [start, stop), counted anew from 0."""
        first, end = (int(each) for each in np.searchsorted(self.at, (start, stop)))
        return Arrivals(
            self.records.slice(first, end - first), self.ts[first:end], self.at[first:end] - start
        )


@dataclass(frozen=True)
class Step:
    """What a batch, or a part of it, came to."""

    state: TaskState
    results: Results
    counters: JoinCounters


@dataclass
class _Batch:
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
        return self.has_key & self.has_value

    def of(self, side: Side) -> Bool:
        return self.left if side is Side.LEFT else ~self.left


class TooManyPairs(Exception):
    """A batch has more pairs than are to be held at once."""


class BatchJoin:
    """The join of one task.

    Args:
        rules: What it does.
        schemas: Per side the schema of records: key, headers, value, further columns.
        max_pairs: See MAX_PAIRS.
        keeps_headers: Whether the state's format has a place for headers. Without, a record's headers are
            gone once it is a stored one: where it waited, or where `merge` would take them from a partner.
    """

    def __init__(
        self,
        rules: JoinRules,
        schemas: dict[Side, pa.Schema],
        *,
        max_pairs: int = MAX_PAIRS,
        keeps_headers: bool = True,
    ) -> None:
        self.rules = rules
        self.schemas = schemas
        self._max_pairs = max_pairs
        self._keeps_headers = keeps_headers
        self._self_join = rules.type is JoinType.SELF
        self._sides = (Side.LEFT,) if self._self_join else (Side.LEFT, Side.RIGHT)

    def steps(self, state: TaskState, arrivals: dict[Side, Arrivals], now_ms: int = 0) -> Iterator[Step]:
        """Work a batch off; the last step's state is the state after it.

        Args:
            state: The task's state; it is not changed.
            arrivals: The new records per side; a side may be missing. A self-join has left ones only.
            now_ms: Wall-clock time for `emit_interval_ms`; a repeated batch must get the same.

        Raises:
            UsageError: A timestamp is negative or too great.
        """
        count = sum(len(each.ts) for each in arrivals.values())
        try:
            yield self._step(state, arrivals, count, now_ms)
        except TooManyPairs:
            halves = ((0, count // 2), (count // 2, count))
            for start, stop in halves:
                part = {side: each.part(start, stop) for side, each in arrivals.items()}
                for step in self.steps(state, part, now_ms):
                    yield step
                    state = step.state

    def _step(self, state: TaskState, arrivals: dict[Side, Arrivals], count: int, now_ms: int) -> Step:
        rules = self.rules
        batch = self._arranged(state, arrivals, count)
        sources = {
            side: Source.of(
                self.schemas[side],
                state.sides[side].chunks,
                arrivals[side].records if side in arrivals else None,
            )
            for side in self._sides
        }
        rows = ResultRows(self._self_join)
        pairs = {side: self._pairs(state, batch, side, count, rows) for side in self._sides}
        counters = self._counted(batch)
        counters.joined = sum(len(each.trigger) for each in pairs.values())
        if self._self_join:
            counters.joined += self._with_itself(batch, rows)
        clock = replace(state.clock, observed=dict(state.clock.observed))
        waiting = dict.fromkeys(self._sides, np.empty(0, np.int64))
        if rules.buffers:
            waiting = self._unmatched(
                state, batch, pairs, rows=rows, counters=counters, clock=clock, sources=sources, now_ms=now_ms
            )
        if count:
            clock.stream_time = int(batch.stream[-1])
        numbers = Numbers(state.next_chunk)
        sides = {}
        for side in self._sides:
            mine = batch.incoming[side]
            if len(mine):
                clock.observed[side] = max(clock.observed[side], int(mine.ts.max()))
            sides[side] = next_side_state(
                state.sides[side],
                replace(mine, seq=mine.seq + state.next_seq),
                batch.base[side] + batch.row[mine.seq],
                waiting[side],
                readable_from=clock.observed[side] - rules.retention_ms + 1,
                retention_ms=rules.retention_ms,
                numbers=numbers,
            )
        after = TaskState(clock, state.next_seq + count, numbers.following, sides)
        results = Results(rows.sorted(), sources, batch.left, batch.row, rules, self._keeps_headers)
        return Step(after, results, counters)

    def _arranged(self, state: TaskState, arrivals: dict[Side, Arrivals], count: int) -> _Batch:
        ts, row = np.zeros(count, np.int64), np.zeros(count, np.int64)
        left, has_key, has_value = (np.zeros(count, np.bool_) for _ in range(3))
        for side, each in arrivals.items():
            ts[each.at] = each.ts
            row[each.at] = np.arange(len(each.at))
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
        # A self-join alone drops records before they count for the stream time.
        counted = np.where(has_key & has_value, ts, NO_TIME) if self._self_join else ts
        stream = np.maximum.accumulate(np.append(state.clock.stream_time, counted))[1:]
        batch = _Batch(ts, left, has_key, has_value, row, stream, {})
        for side in self._sides:
            mine = batch.of(side) & batch.valid
            seen = np.append(state.clock.observed[side], np.where(mine, ts, NO_TIME))
            batch.observed[side] = np.maximum.accumulate(seen)[:-1]
            batch.base[side] = sum(chunk.rows for chunk in state.sides[side].chunks)
            batch.incoming[side] = self._incoming(arrivals.get(side), np.flatnonzero(mine), side)
        return batch

    def _incoming(self, arrivals: Arrivals | None, at: Int64, side: Side) -> Rows:
        """Records with key and value in order of arrival."""
        if arrivals is None:
            empty = pa.RecordBatch.from_pylist([], self.schemas[side])
            return Rows(empty, np.empty(0, np.int64), at, np.empty(0, np.uint64))
        records, ts = arrivals.records, arrivals.ts
        if len(at) != len(ts):
            rows = np.searchsorted(arrivals.at, at)
            records, ts = records.take(pa.array(rows)), ts[rows]
        return Rows(records, ts, at, hash_keys(records.column("key")))

    def _pairs(self, state: TaskState, batch: _Batch, side: Side, count: int, rows: ResultRows) -> Pairs:
        """Find the partners of one side's new records."""
        rules, mine = self.rules, batch.incoming[side]
        other = side if self._self_join else OTHER_SIDE[side]
        bounds = [(rules.before_ms(side), rules.after_ms(side))]
        if self._self_join:
            bounds.append((rules.windows.after_ms, rules.windows.before_ms))
        found: list[Pairs] = []
        for phase, (before, after) in enumerate(bounds):
            first = np.maximum(mine.ts - before, 0)
            np.maximum(first, batch.observed[other][mine.seq] - rules.retention_ms + 1, out=first)
            if rules.emit is Emit.FINAL and not self._self_join and rules.is_outer(other):
                closed = rules.after_ms(other) + rules.windows.grace_ms
                np.maximum(first, batch.stream[mine.seq] - closed, out=first)
            probes = Probes.of(mine.hashes, first, np.maximum(mine.ts + after, 0))
            some = self._partners(state, batch, side, other, probes=probes, count=count)
            own = batch.base[side] + batch.row[some.trigger]
            rows.add_joined(side, phase, some, own, batch.ts[some.trigger])
            found.append(some)
        return _together(found)

    def _partners(
        self, state: TaskState, batch: _Batch, side: Side, other: Side, *, probes: Probes, count: int
    ) -> Pairs:
        found = []
        mine = batch.incoming[side]
        keys = mine.records.column("key")
        total = base = 0
        for chunk in state.sides[other].chunks:
            asked = probes.within(chunk.min_ts, chunk.max_ts)
            if len(asked.first):
                number, rows = chunk.data.run.find(asked)
                number, rows = _same_keys(keys, asked.number[number], chunk.data, rows)
                found.append(Pairs(mine.seq[number], base + rows, chunk.data.ts[rows], chunk.data.seq[rows]))
                total += len(rows)
                self._bounded(total, count)
            base += chunk.rows
        theirs = batch.incoming[other]
        if len(theirs):
            number, rows = theirs.run.find(probes)
            number = probes.number[number]
            earlier = theirs.seq[rows] < mine.seq[number]
            number, rows = number[earlier], rows[earlier]
            self._bounded(total + len(rows), count)
            number, rows = _same_keys(keys, number, theirs, rows)
            seq = theirs.seq[rows]
            found.append(
                Pairs(mine.seq[number], base + batch.row[seq], theirs.ts[rows], seq + state.next_seq)
            )
        return _together(found)

    def _bounded(self, pairs: int, count: int) -> None:
        if pairs > self._max_pairs and count > 1:
            raise TooManyPairs

    def _with_itself(self, batch: _Batch, rows: ResultRows) -> int:
        """Add the result of each record with itself, at its place among its pairs."""
        mine = batch.incoming[Side.LEFT]
        joins = mine.ts > batch.stream[mine.seq] - self.rules.retention_ms + 1
        at = mine.seq[joins]
        own = batch.base[Side.LEFT] + batch.row[at]
        rows.add_self(at, own, batch.ts[at])
        return len(at)

    def _counted(self, batch: _Batch) -> JoinCounters:
        rules = self.rules
        after = np.where(batch.left, rules.after_ms(Side.LEFT), rules.after_ms(Side.RIGHT))
        null_key = ~batch.has_key
        shown = np.zeros(len(batch.ts), np.bool_)
        for side in self._sides:
            if rules.is_outer(side):
                shown |= batch.of(side) & null_key & batch.has_value
        counters = JoinCounters(
            records=len(batch.ts),
            out_of_order=int((batch.ts < batch.stream).sum()),
            late=int((batch.ts + after + rules.windows.grace_ms < batch.stream).sum()),
            dropped_null_key=int((null_key & ~shown).sum()),
            dropped_null_value=int((batch.has_key & ~batch.has_value).sum()),
        )
        for side in self._sides:
            mine = batch.incoming[side]
            observed = np.maximum(batch.observed[side][mine.seq], mine.ts)
            counters.dropped_late += int((mine.ts < observed - rules.retention_ms + 1).sum())
        return counters

    def _unmatched(
        self,
        state: TaskState,
        batch: _Batch,
        pairs: dict[Side, Pairs],
        *,
        rows: ResultRows,
        counters: JoinCounters,
        clock: JoinClock,
        sources: dict[Side, Source],
        now_ms: int,
    ) -> dict[Side, Int64]:
        """Let unmatched records leave or wait; gives the global rows that wait after the batch."""
        rules = self.rules
        waiting: list[Candidates] = []
        for side in self._sides:
            if not rules.is_outer(side):
                continue
            mine = batch.incoming[side]
            alone = np.ones(len(mine), np.bool_)
            alone[np.searchsorted(mine.seq, pairs[side].trigger)] = False
            end, stream = mine.ts + rules.after_ms(side), batch.stream[mine.seq]
            if rules.emit is Emit.FINAL:
                at_once = end + rules.windows.grace_ms < stream
            else:
                at_once = np.maximum(end, 0) < stream
            no_key = np.flatnonzero(batch.of(side) & ~batch.has_key & batch.has_value)
            out = np.concatenate((mine.seq[alone & at_once], no_key))
            rows.add_at_once(side, out, batch.base[side] + batch.row[out], batch.ts[out])
            begin = np.flatnonzero(alone & ~at_once)
            since = mine.seq[begin]
            counters.unmatched += len(out)
            counters.buffered += len(begin)
            held = state.sides[side].waiting_rows()
            held_ts, held_seq = state.sides[side].waiting_times()
            waiting.append(
                Candidates(
                    side,
                    np.concatenate((held, batch.base[side] + batch.row[since])),
                    np.concatenate((held_ts, mine.ts[begin])),
                    np.concatenate((held_seq, since + state.next_seq)),
                    np.concatenate((np.full(len(held), BEFORE, np.int64), since)),
                )
            )
        walk, left, gids = walk_order(waiting, pairs, sources)
        triggers = np.flatnonzero(batch.valid & (batch.ts == batch.stream))
        done = Expiry(rules, walk).rounds(
            triggers,
            batch.left[triggers],
            batch.ts[triggers],
            now_ms=now_ms,
            min_time=clock.min_time,
            next_emit_ms=clock.next_emit_ms,
        )
        clock.min_time, clock.next_emit_ms = done.min_time, done.next_emit_ms
        position = np.array(done.position, np.int64)
        rows.add_expired(np.array(done.at, np.int64), left[position], gids[position], walk.ts[position])
        counters.unmatched += len(position)
        stays = walk.taken == NEVER
        stays[position] = False
        return {side: np.sort(gids[stays & (left == (side is Side.LEFT))]) for side in self._sides}


def _together(found: list[Pairs]) -> Pairs:
    if len(found) == 1:
        return found[0]
    names = ("trigger", "partner", "partner_ts", "partner_seq")
    empty = [np.empty(0, np.int64)]
    return Pairs(*(np.concatenate([getattr(each, name) for each in found] or empty) for name in names))


def _same_keys(keys: pa.Array, number: Int64, rows: Rows, found: Int64) -> tuple[Int64, Int64]:
    """Drop pairs whose hashes are equal and whose keys are not."""
    if not len(found):
        return number, found
    equal = pc.equal(keys.take(pa.array(number)), rows.records.column("key").take(pa.array(found)))
    same: Bool = np.asarray(equal)
    return (number, found) if same.all() else (number[same], found[same])


def _present(column: pa.Array) -> Bool | bool:
    return True if not column.null_count else np.asarray(column.is_valid())


def initial_state(rules: JoinRules) -> TaskState:
    """Give the state of a join that has seen nothing."""
    sides = (Side.LEFT,) if rules.type is JoinType.SELF else (Side.LEFT, Side.RIGHT)
    return TaskState.new({side: SideState() for side in sides})
