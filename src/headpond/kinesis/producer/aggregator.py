"""The open aggregate of one shard: takes user records until the next would not fit.

The exact size of the encoded aggregate is kept up to date with every record, so an aggregate closes
full and is never taken apart again (the KPL closes by an estimate and then pops records until the
true size fits). Order of arrival is kept. Knows no clock. Source: spec "KPL aggregated records",
size accounting.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headpond.formats.kpl import FRAMING_BYTES, tags_length
from headpond.kinesis.producer.records import Bundle

if TYPE_CHECKING:
    from headpond.kinesis.producer.records import Pending

__all__ = ["OpenAggregate", "alone"]

_ONE_BYTE = 1 << 7
_TWO_BYTES = 1 << 14
_THREE_BYTES = 1 << 21
_NOTHING: list[Bundle] = []


def _delimited(length: int) -> int:
    """Bytes of a length-delimited field: tag, length, content; below 256 MiB."""
    if length < _ONE_BYTE:
        return length + 2
    return length + (3 if length < _TWO_BYTES else 4 if length < _THREE_BYTES else 5)


def _index(index: int) -> int:
    """Bytes of an index field: tag and varint."""
    return 2 if index < _ONE_BYTE else 3 if index < _TWO_BYTES else 4


class OpenAggregate:
    """Records for one shard that may still get company.

    Args:
        max_size: Most bytes of the aggregate, framing included.
        max_count: Most records in it.

    Attributes:
        records: Those in it.
        deadline_ms: When the first of them must leave; infinite while it is empty.
    """

    __slots__ = ("_hash_keys", "_keys", "_max_count", "_max_message", "_message", "deadline_ms", "records")

    def __init__(self, max_size: int, max_count: int) -> None:
        self._max_message = max_size - FRAMING_BYTES
        self._max_count = max_count
        self.records: list[Pending] = []
        self.deadline_ms = math.inf
        self._message = 0
        self._keys: dict[str, int] = {}
        self._hash_keys: dict[str, int] = {}

    def add(self, record: Pending) -> list[Bundle]:
        """Take a record in; gives the Kinesis records that are complete by it, oldest first."""
        index = self._keys.get(record.partition_key, _ONE_BYTE)
        if index < _ONE_BYTE and record.explicit_hash_key is None and not record.tags:
            # The usual case: one of the first 128 keys, again; nothing but the record itself is added.
            growth = _delimited(2 + _delimited(len(record.data)))
        else:
            growth = self._growth(record)
        grown = self._message + growth
        closed = _NOTHING
        if grown > self._max_message and self.records:
            closed = [self._close()]
            grown = self._growth(record)
        self._enter(record)
        self._message = grown
        if grown >= self._max_message or len(self.records) >= self._max_count:
            closed = [*closed, self._close()]
        return closed

    def close(self) -> Bundle | None:
        """Give what is open as one Kinesis record."""
        return self._close() if self.records else None

    def _growth(self, record: Pending) -> int:
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

    def _enter(self, record: Pending) -> None:
        self.records.append(record)
        if record.deadline_ms < self.deadline_ms:  # noqa: PLR1730 - the hot path: min() costs a call
            self.deadline_ms = record.deadline_ms
        if record.partition_key not in self._keys:
            self._keys[record.partition_key] = len(self._keys)
        if record.explicit_hash_key is not None:
            self._hash_keys.setdefault(record.explicit_hash_key, len(self._hash_keys))

    def _close(self) -> Bundle:
        records = self.records
        # A record alone is sent raw, without framing, unless it has tags to carry.
        raw = len(records) == 1 and not records[0].tags
        size = len(records[0].data) if raw else FRAMING_BYTES + self._message
        self.records, self._message, self.deadline_ms = [], 0, math.inf
        self._keys, self._hash_keys = {}, {}
        return Bundle(records, size)


def alone(record: Pending) -> Bundle:
    """Make the Kinesis record of one user record, raw unless it has tags to carry."""
    if not record.tags:
        return Bundle([record], len(record.data))
    return OpenAggregate(max_size=FRAMING_BYTES, max_count=1).add(record)[0]
