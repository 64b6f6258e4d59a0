"""The account of user records taken in and not yet settled: back-pressure, flushing, results."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from headpond.kinesis.producer.records import PutFailed, PutResult

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headpond.kinesis.producer.outcome import Stored
    from headpond.kinesis.producer.records import Attempt, Pending

__all__ = ["Ledger"]


class Ledger:
    """Counts what is outstanding; every record that enters leaves by `acknowledge` or by `fail`.

    Args:
        stream: For the sentences of failures.
        max_records: Records outstanding above which there is no room.
        max_bytes: Bytes of their data above which there is no room.
    """

    def __init__(self, stream: str, max_records: int, max_bytes: int) -> None:
        self._stream = stream
        self._max_records, self._max_bytes = max_records, max_bytes
        self._bytes = 0
        self.outstanding: set[Pending] = set()
        self.received = self.acknowledged = 0
        self.failed: dict[str, int] = {}
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._granted = self._granted_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def has_room(self) -> bool:
        """Whether another record may be taken in at once: there is room, and nobody waits for it."""
        return (
            len(self.outstanding) < self._max_records
            and self._bytes < self._max_bytes
            and not self._waiting
            and not self._granted
        )

    async def wait_for_room(self, size_bytes: int) -> None:
        """Wait for one's turn to take a record of this size in, which must be done right after."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size_bytes))
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._use_grant(size_bytes)
                self._grant()
            raise
        self._use_grant(size_bytes)

    async def wait_until_idle(self) -> None:
        """Wait until nothing is outstanding."""
        await self._idle.wait()

    def enter(self, record: Pending) -> None:
        """Take a record in."""
        if not self.outstanding:
            self._idle.clear()
        self.outstanding.add(record)
        self._bytes += len(record.data)
        self.received += 1

    def acknowledge(
        self, records: list[Pending], places: Iterable[int], stored: Stored, attempt: Attempt
    ) -> None:
        """Settle records that are in the stream; `places` are their positions in the aggregate."""
        shard_id, sequence_number = stored
        ending: tuple[Attempt, ...] = ()
        tries: tuple[Attempt, ...] = (attempt,)
        for place, record in zip(places, records, strict=True):
            if record.attempts is not ending:
                ending, tries = record.attempts, (*record.attempts, attempt)
            if not record.future.done():
                record.future.set_result(PutResult(shard_id, sequence_number, place, tries))
        self.acknowledged += len(records)
        self._leave(records)

    def fail(self, records: list[Pending], reason: str, message: str) -> None:
        """Settle records that will not be sent any more; their tries are in them already."""
        for record in records:
            if not record.future.done():
                record.future.set_exception(
                    PutFailed(
                        f"A record with partition key {record.partition_key!r} was not put into stream "
                        f"{self._stream}: {reason} after {len(record.attempts)} tries. {message}".rstrip(),
                        next_step="Look at the attempts of this error and at the stream's limits.",
                        reason=reason,
                        attempts=record.attempts,
                    )
                )
        if records:
            self.failed[reason] = self.failed.get(reason, 0) + len(records)
            self._leave(records)

    def _leave(self, records: list[Pending]) -> None:
        self.outstanding.difference_update(records)
        self._bytes -= sum(len(record.data) for record in records)
        self._grant()
        if not self.outstanding:
            self._idle.set()

    def _grant(self) -> None:
        """Give those who wait their turn, first come first served, while there is room."""
        while (
            self._waiting
            and len(self.outstanding) + self._granted < self._max_records
            and self._bytes + self._granted_bytes < self._max_bytes
        ):
            turn, size_bytes = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._granted += 1
                self._granted_bytes += size_bytes

    def _use_grant(self, size_bytes: int) -> None:
        self._granted -= 1
        self._granted_bytes -= size_bytes
