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
from typing import TYPE_CHECKING, TypeVar

from headpond.kinesis.api.calls import MOST_PARALLEL_CALLS
from headpond.kinesis.planning.ending import await_end, has_come, is_before
from headpond.kinesis.planning.options import Limits
from headpond.kinesis.planning.shard_state import UNBOUNDED, ShardState
from headpond.kinesis.planning.start import Beginning
from headpond.kinesis.planning.stream_state import StreamState
from headpond.kinesis.reading.cursor import ShardCursor
from headpond.kinesis.reading.positions import END, HORIZON, NO_RECORD, Offset, Position, before, readable
from headpond.kinesis.reading.reader import ShardRange
from headpond.kpl.hash_keys import FULL_RANGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headpond.kinesis.api.calls import ServiceCalls
    from headpond.kinesis.planning.options import SourceSettings
    from headpond.kinesis.reading.positions import Listing

T = TypeVar("T")
S = TypeVar("S")


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
        self._stream = StreamState(calls, settings, clock)
        self._beginning = Beginning(calls, settings, self._stream, self._each)
        self._states: dict[str, ShardState] = {}  # of the shards that the last plan could go on with
        self._initial: Offset | None = None
        self._fixed: dict[str, Position] | None = None  # ends that no batch goes beyond
        self._planned: tuple[Offset, Offset] | None = None  # the last batch

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
        if self._beginning.says_latest:
            return Offset(self._settings.connection.stream, self._stream.facts().created_ms)
        self._initial = self._resolved()
        return self._initial

    def _is_open(self, start: Offset) -> bool:
        """Return whether what LATEST means is not written down yet."""
        return not start.shards and self._beginning.says_latest

    def _resolved(self) -> Offset:
        """Return where a query begins, with LATEST as what it means now."""
        created_ms = self._stream.facts().created_ms
        return Offset(self._settings.connection.stream, created_ms, self._beginning.positions())

    # Where a batch ends

    def fix_ends(self) -> None:
        """Record the stream's ends now; no later plan goes beyond them (AvailableNow)."""
        end_ms = self._settings.end_ms
        if end_ms is not None:
            self._stream.facts()  # a reply tells the service's clock
            await_end(self._calls, end_ms, self._settings.probe_lag_ms)
        shards, known_ms = self._stream.shards(refresh=True), self._calls.now_ms()
        loss = self._stream.loss

        def end(shard_id: str) -> Position:
            state = ShardState(self._calls, shard_id, HORIZON, loss)
            if end_ms is not None:
                state.begin(end_ms - 1, over_gaps=True)
                state.reach(None)
            elif shards[shard_id].closed:
                return END
            else:
                state.begin(over_gaps=True)
                state.reach_tip()
            return replace(state.position, until_ms=known_ms)

        self._fixed = dict(self._each(end, shards))
        for state in self._states.values():
            state.idle_until_s = float("-inf")  # what came since counts, if it came before the ends

    def span(self) -> tuple[Offset, Offset]:
        """Return the starting position and the ends of now, of parents and children alike: a batch read."""
        start = self._resolved()
        self.fix_ends()
        begun = self._beginning.begun(start.shards, repeatable=False)
        listed = self._stream.listed
        ends = self._ends({shard_id: begun.get(shard_id, HORIZON) for shard_id in listed}, listed, Limits())
        self._planned = start, replace(start, shards=ends)
        return self._planned

    def latest(self, start: Offset, limits: Limits) -> Offset:
        """Find the end of the batch that begins at `start`; `start` itself when there is nothing new.

        Raises:
            ConfigurationError: The stream is not the one the offset is of.
            DataLoss: Records after `start` are gone, and that is fatal.
        """
        self._planned, end_ms = None, self._settings.end_ms
        lag_ms = self._settings.probe_lag_ms
        if end_ms is not None and self._fixed is None and has_come(self._calls, end_ms, lag_ms):
            self.fix_ends()
        self._stream.begin(start)
        if self._is_open(start):
            resolved = self._resolved()
            end = self._noted(resolved, self._beginning.begun(resolved.shards))
        else:
            end = self._latest(start, limits)
        if end_ms is not None and self._fixed is None and not is_before(self._calls, end, end_ms):
            end = start  # what may hold later records waits until the ends are fixed
        self._planned = start, end
        return end

    def _latest(self, start: Offset, limits: Limits) -> Offset:
        shards, fixed = self._stream.shards(), self._fixed
        known = self._stream.without_vanished(start.shards)
        if start == self._initial:
            known = self._beginning.begun(known)
        positions = {shard_id: HORIZON for shard_id in shards if fixed is None or shard_id in fixed}
        for shard_id, at in known.items():
            state = self._states.get(shard_id)
            # A shard that was asked since knows more than the offset.
            stood = at if state is None or state.position != at else state.position
            known_ms = max(at.until_ms or 0, stood.until_ms or 0) or None
            positions[shard_id] = replace(at, until_ms=known_ms, first=None)
        chosen = readable(shards, positions, parent_first=self._settings.parent_first)
        if fixed is not None:
            chosen = [shard_id for shard_id in chosen if shard_id in fixed]
        for shard_id in chosen:
            self._stream.check_aged(shard_id, positions[shard_id], start)
        ends = self._ends(positions, chosen, limits)
        is_new = any(positions[shard_id] != end for shard_id, end in ends.items())
        positions |= ends
        if not is_new:
            stale = any(self._stream.is_stale(positions[name], start.shards[name]) for name in known)
            return self._noted(start, {name: positions[name] for name in known}) if stale else start
        if any(at.first is not None for at in ends.values()):
            # Records that no number before them binds to this stream.
            self._stream.recheck(again=True)
        if END in ends.values() and fixed is None:
            # A shard that ended has children, which the offset must know from now on.
            shards = self._stream.shards(refresh=True)
            positions = dict.fromkeys(shards, HORIZON) | positions
        # A shard that ended and is listed no more can never come back: its mark is dropped.
        kept = {
            shard_id: at
            for shard_id, at in positions.items()
            if shard_id in shards or shard_id in ends or at != END
        }
        return self._noted(start, kept)

    def _noted(self, offset: Offset, positions: dict[str, Position]) -> Offset:
        return replace(offset, shards={name: self._stream.noted(at) for name, at in positions.items()})

    def _ends(
        self, positions: dict[str, Position], chosen: Iterable[str], limits: Limits
    ) -> dict[str, Position]:
        """Find where a batch ends in each of the chosen shards: its position where nothing is new."""
        lag_ms, asked_ms, asked_s = self._settings.probe_lag_ms, self._calls.now_ms(), self._clock()
        self._states = {shard_id: self._state_at(shard_id, positions[shard_id]) for shard_id in chosen}
        waiting = []
        for shard_id, state in self._states.items():
            if self._fixed is not None:
                state.begin(None, self._fixed[shard_id], over_gaps=True)
                if state.position == self._fixed[shard_id]:
                    state.position = self._fixed[shard_id]
            elif self._stream.listed[shard_id].closed:
                state.begin(None, END)
            else:
                state.begin(asked_ms - lag_ms if lag_ms else None)
            if not state.is_done and state.idle_until_s <= asked_s:
                waiting.append(state)
        if limits.looks_ahead:
            self._share_out(waiting, limits)
        else:
            share = None if limits.about_bytes is None else limits.about_bytes // max(1, len(waiting))
            self._each(lambda state: state.reach(limits.span_ms, share), waiting)
        # For so long nothing new can count where nothing was a moment ago.
        idle_until_s = self._clock() + (lag_ms / 1000 if self._fixed is None else float("inf"))
        for state in waiting:
            if state.is_at_tip:
                state.position = replace(state.position, until_ms=asked_ms)
                state.idle_until_s = idle_until_s
        return {shard_id: _with_first(state) for shard_id, state in self._states.items()}

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
        """Return where a shard stands; one that stands elsewhere begins again."""
        state = self._states.get(shard_id)
        if state is None or state.position != at:
            per_page = self._settings.records_per_page
            return ShardState(self._calls, shard_id, at, self._stream.loss, per_page=per_page)
        state.position = at  # with what is known of it
        return state

    # What is read of a batch

    def ranges(self, start: Offset, end: Offset) -> list[ShardRange]:
        """List what is to be read between two offsets, by shard id.

        Raises:
            ConfigurationError: The stream is not the one the offsets are of.
        """
        self._stream.begin(end)
        if self._is_open(start):
            # That batch only writes down what LATEST meant; its END marks were passed, not read up to.
            return []
        states = self._states if self._planned == (start, end) else {}
        # Which keys are a shard's never changes: a batch tried again is filtered as it was at first.
        shards: Listing = {} if self._settings.hash_range_filter == "off" else self._stream.shards()
        found = []
        for shard_id, to in sorted(end.shards.items()):
            begin, state = start.shards.get(shard_id, HORIZON), states.get(shard_id)
            if to in (begin, HORIZON) or to.kind not in ("SEQ", "END") or to.first == NO_RECORD:
                continue
            if begin.is_moving and to.first is not None:
                begin = before(to.first)
            # Of a shard that is not listed nothing can be read that would have to be filtered.
            hash_keys = shards[shard_id].hash_keys if shard_id in shards else FULL_RANGE
            if state is None:
                found.append(ShardRange(shard_id, begin, to, hash_keys))
            else:
                begin = replace(begin, until_ms=state.begun.until_ms)
                records, size_bytes = state.records or 0, state.about_bytes
                found.append(ShardRange(shard_id, begin, to, hash_keys, records, size_bytes))
        if self._planned is None or self._planned[1] != end:
            # Planned by a query that was stopped: what expired since is found here rather than in a task.
            loss = self._stream.loss
            self._each(lambda at: ShardCursor(self._calls, at.shard_id, at.start, loss).next_page(1), found)
        return found

    # What it reports

    def behind_ms(self) -> dict[str, int]:
        """Return how far each shard's planning is behind its tip, where it is known."""
        now_ms = self._calls.now_ms()
        lags = {shard_id: state.lag_ms(now_ms) for shard_id, state in sorted(self._states.items())}
        return {shard_id: ms for shard_id, ms in lags.items() if ms >= 0}

    @property
    def tolerated_losses(self) -> int:
        """Gaps that were found and gone on over since the planner began (`failOnDataLoss` is false)."""
        return len(self._stream.tolerated)

    @property
    def retention_ms(self) -> int:
        """How long the stream keeps a record."""
        return self._stream.facts().retention_ms

    def _each(self, function: Callable[[S], T], items: Iterable[S]) -> list[tuple[S, T]]:
        """Call for each shard, in parallel; the first error ends it."""
        wanted = list(items)
        return list(zip(wanted, self._pool.map(function, wanted), strict=True))


def _turn(state: ShardState) -> tuple[int, int]:
    """Return a key that sorts shards by their turn."""
    return -state.waited, UNBOUNDED if state.next is None else state.next.arrival_ms


def _with_first(state: ShardState) -> Position:
    """Note the first record beside an end whose batch began where nothing else says which it was."""
    end = state.position
    if not state.begun.is_moving or end.kind not in ("SEQ", "END"):
        return end
    return replace(end, first=state.first or NO_RECORD)
