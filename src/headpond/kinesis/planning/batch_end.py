"""Find the ends of a batch: looking ahead under exact bounds, else at the tips or so much time before them.

What is held here (look-aheads, idle cursors, how far a look should go) only saves calls: another `Ends` finds
ends from the same positions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from headpond.kinesis.api.replies import Record
from headpond.kinesis.planning.ending import await_end, end_before
from headpond.kinesis.planning.lookahead import Ahead
from headpond.kinesis.planning.tip import Tip, find_cut, find_end, find_tip, first_after
from headpond.kinesis.reading.cursor import no_tip
from headpond.kinesis.reading.positions import END, HORIZON, NO_RECORD, Position, position_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, KeysView

    from headpond.kinesis.api.calls import StreamCalls
    from headpond.kinesis.planning.options import Limits, SourceSettings
    from headpond.kinesis.planning.stream_state import Losses, StreamWatch
    from headpond.kinesis.reading.cursor import LossRule, Resume, ShardCursor


class _Note(NamedTuple):
    at: Position
    until_s: float
    cursor: ShardCursor | None


class Quiet:
    """What is known of shards without news."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._notes: dict[str, _Note] = {}

    def note(
        self, shard_id: str, at: Position, from_s: float, hold_ms: int, cursor: ShardCursor | None = None
    ) -> None:
        """Note that nothing that counts follows a position, for so long.

        A `cursor` that is kept can ask on from there; without one, asking begins at the position.
        """
        self._notes[shard_id] = _Note(at, from_s + hold_ms / 1000, cursor)

    def is_quiet(self, shard_id: str, at: Position) -> bool:
        """Return whether asking what follows the position could not change anything yet."""
        note = self._notes.get(shard_id)
        return note is not None and note.at == at and self._clock() < note.until_s

    def cursor(self, shard_id: str, at: Position) -> ShardCursor | None:
        """Remove and return the cursor that found nothing after the position, if it was kept."""
        note = self._notes.pop(shard_id, None)
        return note.cursor if note is not None and note.at == at else None

    def keep_only(self, shard_ids: Iterable[str]) -> None:
        """Forget all other shards."""
        wanted = set(shard_ids)
        self._notes = {shard_id: note for shard_id, note in self._notes.items() if shard_id in wanted}


_NOTHING = ("TS", "HORIZON")  # as an end: the shard had no record
_ROUNDED_MS = 1_000  # the service may round a time it is asked for


class FixedEnds:
    """The ends that were taken."""

    def __init__(
        self,
        tips: dict[str, Tip],
        first_after: Callable[[str, Position], Record | Position | None],
        created_ms: int,
    ) -> None:
        self._tips = tips
        self._first_after = first_after
        self._created_ms = created_ms

    @property
    def shard_ids(self) -> KeysView[str]:
        """The shards there were."""
        return self._tips.keys()

    def end(self, shard_id: str) -> Position:
        """Return the end itself."""
        return self._tips[shard_id].end

    def is_wanted(self, shard_id: str, at: Position) -> bool:
        """Return whether a reader at a position may be before the end."""
        tip = self._tips.get(shard_id)
        return tip is not None and tip.end != at and tip.end.kind not in _NOTHING

    def end_from(self, shard_id: str, begin: Position) -> Position:
        """Return the end, unless a reader at `begin` is there or beyond it already."""
        end = self._tips[shard_id].end
        if end.kind in _NOTHING or begin == END:
            return begin
        if end.kind == "SEQ" and begin.kind == "SEQ":
            return end if end.number > begin.number else begin
        if end.kind == "SEQ" and begin.kind == "AT":
            return end if end.number >= begin.number else begin
        if end.kind == "SEQ" and begin.kind == "TS" and not _is_later(end, begin):
            # The end may lie before the time: only what follows the time can tell.
            first = self._first_after(shard_id, begin)
            if not isinstance(first, Record) or first.number > end.number:
                return begin
        return end

    def began_ms(self, shard_id: str, begin: Position) -> int | None:
        """When the first record after a position may have arrived at the earliest; None: not known."""
        if begin.kind != "HORIZON":
            return begin.time_ms
        oldest_ms = self._tips[shard_id].oldest_ms
        return self._created_ms if oldest_ms is None else oldest_ms


def _is_later(end: Position, begin: Position) -> bool:
    """Return whether a record certainly arrived after a moment, so that it is among what follows it."""
    return end.time_ms is not None and end.time_ms >= (begin.time_ms or 0) + _ROUNDED_MS


T = TypeVar("T")

_UNBOUNDED = 1 << 62


class EachShard(Protocol):
    """Calls a function for each shard, in parallel."""

    def __call__(self, function: Callable[[str], T], shard_ids: Iterable[str]) -> list[tuple[str, T]]:
        """Return the shards and what was found."""


class Ends:
    """The ends of one query's batches.

    Attributes:
        fixed: The ends that no batch goes beyond; None: there are none.
        fixed_ms: When those were taken.
        counts: How many records lie between two positions of a shard, of the last batch, where it is known.
        seen: How the first of them was seen, where it was.
    """

    def __init__(
        self,
        calls: StreamCalls,
        settings: SourceSettings,
        watch: StreamWatch,
        losses: Losses,
        *,
        each: EachShard,
        clock: Callable[[], float],
    ) -> None:
        self._calls, self._settings, self._watch, self._losses = calls, settings, watch, losses
        self._each, self._clock = each, clock
        self._ahead: dict[str, Ahead] = {}
        self._quiet = Quiet(clock)
        self._behind_ms: dict[str, int] = {}
        self._looks: dict[str, int] = {}
        self._waited: dict[str, int] = {}  # batches that a shard's next record had no room in
        self.fixed: FixedEnds | None = None
        self.fixed_ms = 0
        self.counts: dict[tuple[str, Position, Position], int] = {}
        self.seen: dict[tuple[str, Position, Position], Resume] = {}

    def fix(self) -> FixedEnds:
        """Record the stream's ends now; no later plan goes beyond them (AvailableNow)."""
        end_ms = self._settings.end_ms
        if end_ms is not None:
            self._watch.facts()  # a reply tells the service's clock
            await_end(self._calls, end_ms, self._settings.probe_lag_ms)
        shards, loss = self._watch.shards(refresh=True), self._losses.rule(HORIZON, "")
        self.fixed_ms = self._calls.now_ms()

        def end(shard_id: str) -> Tip:
            if end_ms is not None:
                tip = end_before(self._calls, shard_id, loss, end_ms)
            elif shards[shard_id].closed:
                return Tip(END)
            else:
                tip = find_end(self._calls, shard_id, loss)
            if tip.end.is_moving and tip.behind_ms > 0 and tip.young_ms is None:
                raise no_tip(shard_id, loss.stream)
            return tip._replace(idle=None)

        def first(shard_id: str, begin: Position) -> Record | Position | None:
            return first_after(self._calls, shard_id, begin, self._losses.rule(begin, shard_id))

        self.fixed = FixedEnds(dict(self._each(end, shards)), first, self._watch.facts().created_ms)
        return self.fixed

    def find(self, known: dict[str, Position], chosen: list[str], limits: Limits) -> dict[str, Position]:
        """Find the ends of a batch.

        Returns:
            For each chosen shard an end, its position where nothing is new.
        """
        if limits.looks_ahead:
            return self._bounded(known, chosen, limits)
        return self._unbounded(known, chosen, limits.span_ms)

    def behind_ms(self) -> dict[str, int]:
        """Return how far each shard's planning is behind its tip, where it is known."""
        now_ms = self._calls.now_ms()
        ahead = {name: ahead.lag_ms(now_ms) for name, ahead in self._ahead.items()}
        return {name: ms for name, ms in sorted((self._behind_ms | ahead).items()) if ms >= 0}

    def _bounded(self, known: dict[str, Position], chosen: list[str], limits: Limits) -> dict[str, Position]:
        """Look ahead and share the bounds out among the shards, again while some leave their share.

        A record larger than a share goes where the batch has room for it, and the first one always does. Who
        waited longest has the first turn, else who has the oldest record.
        """
        left_records, left_bytes = (_UNBOUNDED if bound is None else bound for bound in limits[:2])
        newest_ms = self._newest_ms()
        ends = {shard_id: position_of(known, shard_id) for shard_id in chosen}
        self._look_from(ends)
        active, counts, firsts = list(chosen), Counter[str](), dict[str, str]()
        seen: dict[str, Resume | None] = {}
        nothing_yet = True
        while active and left_records > 0 and left_bytes > 0:
            records, size_bytes = max(1, left_records // len(active)), max(1, left_bytes // len(active))
            asked_ms = self._calls.now_ms()

            def fill(shard_id: str, records: int = records, size_bytes: int = size_bytes) -> bool:
                # Before ends that are fixed "nothing new" ends the query: no gap may look like that.
                per_page, over_gaps = self._settings.records_per_page, self.fixed is not None
                return self._ahead[shard_id].fill(records, size_bytes, per_page, over_gaps=over_gaps)

            at_tip = dict(self._each(fill, self._not_quiet(active, known)))
            answered_s = self._clock()
            going_on = []
            for shard_id in sorted(active, key=lambda name: self._turn(name, newest_ms)):
                ahead, until = self._ahead[shard_id], self._until(shard_id)
                mark = ahead.next(until=until, newest_ms=newest_ms)
                fits = mark is not None and mark.size_bytes <= left_bytes and left_records > 0
                taken = ahead.take(
                    min(records, left_records),
                    min(size_bytes, left_bytes),
                    until=until,
                    newest_ms=newest_ms,
                    at_least_one=nothing_yet or fits,
                )
                ends[shard_id] = taken.end
                counts[shard_id] += taken.records
                if taken.first is not None:
                    firsts.setdefault(shard_id, taken.first)
                    seen.setdefault(shard_id, taken.seen)
                left_records, left_bytes = left_records - taken.records, left_bytes - taken.size_bytes
                nothing_yet = nothing_yet and not taken.records
                if at_tip.get(shard_id):
                    self._quiet.note(shard_id, taken.end, answered_s, self._hold_ms)
                    if not ahead.held:
                        self._losses.remember(shard_id, position_of(known, shard_id), taken.end, asked_ms)
                if taken.records and taken.end != END and (ahead.held or not at_tip.get(shard_id, True)):
                    going_on.append(shard_id)
            active = going_on
        self._waited = {
            name: self._waited.get(name, 0) + 1
            for name in chosen
            if not counts[name] and self._ahead[name].next(until=self._until(name), newest_ms=newest_ms)
        }
        self.counts = {(name, position_of(known, name), ends[name]): count for name, count in counts.items()}
        self.seen = {
            (name, position_of(known, name), ends[name]): each for name, each in seen.items() if each
        }
        return {
            name: _from_first(position_of(known, name), end, firsts.get(name, NO_RECORD))
            for name, end in ends.items()
        }

    def _until(self, shard_id: str) -> Position | None:
        return None if self.fixed is None else self.fixed.end(shard_id)

    def _turn(self, shard_id: str, newest_ms: int | None) -> tuple[int, int]:
        """Return a key that sorts shards by their turn."""
        mark = self._ahead[shard_id].next(until=self._until(shard_id), newest_ms=newest_ms)
        return -self._waited.get(shard_id, 0), _UNBOUNDED if mark is None else mark.arrival_ms

    def _look_from(self, begins: dict[str, Position]) -> None:
        """Keep the look-aheads of these shards that stand there, begin others, and forget the rest."""
        for shard_id, begin in begins.items():
            held = self._ahead.get(shard_id)
            if held is None or held.position != begin:
                loss = self._losses.rule(begin, shard_id)
                self._ahead[shard_id] = Ahead(self._calls, shard_id, begin, loss)
        for gone in self._ahead.keys() - begins.keys():
            del self._ahead[gone]

    def _unbounded(
        self, known: dict[str, Position], chosen: list[str], span_ms: int | None
    ) -> dict[str, Position]:
        """Go to the tips, or to the ends fixed before, and no further than the span."""
        begins = {shard_id: position_of(known, shard_id) for shard_id in chosen}
        listed = self._watch.listed
        fixed = [name for name in chosen if self.fixed is not None or listed[name].closed]
        found = dict(self._each(lambda name: self._before_end(name, begins[name], span_ms), fixed))
        newest_ms, asked_ms, asked_s = self._newest_ms(), self._calls.now_ms(), self._clock()

        def tip(shard_id: str) -> Tip:
            begin = begins[shard_id]
            loss, idle = self._losses.rule(begin, shard_id), self._quiet.cursor(shard_id, begin)
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
                if not at.behind_ms:  # else it stands in a gap
                    self._losses.remember(shard_id, begin, at.end, asked_ms)
            elif at.young_ms is not None and newest_ms is not None:
                self._quiet.note(shard_id, begin, asked_s, at.young_ms - newest_ms)
        self._quiet.keep_only(open_shards)
        found |= tips
        self._looks |= {shard_id: at.look for shard_id, at in tips}
        self._behind_ms = {name: self._behind_ms[name] for name in chosen if name in self._behind_ms}
        self._behind_ms |= {name: at.behind_ms for name, at in found.items()}
        self.seen = {(name, begins[name], at.end): at.seen for name, at in found.items() if at.seen}
        return begins | {
            shard_id: _from_first(begins[shard_id], at.end, at.first) for shard_id, at in found.items()
        }

    def _before_end(self, shard_id: str, begin: Position, span_ms: int | None) -> Tip:
        """Go to an end that is fixed, a closed shard's or one taken before, and no further than the span."""
        if self.fixed is None:
            end, began_ms = END, None
        else:
            end, began_ms = self.fixed.end_from(shard_id, begin), self.fixed.began_ms(shard_id, begin)
        if end == begin:
            return Tip(end)
        within = began_ms is not None and end.time_ms is not None and end.time_ms - began_ms <= (span_ms or 0)
        loss = self._losses.rule(begin, shard_id)
        if span_ms is None or within:
            unproven = begin.kind != "SEQ" or self._losses.may_have_expired(shard_id, begin)
            return Tip(end, first=_first(self._calls, shard_id, begin, loss) if unproven else None)
        cut, first, seen = find_cut(self._calls, shard_id, begin, loss, span_ms, until_ms=end.time_ms)
        if cut is None or (end.kind == "SEQ" and cut.end.number >= end.number):
            return Tip(end, first=first, seen=seen)
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
        return self._settings.probe_lag_ms if self.fixed is None else 0

    def _newest_ms(self) -> int | None:
        """Return the arrival after which records wait for the next batch; None: none do."""
        if self.fixed is not None or not self._settings.probe_lag_ms:
            return None
        return self._calls.now_ms() - self._settings.probe_lag_ms


def _first(calls: StreamCalls, shard_id: str, begin: Position, loss: LossRule) -> str | None:
    """Look what the first record after a position is, and whether the position itself is still there."""
    found = first_after(calls, shard_id, begin, loss)
    if isinstance(found, Position):
        return NO_RECORD
    return None if found is None else found.sequence_number


def _from_first(begin: Position, end: Position, first: str | None) -> Position:
    """Note the first record beside an end whose batch began where nothing else says which it was."""
    noted = first is not None and begin.is_moving and end.kind in ("SEQ", "END")
    return replace(end, first=first) if noted else end
