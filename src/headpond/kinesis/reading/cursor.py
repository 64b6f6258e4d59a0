"""Read on in one shard from a position: page after page, over expired iterators and gaps, losing nothing.

A cursor that starts after a record asks for that record again and drops it. Where the service has
forgotten it, the records behind it may be gone too, which nothing else would show: the service goes on
at the oldest record without a word. They are counted as lost unless they cannot have expired.

A refusal ends nothing by itself: only a shard that is not listed any more is gone. A moment that has not
come yet by the service's clock has no records yet, and a position that the service will not start at is
loss, gone on from at the oldest record.

Planning has seen a batch's first records by the time the batch is read. `Resume` says by which iterator: it
serves for five minutes and saves finding the place. It counts only where the same record comes first again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headpond.core.errors import DataLoss, ServiceFailure
from headpond.kinesis.api.replies import Page
from headpond.kinesis.api.retry import INVALID_ARGUMENT, IteratorExpired, PositionRejected
from headpond.kinesis.reading.positions import CLOCK_SKEW_MS, refuse_far_future

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.kinesis.api.calls import IteratorKind, StreamCalls
    from headpond.kinesis.api.replies import Record
    from headpond.kinesis.reading.positions import Position

logger = logging.getLogger(__name__)

MOST_RECORDS_PER_PAGE = 10_000


class Resume(NamedTuple):
    """A reply seen before, to be asked for again: a hint that may have become worthless.

    Attributes:
        iterator: What it was asked for with.
        skip: How many records of it are not wanted, at its front.
        first: Sequence number of the record behind those.
    """

    iterator: str
    skip: int
    first: str


@dataclass(frozen=True, slots=True)
class LossRule:
    """How loss is judged.

    Attributes:
        stream: The stream's name, for messages.
        retention_ms: How long the stream keeps a record.
        fatal: Whether loss ends the query (`failOnDataLoss`) or is a warning.
        known_ms: Until when it is known that nothing followed the position; 0: not known.
        tolerated: Where losses that did not end the query are noted, each once.
        check: Raises ConfigurationError where the stream is not the one the positions are of.
    """

    stream: str
    retention_ms: int
    fatal: bool = True
    known_ms: int = 0
    tolerated: set[str] | None = None
    check: Callable[[], None] | None = None

    def check_stream(self) -> None:
        """Make sure, before anything is judged, that the stream was not created again meanwhile.

        Raises:
            ConfigurationError: It was.
        """
        if self.check is not None:
            self.check()

    def lost(self, shard_id: str, what: str, **facts: Any) -> None:
        """Report records that are gone.

        Raises:
            ConfigurationError: The stream is another one now: it never had them.
            DataLoss: Unless loss is only warned of.
        """
        self.check_stream()
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


class Gap:
    """How long empty replies are followed: while they come nearer to the tip, and `most` more in a row."""

    def __init__(self, most: int = 1_000) -> None:
        self._most = self._left = most
        self._nearest_ms: int | None = None

    def goes_on(self, behind_ms: int) -> bool:
        """Count an empty reply that was so far behind the tip; return whether to ask again."""
        if self._nearest_ms is None or behind_ms < self._nearest_ms:
            self._nearest_ms, self._left = behind_ms, self._most
        else:
            self._left -= 1
        return self._left > 0


def no_tip(shard_id: str, stream: str) -> ServiceFailure:
    """Make the error for a shard whose empty replies do not come nearer to its tip."""
    return ServiceFailure(
        f"{shard_id} of {stream} gives neither records nor its tip: its empty replies come no nearer to it.",
        next_step="Run again; if it lasts, ask what answers at the endpoint.",
        shard_id=shard_id,
    )


class ShardCursor:
    """A place in one shard that moves on.

    Args:
        resume: How the first records after `start` were seen before; None: not known.

    Attributes:
        closed: The shard was read to its end.
        behind_ms: How far the last reply was behind the shard's tip; 0 with no records: at the tip.
        last: Sequence number of the last record given out; None before the first.
        seen: How the last records given out can be had again; None before the first.
    """

    def __init__(
        self,
        calls: StreamCalls,
        shard_id: str,
        start: Position,
        loss: LossRule,
        resume: Resume | None = None,
    ) -> None:
        self._calls = calls
        self._shard_id = shard_id
        self._start = start
        self._loss = loss
        self._iterator: str | None = None
        self._unproven = start.kind in ("SEQ", "AT")  # whether the start's own record was not met yet
        self._before_start = start.kind == "TS"
        self._refused: str | None = None  # the code, until the records that are left were seen
        self._from_horizon = False  # whether the next place is the oldest record, whatever the start was
        self._resume = resume
        self.seen: Resume | None = None
        self.last: str | None = None
        self.closed = start.kind == "END"
        self.behind_ms = -1

    def next_page(self, limit: int = MOST_RECORDS_PER_PAGE) -> list[Record]:
        """Read one page: records in order, none twice; none at all at the tip, at a gap or at the end.

        Raises:
            ConfigurationError: The stream is another one now, or the start lies in times to come.
            DataLoss: Records after the start are gone, and that is fatal.
            ServiceFailure: The service refuses every place of a shard that it lists.
        """
        if self.closed:
            return []
        if (resumed := self._resumed(limit)) is not None:
            return resumed
        # One more where the start's own record will be dropped.
        dropped = self._unproven and self._start.kind == "SEQ"
        page = self._page(min(limit + dropped, MOST_RECORDS_PER_PAGE))
        if page is None:
            self.behind_ms = 0
            return []
        asked_with = self._iterator or ""
        self._iterator, self.behind_ms = page.next_iterator, page.behind_ms
        self.closed = page.next_iterator is None
        records = page.records
        if self._refused is not None and (records or self.closed or self.at_tip):
            records = self._report_rejected(records)
        if self._unproven and (records or self.closed or (self.at_tip and self._has_aged())):
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
            self.last, self._from_horizon = records[-1].sequence_number, False
            skipped = len(page.records) - len(records)  # all at the front
            self.seen = Resume(asked_with, skipped, records[0].sequence_number)
        return records

    def _resumed(self, limit: int) -> list[Record] | None:
        """Ask as planning did; None where there is no hint or its record does not come first again.

        That record was seen to be the first after the start, which proves the start.
        """
        resume, self._resume = self._resume, None
        if resume is None:
            return None
        try:
            page = self._calls.page(
                resume.iterator, self._shard_id, min(limit + resume.skip, MOST_RECORDS_PER_PAGE)
            )
        except (IteratorExpired, PositionRejected):
            return None
        records = page.records[resume.skip :]
        if not records or records[0].sequence_number != resume.first:
            return None
        self._iterator, self.behind_ms = page.next_iterator, page.behind_ms
        self.closed = page.next_iterator is None
        self._unproven = self._before_start = False
        self.last, self.seen = records[-1].sequence_number, resume
        return records

    @property
    def at_tip(self) -> bool:
        """Whether the last reply reached the newest record."""
        return self.behind_ms == 0

    def next_records(self, limit: int) -> list[Record]:
        """Read the next page with records, over gaps; none at the tip, the end, or in a gap without end."""
        gap = Gap()
        while True:
            page = self.next_page(limit)
            if page or self.closed or self.at_tip or not gap.goes_on(self.behind_ms):
                return page

    def _page(self, limit: int) -> Page | None:
        """Ask; None where the moment to start at has not come yet."""
        while True:
            try:
                if self._iterator is None:
                    self._iterator = self._open()
                return self._calls.page(self._iterator, self._shard_id, limit)
            except IteratorExpired:
                self._iterator = None
            except PositionRejected as refused:
                self._iterator = None
                self._loss.check_stream()
                if refused.code == INVALID_ARGUMENT and self._is_to_come():
                    return None
                if self._is_gone(refused):
                    return Page([], None, 0)
                self._refused, self._from_horizon, self._unproven = refused.code, True, False

    def _open(self) -> str:
        """Get an iterator for where the cursor stands."""
        start = self._start
        if self._from_horizon or (self.last is None and start.kind == "HORIZON"):
            return self._calls.iterator(self._shard_id, "TRIM_HORIZON")
        if self.last is not None:
            return self._calls.iterator(self._shard_id, "AFTER_SEQUENCE_NUMBER", number=self.last)
        if start.kind == "TS":
            return self._calls.iterator(self._shard_id, "AT_TIMESTAMP", time_ms=start.time_ms)
        kind: IteratorKind = (
            "AT_SEQUENCE_NUMBER" if self._unproven or start.kind == "AT" else "AFTER_SEQUENCE_NUMBER"
        )
        return self._calls.iterator(self._shard_id, kind, number=start.sequence_number)

    # Refusals

    @property
    def _place(self) -> str:
        """Where the cursor stands, for messages."""
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
        shards = {shard.shard_id: shard for shard in self._calls.list_shards()}
        shard = shards.get(self._shard_id)
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
        number = self._start.sequence_number if self.last is None else self.last
        self._loss.lost(
            self._shard_id,
            f"the service does not start {self._place} any more ({code}), and the oldest record left is "
            f"{oldest or 'none'}",
            sequence_number=number,
            oldest=oldest,
            code=code,
        )
        # Numbers are compared with those that this shard gave itself; a start may be a foreign one.
        return records if self.last is None else [each for each in records if each.number > int(self.last)]

    # The start's own record

    def _has_aged(self) -> bool:
        """Return whether the start's own record is known to be older than the stream keeps records."""
        time_ms = self._start.time_ms or 0
        return time_ms > 0 and time_ms + self._loss.retention_ms <= self._calls.now_ms()

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
