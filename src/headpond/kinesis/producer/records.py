"""User records on their way, their results, and the account of those outstanding."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from headpond.core.errors import ServiceFailure

if TYPE_CHECKING:
    from headpond.kinesis.producer.sender import Stored
    from headpond.kpl import Tag

Puttable: TypeAlias = (
    "tuple[str, bytes] | tuple[str, bytes, str | None] | tuple[str, bytes, str | None, tuple[Tag, ...]]"
)
"""Partition key and data, an explicit hash key, tags."""


class Attempt(NamedTuple):
    """One try to send a record; `code` is None if it succeeded. Times are of the producer's clock."""

    start_ms: float
    end_ms: float
    code: str | None = None
    message: str = ""


class PutResult(NamedTuple):
    """A user record that is in the stream.

    Attributes:
        shard_id: Its shard.
        sequence_number: Of the Kinesis record it lies in, as text.
        sub_sequence_number: Its place in the aggregate; 0 if it was sent alone.
        attempts: All tries, the last one successful.
    """

    shard_id: str
    sequence_number: str
    sub_sequence_number: int
    attempts: tuple[Attempt, ...]


class PutFailed(ServiceFailure):
    """User records that were not acknowledged; `facts` has `reason` and `attempts`."""

    @property
    def reason(self) -> str:
        """`Expired`, `Wrong Shard`, or an error code of the service or the client."""
        return str(self.facts["reason"])

    @property
    def too_large(self) -> bool:
        """Whether the service refused a record for its size alone: the stream will never take it."""
        return bool(self.facts.get("too_large"))

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All tries."""
        return tuple(self.facts["attempts"])


@dataclass(slots=True, eq=False)
class Pending:
    """A user record that is outstanding: taken in, without a result yet.

    Has what the encoder reads of a user record (`partition_key`, `explicit_hash_key`, `data`, `tags`).
    """

    partition_key: str
    data: bytes
    explicit_hash_key: str | None
    arrival_ms: float
    deadline_ms: float
    expiry_ms: float
    serial: int
    future: asyncio.Future[PutResult]
    tags: tuple[Tag, ...] = ()
    attempts: tuple[Attempt, ...] = ()


class Bundle:
    """A Kinesis record to be: one user record, or several in an aggregate.

    Attributes:
        records: In the order they go into the aggregate.
        data_bytes: Exact size of the Kinesis record's data.
        size_bytes: With the partition key: what PutRecords and shards count.
        deadline_ms: When it must leave.
        expiry_ms: When its first record expires.
        alone: Send it in a request of its own, since the service refused it in company.
        tries: How often it was sent.
    """

    def __init__(self, records: list[Pending], data_bytes: int) -> None:
        self.records = records
        self.data_bytes = data_bytes
        # An aggregate's own partition key is one letter; a record alone keeps its own unless it has tags.
        raw = len(records) == 1 and not records[0].tags
        key_bytes = len(records[0].partition_key.encode()) if raw else 1
        self.size_bytes = data_bytes + key_bytes
        self.deadline_ms = min(record.deadline_ms for record in records)
        self.expiry_ms = min(record.expiry_ms for record in records)
        self.alone = False
        self.tries = 0


class Ledger:
    """Counts what is outstanding; every record that enters leaves by `acknowledge` or by `fail`."""

    def __init__(self, stream: str, max_records: int, max_bytes: int) -> None:
        self._stream = stream
        self._max_records, self._max_bytes = max_records, max_bytes
        self._bytes = 0
        self.outstanding: set[Pending] = set()
        self.received = self.acknowledged = 0
        self.failed: dict[str, int] = {}
        self._waiting = 0  # for room, in turn
        self._turn, self._room, self._idle = asyncio.Lock(), asyncio.Event(), asyncio.Event()
        self._idle.set()

    @property
    def has_room(self) -> bool:
        """Return whether another record may enter at once: there is room, and nobody waits for it."""
        return not self._waiting and self._fits

    @property
    def _fits(self) -> bool:
        return len(self.outstanding) < self._max_records and self._bytes < self._max_bytes

    async def wait_for_room(self) -> None:
        """Wait for one's turn to take a record in, first come first served; it must be done right after."""
        self._waiting += 1
        self._idle.clear()
        try:
            async with self._turn:
                while not self._fits:
                    self._room.clear()
                    await self._room.wait()
        except asyncio.CancelledError:
            self._waiting -= 1
            self._check_idle()
            raise
        self._waiting -= 1

    async def wait_until_idle(self) -> None:
        """Wait until nothing is outstanding, and nobody waits for room."""
        await self._idle.wait()

    def enter(self, record: Pending) -> None:
        """Add a record."""
        if not self.outstanding:
            self._idle.clear()
        self.outstanding.add(record)
        self._bytes += len(record.data)
        self.received += 1

    def acknowledge(
        self, records: list[Pending], places: Iterable[int], stored: Stored, attempt: Attempt
    ) -> None:
        """Set the results of records that are in the stream; `places` are their places in the aggregate."""
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

    def fail(self, records: list[Pending], reason: str, message: str, **facts: object) -> None:
        """Fail records that will not be sent any more; their tries are in them already."""
        for record in records:
            if not record.future.done():
                record.future.set_exception(
                    PutFailed(
                        f"A record with partition key {record.partition_key!r} was not put into stream "
                        f"{self._stream}: {reason} after {len(record.attempts)} tries. {message}".rstrip(),
                        next_step="Look at the attempts of this error and at the stream's limits.",
                        reason=reason,
                        attempts=record.attempts,
                        **facts,
                    )
                )
        if records:
            self.failed[reason] = self.failed.get(reason, 0) + len(records)
            self._leave(records)

    def _leave(self, records: list[Pending]) -> None:
        self.outstanding.difference_update(records)
        self._bytes -= sum(len(record.data) for record in records)
        if self._fits:
            self._room.set()
        self._check_idle()

    def _check_idle(self) -> None:
        if not (self.outstanding or self._waiting):
            self._idle.set()
