"""Read on in one shard from a position: page after page, over expired iterators and gaps, losing nothing.

A cursor that starts after a record asks for that record again and drops it. Where the service has
forgotten it, the records behind it may be gone too, which nothing else would tell: the service goes on
at the oldest record without a word. They are counted as lost unless they cannot have expired.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headpond.errors import DataLoss
from headpond.kinesis.calls import IteratorExpired, PlaceRefused
from headpond.kinesis.replies import Page

if TYPE_CHECKING:
    from headpond.kinesis.calls import IteratorKind, StreamCalls
    from headpond.kinesis.positions import Position
    from headpond.kinesis.replies import Record

logger = logging.getLogger(__name__)

MOST_RECORDS_PER_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class LossRule:
    """How loss is judged.

    Attributes:
        stream: The stream's name, for messages.
        retention_ms: How long the stream keeps a record.
        fatal: Whether loss ends the query (`failOnDataLoss`) or is a warning.
        known_ms: Until when it is known that nothing followed the position; 0: not known.
        tolerated: Where losses that did not end the query are noted, each once.
    """

    stream: str
    retention_ms: int
    fatal: bool = True
    known_ms: int = 0
    tolerated: set[str] | None = None

    def lost(self, shard_id: str, what: str, **facts: Any) -> None:
        """Report records that are gone.

        Raises:
            DataLoss: Unless loss is only warned of.
        """
        message = f"Records of {shard_id} in {self.stream} are lost: {what}."
        if self.fatal:
            raise DataLoss(
                message,
                next_step="Set failOnDataLoss to false to go on with what is left, "
                "or begin with a new checkpoint.",
                stream=self.stream,
                shard_id=shard_id,
                **facts,
            )
        if self.tolerated is not None:
            self.tolerated.add(message)
        logger.warning("%s Going on with what is left (failOnDataLoss is false).", message)


class ShardCursor:
    """A place in one shard that moves on.

    Attributes:
        closed: The shard was read to its end.
        behind_ms: How far the last reply was behind the shard's tip; 0 with no records: at the tip.
        last: Sequence number of the last record given out; None before the first.
    """

    def __init__(self, calls: StreamCalls, shard_id: str, start: Position, loss: LossRule) -> None:
        self._calls = calls
        self._shard_id = shard_id
        self._start = start
        self._loss = loss
        self._iterator: str | None = None
        self._unproven = start.kind in ("SEQ", "AT")  # whether the start's own record was not met yet
        self._before_start = start.kind == "TS"
        self.last: str | None = None
        self.closed = start.kind == "END"
        self.behind_ms = -1

    def next_page(self, limit: int = MOST_RECORDS_PER_PAGE) -> list[Record]:
        """Read one page: records in order, none twice; none at all at the tip, at a gap or at the end."""
        if self.closed:
            return []
        # One more where the start's own record will be dropped.
        dropped = self._unproven and self._start.kind == "SEQ"
        page = self._page(min(limit + dropped, MOST_RECORDS_PER_PAGE))
        self._iterator, self.behind_ms = page.next_iterator, page.behind_ms
        self.closed = page.next_iterator is None
        records = page.records
        if self._unproven and (records or self.closed):
            self._unproven = False
            records = self._prove_start(records)
        if self._before_start and records:
            # The service may round the time it is asked for.
            least_ms = self._start.time_ms or 0
            skipped = 0
            while skipped < len(records) and records[skipped].arrival_ms < least_ms:
                skipped += 1
            records = records[skipped:]
            self._before_start = not records
        if records:
            self.last = records[-1].sequence_number
        return records

    @property
    def at_tip(self) -> bool:
        """Whether the last reply reached the newest record."""
        return self.behind_ms == 0

    def _page(self, limit: int) -> Page:
        while True:
            try:
                if self._iterator is None:
                    self._iterator = self._open()
                return self._calls.page(self._iterator, self._shard_id, limit)
            except IteratorExpired:
                self._iterator = None
            except PlaceRefused as refused:
                # The shard or the stream went while it was being read.
                self._loss.lost(self._shard_id, f"the service answers {refused.code}", code=refused.code)
                return Page([], None, 0)

    def _open(self) -> str:
        """Get an iterator for where the cursor stands."""
        if self.last is not None:
            return self._calls.iterator(self._shard_id, "AFTER_SEQUENCE_NUMBER", number=self.last)
        if self._start.kind == "TS":
            return self._calls.iterator(self._shard_id, "AT_TIMESTAMP", time_ms=self._start.time_ms)
        if self._start.kind == "HORIZON":
            return self._calls.iterator(self._shard_id, "TRIM_HORIZON")
        kind: IteratorKind = "AT_SEQUENCE_NUMBER" if self._unproven else "AFTER_SEQUENCE_NUMBER"
        number = self._start.sequence_number
        try:
            return self._calls.iterator(self._shard_id, kind, number=number)
        except PlaceRefused as refused:
            what = f"the service does not start at {number} any more ({refused.code})"
            self._loss.lost(self._shard_id, what, sequence_number=number, code=refused.code)
            self._unproven = False
            return self._calls.iterator(self._shard_id, "TRIM_HORIZON")

    def _prove_start(self, records: list[Record]) -> list[Record]:
        """Drop the start's own record (AT keeps it), or find out whether anything was lost with it."""
        number, wanted = self._start.number, self._start.kind == "AT"
        if records and records[0].number == number:
            return records if wanted else records[1:]
        now_ms = self._calls.now_ms()
        expired_by_age = (self._start.time_ms or 0) + self._loss.retention_ms <= now_ms
        followers_safe = self._loss.known_ms + self._loss.retention_ms > now_ms
        if wanted or not (expired_by_age and followers_safe):
            oldest = records[0].sequence_number if records else None
            self._loss.lost(
                self._shard_id,
                f"the position {number} is gone, and the oldest record left is {oldest or 'none'}",
                sequence_number=str(number),
                oldest=oldest,
            )
        return [record for record in records if record.number > number]
