"""Plan micro-batches over a stream: where they begin and end, exactly, from offsets and nothing else.

::

    ListShards ─► which shards may be read ─► see on in each ─► offset ─► ranges, one per shard
                  (parents before children)    │
                                               ├─ records or bytes bounded: look at all, share out
                                               └─ else: reach for the tip, or a moment before it

An end is always the sequence number of a record that was seen, so a batch reads the same however often it is
tried. What the planner remembers only saves calls: a new one plans on from the same offset. Records younger
than `probeLag` wait for the next batch: they may become visible out of order. Where a batch begins at a time
or a horizon, the number of its first record is noted, so that it cannot be read with fewer when tried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import TypeVar

from headpond.core.in_step import InStep
from headpond.kinesis.api.calls import MOST_PARALLEL_CALLS, ServiceCalls
from headpond.kinesis.leases import read_leases
from headpond.kinesis.planning.options import Limits, SourceSettings
from headpond.kinesis.planning.shard_state import CLOCK_ERROR_MS, UNBOUNDED, ShardState
from headpond.kinesis.planning.stream_state import StreamState
from headpond.kinesis.reading.cursor import ShardCursor
from headpond.kinesis.reading.positions import (
    END,
    HORIZON,
    NO_RECORD,
    Listing,
    Offset,
    Position,
    Start,
    after,
    at_time,
    before,
    readable,
    refuse_far_future,
    resolve,
)
from headpond.kinesis.reading.reader import ShardRange
from headpond.kpl import Aggregate, decode
from headpond.kpl.hash_keys import FULL_RANGE

T = TypeVar("T")
S = TypeVar("S")

_CHECK_S = 0.1
_MARGIN_MS = 300_000  # for a first batch to be read, and tried again, before its records expire
_MARGIN_SHARE = 10  # of the retention, where that is short


class Planner:
    """Plans the batches of one query. Not to be used from several threads."""

    def __init__(
        self,
        calls: ServiceCalls,
        settings: SourceSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._calls, self._settings, self._clock, self._sleep = calls, settings, clock, sleep
        self._pool = ThreadPoolExecutor(MOST_PARALLEL_CALLS, thread_name_prefix="headpond-plan")
        self._stream = StreamState(calls, settings, clock)
        self._states: dict[str, ShardState] = {}  # of the shards that the last plan could go on with
        self._initial: Offset | None = None
        self._until_ms: int | None = None  # what arrives later is for another run
        self._planned: tuple[Offset, Offset] | None = None  # the last batch
        self._in_step = None if settings.in_step is None else InStep(settings.in_step)

    def close(self) -> None:
        """End the threads; calls under way are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._in_step = None  # nobody waits for it any more

    # Where a query begins

    def initial(self) -> Offset:
        """Return where a new query begins.

        Spark asks again when a first batch is tried again, so this must mean the same then. LATEST does not;
        it stays open here, without shards, and the first batch is an empty one that only writes down what it
        meant.
        """
        if self._initial is None:
            self._initial = self._resolved(leave_open=self._start.says_latest)
        return self._initial

    @cached_property
    def _start(self) -> Start:
        """What the options say; a lease table is read when first needed, which a checkpoint makes it not."""
        path, given = self._settings.kcl_leases, self._settings.start
        if path is None:
            return given
        name = self._settings.connection.name
        return read_leases(path, name, given, created_ms=self._stream.facts().created_ms)

    def _resolved(self, *, leave_open: bool = False, repeatable: bool = True) -> Offset:
        # Described before it is listed: shards of a later stream then do not pass for this one's.
        start = Offset(self._settings.connection.stream, self._stream.facts().created_ms)
        return start if leave_open else self._noted(start, self._first_positions(repeatable=repeatable))

    def _first_positions(self, *, repeatable: bool) -> dict[str, Position]:
        """Return where each listed shard begins, with LATEST as the time of the listing.

        No query stood there before: what is gone by now is not lost, which is noted. The oldest records of a
        full stream expire while the batch that begins with them is being read: where that must be
        `repeatable` those with less than five minutes left are passed over.

        Raises:
            ConfigurationError: A shard is named that is not listed, a time has not come yet by the service's
                clock, or the lease table cannot be used.
            DataLoss: What a lease points at is gone, and that is fatal.
        """
        start, shards, facts = self._start, self._stream.shards(refresh=True), self._stream.facts()
        date_ms, now_ms = self._calls.date_ms(), self._calls.now_ms()
        for rule in {start.rule, *start.shards.values()}:
            if rule != "LATEST" and rule.kind == "TS":
                refuse_far_future(rule.time_ms or 0, date_ms, "The startingPosition")
        gone = start.done.keys() - shards.keys()
        for shard_id in gone:
            if start.shards[shard_id] != END:
                # A shard that was finished may be forgotten, one with work left must not.
                self._stream.loss.lost(
                    shard_id, "its lease was not worked off, and the stream does not list it any more"
                )
        left = {name: rule for name, rule in start.shards.items() if name not in gone}
        found = resolve(replace(start, shards=left), shards, date_ms)
        at_checkpoints = [name for name in start.done.keys() - gone if found[name].kind == "AT"]
        found |= dict(
            self._each(lambda name: self._past_done(name, found[name], start.done[name]), at_checkpoints)
        )
        edge_ms = date_ms - facts.retention_ms + min(_MARGIN_MS, facts.retention_ms // _MARGIN_SHARE)
        for shard_id, at in found.items():
            if at.is_moving:
                passed = repeatable and max(at.time_ms or 0, facts.created_ms) < edge_ms
                found[shard_id] = replace(at_time(edge_ms) if passed else at, until_ms=now_ms)
        return found

    def _past_done(self, shard_id: str, at: Position, done: int) -> Position:
        """Go past a checkpoint's Kinesis record unless user records of it were left."""
        found = ShardCursor(self._calls, shard_id, at, self._stream.loss).next_records(1)
        if not found:
            return at
        record = found[0]
        if record.number != at.number:
            return HORIZON  # the record is gone, and that was tolerated
        opened = decode(record.data, tags=False)
        count = len(opened.records) if isinstance(opened, Aggregate) else 1
        return at if done < count - 1 else after(record.sequence_number, record.arrival_ms)

    # Where a batch ends

    def fix_ends(self) -> None:
        """Let later plans go up to now, or to the ending position, and no further (AvailableNow).

        Now is when this is called, or two seconds later: so exactly is the service's clock known.

        Raises:
            ConfigurationError: The ending position lies further ahead than clocks differ.
        """
        end_ms = self._settings.end_ms
        if end_ms is not None:
            self._stream.facts()  # a reply tells the service's clock
            refuse_far_future(end_ms, self._calls.now_ms(), "endingPosition")
            while self._calls.now_ms() < end_ms + self._settings.probe_lag_ms:
                self._sleep(_CHECK_S)
        self._stream.keep_listing()
        self._until_ms = self._calls.date_ms() + CLOCK_ERROR_MS
        self._states.clear()

    def span(self) -> tuple[Offset, Offset]:
        """Return the starting position and the ends of now, of parents and children alike: a batch read."""
        start = self._resolved(repeatable=False)
        self.fix_ends()
        positions = dict.fromkeys(self._stream.listed, HORIZON) | start.shards
        self._planned = start, replace(start, shards=self._ends(positions, self._stream.listed, Limits()))
        return self._planned

    def latest(self, start: Offset, limits: Limits | None = None) -> Offset:
        """Find the end of the batch that begins at `start`; `start` itself when there is nothing new.

        The bounds are those of the options unless others are given.

        Raises:
            ConfigurationError: The stream is not the one the offset is of.
            DataLoss: Records after `start` are gone, and that is fatal.
        """
        self._planned = None
        self._stream.begin(start)
        if start.shards:
            end = self._latest(start, self._settings.limits if limits is None else limits)
        else:  # what LATEST means is not written down yet
            end = self._resolved()
            if self._in_step is not None:
                self._in_step.tell(UNBOUNDED, UNBOUNDED)
        self._planned = start, end
        return end

    def _latest(self, start: Offset, limits: Limits) -> Offset:
        shards = self._stream.shards()
        known = self._stream.without_vanished(start.shards)
        positions = dict.fromkeys(shards, HORIZON)
        stood = {shard_id: state.position for shard_id, state in self._states.items()}
        for shard_id, at in known.items():
            # A shard that was asked since knows more than the offset.
            now = stood.get(shard_id, at)
            positions[shard_id] = replace(now if now == at else at, first=None)
        chosen = readable(shards, positions, parent_first=self._settings.parent_first)
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
        if END in ends.values():
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
        asked_ms, asked_s, lag_ms = self._calls.now_ms(), self._clock(), self._settings.probe_lag_ms
        newest_ms = asked_ms - lag_ms if lag_ms else UNBOUNDED
        if self._until_ms is not None:
            newest_ms = self._until_ms
        self._states = {shard_id: self._state_at(shard_id, positions[shard_id]) for shard_id in chosen}
        every = self._states.values()
        if self._in_step is not None:
            newest_ms = self._in_step.bound_ms(newest_ms, self._look_out(limits))
        end_ms = self._settings.end_ms
        for state in every:
            state.begin(
                newest_ms if end_ms is None else min(newest_ms, end_ms - 1),
                over_gaps=self._until_ms is not None,
            )
        waiting = [state for state in every if not state.is_done and state.idle_until_s <= asked_s]
        if limits.looks_ahead:
            self._share_out(waiting, limits)
        else:
            share = limits.share(max(1, len(waiting)))
            self._each(lambda state: state.reach(share.span_ms, share.about_bytes), waiting)
        # For so long nothing new can count where nothing was a moment ago.
        idle_until_s = self._clock() + lag_ms / 1000 if self._until_ms is None else float("inf")
        for state in waiting:
            if state.is_at_tip:
                state.position = replace(state.position, until_ms=asked_ms)
                state.idle_until_s = idle_until_s
        if self._in_step is not None:
            self._in_step.tell(newest_ms, self._look_out(limits))
        return {shard_id: _with_first(state) for shard_id, state in self._states.items()}

    def _look_out(self, limits: Limits) -> int:
        """Return up to which arrival time a batch from here may go by its own bounds."""
        now_s = self._clock()
        every = self._states.values()
        states = [state for state in every if state.position != END and state.idle_until_s <= now_s]
        share = limits.share(max(1, len(states)))
        found = self._each(lambda state: state.outlook_ms(share), states)
        return min((outlook_ms for _, outlook_ms in found), default=UNBOUNDED)

    def _share_out(self, states: list[ShardState], limits: Limits) -> None:
        """Share the bounds out among the shards, again while some leave their share.

        A record larger than a share goes where the batch has room, and the first one always does. Who waited
        longest has the first turn, else who has the oldest record.
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
        if state is not None and state.position == at:
            return state
        per_page = self._settings.records_per_page
        return ShardState(self._calls, shard_id, at, self._stream.loss, per_page=per_page)

    # What is read of a batch

    def ranges(self, start: Offset, end: Offset) -> list[ShardRange]:
        """List what is to be read between two offsets, by shard id.

        Raises:
            ConfigurationError: The stream is not the one the offsets are of.
        """
        self._stream.begin(end)
        if not start.shards:
            # That batch only writes down what LATEST meant; its END marks were passed, not read up to.
            return []
        states = self._states if self._planned == (start, end) else {}
        polls = self._settings.consumer_name is None
        # Which keys are a shard's never changes: a batch tried again is filtered as it was at first.
        shards: Listing = {} if self._settings.hash_range_filter == "off" else self._stream.shards()
        found = []
        for shard_id, to in sorted(end.shards.items()):
            begin, state = start.shards.get(shard_id, HORIZON), states.get(shard_id)
            if to == begin or to.kind not in ("SEQ", "END") or to.first == NO_RECORD:
                continue
            if begin.is_moving and to.first is not None:
                begin = before(to.first)
            # Of a shard that is not listed nothing can be read that would have to be filtered.
            hash_keys = shards[shard_id].hash_keys if shard_id in shards else FULL_RANGE
            wanted = ShardRange(shard_id, begin, to, hash_keys)
            if state is not None:
                begin = replace(begin, until_ms=state.begun.until_ms)
                records, size_bytes = state.about
                wanted = replace(wanted, start=begin, records=records, size_bytes=size_bytes)
                if polls and state.first is not None and state.first.iterator is not None:
                    begin = before(state.first.sequence_number)
                    wanted = replace(wanted, start=begin, iterator=state.first.iterator)
            found.append(wanted)
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
    return replace(end, first=NO_RECORD if state.first is None else state.first.sequence_number)
