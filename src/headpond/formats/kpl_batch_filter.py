"""The filter by hash key range over rows of many aggregates; the scalar rule is `kept_by_range`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headpond.errors import UsageError
from headpond.formats.hash_keys import FULL_RANGE, HashKeyRange, hash_key, number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headpond.formats.kpl_batch_rows import Gathered, Rows, Texts
    from headpond.formats.kpl_batch_scan import Flags, Ints
    from headpond.formats.kpl_model import HashRangeFilter

_INSIDE, _OUTSIDE, _NOWHERE, _OFF_THE_RING = range(4)


@dataclass(frozen=True, slots=True)
class RangeFilter:
    """Which rows of opened aggregates a shard's range lets through."""

    mode: HashRangeFilter
    ranges: tuple[HashKeyRange, ...]
    range_of: Ints | None

    @classmethod
    def of(
        cls, mode: HashRangeFilter, ranges: Sequence[HashKeyRange], range_of: Ints | None, count: int
    ) -> RangeFilter:
        """Check that mode, ranges and the number of Kinesis records fit each other."""
        if mode not in ("off", "per_record", "kcl"):
            raise UsageError(
                f"hashRangeFilter is {mode!r}; it is off, per_record or kcl.",
                next_step="Choose one of the three.",
            )
        if mode != "off":
            if not ranges:
                raise UsageError(
                    f"hashRangeFilter is {mode}, but the shards' hash key ranges were not given.",
                    next_step="Give hash_key_ranges, or turn the filter off.",
                )
            if range_of is not None and (
                len(range_of) != count or (count and not 0 <= range_of.min() <= range_of.max() < len(ranges))
            ):
                raise UsageError(
                    f"range_of does not name one of {len(ranges)} ranges for each of {count} records.",
                    next_step="Give the position of its shard's range for every Kinesis record.",
                )
        return cls(mode, tuple(ranges), range_of)

    def keep(self, rows: Rows, source: Gathered, first_origin: int) -> Flags | None:
        """Mark the rows to keep; None for all of them."""
        if self.mode == "off" or not len(rows):
            return None
        opened = source.aggregate[rows.origin]
        place = np.full(len(rows), _INSIDE, np.int64)
        shard = np.zeros(len(rows), np.int64)
        if self.range_of is not None:
            shard = np.asarray(self.range_of, np.int64)[rows.origin + first_origin]
        by_key = _Places(source.keys, hash_key)
        by_hash_key = _Places(source.hash_keys, number_of)
        for number in np.unique(shard[opened]).tolist():
            here = opened & (shard == number)
            for named in (False, True):
                some = np.flatnonzero(here & ((rows.hash_key >= 0) == named))
                texts, index = (by_hash_key, rows.hash_key) if named else (by_key, rows.key)
                place[some] = texts.places(index[some], self.ranges[number])
        if self.mode == "per_record":
            inside: Flags = place != _OUTSIDE
            return inside
        return _as_the_kcl(rows.origin, place)


class _Places:
    """Places of texts on the ring, computed once per different entry."""

    def __init__(self, texts: Texts, read: Callable[[str], int | None]) -> None:
        self._texts = texts.values
        self._read = read
        self._known: dict[str, int | None] = {}

    def places(self, index: Ints, shard: HashKeyRange) -> Ints:
        entries, which = np.unique(index, return_inverse=True)
        found = [self._place(self._texts[entry].as_py(), shard) for entry in entries.tolist()]
        return np.array(found, np.int64)[which]

    def _place(self, text: str, shard: HashKeyRange) -> int:
        if text not in self._known:
            self._known[text] = self._read(text)
        number = self._known[text]
        if number is None:
            return _NOWHERE
        if number in shard:
            return _INSIDE
        return _OUTSIDE if number in FULL_RANGE else _OFF_THE_RING


def _as_the_kcl(origin: Ints, place: Ints) -> Flags:
    """One row outside drops its aggregate; one that is nowhere drops itself and what follows."""
    keep = np.ones(len(origin), np.bool_)
    odd = np.flatnonzero(place != _INSIDE)
    _, firsts = np.unique(origin[odd], return_index=True)
    for row in odd[firsts].tolist():
        low, high = np.searchsorted(origin, origin[row]), np.searchsorted(origin, origin[row], side="right")
        keep[row if place[row] == _NOWHERE else low : high] = False
    return keep
