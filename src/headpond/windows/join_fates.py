"""What became of each record of a time-line, also where a later record decided that.

A result does not say which records it is of, only their values; among equal records of one key the last one
that fits is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headpond.formats.outer_join_buffer import Side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headpond.windows.join_scalar import JoinRecord, JoinResult
    from headpond.windows.join_scenario import Played

_DROPS = {"dropped_null_key": "no key", "dropped_null_value": "no value"}


@dataclass
class Fate:
    """A record and what became of it; times in ms.

    Args:
        number: Its step.
        record: The record.
        counts: What the join counted for it.
        partners: Value and time of those that it met on arrival; None: itself.
        met_later: Step and time of those that came after it and met it.
        waits: It still waits without a partner.
        left_at: The step at which it left without a partner.
    """

    number: int
    record: JoinRecord
    counts: dict[str, int]
    partners: list[tuple[bytes | None, int]] = field(default_factory=list)
    met_later: list[tuple[int, int]] = field(default_factory=list)
    waits: bool = False
    left_at: int | None = None

    @property
    def dropped(self) -> str | None:
        """Why it took no part in the join; None: it did."""
        return next((why for name, why in _DROPS.items() if name in self.counts), None)

    @property
    def identity(self) -> tuple[Side, bytes | None, bytes | None, int]:
        """What a result tells of a record."""
        return self.record.side, self.record.key, self.record.value, self.record.timestamp


def fates(played: Sequence[Played], *, self_join: bool = False) -> list[Fate]:
    """Say of each record what became of it."""
    found: list[Fate] = []
    for number, step in enumerate(played):
        if step.record is None:
            continue
        fate = Fate(number, step.record, step.counts, waits="buffered" in step.counts)
        for result in step.results:
            if result.left is None or result.right is None:
                _note_unmatched(found, fate, result)
            else:
                _note_joined(found, fate, result, self_join=self_join)
        found.append(fate)
    return found


def _note_joined(earlier: list[Fate], fate: Fate, result: JoinResult, *, self_join: bool) -> None:
    own, partner = result.left, result.right
    # In a self-join a record meets others as their left and as their right side.
    if fate.record.side is Side.RIGHT or (self_join and own != fate.record.value):
        own, partner = partner, own
    if self_join and own == partner:
        fate.partners.append((None, fate.record.timestamp))
        return
    met = next(
        (old for old in reversed(earlier) if old.record.key == result.key and old.record.value == partner),
        None,
    )
    named = (partner, result.timestamp if met is None else met.record.timestamp)
    if self_join and named in fate.partners:
        return
    fate.partners.append(named)
    for old in earlier:
        if met is not None and (old is met or (old.waits and old.identity == met.identity)):
            old.waits = False
            old.met_later.append((fate.number, fate.record.timestamp))


def _note_unmatched(earlier: list[Fate], fate: Fate, result: JoinResult) -> None:
    side = Side.RIGHT if result.left is None else Side.LEFT
    value = result.right if result.left is None else result.left
    for old in earlier:
        if old.waits and old.identity == (side, result.key, value, result.timestamp):
            old.waits, old.left_at = False, fate.number
            return
    fate.left_at = fate.number
