"""Plan micro-batches over a stream: exact ends, within bounds, from offsets and nothing else.

::

    ListShards ─► which shards may be read ─► their ends ─► offset ─► ranges, one per shard
                  (parents before children)    │
                                               ├─ records or bytes bounded: look ahead (`ahead`), share out
                                               └─ else: find the tip, or a moment before it (`tip`)

An end is always the sequence number of a record that was seen, so a batch reads the same however often
it is tried. What the planner remembers (look-aheads, the listing) only saves calls: a new one plans on
from the same offset. Records younger than `probeLag` wait for the next batch, as a margin for records
that become visible out of order. Where a batch begins at a time or a horizon, the number of its first
record stands beside its end, so that it cannot be read with fewer records when it is tried again.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from headpond.kinesis.api.calls import MOST_PARALLEL_CALLS
from headpond.kinesis.planning.batch_end import Ends
from headpond.kinesis.planning.options import Limits
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
    position_of,
    readable,
)
from headpond.kinesis.reading.reader import ShardRange
from headpond.kpl.hash_keys import FULL_RANGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headpond.kinesis.api.calls import StreamCalls
    from headpond.kinesis.planning.batch_end import FixedEnds
    from headpond.kinesis.planning.options import SourceSettings
    from headpond.kinesis.reading.positions import Listing

T = TypeVar("T")


class Planner:
    """Plans the batches of one query. Not to be used from several threads."""

    def __init__(
        self,
        calls: StreamCalls,
        settings: SourceSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls
        self._settings = settings
        self._pool = ThreadPoolExecutor(MOST_PARALLEL_CALLS, thread_name_prefix="headpond-plan")
        self._stream = settings.connection.stream
        self._watch = StreamWatch(calls, self._stream, settings.discovery_ms, clock)
        self._losses = Losses(calls, settings, self._watch)
        self._ends = Ends(calls, settings, self._watch, self._losses, each=self._each, clock=clock)
        self._initial: Offset | None = None
        self._begins: dict[str, Position] = {}  # of the first batch: from where it is planned
        self._planned_from: dict[str, Position] = {}  # the same, of the plan that was made last
        self._planned: Offset | None = None
        self._beginning = Beginning(calls, settings, self._losses.rule, self._each)

    @property
    def limits(self) -> Limits:
        """The bounds the options set."""
        return Limits(self._settings.max_records, self._settings.max_bytes, self._settings.max_span_ms)

    def close(self) -> None:
        """End the threads; calls under way are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

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
        self._begins = self._repeatable(positions)
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

    def _repeatable(self, positions: dict[str, Position]) -> dict[str, Position]:
        return repeatable(positions, self._watch.facts(), self._calls.date_ms())

    def fix_ends(self) -> FixedEnds:
        """Record the stream's ends now; no later plan goes beyond them (AvailableNow)."""
        return self._ends.fix()

    def span(self) -> tuple[Offset, Offset]:
        """Return the starting position and the ends of now, of parents and children alike: a batch read."""
        start = self._resolved()
        fixed = self.fix_ends()
        ends = self._each(
            lambda shard_id: fixed.end_from(shard_id, position_of(start.shards, shard_id)), fixed.shard_ids
        )
        self._planned = Offset(start.stream, start.created_ms, dict(ends))
        return start, self._planned

    def latest(self, start: Offset, limits: Limits) -> Offset:
        """Find the end of the batch that begins at `start`; `start` itself when there is nothing new.

        Raises:
            ConfigurationError: The stream is not the one the offset is of.
            DataLoss: Records after `start` are gone, and that is fatal.
        """
        self._watch.begin(start)
        self._planned = self._latest(start, limits)
        return self._planned

    def _latest(self, start: Offset, limits: Limits) -> Offset:
        if self._is_open(start):
            resolved = self._resolved()
            positions = self._repeatable(resolved.shards)
            self._losses.begin(positions)
            return replace(resolved, shards=self._noted(positions))
        shards = self._watch.shards()
        known = {
            shard_id: replace(at, first=None) if at.first is not None else at
            for shard_id, at in self._losses.without_vanished(start, shards).items()
        }
        if start == self._initial:
            known |= {shard_id: at for shard_id, at in self._begins.items() if shard_id in known}
            self._planned_from = self._begins
            self._losses.begin(known)
        parent_first = self._settings.parent_first
        chosen = [
            shard_id
            for shard_id in readable(shards, known, parent_first=parent_first)
            if self._ends.fixed is None or self._ends.fixed.is_wanted(shard_id, position_of(known, shard_id))
        ]
        self._check_aged(start, known, chosen)
        ends = self._ends.find(known, chosen, limits)
        if all(position_of(known, shard_id) == end for shard_id, end in ends.items()):
            return self._losses.renewed(start)
        if any(at.first is not None for at in ends.values()):
            # Records that no number before them binds to this stream.
            self._watch.recheck(again=True)
        if END in ends.values() and self._ends.fixed is None:
            # A shard that ended has children, which the offset must know from now on.
            shards = self._watch.shards(refresh=True)
        listed = shards if self._ends.fixed is None else shards.keys() & self._ends.fixed.shard_ids
        positions = {shard_id: position_of(known, shard_id) for shard_id in listed} | ends
        # A shard that ended and is listed no more can never come back: its mark is dropped.
        positions |= {
            shard_id: at for shard_id, at in known.items() if shard_id in shards or at != END
        } | ends
        return Offset(start.stream, start.created_ms, self._noted(positions))

    def _noted(self, positions: dict[str, Position]) -> dict[str, Position]:
        return {shard_id: self._losses.noted(shard_id, at) for shard_id, at in positions.items()}

    def _check_aged(self, start: Offset, known: dict[str, Position], chosen: list[str]) -> None:
        """Report what may have expired at positions that no record proves, or that nobody looks at."""
        fixed, shards = self._ends.fixed, self._watch.listed
        for shard_id in chosen:
            if position_of(known, shard_id).is_moving:
                self._losses.check_aged(shard_id, position_of(known, shard_id), start, shards)
        for shard_id in () if fixed is None else fixed.shard_ids:
            at = position_of(known, shard_id)
            if fixed is None or at == END or fixed.is_wanted(shard_id, at):
                continue
            if at != fixed.end(shard_id):
                self._losses.check_aged(shard_id, at, start, shards)
            # Nothing followed when the ends were taken.
            self._losses.remember(shard_id, at, at, self._ends.fixed_ms)

    def ranges(self, start: Offset, end: Offset) -> list[ShardRange]:
        """List what is to be read between two offsets, by shard id.

        Raises:
            ConfigurationError: The stream is not the one the offsets are of.
        """
        self._watch.begin(end)
        if self._is_open(start):
            # That batch only writes down what LATEST meant; its END marks were passed, not read up to.
            return []
        # Which keys are a shard's never changes: a batch tried again is filtered as it was at first.
        shards: Listing = {} if self._settings.hash_range_filter == "off" else self._watch.shards()
        found = []
        for shard_id, to in sorted(end.shards.items()):
            begin = position_of(start.shards, shard_id)
            if to in (begin, HORIZON) or to.kind not in ("SEQ", "END"):
                continue
            known_ms = self._losses.known_ms(shard_id, begin)
            # Of a shard that is not listed nothing can be read that would have to be filtered.
            hash_keys = shards[shard_id].hash_keys if shard_id in shards else FULL_RANGE
            planned_from = self._planned_from.get(shard_id, begin) if start == self._initial else begin
            count = self._ends.counts.get((shard_id, planned_from, to), 0)
            # A subscription takes no iterator.
            polls = self._settings.consumer_name is None
            seen = self._ends.seen.get((shard_id, planned_from, to)) if polls else None
            if begin.is_moving and to.first is not None:
                if to.first == NO_RECORD:
                    continue
                begin = before(to.first)
            found.append(ShardRange(shard_id, begin, to, known_ms, hash_keys, count, seen))
        if end != self._planned:
            # Planned by a query that was stopped: what expired since is found here rather than in a task.
            list(self._pool.map(self._prove, found))
        return found

    def _prove(self, wanted: ShardRange) -> None:
        """Look whether the first record of a range is still there."""
        loss = self._losses.rule(wanted.start, wanted.shard_id)
        ShardCursor(self._calls, wanted.shard_id, wanted.start, loss).next_page(1)

    def behind_ms(self) -> dict[str, int]:
        """Return how far each shard's planning is behind its tip, where it is known."""
        return self._ends.behind_ms()

    @property
    def tolerated_losses(self) -> int:
        """Gaps that were found and gone on over since the planner began (`failOnDataLoss` is false)."""
        return self._losses.count

    @property
    def retention_ms(self) -> int:
        """How long the stream keeps a record."""
        return self._watch.facts().retention_ms

    def _each(self, function: Callable[[str], T], shard_ids: Iterable[str]) -> list[tuple[str, T]]:
        """Call for each shard, in parallel."""
        names = list(shard_ids)
        found: dict[str, T] = {}
        left = iter(names)  # each step of it is one, whichever thread takes it

        def work() -> None:
            for name in left:
                try:
                    found[name] = function(name)
                except BaseException:
                    list(left)  # the others end after what they are at
                    raise

        threads = min(self._calls.parallel, len(names))
        for each in [self._pool.submit(work) for _ in range(threads)]:
            each.result()
        return [(name, found[name]) for name in names]
