"""Find a shard's tip, its newest record, without reading what lies before it.

No call returns it. Asked for the first record since a moment, the service answers it in one
reply, so the moment of the newest record is closed in on from both sides, and only the last moments
are read through for the number itself::

    start ────────────────────────────────┬────────┬─► now
                                         hit     miss        halve until 4 s lie between,
                                          └─read─►           then read a MiB

If the tip is not in that MiB, the records are dense: halve on, to shorter spans, and read again.

Where nothing but the tip is asked for, `find_end`, the last seconds are looked at first: of a shard that is
being written to two calls find it. In the same way a batch is ended some time after it began, `find_cut`: at
the first record of a later moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headpond.kinesis.reading.cursor import MOST_RECORDS_PER_PAGE, Gap, LossRule, Resume, ShardCursor
from headpond.kinesis.reading.positions import END, HORIZON, NO_RECORD, Position, after, at_time

if TYPE_CHECKING:
    from headpond.kinesis.api.calls import StreamCalls
    from headpond.kinesis.api.replies import Record

CLOSE_ENOUGH_MS = 4_000
_CLOSEST_MS = 62  # whatever the density: then all is read
_CLOSER = 4
_CLOCK_ERROR_MS = 1_000  # the server's clock is known from below, to a second
_FIRST_SPAN_MS = 4_000
_SPAN_GROWTH = 8
_RECENT_RECORDS = 32  # more than most shards get in 4 s; a shard takes 5 MiB at most meanwhile
_FEW_RECORDS = 8  # a shard with so many in its last half minute, or before a pause, is a quiet one
_RECENT_LOOKS = ((CLOSE_ENOUGH_MS, _RECENT_RECORDS), (CLOSE_ENOUGH_MS * _SPAN_GROWTH, _FEW_RECORDS))
_PEEK_RECORDS = 5_000
_PEEK_BYTES = 1 << 20  # what a shard takes in a second at its limit


class Tip(NamedTuple):
    """What a search found.

    Attributes:
        end: The position after the newest record; the start when nothing that counts follows it; END when the
            shard is closed and all of it counts.
        idle: The cursor, when it stands at the end and nothing follows: it can be asked again.
        young_ms: When the first record arrived, if that is too late to count.
        oldest_ms: When the first record arrived, if there is one that counts.
        behind_ms: How far the last reply was behind the newest record; -1: not known.
        look: How many records like these a next look should ask for at first.
        first: Number of the first record after the start, `NO_RECORD` where the shard ends without one; None:
            not looked at.
        seen: How that record was seen.
    """

    end: Position
    idle: ShardCursor | None = None
    young_ms: int | None = None
    oldest_ms: int | None = None
    behind_ms: int = -1
    look: int = 1
    first: str | None = None
    seen: Resume | None = None


class Cut(NamedTuple):
    """Where a span ends, None where the shard has not so much; and the first record, as in `Tip`."""

    tip: Tip | None
    first: str | None
    seen: Resume | None


def find_tip(
    calls: StreamCalls,
    shard_id: str,
    start: Position,
    loss: LossRule,
    *,
    newest_ms: int | None = None,
    idle: ShardCursor | None = None,
    span_ms: int | None = None,
    look: int = 1,
) -> Tip:
    """Find the position after a shard's newest record.

    Records after `newest_ms` do not count, and with `span_ms` it goes no further than `find_cut`.
    `idle` is the cursor that an earlier search left at the start, `look` what it said.
    """
    shard = _Shard(calls, shard_id, loss, newest_ms)
    cursor = idle or ShardCursor(calls, shard_id, start, loss)
    near = _peeked(cursor, _begun(cursor, start, newest_ms, look), newest_ms)
    if near.found_tip:
        return near.tip
    if span_ms is not None and (cut := _cut(shard, near.tip, span_ms)):
        return cut
    return _far(shard, near.tip, _bracket(shard, near.tip, cursor))


def find_end(calls: StreamCalls, shard_id: str, loss: LossRule) -> Tip:
    """Find a shard's tip without knowing where a reader stands; what it begins with may stay unseen.

    Returns:
        The tip; without `oldest_ms` where the last seconds were enough.
    """
    shard = _Shard(calls, shard_id, loss, None)
    date_ms = miss_ms = calls.date_ms()
    for span_ms, look in _RECENT_LOOKS:
        hit_ms = max(0, date_ms - span_ms)
        cursor = ShardCursor(calls, shard_id, at_time(hit_ms), loss)
        found = _first(cursor, look)
        if isinstance(found, Position):
            return Tip(found, behind_ms=0)
        if found is not None:
            end, found_tip = _counted(cursor, found, HORIZON, None)
            tip = Tip(end, behind_ms=cursor.behind_ms, look=_worth_peeking(found))
            return tip if found_tip else _far(shard, tip, _Between(hit_ms, miss_ms, end, cursor))
        if not cursor.at_tip:
            break  # a gap tells nothing
        miss_ms = hit_ms
    # Nothing for a while: perhaps there are few records, or none.
    cursor = ShardCursor(calls, shard_id, HORIZON, loss)
    near = _begun(cursor, HORIZON, None, _FEW_RECORDS)
    return near.tip if near.found_tip else _far(shard, near.tip, _bracket(shard, near.tip, cursor, miss_ms))


def find_cut(
    calls: StreamCalls,
    shard_id: str,
    start: Position,
    loss: LossRule,
    span_ms: int,
    *,
    until_ms: int | None = None,
) -> Cut:
    """Find where a batch ends that is to take so much time's records: with the first one of a later moment.

    `until_ms` is when the last record arrived that is wanted at all, where that is known.

    A MiB or 5,000 records are always taken, for which a shard with few records may have needed longer. As a
    shard takes a MiB a second at most, a span bounds the bytes of a batch without a look at all of them.
    """
    cursor = ShardCursor(calls, shard_id, start, loss)
    begun = _begun(cursor, start, None)
    first, seen, oldest_ms = begun.tip.first, begun.tip.seen, begun.tip.oldest_ms
    if until_ms is not None and oldest_ms is not None and until_ms - oldest_ms <= span_ms:
        return Cut(None, first, seen)
    near = _peeked(cursor, begun, None)
    if near.found_tip:
        return Cut(None, first, seen)
    return Cut(_cut(_Shard(calls, shard_id, loss, None), near.tip, span_ms), first, seen)


def first_after(
    calls: StreamCalls, shard_id: str, start: Position, loss: LossRule
) -> Record | Position | None:
    """Return the first record after a position; END at the end of a closed shard, None at the tip."""
    found = _first(ShardCursor(calls, shard_id, start, loss))
    return found[0] if isinstance(found, list) else found


class _Shard(NamedTuple):
    """A shard that can be asked for its first record since a moment."""

    calls: StreamCalls
    shard_id: str
    loss: LossRule
    newest_ms: int | None

    def since(self, moment_ms: int, look: int = 1) -> _Hit | None:
        """Look at it, or at as many records as `look` says; None when none counts."""
        cursor = ShardCursor(self.calls, self.shard_id, at_time(moment_ms), self.loss)
        found = _first(cursor, look)
        if not isinstance(found, list) or _is_young(found[0], self.newest_ms):
            return None
        first = after(found[0].sequence_number, found[0].arrival_ms)
        end, found_tip = _counted(cursor, found, first, self.newest_ms)
        return _Hit(first, end, cursor, found_tip)


class _Hit(NamedTuple):
    """What there is since a moment: the first record and the last one looked at; whether that is the tip."""

    first: Position
    end: Position
    cursor: ShardCursor
    found_tip: bool


def _is_young(record: Record, newest_ms: int | None) -> bool:
    return newest_ms is not None and record.arrival_ms > newest_ms


class _Near(NamedTuple):
    """What a look at the next records gave, whether the tip is there, and how many were seen."""

    tip: Tip
    found_tip: bool = True
    seen: int = 0


class _Between(NamedTuple):
    """A moment since which there are records, a later one since which there are none, and what follows.

    Attributes:
        hit_ms: The one.
        miss_ms: The other.
        end: After the last record looked at.
        cursor: Where it stands.
        found_tip: Whether that is the tip already.
    """

    hit_ms: int
    miss_ms: int
    end: Position
    cursor: ShardCursor
    found_tip: bool = False


def _begun(cursor: ShardCursor, start: Position, newest_ms: int | None, look: int = 1) -> _Near:
    """Look at the next record, or at as many as `look` says."""
    found = _first(cursor, look)
    if found is None:
        return _Near(Tip(start, idle=cursor, behind_ms=cursor.behind_ms, look=look))
    if isinstance(found, Position):
        return _Near(Tip(found, behind_ms=0, first=NO_RECORD))
    first, oldest_ms = found[0].sequence_number, found[0].arrival_ms
    if _is_young(found[0], newest_ms):
        return _Near(Tip(start, young_ms=oldest_ms, behind_ms=cursor.behind_ms, look=look))
    end, found_tip = _counted(cursor, found, start, newest_ms)
    tip = Tip(end, oldest_ms=oldest_ms, look=_worth_peeking(found), first=first, seen=cursor.seen)
    return _near(cursor, tip, len(found), found_tip=found_tip)


def _peeked(cursor: ShardCursor, near: _Near, newest_ms: int | None) -> _Near:
    """Look on, at a MiB at most, unless the tip is found already."""
    left = near.tip.look - near.seen
    if near.found_tip or left <= 0:
        return near
    end, found_tip = _counted(cursor, cursor.next_page(left), near.tip.end, newest_ms)
    return _near(cursor, near.tip._replace(end=end), near.tip.look, found_tip=found_tip)


def _near(cursor: ShardCursor, tip: Tip, seen: int, *, found_tip: bool) -> _Near:
    """Note where the cursor stands: at the tip it can be asked again, which spares the closing in."""
    whole = found_tip and tip.end.kind == "SEQ" and tip.end.sequence_number == cursor.last
    return _Near(tip._replace(idle=cursor if whole else None, behind_ms=cursor.behind_ms), found_tip, seen)


def _counted(
    cursor: ShardCursor, records: list[Record], end: Position, newest_ms: int | None
) -> tuple[Position, bool]:
    """Return the position after the last of a page's records that counts, and whether that is the tip."""
    for record in records:
        if _is_young(record, newest_ms):
            return end, True
        end = after(record.sequence_number, record.arrival_ms)
    return END if cursor.closed else end, cursor.closed or cursor.at_tip


def _cut(shard: _Shard, near: Tip, span_ms: int) -> Tip | None:
    """Go to the first record of the moment that ends the span, or stay where more was looked at."""
    assert near.oldest_ms is not None
    assert near.end.time_ms is not None
    cut_ms = near.oldest_ms + span_ms
    if near.end.time_ms >= cut_ms:
        return near
    # The service refuses times to come.
    found = shard.since(cut_ms) if cut_ms < shard.calls.date_ms() else None
    if found is None:
        return None
    # Arrival times need not rise as strictly as numbers do.
    further = found.first.number > near.end.number
    return near._replace(end=found.first, behind_ms=found.cursor.behind_ms) if further else near


def _far(shard: _Shard, near: Tip, between: _Between) -> Tip:
    """Close in on the tip by times, and read on from the last hit, or from what was looked at before."""
    hit_ms, miss_ms, end, cursor, found_tip = between
    began_ms = shard.calls.now_ms() + _CLOCK_ERROR_MS
    close_ms = CLOSE_ENOUGH_MS
    while True:
        while not found_tip and miss_ms - hit_ms > close_ms:
            middle_ms = (hit_ms + miss_ms) // 2
            found = shard.since(middle_ms)
            if found is None or found.first.number < end.number:
                miss_ms = middle_ms
            else:
                hit_ms, (_, end, cursor, found_tip) = middle_ms, found
        if not found_tip:
            limit = near.look if close_ms > _CLOSEST_MS else MOST_RECORDS_PER_PAGE
            end, found_tip = _counted(cursor, cursor.next_page(limit), end, shard.newest_ms)
        # A busy shard's tip runs away: what came after the search began need not be caught.
        if found_tip or (end.time_ms or 0) > began_ms:
            return near._replace(end=end, behind_ms=cursor.behind_ms)
        hit_ms, close_ms = max(hit_ms, end.time_ms or 0), max(_CLOSEST_MS, close_ms // _CLOSER)


def _bracket(shard: _Shard, near: Tip, cursor: ShardCursor, miss_ms: int | None = None) -> _Between:
    """Find a moment since which there are records and a later one since which there are none."""
    known_ms, now_ms = near.end.time_ms or 0, shard.calls.date_ms()
    if shard.newest_ms is not None:
        now_ms = min(shard.newest_ms, now_ms)
    span_ms = _FIRST_SPAN_MS if miss_ms is None else max(_FIRST_SPAN_MS, (now_ms - miss_ms) * _SPAN_GROWTH)
    miss_ms = now_ms if miss_ms is None else miss_ms
    look = min(near.look, _FEW_RECORDS)
    while (moment_ms := now_ms - span_ms) > known_ms:
        found = shard.since(moment_ms, look)
        if found is not None and found.first.number >= near.end.number:
            return _Between(moment_ms, miss_ms, found.end, found.cursor, found.found_tip)
        miss_ms, span_ms = moment_ms, span_ms * _SPAN_GROWTH
    return _Between(known_ms, miss_ms, near.end, cursor)


def _worth_peeking(records: list[Record]) -> int:
    """Return how many records like these cost less to read than a few more calls."""
    mean_bytes = sum(record.data_bytes for record in records) // len(records)
    return max(1, min(_PEEK_RECORDS, _PEEK_BYTES // max(1, mean_bytes)))


def _first(cursor: ShardCursor, look: int = 1) -> list[Record] | Position | None:
    """Read the next records, over gaps; END at the end of a closed shard, None at the tip."""
    gap = Gap()
    while True:
        page = cursor.next_page(look)
        if page:
            return page
        if cursor.closed:
            return END
        if cursor.at_tip or not gap.goes_on(cursor.behind_ms):
            return None
