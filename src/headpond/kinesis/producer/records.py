"""User records on their way, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from headpond.errors import ServiceFailure

if TYPE_CHECKING:
    import asyncio

    from headpond.formats.kpl import Tag

Puttable: TypeAlias = (
    "tuple[str, bytes] | tuple[str, bytes, str | None] | tuple[str, bytes, str | None, tuple[Tag, ...]]"
)
"""Partition key and data, an explicit hash key, tags."""

__all__ = ["Attempt", "Bundle", "Pending", "PutFailed", "PutResult", "Puttable"]


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
    def attempts(self) -> tuple[Attempt, ...]:
        """All tries."""
        return tuple(self.facts["attempts"])


class Pending:
    """A user record taken in and not yet settled.

    Has what the encoder reads of a user record (`partition_key`, `explicit_hash_key`, `data`, `tags`).
    """

    __slots__ = (
        "arrival_ms",
        "attempts",
        "data",
        "deadline_ms",
        "expiry_ms",
        "explicit_hash_key",
        "future",
        "partition_key",
        "serial",
        "tags",
    )

    def __init__(  # noqa: PLR0917 - the hot path: keywords cost a third more
        self,
        partition_key: str,
        data: bytes,
        explicit_hash_key: str | None,
        arrival_ms: float,
        deadline_ms: float,
        expiry_ms: float,
        serial: int,
        future: asyncio.Future[PutResult],
        tags: tuple[Tag, ...] = (),
    ) -> None:
        self.partition_key = partition_key
        self.data = data
        self.explicit_hash_key = explicit_hash_key
        self.arrival_ms = arrival_ms
        self.deadline_ms = deadline_ms
        self.expiry_ms = expiry_ms
        self.serial = serial
        self.future = future
        self.tags = tags
        self.attempts: tuple[Attempt, ...] = ()


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

    __slots__ = ("alone", "data_bytes", "deadline_ms", "expiry_ms", "records", "size_bytes", "tries")

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
