"""Where a shard stands: what was planned of it, what was seen behind that, and how to see on.

::

    planned ──► position │ seen, not planned yet │ cursor ──► not seen ··· cut ············ tip
                           └─ marks: number, size, arrival     └───── jump ─┴───── or ──────┘

A batch is planned in steps: `begin` it, see on (`look`, `reach`), `take` of what was seen. Data is dropped,
and what a batch leaves is kept for the next one. With exact bounds all that a batch takes is looked at; else
up to a MiB, and where more follows the service is asked for the first record of a later moment. Where there
is none, no call tells the newest record either; its moment is closed in on from both sides::

    seen ─────────────────────────────────┬────────┬─► now
                                         hit     miss        the last 4 s first, then eight times as
                                          └─look─►           much, or half of what lies between
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from headpond.core.errors import ServiceFailure
from headpond.kinesis.api.calls import ServiceCalls
from headpond.kinesis.api.replies import Record
from headpond.kinesis.planning.options import Limits
from headpond.kinesis.reading.cursor import MOST_RECORDS_PER_PAGE, LossRule, ShardCursor
from headpond.kinesis.reading.positions import END, Position, after, at_time

UNBOUNDED = 1 << 62
LOOK_BYTES = 1 << 20
"""What a shard takes in a second at its limit; costs less to look at than a few more calls."""

LOOK_RECORDS = 5_000  # at most, however small they are
_FEW, _FEW_BYTES = 1_250, LOOK_BYTES // 16  # enough to tell how dense records are
FIRST_LOOK = 4  # while their size is not known: a reply may have 10 MiB
_FIRST_SPAN_MS = 4_000
_SPAN_GROWTH = 8
CLOCK_ERROR_MS = 2_000
"""The server's clock is known from below, to a second."""


class Mark(NamedTuple):
    """A record as planning sees it."""

    sequence_number: str
    size_bytes: int  # of data and partition key, as the service counts
    arrival_ms: int
    iterator: str | None = None  # what reads on from this record, where one is at hand


class ShardState:
    """Where one shard stands.

    Args:
        loss: How loss is judged, from the position on.
        per_page: Records to ask for at most.

    Attributes:
        position: Up to where batches are planned, with what is known of it.
        begun: Where the batch that is being planned begins.
        records: How many it has so far; None: not all of them were seen.
        size_bytes: Of them, as the service counts.
        first: The first one; None: there is none, or none yet.
        waited: For how many batches the next record has had no room.
        idle_until_s: Until then nothing that counts can follow.
    """

    def __init__(
        self,
        calls: ServiceCalls,
        shard_id: str,
        position: Position,
        loss: LossRule,
        *,
        per_page: int = MOST_RECORDS_PER_PAGE,
    ) -> None:
        self.shard_id, self.position = shard_id, position
        self._calls, self._loss, self._per_page = calls, loss, per_page
        self._cursor = ShardCursor(calls, shard_id, position, loss)
        self._marks: deque[Mark] = deque()
        self._held_bytes = 0
        self._record_bytes = 0.0  # of a record, by the page seen last; 0: none yet
        self._bytes_per_ms = LOOK_BYTES / 1000  # by what was seen last
        self._first_ms, self._first_per_ms = 0, self._bytes_per_ms  # of the batch's first records
        self.waited, self.idle_until_s = 0, float("-inf")
        self.begin()

    def begin(self, newest_ms: int = UNBOUNDED, *, over_gaps: bool = False) -> None:
        """Begin a batch.

        Args:
            newest_ms: What arrived after that does not count, nor what follows it.
            over_gaps: Whether a gap without end is an error; else the next batch goes on in it.
        """
        self._newest_ms, self._over_gaps = newest_ms, over_gaps
        self.begun = self.position
        self.records: int | None = 0
        self.size_bytes = 0
        self.first: Mark | None = None
        self._stands = False  # whether this batch has seen as far as it can

    @property
    def next(self) -> Mark | None:
        """The record that may be taken next, where one was seen."""
        return self._marks[0] if self._marks and self._counts(self._marks[0]) else None

    @property
    def is_done(self) -> bool:
        """Whether nothing is left for this batch: at the tip or the end, or what follows does not count."""
        return self.next is None and (self._stands or self._cursor.closed or bool(self._marks))

    @property
    def is_at_tip(self) -> bool:
        """Whether this batch has asked what follows the position, and nothing did."""
        return self._stands and self._cursor.at_tip and not self._marks

    def lag_ms(self, now_ms: int) -> int:
        """Return how old the oldest unread record is, or else the newest read one; -1: not known."""
        behind_ms = self._cursor.behind_ms
        return max(behind_ms, now_ms - self._marks[0].arrival_ms) if self._marks else behind_ms

    @property
    def about(self) -> tuple[int, int]:
        """About how many records and bytes the batch has; what was not seen is taken to be like what was.

        An estimated count is raised by a sixteenth: tasks ask for that many records, and if it fell short,
        they would need another reply, which the shard's limits delay.
        """
        if self.records is not None:
            return self.records, self.size_bytes
        to_ms = self._calls.now_ms() if self.position == END else self.position.time_ms or 0
        size_bytes = max(self.size_bytes, int((to_ms - self._first_ms) * self._first_per_ms))
        return int(size_bytes / self._record_bytes * 17 / 16) + 1, size_bytes

    @property
    def _lasting_per_ms(self) -> float:
        """How many bytes a millisecond the shard may have in the long run, judged by what was seen last."""
        return min(self._bytes_per_ms, LOOK_BYTES / 1000)

    # Seeing on

    def look(self, records: int, size_bytes: int) -> None:
        """See on until so much is held, or nothing that counts follows."""
        while not self._has_seen_all and len(self._marks) < records and self._held_bytes < size_bytes:
            self._see(min(records - len(self._marks), self._worth(size_bytes - self._held_bytes)))

    def outlook_ms(self, share: Limits) -> int:
        """See on, and return up to which arrival time the next batch may go by this shard's bounds."""
        self._newest_ms = UNBOUNDED
        if share.looks_ahead:
            records, size_bytes = (UNBOUNDED if bound is None else bound for bound in share[:2])
            self.look(records, size_bytes)
            last_ms = self._marks[0].arrival_ms if self._marks else UNBOUNDED
            for mark in self._marks:
                records, size_bytes = records - 1, size_bytes - mark.size_bytes
                if records < 0 or size_bytes < 0:
                    return last_ms
                last_ms = mark.arrival_ms
            return UNBOUNDED if self._has_seen_all else last_ms
        if share.span_ms is not None and not self._marks and not self._has_seen_all:
            self._see(self._worth(LOOK_BYTES, LOOK_RECORDS))
        if share.span_ms is None or not self._marks:
            return UNBOUNDED
        return self._marks[0].arrival_ms + self._span_ms(share.span_ms, share.about_bytes)

    def _span_ms(self, span_ms: int, about_bytes: int | None) -> int:
        """Return a span, shorter where the records seen last are so dense that it would have more bytes."""
        return span_ms if about_bytes is None else min(span_ms, int(about_bytes / self._lasting_per_ms))

    def reach(self, span_ms: int | None, about_bytes: int | None = None) -> None:
        """Take up to the newest record that counts, or with `span_ms` up to the first one so much later.

        A few records are always taken. As a shard takes a MiB a second at most, a span bounds the bytes
        of a batch; with `about_bytes` it is as much shorter as the records that were looked at are dense.
        """
        # The first look tells how large records are, and may be all it takes.
        while not self._has_seen_all and self._held_bytes < _FEW_BYTES and len(self._marks) < _FEW:
            self._see(self._worth(LOOK_BYTES, LOOK_RECORDS))
        self._first_ms = self._marks[0].arrival_ms if self._marks else 0
        self._first_per_ms = self._lasting_per_ms
        self.take()
        if self.is_done or self.position == self.begun:
            return
        miss_ms = min(self._calls.date_ms(), self._newest_ms)
        if span_ms is not None:
            cut_ms = self._first_ms + self._span_ms(span_ms, about_bytes)
            if (self.position.time_ms or 0) >= cut_ms:
                return
            if cut_ms < self._calls.date_ms():  # times to come are refused
                if self._jump(cut_ms):
                    # What is left behind the cut may be too little for another batch.
                    self.take(UNBOUNDED if self._has_seen_all else 1)
                    return
                miss_ms = min(miss_ms, cut_ms)
        self._close_in(miss_ms)

    def _close_in(self, miss_ms: int) -> None:
        """Go to the newest record that counts, which is older than a moment.

        What may be a MiB, by what was seen, is read through.
        """
        span_ms = _FIRST_SPAN_MS
        while not self.is_done:
            hit_ms = self.position.time_ms or 0
            if (miss_ms - hit_ms) * self._bytes_per_ms <= LOOK_BYTES:
                self._see(self._worth(4 * LOOK_BYTES))
            else:
                moment_ms = max((hit_ms + miss_ms) // 2, miss_ms - span_ms)
                span_ms *= _SPAN_GROWTH
                if not self._jump(moment_ms):
                    miss_ms = moment_ms
            self.take()

    def _see(self, limit: int) -> None:
        self._hold(self._cursor, self._cursor.next_records(min(limit, self._per_page)))

    def _jump(self, moment_ms: int) -> bool:
        """See on from the first record since a moment; return whether it counts and is not planned yet."""
        # Two at least, or they would not tell how dense they are.
        limit = 1 + self._worth(_FEW_BYTES, LOOK_RECORDS)
        cursor = ShardCursor(self._calls, self.shard_id, at_time(moment_ms), self._loss)
        found = cursor.next_records(min(limit, self._per_page))
        if not found or not self._counts(found[0]):
            return False
        # Arrival times need not rise as strictly as numbers do.
        if self.position.kind == "SEQ" and found[0].number <= self.position.number:
            return False
        self._hold(cursor, found)
        self.records = None
        return True

    def _hold(self, cursor: ShardCursor, page: list[Record]) -> None:
        self._cursor = cursor
        marks = [Mark(record.sequence_number, record.size_bytes, record.arrival_ms) for record in page]
        page_bytes = sum(mark.size_bytes for mark in marks)
        if marks:
            marks[0] = marks[0]._replace(iterator=cursor.page_iterator)
        self._marks.extend(marks)
        self._held_bytes += page_bytes
        if page:
            self._record_bytes = max(1.0, page_bytes / len(page))
        if len(page) > 1:
            seen_ms = max(1, marks[-1].arrival_ms - marks[0].arrival_ms)
            self._bytes_per_ms = (page_bytes - marks[0].size_bytes) / seen_ms  # what came after the first one
        self._stands = cursor.at_tip or not page
        if not page and not cursor.at_tip and not cursor.closed and self._over_gaps:
            raise ServiceFailure(
                f"{self.shard_id} of {self._loss.stream} gives neither records nor its tip: its empty "
                "replies come no nearer to it.",
                next_step="Run again; if it lasts, ask what answers at the endpoint.",
                shard_id=self.shard_id,
            )

    @property
    def _has_seen_all(self) -> bool:
        return self._stands or self._cursor.closed or bool(self._marks and not self._counts(self._marks[-1]))

    def _counts(self, record: Mark | Record) -> bool:
        return record.arrival_ms <= self._newest_ms

    def _worth(self, size_bytes: int, most: int = MOST_RECORDS_PER_PAGE) -> int:
        """Estimate how many records make up this many bytes, by the sizes seen last."""
        return min(int(size_bytes / self._record_bytes) + 1, most) if self._record_bytes else FIRST_LOOK

    # Taking

    def take(
        self, records: int = UNBOUNDED, size_bytes: int = UNBOUNDED, *, at_least_one: bool = False
    ) -> tuple[int, int]:
        """Add what was seen to the batch, as far as it counts and the bounds allow; return how much.

        With `at_least_one` a first record is taken that alone is over the bounds.
        """
        taken, taken_bytes = 0, 0
        last: Mark | None = None
        while (mark := self.next) is not None:
            over = taken + 1 > records or taken_bytes + mark.size_bytes > size_bytes
            if over and (taken or not at_least_one):
                break
            last = self._marks.popleft()
            self.first = self.first or mark
            taken, taken_bytes = taken + 1, taken_bytes + mark.size_bytes
        self._held_bytes -= taken_bytes
        if last is not None:
            self.position = after(last.sequence_number, last.arrival_ms)
        self.size_bytes += taken_bytes
        if self.records is not None:
            self.records += taken
        if self._cursor.closed and not self._marks:
            self.position = END
        return taken, taken_bytes
