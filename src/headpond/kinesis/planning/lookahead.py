"""Look ahead in one shard: which records follow, how large they are, when they came. Their data is dropped.

This is how a batch gets an exact end under a bound on records or bytes. The cost is that these records
are read twice, once here and once by the tasks; what was looked at beyond a batch's end is kept for the
next one, so nothing is looked at more than once while the planner lives.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headpond.kinesis.reading.cursor import (
    MOST_RECORDS_PER_PAGE,
    Gap,
    LossRule,
    Resume,
    ShardCursor,
    no_tip,
)
from headpond.kinesis.reading.positions import END, Position, after

if TYPE_CHECKING:
    from headpond.kinesis.api.calls import StreamCalls

_MOST_EMPTY_REPLIES = 50  # a gap longer than this is gone on with at the next plan
_FIRST_LOOK = 1_000  # records, while their size is not known


class Mark(NamedTuple):
    """A record as planning sees it."""

    sequence_number: str
    size_bytes: int  # of data and partition key, as the service counts
    arrival_ms: int
    seen: Resume | None  # of a page's first record


class Taken(NamedTuple):
    """A part of a shard chosen for a batch.

    Attributes:
        end: Where it ends.
        records: How many records.
        size_bytes: Of them all, as the service counts.
        first: Number of the first record; None without one.
        seen: How that was seen, where it was the first of a page.
    """

    end: Position
    records: int
    size_bytes: int
    first: str | None
    seen: Resume | None = None


class Ahead:
    """What lies ahead of a position.

    Attributes:
        position: Where the marks begin.
    """

    def __init__(self, calls: StreamCalls, shard_id: str, position: Position, loss: LossRule) -> None:
        self.position = position
        self._shard_id, self._stream = shard_id, loss.stream
        self._cursor = ShardCursor(calls, shard_id, position, loss)
        self._marks: deque[Mark] = deque()
        self._held_bytes = 0
        self._seen, self._seen_bytes = 0, 0

    @property
    def held(self) -> int:
        """Records looked at and not taken."""
        return len(self._marks)

    @property
    def behind_ms(self) -> int:
        """How far behind the tip the look-ahead is; -1 before the first look."""
        return self._cursor.behind_ms

    def lag_ms(self, now_ms: int) -> int:
        """Return how old the first record is that was not taken; without one, how far behind this is."""
        return max(self.behind_ms, now_ms - self._marks[0].arrival_ms) if self._marks else self.behind_ms

    def next(self, *, until: Position | None, newest_ms: int | None) -> Mark | None:
        """Return the record that may be taken next: not after `until`, and not arrived after `newest_ms`."""
        if not self._marks or (until is not None and until.kind in ("TS", "HORIZON")):
            return None
        mark = self._marks[0]
        is_after = until is not None and until.kind == "SEQ" and int(mark.sequence_number) > until.number
        is_young = newest_ms is not None and mark.arrival_ms > newest_ms
        return None if is_after or is_young else mark

    def fill(
        self,
        records: int,
        size_bytes: int,
        records_per_page: int = MOST_RECORDS_PER_PAGE,
        *,
        over_gaps: bool = False,
    ) -> bool:
        """Look ahead until so much is held, the tip is reached or the shard ends.

        With `over_gaps` it goes on however long a gap is; else the next look goes on in it.

        Returns:
            Whether it was asked and the tip was reached.

        Raises:
            ServiceFailure: A gap that is to be passed does not end.
        """
        empty, gap = 0, Gap()
        while not self._cursor.closed and len(self._marks) < records and self._held_bytes < size_bytes:
            limit = min(records_per_page, self._worth_asking(records, size_bytes))
            page = self._cursor.next_page(limit)
            seen = self._cursor.seen
            for record in page:
                mark = Mark(record.sequence_number, record.size_bytes, record.arrival_ms, seen)
                seen = None
                self._marks.append(mark)
                self._held_bytes += mark.size_bytes
                self._seen_bytes += mark.size_bytes
            self._seen += len(page)
            empty = 0 if page else empty + 1
            if self._cursor.at_tip or (empty > _MOST_EMPTY_REPLIES and not over_gaps):
                return self._cursor.at_tip
            if page:
                gap = Gap()
            elif over_gaps and not gap.goes_on(self._cursor.behind_ms):
                raise no_tip(self._shard_id, self._stream)
        return False

    def _worth_asking(self, records: int, size_bytes: int) -> int:
        """Estimate how many records make up what is missing, by the sizes seen so far."""
        if not self._seen:
            return min(records, _FIRST_LOOK)
        by_size = (size_bytes - self._held_bytes) * self._seen // max(1, self._seen_bytes) + 1
        return max(1, min(records - len(self._marks), by_size))

    def take(
        self,
        records: int,
        size_bytes: int,
        *,
        until: Position | None,
        newest_ms: int | None,
        at_least_one: bool,
    ) -> Taken:
        """Remove and return what is held, from the front, as far as the bounds allow.

        Nothing after `until`, nothing that arrived after `newest_ms`; with `at_least_one` a first record
        that alone is over the bounds.

        Returns:
            The new position and what was taken; the old position when it is nothing.
        """
        taken, taken_bytes, first, last = 0, 0, None, None
        seen: Resume | None = None
        while (mark := self.next(until=until, newest_ms=newest_ms)) is not None:
            over = taken + 1 > records or taken_bytes + mark.size_bytes > size_bytes
            if over and not (at_least_one and not taken):
                break
            self._marks.popleft()
            if first is None:
                first, seen = mark.sequence_number, mark.seen
            taken, taken_bytes, last = taken + 1, taken_bytes + mark.size_bytes, mark
        self._held_bytes -= taken_bytes
        if last is not None:
            self.position = after(last.sequence_number, last.arrival_ms)
        if self._cursor.closed and not self._marks and (until is None or until == END):
            self.position = END
        return Taken(self.position, taken, taken_bytes, first, seen)
