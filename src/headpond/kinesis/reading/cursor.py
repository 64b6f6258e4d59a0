"""Read on in one shard from a position: page after page, over expired iterators and gaps, losing nothing.

A cursor that starts after a record asks for that record again and drops it. Where the service has forgotten
it, it goes on at the oldest record without a word: what lay between is lost, unless it cannot have expired.
A refusal ends nothing by itself: only a shard that is not listed any more is gone. A moment that has not come
yet by the service's clock has no records yet; a position that is refused is loss.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Any, cast

from headpond.core.errors import DataLoss, ServiceFailure
from headpond.kinesis.api.calls import IteratorKind, StreamCalls
from headpond.kinesis.api.replies import Page, Record
from headpond.kinesis.api.retry import INVALID_ARGUMENT, IteratorExpired, PositionRejected
from headpond.kinesis.reading.positions import CLOCK_SKEW_MS, Position, listing, refuse_far_future

logger = logging.getLogger(__name__)

MOST_RECORDS_PER_PAGE = 10_000
_MOST_EMPTY = 1_000  # replies in a row that come no nearer to the tip
_TO_COME = Page([], None, 0)  # where the moment to start at has not come yet


@dataclass(frozen=True, slots=True)
class LossRule:
    """How loss is judged."""

    stream: str  # for messages
    retention_ms: int
    fatal: bool = True  # whether loss ends the query (`failOnDataLoss`) or is a warning
    tolerated: set[str] = field(default_factory=set)  # losses that did not: each is reported once
    check: Callable[[], None] = lambda: None
    """Raises ConfigurationError where the stream is not the one the positions are of."""

    def lost(self, shard_id: str, what: str, **facts: Any) -> None:
        """Report records that are gone.

        Raises:
            ConfigurationError: The stream is another one now: it never had them.
            DataLoss: Unless loss is only warned of.
        """
        message = f"Records of {shard_id} in {self.stream} are lost: {what}."
        if message in self.tolerated:
            return
        self.check()
        if self.fatal:
            raise DataLoss(
                message,
                next_step="Set failOnDataLoss to false to go on with what is left, "
                "or begin with a new checkpoint.",
                stream=self.stream,
                shard_id=shard_id,
                **facts,
            )
        self.tolerated.add(message)
        logger.warning("%s Going on with what is left (failOnDataLoss is false).", message)


class ShardCursor:
    """A place in one shard that moves on.

    Attributes:
        closed: The shard was read to its end.
        behind_ms: How far the last reply was behind the shard's tip; 0 with no records: at the tip.
        last: Sequence number of the last record given out; None before the first.
        page_iterator: What reads the last page again; None where it would give more than that page did.
    """

    def __init__(
        self, calls: StreamCalls, shard_id: str, start: Position, loss: LossRule, iterator: str | None = None
    ) -> None:
        """Make a cursor; `iterator` is one of `start` that another cursor had, of use while it is young."""
        self._calls, self._shard_id, self._start, self._loss = calls, shard_id, start, loss
        self._iterator = self._given = iterator
        self.page_iterator: str | None = None
        self._begun = start.kind not in ("SEQ", "AT", "TS")  # whether what the start says was found
        self._refused: str | None = None  # the code, until the records that are left were seen
        self._from_horizon = False  # whether the next place is the oldest record, whatever the start was
        self.last: str | None = None
        self.closed = start.kind == "END"
        self.behind_ms = -1

    @property
    def at_tip(self) -> bool:
        """Whether the last reply reached the newest record."""
        return self.behind_ms == 0

    def next_page(self, limit: int = MOST_RECORDS_PER_PAGE) -> list[Record]:
        """Read one page: records in order, none twice; none at all at the tip, at a gap or at the end.

        Raises:
            ConfigurationError: The stream is another one now, or the start lies in times to come.
            DataLoss: Records after the start are gone, and that is fatal.
            ServiceFailure: The service refuses every place of a shard that it lists.
        """
        if self.closed:
            return []
        # One more where the start's own record will be dropped.
        dropped = not self._begun and self._start.kind == "SEQ"
        page = self._page(min(limit + dropped, MOST_RECORDS_PER_PAGE))
        read_with, self._iterator, self.behind_ms = self._iterator, page.next_iterator, page.behind_ms
        self.closed = page.next_iterator is None and page is not _TO_COME
        records = page.records
        if self._refused is not None and (records or self.closed or self.at_tip):
            records = self._report_rejected(records)
        if not self._begun:
            records = self._begin(records)
        if records:
            self.last, self._from_horizon = records[-1].sequence_number, False
        self.page_iterator = read_with if len(records) == len(page.records) else None
        return records

    def next_records(self, limit: int) -> list[Record]:
        """Read the next page with records, over gaps; none at the tip, the end, or in a gap without end."""
        nearest_ms, left = sys.maxsize, _MOST_EMPTY
        while left:
            page = self.next_page(limit)
            if page or self.closed or self.at_tip:
                return page
            left = _MOST_EMPTY if self.behind_ms < nearest_ms else left - 1
            nearest_ms = min(nearest_ms, self.behind_ms)
        return []

    def _page(self, limit: int) -> Page:
        while True:
            try:
                if self._iterator is None:
                    self._iterator = self._open()
                return self._calls.page(self._iterator, self._shard_id, limit)
            except IteratorExpired:
                self._iterator = None
            except PositionRejected as refused:
                given, self._given, self._iterator = self._given, None, None
                if given is not None:
                    continue  # whatever is wrong with it, one of our own tells what is true of the start
                self._loss.check()
                if refused.code == INVALID_ARGUMENT and self._is_to_come():
                    return _TO_COME
                if self._is_gone(refused):
                    return Page([], None, 0)
                self._refused, self._from_horizon = refused.code, True
                self._begun = self._begun or self._start.kind != "TS"

    def _open(self) -> str:
        start, kind, number = self._start, "AT_SEQUENCE_NUMBER", self._start.sequence_number
        if self._from_horizon or (self.last is None and start.kind == "HORIZON"):
            return self._calls.iterator(self._shard_id, "TRIM_HORIZON")
        if self.last is None and start.kind == "TS":
            return self._calls.iterator(self._shard_id, "AT_TIMESTAMP", time_ms=start.time_ms)
        if self.last is not None or (self._begun and start.kind == "SEQ"):
            kind, number = "AFTER_SEQUENCE_NUMBER", self.last or number
        return self._calls.iterator(self._shard_id, cast("IteratorKind", kind), number=number)

    # Refusals

    @property
    def _place(self) -> str:
        return self._start.words if self.last is None else f"after {self.last}"

    def _is_to_come(self) -> bool:
        """Return whether the start is a moment that the service's clock has not reached: clocks differ."""
        if self._start.kind != "TS" or self.last is not None or self._from_horizon:
            return False
        time_ms, now_ms = self._start.time_ms or 0, self._calls.now_ms()
        refuse_far_future(time_ms, now_ms, f"The position of {self._shard_id} in {self._loss.stream}")
        return time_ms > now_ms - CLOCK_SKEW_MS

    def _is_gone(self, refused: PositionRejected) -> bool:
        """Return whether the shard itself is gone, which is reported as loss."""
        shard = listing(self._calls.list_shards()).get(self._shard_id)
        if shard is not None and not self._from_horizon:
            return False
        if shard is not None and not shard.closed:
            raise ServiceFailure(
                f"The service lists {self._shard_id} of {self._loss.stream} as open and will not start at "
                f"its oldest record ({refused.code}).",
                next_step="Run again; if it lasts, ask what answers at the endpoint.",
                shard_id=self._shard_id,
                code=refused.code,
            )
        what = "is not listed any more" if shard is None else "is closed and has no record left"
        self._loss.lost(
            self._shard_id,
            f"the shard {what} ({refused.code}); all that followed is gone, from {self._place} to its end",
            code=refused.code,
            position=self._place,
            oldest=None,
        )
        self._refused = None
        return True

    def _report_rejected(self, records: list[Record]) -> list[Record]:
        """Report the gap from a place that was rejected to what is left, and return what is new of that."""
        code, self._refused = self._refused, None
        oldest = records[0].sequence_number if records else None
        self._loss.lost(
            self._shard_id,
            f"the service does not start {self._place} any more ({code}), and the oldest record left is "
            f"{oldest or 'none'}",
            sequence_number=self.last or self._start.sequence_number,
            oldest=oldest,
            code=code,
        )
        # Numbers are compared with those that this shard gave itself; a start may be a foreign one.
        return records if self.last is None else [each for each in records if each.number > int(self.last)]

    # The start

    def _begin(self, records: list[Record]) -> list[Record]:
        """Leave out what is before the start, or find out whether the start's own record is gone."""
        start_ms = self._start.time_ms or 0
        if self._start.kind == "TS":  # the service may round the time it is asked for
            records = list(dropwhile(lambda record: record.arrival_ms < start_ms, records))
            self._begun = bool(records)
            return records
        now_ms = self._calls.now_ms()
        has_aged = start_ms + self._loss.retention_ms <= now_ms  # or its age is not known
        if not (records or self.closed or (self.at_tip and start_ms and has_aged)):
            return records
        self._begun = True
        number, wanted = self._start.number, self._start.kind == "AT"
        if records and records[0].number == number:
            return records if wanted else records[1:]
        followers_safe = (self._start.until_ms or 0) + self._loss.retention_ms > now_ms
        if wanted or not (has_aged and followers_safe):
            oldest = records[0].sequence_number if records else None
            self._loss.lost(
                self._shard_id,
                f"the position {number} is gone, and the oldest record left is {oldest or 'none'}",
                sequence_number=str(number),
                oldest=oldest,
            )
        return [record for record in records if record.number > number]
