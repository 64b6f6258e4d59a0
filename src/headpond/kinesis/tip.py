"""Find a shard's tip, its newest record, without reading what lies before it.

There is no call that tells it. Asked for the first record since a moment, the service answers it in one
reply, so the moment of the newest record is closed in on from both sides, and only the last seconds
are read through for the number itself::

    start ────────────────────────────────┬────────┬─► now
                                         hit     miss        halve until 4 s lie between,
                                          └─read─►           then read to the tip
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headpond.kinesis.cursor import LossRule, ShardCursor
from headpond.kinesis.positions import END, Position, after, at_time
from headpond.kinesis.replies import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.kinesis.calls import StreamCalls

CLOSE_ENOUGH_MS = 4_000
_CLOCK_ERROR_MS = 1_000  # the server's clock is known from below, to a second
_FIRST_SPAN_MS = 4_000
_SPAN_GROWTH = 8
_PEEK_RECORDS = 5_000
_PEEK_BYTES = 1 << 20  # what a shard takes in a second at its limit
_MOST_EMPTY_REPLIES = 1_000


class Tip(NamedTuple):
    """What a search found.

    Attributes:
        end: The position after the newest record; the start when nothing that counts follows it; END when the
            shard is closed and all of it counts.
        idle: The cursor, when it found no record at all: it can be asked again.
        young_ms: When the first record arrived, if that is too late to count.
    """

    end: Position
    idle: ShardCursor | None = None
    young_ms: int | None = None


def find_tip(
    calls: StreamCalls,
    shard_id: str,
    start: Position,
    loss: LossRule,
    *,
    newest_ms: int | None = None,
    idle: ShardCursor | None = None,
) -> Tip:
    """Find the position after a shard's newest record.

    Args:
        calls: The stream.
        shard_id: The shard.
        start: A position not after the tip.
        loss: How loss at `start` is judged.
        newest_ms: Records that arrived later do not count; None: all do.
        idle: The cursor of an earlier search from the same start that found nothing.
    """
    cursor = idle or ShardCursor(calls, shard_id, start, loss)
    first = _first(cursor)
    if first is None:
        return Tip(start, idle=cursor)
    if isinstance(first, Position):
        return Tip(first)
    oldest_ms = first.arrival_ms
    if newest_ms is not None and oldest_ms > newest_ms:
        return Tip(start, young_ms=oldest_ms)
    tip = after(first.sequence_number, oldest_ms)
    if not (cursor.closed or cursor.at_tip):
        for record in cursor.next_page(_worth_peeking(first)):
            if newest_ms is not None and record.arrival_ms > newest_ms:
                return Tip(tip)
            tip = after(record.sequence_number, record.arrival_ms)
    if cursor.closed or cursor.at_tip:
        # The usual case of a shard that is kept up with: two or three calls and no closing in.
        return Tip(END if cursor.closed else tip)

    # Where to read on from: the place of the last hit, or the start again.
    tip, cursor = start, ShardCursor(calls, shard_id, start, loss)

    def hit(moment_ms: int) -> bool:
        nonlocal tip, cursor
        asking = ShardCursor(calls, shard_id, at_time(moment_ms), loss)
        found = _first(asking)
        if not isinstance(found, Record) or (newest_ms is not None and found.arrival_ms > newest_ms):
            return False
        tip, cursor = after(found.sequence_number, found.arrival_ms), asking
        return True

    now_ms = calls.date_ms() if newest_ms is None else min(newest_ms, calls.date_ms())
    _close_in(hit, oldest_ms, now_ms)
    return Tip(_read_to_tip(cursor, tip, calls.now_ms() + _CLOCK_ERROR_MS, newest_ms))


def first_after(
    calls: StreamCalls, shard_id: str, start: Position, loss: LossRule
) -> Record | Position | None:
    """Return the first record after a position; END at the end of a closed shard, None at the tip."""
    return _first(ShardCursor(calls, shard_id, start, loss))


def _worth_peeking(record: Record) -> int:
    """How many records like this one cost less to read than a few more calls."""
    return max(1, min(_PEEK_RECORDS, _PEEK_BYTES // max(1, record.data_bytes)))


def _first(cursor: ShardCursor) -> Record | Position | None:
    for _ in range(_MOST_EMPTY_REPLIES):
        page = cursor.next_page(1)
        if page:
            return page[0]
        if cursor.closed:
            return END
        if cursor.at_tip:
            return None
    return None


def _close_in(hit: Callable[[int], bool], oldest_ms: int, now_ms: int) -> None:
    """Find a moment since which there are records, CLOSE_ENOUGH_MS before the newest at most."""
    span_ms, miss_ms = _FIRST_SPAN_MS, now_ms
    while True:
        moment_ms = max(now_ms - span_ms, oldest_ms)
        if moment_ms <= oldest_ms or hit(moment_ms):
            break
        miss_ms, span_ms = moment_ms, span_ms * _SPAN_GROWTH
    while miss_ms - moment_ms > CLOSE_ENOUGH_MS:
        middle_ms = (moment_ms + miss_ms) // 2
        if hit(middle_ms):
            moment_ms = middle_ms
        else:
            miss_ms = middle_ms


def _read_to_tip(cursor: ShardCursor, tip: Position, began_ms: int, newest_ms: int | None) -> Position:
    """Read on to the tip and return the position after the last record that counts."""
    while not (cursor.closed or cursor.at_tip):
        page = cursor.next_page()
        for record in page:
            if newest_ms is not None and record.arrival_ms > newest_ms:
                return tip
            tip = after(record.sequence_number, record.arrival_ms)
        # A busy shard's tip runs away: what came after the search began need not be caught.
        if page and page[-1].arrival_ms > began_ms:
            break
    return END if cursor.closed else tip
