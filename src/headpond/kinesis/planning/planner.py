"""Plan micro-batches over a stream: exact ends, within bounds, from offsets and nothing else.

::

    ListShards ─► which shards may be read ─► see on in each ─► offset ─► ranges, one per shard
                  (parents before children)    │
                                               ├─ records or bytes bounded: look at all, share out
                                               └─ else: reach for the tip, or a moment before it

An end is always the sequence number of a record that was seen, so a batch reads the same however often
it is tried. What the planner remembers (where each shard stands, the listing) only saves calls: a new one
plans on from the same offset. Records younger than `probeLag` wait for the next batch, as a margin for
records that become visible out of order. Where a batch begins at a time or a horizon, the number of its first
record stands beside its end, so that it cannot be read with fewer records when it is tried again.

"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from headpond.kinesis.api.calls import MOST_PARALLEL_CALLS
from headpond.kinesis.planning.ending import await_end
from headpond.kinesis.planning.options import Limits
from headpond.kinesis.planning.shard_state import UNBOUNDED, ShardState
from headpond.kinesis.planning.start import Beginning, repeatable
from headpond.kinesis.planning.stream_state import Losses, StreamWatch
from headpond.kinesis.reading.cursor import ShardCursor
from headpond.kinesis.reading.positions import (
    END,
    HORIZON,
    NO_RECORD,
    Offset,
    Position,
    before,
    readable,
)
from headpond.kinesis.reading.reader import ShardRange
from headpond.kpl.hash_keys import FULL_RANGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headpond.kinesis.api.calls import ServiceCalls
    from headpond.kinesis.planning.options import SourceSettings
    from headpond.kinesis.reading.positions import Listing

T = TypeVar("T")
S = TypeVar("S")


class _Fixed(NamedTuple):
    """Ends that no batch goes beyond: the shards there were, up to where each had records, and when."""

    shards: Listing
    ends: dict[str, Position]
    known_ms: int


class _Planned(NamedTuple):
    """The batch that was planned last, and what each shard gave for it."""

    start: Offset
    end: Offset
    states: dict[str, ShardState]


class Planner:
    """Plans the batches of one query. Not to be used from several threads."""

    def __init__(
        self,
        calls: ServiceCalls,
        settings: SourceSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls, self._settings, self._clock = calls, settings, clock
        self._pool = ThreadPoolExecutor(MOST_PARALLEL_CALLS, thread_name_prefix="headpond-plan")
        self._stream = settings.connection.stream
        self._states: dict[str, ShardState] = {}
        self._watch = StreamWatch(calls, self._stream, settings.discovery_ms, clock)
        self._losses = Losses(calls, settings, self._watch, self._states)
        self._beginning = Beginning(calls, settings, self._losses.rule, self._each)
        self._initial: Offset | None = None
        self._fixed: _Fixed | None = None
        self._planned: _Planned | None = None

    @property
    def limits(self) -> Limits:
        """The bounds the options set."""
        given = self._settings
        return Limits(given.max_records, given.max_bytes, given.max_span_ms, given.about_bytes)

    def close(self) -> None:
        """End the threads; calls under way are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # Where a query begins

    def initial(self) -> Offset:
        """Return where a new query begins.

        Spark asks again when a first batch that was planned is tried again, so this must mean the same then.
        LATEST does not; it stays open here, and the first batch is an empty one that only writes down what
        it meant.
        """
        created_ms = self._watch.facts().created_ms
        if self._beginning.says_latest:
            return Offset(self._stream, created_ms)
        positions = self._beginning.positions(self._watch.shards(refresh=True), 0)
        self._initial = Offset(self._stream, created_ms, positions)
        return self._initial

    def _is_open(self, start: Offset) -> bool:
        """Return whether what LATEST means is not written down yet."""
        return not start.shards and self._beginning.says_latest

    def _resolved(self) -> Offset:
        """Return what LATEST means now."""
        created_ms = self._watch.facts().created_ms
        shards = self._watch.shards(refresh=True)
        # The date of the listing's reply: a shard that opens later is read from its first record.
        positions = self._beginning.positions(shards, self._calls.date_ms())
        return Offset(self._stream, created_ms, positions)

    def _begun(self, positions: dict[str, Position]) -> dict[str, Position]:
        """Return where the first batch of a query begins that is to begin at these positions."""
        return self._losses.begun(repeatable(positions, self._watch.facts(), self._calls.date_ms()))

    # Where a batch ends

    def fix_ends(self) -> _Fixed:
        """Record the stream's ends now; no later plan goes beyond them (AvailableNow)."""
        end_ms = self._settings.end_ms
        if end_ms is not None:
            self._watch.facts()  # a reply tells the service's clock
            await_end(self._calls, end_ms, self._settings.probe_lag_ms)
        shards, known_ms = self._watch.shards(refresh=True), self._calls.now_ms()
        loss = self._losses.rule(HORIZON, "")

        def end(shard_id: str) -> Position:
            if shards[shard_id].closed and end_ms is None:
                return END
            state = ShardState(self._calls, shard_id, HORIZON, loss)
            state.begin(None if end_ms is None else end_ms - 1, over_gaps=True)
            if end_ms is None:
                state.reach_tip()
            else:
                state.reach(None)
            return state.position

        self._fixed = _Fixed(shards, dict(self._each(end, shards)), known_ms)
        for state in self._states.values():
            state.idle_until_s = float("-inf")  # what came since counts, if it came before the ends
        return self._fixed

    def span(self) -> tuple[Offset, Offset]:
        """Return the starting position and the ends of now, of parents and children alike: a batch read."""
        start = self._resolved()
        listed = self.fix_ends().shards
        ends = self._ends(self._losses.begun(start.shards), list(listed), Limits())
        end = replace(start, shards=ends)
        self._planned = _Planned(start, end, dict(self._states))
        return start, end

    def latest(self, start: Offset, limits: Limits) -> Offset:
        """Find the end of the batch that begins at `start`; `start` itself when there is nothing new.

        Raises:
            ConfigurationError: The stream is not the one the offset is of.
            DataLoss: Records after `start` are gone, and that is fatal.
        """
        self._planned = None
        self._watch.begin(start)
        end = self._latest(start, limits)
        self._planned = _Planned(start, end, dict(self._states))
        return end

    def _latest(self, start: Offset, limits: Limits) -> Offset:
        if self._is_open(start):
            resolved = self._resolved()
            return replace(resolved, shards=self._noted(self._begun(resolved.shards)))
        shards = self._watch.shards()
        known = {
            shard_id: replace(at, first=None) if at.first is not None else at
            for shard_id, at in self._losses.without_vanished(start, shards).items()
        }
        if start == self._initial:
            known = self._begun(known)
        wanted = shards if self._fixed is None else self._fixed.shards
        chosen = [
            shard_id
            for shard_id in readable(shards, known, parent_first=self._settings.parent_first)
            if shard_id in wanted
        ]
        for shard_id in chosen:
            if known.get(shard_id, HORIZON).is_moving:
                self._losses.check_aged(shard_id, known.get(shard_id, HORIZON), start, shards)
        ends = self._ends(known, chosen, limits)
        positions = {shard_id: known.get(shard_id, HORIZON) for shard_id in shards if shard_id in wanted}
        positions |= known | ends
        if all(known.get(shard_id, HORIZON) == end for shard_id, end in ends.items()):
            stale = any(self._losses.is_stale(name, at, start.shards[name]) for name, at in known.items())
            return replace(start, shards=self._noted(known)) if stale else start
        if any(at.first is not None for at in ends.values()):
            # Records that no number before them binds to this stream.
            self._watch.recheck(again=True)
        if END in ends.values() and self._fixed is None:
            # A shard that ended has children, which the offset must know from now on.
            shards = self._watch.shards(refresh=True)
            positions = {shard_id: known.get(shard_id, HORIZON) for shard_id in shards} | positions
        # A shard that ended and is listed no more can never come back: its mark is dropped.
        kept = {
            shard_id: at
            for shard_id, at in positions.items()
            if shard_id in shards or shard_id in ends or at != END
        }
        return replace(start, shards=self._noted(kept))

    def _noted(self, positions: dict[str, Position]) -> dict[str, Position]:
        return {shard_id: self._losses.noted(shard_id, at) for shard_id, at in positions.items()}

    def _ends(self, known: dict[str, Position], chosen: list[str], limits: Limits) -> dict[str, Position]:
        """Find where a batch ends in each of the chosen shards: its position where nothing is new."""
        fixed, listed = self._fixed, self._watch.listed
        newest_ms, asked_ms, asked_s = self._newest_ms(), self._calls.now_ms(), self._clock()
        for shard_id in self._states.keys() - set(chosen):
            del self._states[shard_id]
        waiting = []
        for shard_id in chosen:
            state = self._state_at(shard_id, known.get(shard_id, HORIZON))
            if fixed is not None:
                state.begin(None, fixed.ends[shard_id], over_gaps=True)
                if state.position == fixed.ends[shard_id]:
                    state.known_ms = max(state.known_ms, fixed.known_ms)
            elif listed[shard_id].closed:
                state.begin(None, END)
            else:
                state.begin(newest_ms)
            if not state.is_done and state.idle_until_s <= asked_s:
                waiting.append(state)
        if limits.looks_ahead:
            self._share_out(waiting, limits)
        else:
            share = None if limits.about_bytes is None else limits.about_bytes // max(1, len(waiting))
            self._each(partial(ShardState.reach, span_ms=limits.span_ms, about_bytes=share), waiting)
        answered_s = self._clock()
        for state in waiting:
            if state.is_at_tip:
                state.known_ms = asked_ms
                state.idle_until_s = answered_s + self._hold_s
        return {shard_id: _with_first(self._states[shard_id]) for shard_id in chosen}

    def _share_out(self, states: list[ShardState], limits: Limits) -> None:
        """Share the bounds out among the shards, again while some leave their share.

        A record larger than a share goes where the batch has room for it, and the first one always does. Who
        waited longest has the first turn, else who has the oldest record.
        """
        left_records, left_bytes = (UNBOUNDED if bound is None else bound for bound in limits[:2])
        active, nothing_yet = states, True
        while active and left_records > 0 and left_bytes > 0:
            records, size_bytes = max(1, left_records // len(active)), max(1, left_bytes // len(active))
            self._each(partial(ShardState.look, records=records, size_bytes=size_bytes), active)
            going_on = []
            for state in sorted(active, key=_turn):
                fits = state.next is not None and state.next.size_bytes <= left_bytes and left_records > 0
                taken, taken_bytes = state.take(
                    min(records, left_records), min(size_bytes, left_bytes), at_least_one=nothing_yet or fits
                )
                left_records, left_bytes = left_records - taken, left_bytes - taken_bytes
                nothing_yet = nothing_yet and not taken
                if taken and state.position != END and not state.is_done:
                    going_on.append(state)
            active = going_on
        for state in states:
            state.waited = state.waited + 1 if state.next is not None and not state.records else 0

    def _state_at(self, shard_id: str, at: Position) -> ShardState:
        """Return where a shard stands; one that stands elsewhere begins anew."""
        state = self._states.get(shard_id)
        if state is None or state.position != at:
            state = self._states[shard_id] = ShardState(
                self._calls,
                shard_id,
                at,
                self._losses.rule(at, shard_id),
                known_ms=at.until_ms or 0,
                per_page=self._settings.records_per_page,
            )
        return state

    @property
    def _hold_s(self) -> float:
        """For how long nothing new can count where nothing was a moment ago."""
        return self._settings.probe_lag_ms / 1000 if self._fixed is None else float("inf")

    def _newest_ms(self) -> int | None:
        """Return the arrival after which records wait for the next batch; None: none do."""
        lag_ms = self._settings.probe_lag_ms
        return self._calls.now_ms() - lag_ms if lag_ms else None

    # What is read of a batch

    def ranges(self, start: Offset, end: Offset) -> list[ShardRange]:
        """List what is to be read between two offsets, by shard id.

        Raises:
            ConfigurationError: The stream is not the one the offsets are of.
        """
        self._watch.begin(end)
        if self._is_open(start):
            # That batch only writes down what LATEST meant; its END marks were passed, not read up to.
            return []
        planned = self._planned
        is_known = planned is not None and planned.end == end
        states = planned.states if planned is not None and is_known and planned.start == start else {}
        # Which keys are a shard's never changes: a batch tried again is filtered as it was at first.
        shards: Listing = {} if self._settings.hash_range_filter == "off" else self._watch.shards()
        found = []
        for shard_id, to in sorted(end.shards.items()):
            begin, state = start.shards.get(shard_id, HORIZON), states.get(shard_id)
            if to in (begin, HORIZON) or to.kind not in ("SEQ", "END"):
                continue
            known_ms = begin.until_ms or 0 if state is None else state.begun_known_ms
            if begin.is_moving and to.first is not None:
                if to.first == NO_RECORD:
                    continue
                begin = before(to.first)
            # Of a shard that is not listed nothing can be read that would have to be filtered.
            hash_keys = shards[shard_id].hash_keys if shard_id in shards else FULL_RANGE
            wanted = ShardRange(shard_id, begin, to, known_ms, hash_keys)
            if state is not None:
                # A subscription takes no iterator.
                seen = state.seen if self._settings.consumer_name is None else None
                wanted = replace(
                    wanted, records=state.records or 0, size_bytes=state.about_bytes, resume=seen
                )
            found.append(wanted)
        if not is_known:
            # Planned by a query that was stopped: what expired since is found here rather than in a task.
            list(self._pool.map(self._prove, found))
        return found

    def _prove(self, wanted: ShardRange) -> None:
        """Look whether the first record of a range is still there."""
        loss = self._losses.rule(wanted.start, wanted.shard_id)
        ShardCursor(self._calls, wanted.shard_id, wanted.start, loss).next_page(1)

    # What is told of it

    def behind_ms(self) -> dict[str, int]:
        """Return how far each shard's planning is behind its tip, where it is known."""
        now_ms = self._calls.now_ms()
        lags = {shard_id: state.lag_ms(now_ms) for shard_id, state in sorted(self._states.items())}
        return {shard_id: ms for shard_id, ms in lags.items() if ms >= 0}

    @property
    def tolerated_losses(self) -> int:
        """Gaps that were found and gone on over since the planner began (`failOnDataLoss` is false)."""
        return self._losses.count

    @property
    def retention_ms(self) -> int:
        """How long the stream keeps a record."""
        return self._watch.facts().retention_ms

    def _each(self, function: Callable[[S], T], items: Iterable[S]) -> list[tuple[S, T]]:
        """Call for each shard, in parallel."""
        wanted = list(items)
        found: dict[int, T] = {}
        left = iter(enumerate(wanted))  # each step of it is one, whichever thread takes it

        def work() -> None:
            for number, item in left:
                try:
                    found[number] = function(item)
                except BaseException:
                    list(left)  # the others end after what they are at
                    raise

        threads = min(MOST_PARALLEL_CALLS, len(wanted))
        for each in [self._pool.submit(work) for _ in range(threads)]:
            each.result()
        return [(item, found[number]) for number, item in enumerate(wanted)]


def _turn(state: ShardState) -> tuple[int, int]:
    """Return a key that sorts shards by their turn."""
    return -state.waited, UNBOUNDED if state.next is None else state.next.arrival_ms


def _with_first(state: ShardState) -> Position:
    """Note the first record beside an end whose batch began where nothing else says which it was."""
    end = state.position
    if not state.begun.is_moving or end.kind not in ("SEQ", "END"):
        return end
    return replace(end, first=state.first or NO_RECORD)
