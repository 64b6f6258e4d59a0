"""The ends of all shards as they were at one moment: no batch goes beyond them (AvailableNow, a batch read).

A reader may stand before such an end, at it, or beyond it: positions are compared by number, and where
one is a time, by what follows that time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.kinesis.positions import END, Position
from headpond.kinesis.replies import Record

if TYPE_CHECKING:
    from collections.abc import Callable, KeysView

    from headpond.kinesis.tip import Tip

__all__ = ["FixedEnds"]

_NOTHING = ("TS", "HORIZON")  # as an end: the shard had no record
_ROUNDED_MS = 1_000  # the service may round a time it is asked for


class FixedEnds:
    """The ends that were taken.

    Args:
        tips: By shard.
        first_after: Asks for the first record after a position of a shard.
        created_ms: When the stream was created: no record is older.
    """

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
        """The end itself."""
        return self._tips[shard_id].end

    def is_wanted(self, shard_id: str, at: Position) -> bool:
        """Whether a reader at a position may be before the end."""
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
    """Whether a record arrived after a moment for certain, so that it is among what follows the moment."""
    return end.time_ms is not None and end.time_ms >= (begin.time_ms or 0) + _ROUNDED_MS
