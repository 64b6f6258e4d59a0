"""Sizes of a growing aggregate, and the rule that says when it closes.

Two sizes are kept, as in the KPL. The *estimated* one is cheap and decides when to look; the
*accurate* one is the length that encoding gives and decides what may leave together:

::

    estimated   0 or 1 records   length of the data
                2 or more        per record: data + 3, key + 3 if new, 2 for the index,
                                 and with an explicit hash key: its text + 3 if new, 2 for the index
    accurate    1 record         length of the data
                2 or more        20 bytes of framing + the protobuf message

After each record: if the count or the estimated size reaches its limit, all records are sorted by
deadline and the longest beginning that holds both limits leaves; the rest stays open with its
deadlines. A record larger than the limit leaves alone. Source: spec "KPL aggregated records", size
accounting and when an aggregate closes.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from headpond.formats.kpl_model import FRAMING_BYTES, UserRecord, invalid

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_MAX_SIZE = 51_200
LEAST_MAX_SIZE = 64
GREATEST_MAX_SIZE = 10 * 1024 * 1024
DEFAULT_MAX_COUNT = 4_294_967_295

T = TypeVar("T")


def varint_length(value: int) -> int:
    """Count the bytes of a varint."""
    return (max(value, 1).bit_length() + 6) // 7


def _delimited(length: int) -> int:
    """Size of a length-delimited field with a one-byte tag."""
    return 1 + varint_length(length) + length


class SizeAccount:
    """The two sizes of an aggregate while records are added; both are right after every `add`."""

    __slots__ = ("_estimated", "_hash_keys", "_keys", "_message", "_single", "count")

    def __init__(self) -> None:
        self.count = 0
        self._single = 0  # data length of the only record
        self._estimated = 0
        self._message = 0
        self._keys: dict[str, int] = {}
        self._hash_keys: dict[str, int] = {}

    def add(self, record: UserRecord) -> None:
        """Account for one more record, whose explicit hash key must be in canonical form."""
        data_length = len(record.data)
        self._single = data_length
        self.count += 1
        estimated = data_length + 3 + 2
        index = self._keys.get(record.partition_key)
        if index is None:
            index = self._keys[record.partition_key] = len(self._keys)
            length = len(record.partition_key.encode())
            estimated += length + 3
            self._message += _delimited(length)
        inner = 1 + varint_length(index) + _delimited(data_length)
        if record.explicit_hash_key is not None:
            hash_index = self._hash_keys.get(record.explicit_hash_key)
            if hash_index is None:
                hash_index = self._hash_keys[record.explicit_hash_key] = len(self._hash_keys)
                length = len(record.explicit_hash_key)
                estimated += length + 3
                self._message += _delimited(length)
            estimated += 2
            inner += 1 + varint_length(hash_index)
        self._estimated += estimated
        self._message += _delimited(inner)

    @property
    def estimated(self) -> int:
        """Bytes by the KPL's rule of thumb; below the truth for tiny aggregates."""
        return self._single if self.count < 2 else self._estimated  # noqa: PLR2004 - one record is sent raw

    @property
    def accurate(self) -> int:
        """Bytes that encoding these records gives."""
        return self._single if self.count < 2 else FRAMING_BYTES + self._message  # noqa: PLR2004 - as above


class Waiting(NamedTuple, Generic[T]):
    """A record in an open aggregate, with the moment it must leave and what the caller hung on it."""

    record: UserRecord
    deadline_ms: float
    ticket: T


_deadline_of = attrgetter("deadline_ms")


class Aggregator(Generic[T]):
    """One open aggregate and the KPL's rule for closing it. Knows no clock: deadlines are given.

    Args:
        max_size: Bound of the Kinesis record's data in bytes, 64 … 10 MiB.
        max_count: Bound of the user records in it.
    """

    def __init__(self, max_size: int = DEFAULT_MAX_SIZE, max_count: int = DEFAULT_MAX_COUNT) -> None:
        if not LEAST_MAX_SIZE <= max_size <= GREATEST_MAX_SIZE:
            raise invalid(
                "aggregation_max_size",
                (LEAST_MAX_SIZE, GREATEST_MAX_SIZE),
                max_size,
                f"aggregation_max_size is {max_size}; it lies between {LEAST_MAX_SIZE}"
                f" and {GREATEST_MAX_SIZE}.",
                "Choose a size in that range.",
            )
        if max_count < 1:
            raise invalid(
                "aggregation_max_count",
                1,
                max_count,
                f"aggregation_max_count is {max_count}; an aggregate holds at least one record.",
                "Choose 1 or more.",
            )
        self.max_size = max_size
        self.max_count = max_count
        self._waiting: list[Waiting[T]] = []
        self._sizes = SizeAccount()
        self._deadline_ms: float | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def deadline_ms(self) -> float | None:
        """The earliest deadline of what waits; None when nothing does."""
        return self._deadline_ms

    @property
    def estimated_bytes(self) -> int:
        """The estimated size of what waits."""
        return self._sizes.estimated

    def add(self, record: UserRecord, deadline_ms: float, ticket: T) -> list[Waiting[T]]:
        """Take in a validated record; give back the batch that must leave now, or an empty list."""
        self._take_in(Waiting(record, deadline_ms, ticket))
        if self._sizes.count >= self.max_count or self._sizes.estimated >= self.max_size:
            return self.flush()
        return []

    def flush(self) -> list[Waiting[T]]:
        """Close the aggregate: give back, by deadline, what fits one Kinesis record. The rest stays open."""
        waiting = sorted(self._waiting, key=_deadline_of)
        sizes = SizeAccount()
        fits = 0
        for position, one in enumerate(waiting[: self.max_count]):
            sizes.add(one.record)
            # From the second record on the size only grows; a raw record of one may exceed the
            # limit, and alone may also be larger than a wrapped pair is allowed to be.
            if position == 0 or sizes.accurate <= self.max_size:
                fits = position + 1
            else:
                break
        self._waiting = []
        self._sizes = SizeAccount()
        self._deadline_ms = None
        for one in waiting[fits:]:
            self._take_in(one)
        return waiting[:fits]

    def _take_in(self, one: Waiting[T]) -> None:
        self._waiting.append(one)
        self._sizes.add(one.record)
        if self._deadline_ms is None or one.deadline_ms < self._deadline_ms:
            self._deadline_ms = one.deadline_ms


def pack(
    records: Iterable[UserRecord], max_size: int = DEFAULT_MAX_SIZE, max_count: int = DEFAULT_MAX_COUNT
) -> list[list[UserRecord]]:
    """Cut a sequence of validated records into batches that each become one Kinesis record.

    Arrival order is kept; `encode(batch).data` of every batch holds both limits unless it is one
    record larger than `max_size`.
    """
    aggregator: Aggregator[None] = Aggregator(max_size, max_count)
    batches = [aggregator.add(record, at, None) for at, record in enumerate(records)]
    while aggregator:
        batches.append(aggregator.flush())
    return [[one.record for one in batch] for batch in batches if batch]
