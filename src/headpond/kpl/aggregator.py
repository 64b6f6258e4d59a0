"""When an aggregate closes: the one class behind `pack` and behind each shard of the producer.

The exact size of the encoded aggregate is kept with every record, so that one closes full and is never taken
apart again::

    1 record         length of its data: it is sent raw, unless it has tags
    2 and more       20 bytes of framing + the protobuf message:
                     per record its fields, per new key an entry in its table

An aggregate closes before the record that would exceed its size, and with the one that reaches its size or
count. The KPL closes by an estimate and then removes records until the exact size fits; the boundaries are
the same on all vectors. A record larger than the limit leaves alone. Order of arrival is kept; no clock is
known. Source: spec "KPL aggregated records", size accounting and when an aggregate closes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from headpond.kpl.encoder import tags_length
from headpond.kpl.model import FRAMING_BYTES, Tag, UserRecord, check_size, invalid

DEFAULT_MAX_SIZE = 51_200
LEAST_MAX_SIZE = 64
GREATEST_MAX_SIZE = 10 * 1024 * 1024
DEFAULT_MAX_COUNT = 4_294_967_295

_ONE_BYTE, _TWO_BYTES, _THREE_BYTES = 1 << 7, 1 << 14, 1 << 21
"""Numbers below these have varints of this many bytes."""


class _Packable(Protocol):
    """What is read of a record: that of `UserRecord`, with an explicit hash key in canonical form."""

    @property
    def partition_key(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def explicit_hash_key(self) -> str | None: ...
    @property
    def tags(self) -> tuple[Tag, ...]: ...


R = TypeVar("R", bound=_Packable)


class Packed(NamedTuple, Generic[R]):
    """The records of one Kinesis record, and the size of its data in bytes."""

    records: list[R]
    data_bytes: int


class Aggregator(Generic[R]):
    """One open aggregate of `records`: `max_size` bounds its data in bytes, framing included, 64 … 10 MiB.

    Raises:
        InvalidUserRecord: A bound lies outside its range.
    """

    __slots__ = ("_hash_keys", "_keys", "_max_message", "_message", "max_count", "max_size", "records")

    def __init__(self, max_size: int = DEFAULT_MAX_SIZE, max_count: int = DEFAULT_MAX_COUNT) -> None:
        self.max_size = check_size("aggregation_max_size", max_size, LEAST_MAX_SIZE, GREATEST_MAX_SIZE)
        if max_count < 1:
            raise invalid(
                "aggregation_max_count",
                1,
                max_count,
                f"aggregation_max_count is {max_count}; an aggregate holds at least one record.",
                "Choose 1 or more.",
            )
        self.max_count = max_count
        self._max_message = max_size - FRAMING_BYTES
        self.records: list[R] = []
        self._message = 0
        self._keys: dict[str, int] = {}
        self._hash_keys: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.records)

    @property
    def data_bytes(self) -> int:
        """The size of the data if it closed now."""
        records = self.records
        if len(records) == 1 and not records[0].tags:
            return len(records[0].data)
        return FRAMING_BYTES + self._message if records else 0

    def add(self, record: R) -> tuple[Packed[R], ...]:
        """Add a validated record; return the Kinesis records that are complete by it, oldest first."""
        index = self._keys.get(record.partition_key, _ONE_BYTE)
        if index < _ONE_BYTE and record.explicit_hash_key is None and not record.tags:
            # The usual case: one of the first 128 keys, again; nothing but the record itself is added.
            growth = _delimited(2 + _delimited(len(record.data)))
        else:
            growth = self._growth(record)
        grown = self._message + growth
        complete: tuple[Packed[R], ...] = ()
        if grown > self._max_message and self.records:
            complete = (self._close(),)
            grown = self._growth(record)
        self.records.append(record)
        if record.partition_key not in self._keys:
            self._keys[record.partition_key] = len(self._keys)
        if record.explicit_hash_key is not None:
            self._hash_keys.setdefault(record.explicit_hash_key, len(self._hash_keys))
        self._message = grown
        if grown >= self._max_message or len(self.records) >= self.max_count:
            complete = (*complete, self._close())
        return complete

    def close(self) -> Packed[R] | None:
        """Return what is open as one Kinesis record; None if nothing is."""
        return self._close() if self.records else None

    def _growth(self, record: R) -> int:
        index = self._keys.get(record.partition_key, -1)
        grown = 0
        if index < 0:
            index = len(self._keys)
            grown = _delimited(len(record.partition_key.encode()))
        inner = _index(index) + _delimited(len(record.data))
        if record.explicit_hash_key is not None:
            hash_index = self._hash_keys.get(record.explicit_hash_key, -1)
            if hash_index < 0:
                hash_index = len(self._hash_keys)
                grown += _delimited(len(record.explicit_hash_key))
            inner += _index(hash_index)
        if record.tags:
            inner += tags_length(record.tags)
        return grown + _delimited(inner)

    def _close(self) -> Packed[R]:
        packed = Packed(self.records, self.data_bytes)
        self.records, self._message = [], 0
        self._keys, self._hash_keys = {}, {}
        return packed


def alone(record: R) -> Packed[R]:
    """Return the Kinesis record of one user record: raw, unless it has tags to carry."""
    return Aggregator[R](max_count=1).add(record)[0]


def pack(
    records: Iterable[UserRecord], max_size: int = DEFAULT_MAX_SIZE, max_count: int = DEFAULT_MAX_COUNT
) -> list[list[UserRecord]]:
    """Cut a sequence of validated records into batches that each become one Kinesis record.

    Arrival order is kept; `encode(batch).data` of every batch holds both limits unless it is one
    record larger than `max_size`.
    """
    aggregator: Aggregator[UserRecord] = Aggregator(max_size, max_count)
    batches = [packed.records for record in records for packed in aggregator.add(record)]
    last = aggregator.close()
    return batches if last is None else [*batches, last.records]


def _delimited(length: int) -> int:
    """Return the bytes of a length-delimited field: tag, length, content; below 256 MiB."""
    if length < _ONE_BYTE:
        return length + 2
    return length + (3 if length < _TWO_BYTES else 4 if length < _THREE_BYTES else 5)


def _index(index: int) -> int:
    """Return the bytes of an index field: tag and varint."""
    return 2 if index < _ONE_BYTE else 3 if index < _TWO_BYTES else 4
