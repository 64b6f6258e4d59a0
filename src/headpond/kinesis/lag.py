"""How far a reader is behind, per shard: how long the oldest record it has not read has been waiting."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from headpond.kinesis.calls import MOST_PARALLEL_CALLS, IteratorExpired, IteratorKind, PlaceRefused

if TYPE_CHECKING:
    from headpond.kinesis.calls import StreamCalls
    from headpond.kinesis.positions import Kind, Offset, Position

_ITERATORS: dict[Kind, IteratorKind] = {
    "SEQ": "AFTER_SEQUENCE_NUMBER",
    "AT": "AT_SEQUENCE_NUMBER",
    "TS": "AT_TIMESTAMP",
    "HORIZON": "TRIM_HORIZON",
}


def lags_ms(calls: StreamCalls, offset: Offset) -> dict[str, int | None]:
    """Ask the service for the lag of every shard of an offset.

    Args:
        calls: the stream.
        offset: where the reader stands.

    Returns:
        Shard → milliseconds: 0 when nothing is unread, null when the service knows the shard or the place no
        more.
    """
    with ThreadPoolExecutor(max_workers=MOST_PARALLEL_CALLS) as pool:
        found = pool.map(lambda item: _lag_ms(calls, *item), offset.shards.items())
        return dict(zip(offset.shards, found, strict=True))


def _lag_ms(calls: StreamCalls, shard_id: str, at: Position) -> int | None:
    if at.kind == "END":
        return 0
    time_ms = at.time_ms if at.kind == "TS" else None
    try:
        iterator: str | None = calls.iterator(
            shard_id, _ITERATORS[at.kind], number=at.sequence_number, time_ms=time_ms
        )
        while iterator is not None:
            page = calls.page(iterator, shard_id, 1)
            if page.records:
                return max(0, calls.now_ms() - page.records[0].arrival_ms)
            if page.behind_ms == 0:
                return 0
            # An empty reply with a lag is a gap in the shard, not its end.
            iterator = page.next_iterator
    except (PlaceRefused, IteratorExpired):
        return None
    return 0
