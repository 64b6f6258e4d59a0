"""Plan micro-batches over a stream: exact ends, within bounds, from offsets and nothing else.

::

    ListShards ─► which shards may be read ─► their ends ─► offset ─► ranges, one per shard
                  (parents before children)    │
                                               ├─ records or bytes bounded: look ahead (`ahead`), share out
                                               └─ else: find the tip, or a moment before it (`tip`)

An end is always the sequence number of a record that was seen, so a batch reads the same however often
it is tried. What the planner remembers (look-aheads, the listing) only saves calls: a new one plans on
from the same offset. Records younger than `probeLag` wait for the next batch, as a margin for records
that become visible out of order.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from headpond.errors import ConfigurationError
from headpond.formats.hash_keys import FULL_RANGE
from headpond.kinesis.ahead import Ahead
from headpond.kinesis.begin import Beginning
from headpond.kinesis.calls import MOST_PARALLEL_CALLS
from headpond.kinesis.cursor import LossRule
from headpond.kinesis.fixed_ends import FixedEnds
from headpond.kinesis.options import Limits
from headpond.kinesis.positions import END, HORIZON, Offset, Position
from headpond.kinesis.quiet import Quiet
from headpond.kinesis.read import ShardRange
from headpond.kinesis.shards import listing, position_of, readable, vanished
from headpond.kinesis.tip import Tip, find_cut, find_end, find_tip, first_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headpond.kinesis.calls import StreamCalls, StreamFacts
    from headpond.kinesis.options import SourceSettings
    from headpond.kinesis.replies import Record
    from headpond.kinesis.shards import Listing

logger = logging.getLogger(__name__)
T = TypeVar("T")

_UNBOUNDED = 1 << 62
_FACTS_HOLD_S = 60.0  # an account may ask 20 times a second, for all its streams together


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
        self._clock = clock
        self._pool = ThreadPoolExecutor(MOST_PARALLEL_CALLS, thread_name_prefix="headpond-plan")
        self._facts: StreamFacts | None = None
        self._described_at = 0.0
        self._listing: Listing = {}
        self._listed_at: float | None = None
        self._ahead: dict[str, Ahead] = {}
        self._quiet = Quiet(clock)
        self._fixed: FixedEnds | None = None
        self._behind_ms: dict[str, int] = {}
        self._looks: dict[str, int] = {}
        self._known_ms: dict[tuple[str, Position], int] = {}
        self._counts: dict[tuple[str, Position, Position], int] = {}
        self._warned: set[str] = set()
        self._tolerated: set[str] = set()
        self._beginning = Beginning(calls, settings, self._loss, self._each)

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
        stream, created_ms = self._settings.connection.stream, self._describe().created_ms
        if self._beginning.says_latest:
            return Offset(stream, created_ms)
        return Offset(stream, created_ms, self._beginning.positions(self._shards(refresh=True), 0))

    def _is_open(self, start: Offset) -> bool:
        """Whether what LATEST means is not written down yet."""
        return not start.shards and self._beginning.says_latest

    def _resolved(self) -> Offset:
        """Say what LATEST means now."""
        created_ms = self._describe().created_ms
        shards = self._shards(refresh=True)
        # The date of the listing's reply: a shard that opens later is read from its first record.
        positions = self._beginning.positions(shards, self._calls.date_ms())
        return Offset(self._settings.connection.stream, created_ms, positions)

    def fix_ends(self) -> FixedEnds:
        """Take the stream's ends now; no later plan goes beyond them (AvailableNow)."""
        shards, loss = self._shards(refresh=True), self._loss(HORIZON, "")

        def end(shard_id: str) -> Tip:
            if shards[shard_id].closed:
                return Tip(END)
            return find_end(self._calls, shard_id, loss)._replace(idle=None)

        def first(shard_id: str, begin: Position) -> Record | Position | None:
            return first_after(self._calls, shard_id, begin, self._loss(begin, shard_id))

        self._fixed = FixedEnds(dict(self._each(end, shards)), first, self._describe().created_ms)
        return self._fixed

    def span(self) -> tuple[Offset, Offset]:
        """Return the starting position and the ends of now, of parents and children alike: a batch read."""
        start = self._resolved()
        fixed = self.fix_ends()
        ends = self._each(
            lambda shard_id: fixed.end_from(shard_id, position_of(start.shards, shard_id)), fixed.shard_ids
        )
        return start, Offset(start.stream, start.created_ms, dict(ends))

    def latest(self, start: Offset, limits: Limits) -> Offset:
        """Find the end of the batch that begins at `start`; `start` itself when there is nothing new.

        Raises:
            ConfigurationError: The stream is not the one the offset is of.
            DataLoss: Records after `start` are gone, and that is fatal.
        """
        self._check_same_stream(start)
        if self._is_open(start):
            return self._resolved()
        shards = self._shards()
        known = self._without_vanished(start, shards)
        parent_first = self._settings.parent_first
        chosen = [
            shard_id
            for shard_id in readable(shards, known, parent_first=parent_first)
            if self._fixed is None or self._fixed.is_wanted(shard_id, position_of(known, shard_id))
        ]
        ends = (
            self._bounded(known, chosen, limits)
            if limits.looks_ahead
            else self._unbounded(known, chosen, limits.span_ms)
        )
        if all(position_of(known, shard_id) == end for shard_id, end in ends.items()):
            return start
        if END in ends.values() and self._fixed is None:
            # A shard that ended has children, which the offset must know from now on.
            shards = self._shards(refresh=True)
        listed = shards if self._fixed is None else shards.keys() & self._fixed.shard_ids
        positions = {shard_id: position_of(known, shard_id) for shard_id in listed} | ends
        # A shard that ended and is listed no more can never come back: its mark is dropped.
        positions |= {
            shard_id: at for shard_id, at in known.items() if shard_id in shards or at != END
        } | ends
        return Offset(start.stream, start.created_ms, positions)

    def ranges(self, start: Offset, end: Offset) -> list[ShardRange]:
        """List what is to be read between two offsets, by shard id.

        Raises:
            ConfigurationError: The stream is not the one the offsets are of.
        """
        self._check_same_stream(end)
        if self._is_open(start):
            # That batch only writes down what LATEST meant; its END marks were passed, not read up to.
            return []
        # Which keys are a shard's never changes: a batch tried again is filtered as it was at first.
        shards: Listing = {} if self._settings.hash_range_filter == "off" else self._shards()
        found = []
        for shard_id, to in sorted(end.shards.items()):
            begin = position_of(start.shards, shard_id)
            if to not in (begin, HORIZON) and to.kind in ("SEQ", "END"):
                known_ms = self._known_ms.get((shard_id, begin), 0)
                # Of a shard that is not listed nothing can be read that would have to be filtered.
                hash_keys = shards[shard_id].hash_keys if shard_id in shards else FULL_RANGE
                count = self._counts.get((shard_id, begin, to), 0)
                found.append(ShardRange(shard_id, begin, to, known_ms, hash_keys, count))
        return found

    def behind_ms(self) -> dict[str, int]:
        """How far each shard's planning is behind its tip, where it is known."""
        ahead = {name: ahead.behind_ms for name, ahead in self._ahead.items()}
        return {name: ms for name, ms in sorted((self._behind_ms | ahead).items()) if ms >= 0}

    @property
    def tolerated_losses(self) -> int:
        """Gaps that were found and gone on over since the planner began (`failOnDataLoss` is false)."""
        return len(self._tolerated)

    @property
    def retention_ms(self) -> int:
        """How long the stream keeps a record."""
        return self._describe().retention_ms

    # Ends

    def _bounded(self, known: dict[str, Position], chosen: list[str], limits: Limits) -> dict[str, Position]:
        """Look ahead and share the bounds out among the shards, again while some leave their share."""
        left_records, left_bytes = (_UNBOUNDED if bound is None else bound for bound in limits[:2])
        newest_ms = self._newest_ms()
        ends = {shard_id: position_of(known, shard_id) for shard_id in chosen}
        for shard_id in chosen:
            held = self._ahead.get(shard_id)
            if held is None or held.position != ends[shard_id]:
                loss = self._loss(ends[shard_id], shard_id)
                self._ahead[shard_id] = Ahead(self._calls, shard_id, ends[shard_id], loss)
        for gone in self._ahead.keys() - set(chosen):
            del self._ahead[gone]
        active, counts = list(chosen), Counter[str]()
        nothing_yet = True
        while active and left_records > 0 and left_bytes > 0:
            records, size_bytes = max(1, left_records // len(active)), max(1, left_bytes // len(active))
            asked_ms = self._calls.now_ms()

            def fill(shard_id: str, records: int = records, size_bytes: int = size_bytes) -> bool:
                return self._ahead[shard_id].fill(records, size_bytes, self._settings.records_per_page)

            at_tip = dict(self._each(fill, self._not_quiet(active, known)))
            answered_s = self._clock()
            going_on = []
            for shard_id in active:
                ahead = self._ahead[shard_id]
                taken = ahead.take(
                    min(records, left_records),
                    min(size_bytes, left_bytes),
                    until=None if self._fixed is None else self._fixed.end(shard_id),
                    newest_ms=newest_ms,
                    at_least_one=nothing_yet,
                )
                ends[shard_id] = taken.end
                counts[shard_id] += taken.records
                left_records, left_bytes = left_records - taken.records, left_bytes - taken.size_bytes
                nothing_yet = nothing_yet and not taken.records
                if at_tip.get(shard_id):
                    self._quiet.note(shard_id, taken.end, answered_s, self._hold_ms)
                    if not ahead.held:
                        self._remember(shard_id, position_of(known, shard_id), taken.end, asked_ms)
                if taken.records and taken.end != END and (ahead.held or ahead.behind_ms):
                    going_on.append(shard_id)
            active = going_on
        self._counts = {(name, position_of(known, name), ends[name]): count for name, count in counts.items()}
        return ends

    def _unbounded(
        self, known: dict[str, Position], chosen: list[str], span_ms: int | None
    ) -> dict[str, Position]:
        """Go to the tips, or to the ends fixed before, and no further than the span."""
        begins = {shard_id: position_of(known, shard_id) for shard_id in chosen}
        fixed = [name for name in chosen if self._fixed is not None or self._listing[name].closed]
        found = dict(self._each(lambda name: self._before_end(name, begins[name], span_ms), fixed))
        newest_ms, asked_ms, asked_s = self._newest_ms(), self._calls.now_ms(), self._clock()

        def tip(shard_id: str) -> Tip:
            begin = begins[shard_id]
            loss, idle = self._loss(begin, shard_id), self._quiet.cursor(shard_id, begin)
            return find_tip(
                self._calls,
                shard_id,
                begin,
                loss,
                newest_ms=newest_ms,
                idle=idle,
                span_ms=span_ms,
                look=self._looks.get(shard_id, 1),
            )

        open_shards = [shard_id for shard_id in chosen if shard_id not in found]
        tips = self._each(tip, self._not_quiet(open_shards, begins))
        answered_s = self._clock()
        for shard_id, at in tips:
            begin = begins[shard_id]
            if at.idle is not None:
                self._quiet.note(shard_id, at.end, answered_s, self._hold_ms, at.idle)
                self._remember(shard_id, begin, at.end, asked_ms)
            elif at.young_ms is not None and newest_ms is not None:
                self._quiet.note(shard_id, begin, asked_s, at.young_ms - newest_ms)
        self._quiet.keep_only(open_shards)
        found |= tips
        self._looks |= {shard_id: at.look for shard_id, at in tips}
        self._behind_ms = {name: self._behind_ms[name] for name in chosen if name in self._behind_ms}
        self._behind_ms |= {name: at.behind_ms for name, at in found.items()}
        return begins | {shard_id: at.end for shard_id, at in found.items()}

    def _before_end(self, shard_id: str, begin: Position, span_ms: int | None) -> Tip:
        """Go to an end that is fixed, a closed shard's or one taken before, and no further than the span."""
        if self._fixed is None:
            end, began_ms = END, None
        else:
            end, began_ms = self._fixed.end_from(shard_id, begin), self._fixed.began_ms(shard_id, begin)
        if span_ms is None or end == begin:
            return Tip(end)
        if began_ms is not None and end.time_ms is not None and end.time_ms - began_ms <= span_ms:
            return Tip(end)
        loss = self._loss(begin, shard_id)
        cut = find_cut(self._calls, shard_id, begin, loss, span_ms, until_ms=end.time_ms)
        if cut is None or (end.kind == "SEQ" and cut.end.number >= end.number):
            return Tip(end)
        return cut

    def _not_quiet(self, shard_ids: Iterable[str], at: dict[str, Position]) -> list[str]:
        """Leave out the shards that need not be asked yet."""
        return [
            shard_id
            for shard_id in shard_ids
            if not self._quiet.is_quiet(shard_id, position_of(at, shard_id))
        ]

    @property
    def _hold_ms(self) -> int:
        """For how long nothing new can count where nothing was a moment ago."""
        return self._settings.probe_lag_ms if self._fixed is None else 0

    def _newest_ms(self) -> int | None:
        """The arrival after which records wait for the next batch; None: none do."""
        if self._fixed is not None or not self._settings.probe_lag_ms:
            return None
        return self._calls.now_ms() - self._settings.probe_lag_ms

    def _remember(self, shard_id: str, begin: Position, at: Position, known_ms: int) -> None:
        """Note until when nothing followed a position; of older notes only the batch's start is needed."""
        for key in [key for key in self._known_ms if key[0] == shard_id and key[1] not in (begin, at)]:
            del self._known_ms[key]
        self._known_ms[shard_id, at] = known_ms

    def _loss(self, at: Position, shard_id: str) -> LossRule:
        return LossRule(
            self._settings.connection.stream,
            self._describe().retention_ms,
            self._settings.fail_on_data_loss,
            self._known_ms.get((shard_id, at), 0),
            self._tolerated,
        )

    def _each(self, function: Callable[[str], T], shard_ids: Iterable[str]) -> list[tuple[str, T]]:
        """Call for each shard, in parallel."""
        names = list(shard_ids)
        return list(zip(names, self._pool.map(function, names), strict=True))

    # The stream and its shards

    def _describe(self) -> StreamFacts:
        if self._facts is None or self._clock() - self._described_at > _FACTS_HOLD_S:
            self._facts = self._calls.describe()
            self._described_at = self._clock()
        return self._facts

    def _shards(self, *, refresh: bool = False) -> Listing:
        now = self._clock()
        old = self._listed_at is None or (now - self._listed_at) * 1000 >= self._settings.discovery_ms
        if refresh or old:
            self._listing = listing(self._calls.list_shards())
            self._listed_at = now
        return self._listing

    def _check_same_stream(self, offset: Offset) -> None:
        if offset.stream != self._settings.connection.stream:
            raise ConfigurationError(
                f"The checkpoint is of stream {offset.stream}, the source is told to read "
                f"{self._settings.connection.stream}.",
                next_step="Use that stream's checkpoint, or begin with a new one.",
                stream=self._settings.connection.stream,
            )
        if offset.created_ms != self._describe().created_ms:
            raise ConfigurationError(
                f"Stream {offset.stream} was deleted and created anew: the checkpoint is of one created at "
                f"{offset.created_ms} ms, this one was created at {self._describe().created_ms} ms.",
                next_step="Begin with a new checkpoint.",
                stream=offset.stream,
                expected=offset.created_ms,
                found=self._describe().created_ms,
            )

    def _without_vanished(self, start: Offset, shards: Listing) -> dict[str, Position]:
        """Return the positions that can be gone on from; shards that went unread are lost."""
        gone = vanished(shards, start.shards)
        for shard_id in gone:
            if shard_id not in self._warned:
                self._loss(start.shards[shard_id], shard_id).lost(
                    shard_id, "the shard is not listed any more and was not read to its end"
                )
                self._warned.add(shard_id)
        return {shard_id: at for shard_id, at in start.shards.items() if shard_id not in gone}
