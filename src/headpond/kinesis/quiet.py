"""Shards that had nothing new when they were last asked, and until when asking again could change nothing.

A record that arrives after the asking is younger than `probeLag` for that long, so it would wait anyway:

::

    asked, nothing there ──────── probeLag ────────► ask again
              └─ a record arrives here … waits until it is probeLag old

So a query that plans all the time asks each idle shard once per `probeLag`, and a record waits longer for it
by no more than a round of asking takes: the time is counted from the end of the round, or rounds over very
many shards would follow each other without a pause. The cursor is kept, too: asking again takes one
GetRecords and no GetShardIterator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headpond.kinesis.cursor import ShardCursor
    from headpond.kinesis.positions import Position

__all__ = ["Quiet"]


class _Note(NamedTuple):
    at: Position
    until_s: float
    cursor: ShardCursor | None


class Quiet:
    """What is known of shards without news.

    Args:
        clock: Seconds of any origin, never falling.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._notes: dict[str, _Note] = {}

    def note(
        self, shard_id: str, at: Position, from_s: float, hold_ms: int, cursor: ShardCursor | None = None
    ) -> None:
        """Note that nothing that counts follows a position, for so long.

        Args:
            shard_id: The shard.
            at: The position.
            from_s: From when.
            hold_ms: For how long after that nothing can count.
            cursor: Where to ask on; None where a new one has to begin at the position.
        """
        self._notes[shard_id] = _Note(at, from_s + hold_ms / 1000, cursor)

    def is_quiet(self, shard_id: str, at: Position) -> bool:
        """Whether asking what follows the position could not change anything yet."""
        note = self._notes.get(shard_id)
        return note is not None and note.at == at and self._clock() < note.until_s

    def cursor(self, shard_id: str, at: Position) -> ShardCursor | None:
        """Take the cursor that found nothing after the position, if it was kept."""
        note = self._notes.pop(shard_id, None)
        return note.cursor if note is not None and note.at == at else None

    def keep_only(self, shard_ids: Iterable[str]) -> None:
        """Forget all other shards."""
        wanted = set(shard_ids)
        self._notes = {shard_id: note for shard_id, note in self._notes.items() if shard_id in wanted}
