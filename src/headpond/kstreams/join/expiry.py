"""When unmatched records leave: the rounds of Kafka Streams over a whole batch.

Which records wait, from when on, and when a partner takes them out is known before: only the rounds
themselves go record by record. A round visits the waiting records by (timestamp, right before left, key,
arrival) and stops once it has met an open window on each side. By its own side's time order, every closed
window lies before that side's first open one: **a round lets out all records whose windows have closed**,
and where it stopped decides only what it remembers as `min_time`, the time that the next round waits for.
That is needed: with the first open record's time in its place, six of the random time-lines that Kafka
Streams played come out otherwise.

::

    position   0   1   2   3   4   5   6   7        walk order of all that wait or will wait in this batch
    left       c   .   c   o   .   .   o   .        c closed: leaves      o open
    right      .   c   .   .   o   x   .   o        x gone before: was taken out by a partner, or left
                               └── both sides have met an open one: the next that waits, 6, ends the round

Source: spec "window store", section 8.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from headpond.core.arrow import distinct
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.chunks import Kept, bounds_of
from headpond.kstreams.join.pairs import Bool, Int64, Pairs
from headpond.kstreams.join.results import Source, repeated
from headpond.kstreams.join.rules import NO_MIN_TIME, NO_TIME, OTHER_SIDE, JoinClock, JoinRules, wrapped

NEVER = 1 << 62
"""Stands for "not in this batch" where a record of the batch is named."""
BEFORE = -1
"""... and this for "before this batch"."""


@dataclass(slots=True)
class Waiting:
    """The records that wait at the start of a batch or begin to wait in it, in walk order.

    Attributes:
        ts: their timestamps, ms.
        left: whether they are left ones.
        since: the record of the batch with which they begin to wait (their own number), or BEFORE.
        taken: the record of the batch that takes them out as its partner, or NEVER.
        last: the position of the last one of the same time, side and key: together they are one entry.
    """

    ts: Int64
    left: Bool
    since: Int64
    taken: Int64
    last: Int64


def rounds(
    rules: JoinRules,
    waiting: Waiting,
    triggers: Int64,
    left: Bool,
    times: Int64,
    now_ms: int,
    clock: JoinClock,
) -> tuple[Int64, Int64]:
    """Visit the records at the top of stream time, and begin a round where one is due.

    Returns who leaves: at which record of the batch, and which position.

    Args:
        rules: the join.
        waiting: in walk order.
        triggers: numbers in the batch of the records at the top, ascending.
        left: whether each is a left one.
        times: their timestamps, which are the stream time then.
        now_ms: wall-clock time, one for the whole batch.
        clock: the smallest time in the buffer and the throttle's end as the batch before left them; as this
            one leaves them, afterwards.
    """
    at: list[int] = []
    positions: list[int] = []
    after = [rules.after_ms(side) + rules.windows.grace_ms for side in Side]
    # The empty buffer's number may wrap around: a round begins then, and finds nothing.
    due_empty = [wrapped(NO_MIN_TIME + each) for each in after]
    end = len(waiting.ts)
    # The place behind the last stands for "none": it waits on both sides, and never closes.
    ts = [*waiting.ts.tolist(), NO_MIN_TIME]
    of_left = waiting.left.tolist()
    # Per side a byte for each position: 1 where a record waits now. Whatever is asked is a search for a byte.
    waits = [
        bytearray(((waiting.since == BEFORE) & (waiting.left == bool(side.value))).tobytes() + b"\1")
        for side in Side
    ]
    first = [mine.find(1) for mine in waits]
    begins, goes = np.flatnonzero(waiting.since >= 0), np.flatnonzero(waiting.taken < NEVER)
    changes = np.concatenate((waiting.since[begins], waiting.taken[goes]))
    order = np.argsort(changes, kind="stable")
    upcoming = zip(
        changes[order].tolist(),
        np.concatenate((begins, goes))[order].tolist(),
        (order < len(begins)).tolist(),
        strict=True,
    )
    change = next(upcoming, None)
    every = zip([*triggers.tolist(), NEVER], [*left.tolist(), False], [*times.tolist(), NO_TIME], strict=True)
    for trigger, is_left, stream_time in every:
        while change is not None and change[0] < trigger:
            _, position, begun = change
            side = of_left[position]
            waits[side][position] = begun
            if begun:
                first[side] = min(first[side], position)
                clock.min_time = min(clock.min_time, ts[position])
            elif position == first[side]:
                first[side] = waits[side].find(1, position)
            change = next(upcoming, None)
        nothing = clock.min_time == NO_MIN_TIME
        due = due_empty[is_left] if nothing else clock.min_time + after[is_left]
        if trigger == NEVER or due >= stream_time or now_ms < clock.next_emit_ms:
            continue
        clock.next_emit_ms = now_ms + rules.emit_interval_ms
        if nothing:
            continue
        left_now: list[int] = []
        for side, mine in enumerate(waits):
            position = first[side]
            while ts[position] < stream_time - after[side]:
                mine[position] = 0
                left_now.append(position)
                position = mine.find(1, position)
            first[side] = position
        left_now.sort()
        at += [trigger] * len(left_now)
        positions += left_now
        both = max(first)
        behind = int(waiting.last[both]) + 1 if both < end else end
        clock.min_time = ts[_stop(waits, both, behind, end, left_now)]
    return np.array(at, np.int64), np.array(positions, np.int64)


def _stop(waits: list[bytearray], both: int, behind: int, end: int, left_now: list[int]) -> int:
    """Return where a round ends that has met an open entry of each side by the one at `both`.

    That is the next entry, which begins at `behind` or later; or that one, where none follows.
    """
    if both < end:
        following = min(waits[0].find(1, behind), waits[1].find(1, behind))
        return following if following < end else both
    # One side has no open record: all that waited were visited.
    last = max(waits[0].rfind(1, 0, end), waits[1].rfind(1, 0, end))
    if left_now:
        last = max(last, left_now[-1])
    return end if last < 0 else last


def leaving(rules: JoinRules, waiting: Waiting, stream: Int64, until: int) -> tuple[Int64, Int64]:
    """Return who leaves where time alone decides: before which record of the batch, and which position.

    Args:
        rules: the join.
        waiting: in walk order.
        stream: stream time with each record of the batch, ascending.
        until: stream time after the last one; who leaves by it leaves before the number len(stream).
    """
    after = np.where(waiting.left, rules.after_ms(Side.LEFT), rules.after_ms(Side.RIGHT))
    closes = waiting.ts + after + rules.windows.grace_ms
    at = np.maximum(np.searchsorted(stream, closes, side="right"), waiting.since + 1)
    leaves = ((at < len(stream)) | (closes < until)) & (waiting.taken >= at)
    position = np.flatnonzero(leaves)
    position = position[np.argsort(at[position], kind="stable")]
    return at[position], position


class Selection:
    """Picks, of one side's records that wait, those that a batch can have to do with.

    ::

        waiting, by time    c  c  c  │  p  p  p  p  p  p  p  …  p
        marks                        ▲     ▲        ▲
                            c: can close by the end of the batch, all are picked
                            p: stays; those of the time of a mark, the next behind each, and the last

    A round stops behind the first open entry of each side. That is one that can close, one that the batch
    brings or takes out, or the first that stays: so of those that stay only what is at or next to the time of
    such a *mark* is ever met, and chunks without any of it are not loaded.
    """

    def __init__(self, kept: tuple[Kept, ...], hit: Int64, closed_before: int) -> None:
        self._kept = kept
        self._bases = bounds_of(kept)
        self._closed_before = closed_before
        self._chosen: dict[int, list[Int64]] = {}
        self._waiting = [place for place, each in enumerate(kept) if each.waits.count]
        hit = distinct(hit)
        cuts = np.searchsorted(hit, self._bases)
        for place in self._waiting:
            chunk, waits = kept[place]
            met = hit[cuts[place] : cuts[place + 1]] - self._bases[place]
            if len(met):
                self._add(place, met[waits.flags[met]])
            if chunk.min_ts < closed_before:
                self._add(place, np.flatnonzero(waits.flags & (chunk.data.ts < closed_before)))
        self._hits = {
            place: rows[0] if len(rows) == 1 else distinct(np.concatenate(rows))
            for place, rows in self._chosen.items()
        }

    def _add(self, place: int, rows: Int64) -> None:
        if len(rows):
            self._chosen.setdefault(place, []).append(rows)

    def _staying(self, place: int) -> tuple[Int64, Int64]:
        """Return the rows of a chunk that stay whatever happens, by time, and their times."""
        chunk, waits = self._kept[place]
        if place in self._hits:
            waits = waits.without(self._hits[place])
        rows = np.flatnonzero(waits.flags)
        ts = chunk.data.ts[rows]
        order = np.argsort(ts, kind="stable")
        return rows[order], ts[order]

    def times(self) -> Int64:
        """Return the times of those that can leave or be taken out."""
        parts = [self._kept[place].chunk.data.ts[rows] for place, rows in self._hits.items()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def first_staying(self) -> int | None:
        """Return the time of the first that stays; None: none does."""
        return self.mark(np.array([self._closed_before], np.int64))

    def mark(self, marks: Int64) -> int | None:
        """Choose those that stay at each mark (ascending times) and the next; return the first one's time."""
        following = np.full(len(marks), NEVER, np.int64)
        first: int | None = None
        for place in sorted(self._waiting, key=lambda each: self._kept[each].chunk.min_ts):
            chunk = self._kept[place].chunk
            asking = np.searchsorted(marks, chunk.max_ts, side="right")
            if not (following[:asking] > chunk.min_ts).any():
                continue
            rows, ts = self._staying(place)
            behind = np.searchsorted(ts, marks, side="right")
            at = np.flatnonzero(np.isin(ts, marks))
            self._add(place, rows[distinct(np.append(at, behind[behind < len(rows)]))])
            begin = int(np.searchsorted(ts, marks[0]))
            if begin < len(ts):
                first = int(ts[begin]) if first is None else min(first, int(ts[begin]))
            following = np.minimum(following, np.append(ts, NEVER)[behind])
        return first

    def mark_last(self) -> None:
        """Choose the last that stays."""
        last = -1
        for place in sorted(self._waiting, key=lambda each: -self._kept[each].chunk.max_ts):
            if self._kept[place].chunk.max_ts <= last:
                return
            rows, ts = self._staying(place)
            if len(ts):
                self._add(place, rows[-1:])
                last = max(last, int(ts[-1]))

    def chosen(self) -> tuple[Int64, Int64, Int64]:
        """Return global rows, ascending, times and numbers of arrival of all that were chosen."""
        found: list[list[Int64]] = [[np.empty(0, np.int64)] for _ in range(3)]
        for place in sorted(self._chosen):
            parts = self._chosen[place]
            rows = parts[0] if len(parts) == 1 else distinct(np.concatenate(parts))
            data = self._kept[place].chunk.data
            columns = rows + self._bases[place], data.ts[rows], data.seq[rows]
            for part, column in zip(found, columns, strict=True):
                part.append(column)
        gids, times, seqs = (np.concatenate(part) for part in found)
        return gids, times, seqs


@dataclass
class Candidates:
    """Records of one side that wait or begin to wait: global row ascending, time, arrival, and since when."""

    side: Side
    gids: Int64
    ts: Int64
    seq: Int64
    since: Int64


def walk_order(
    waiting: list[Candidates], pairs: dict[Side, Pairs], sources: dict[Side, Source]
) -> tuple[Waiting, Bool, Int64]:
    """Put all that wait into walk order: timestamp, right before left, key, arrival."""
    gids, ts, seq, since = (
        np.concatenate([getattr(each, name) for each in waiting]) for name in ("gids", "ts", "seq", "since")
    )
    left = np.concatenate([np.full(len(each.gids), each.side is Side.LEFT) for each in waiting])
    taken = np.full(len(gids), NEVER, np.int64)
    offset = 0
    for each in waiting:
        found = pairs[OTHER_SIDE[each.side]]
        if len(each.gids) and len(found.partner):
            # The partner that takes a record out is the first trigger of the other side that met it.
            at = np.minimum(np.searchsorted(each.gids, found.partner), len(each.gids) - 1)
            hit = each.gids[at] == found.partner
            np.minimum.at(taken, offset + at[hit], found.trigger[hit])
        offset += len(each.gids)
    order = np.lexsort((seq, left, ts))
    # Keys decide among records of one side and time only.
    same = (ts[order][1:] == ts[order][:-1]) & (left[order][1:] == left[order][:-1])
    ends = np.ones(len(gids), np.bool_)
    if same.any():
        places = repeated(same)
        which = order[places]
        rank = np.empty(len(which), np.int64)
        for side, source in sources.items():
            mine = np.flatnonzero(left[which] == (side is Side.LEFT))
            (key,) = source.gather(gids[which[mine]], ["key"])
            rank[mine] = np.asarray(pc.rank(key, tiebreaker="dense")) if len(key) else 0
        by_key = np.lexsort((seq[which], rank, left[which], ts[which]))
        order[places] = which[by_key]
        together = same[places[:-1]] & (np.diff(places) == 1) & (np.diff(rank[by_key]) == 0)
        ends[places[:-1][together]] = False
    last = np.flatnonzero(ends)[np.cumsum(ends) - ends]
    return Waiting(ts[order], left[order], since[order], taken[order], last), left[order], gids[order]
