"""The buffer of a left or outer join: records that found no partner yet, in the order in which they expire.

::

    buffer          one for the two sides of a join
    where           in memory here, on RocksDB in `headpond.windows.rocks_buffer`
    entry           time, side, key → a list of values, in order of insertion
    format          without headers (what Kafka Streams keeps) or with each record's own

Source: spec "window store", sections 8.1 and 8.2.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headpond.formats.headers import SerializationError
from headpond.formats.outer_join_buffer import (
    BufferFormat,
    BufferKey,
    Side,
    decode_buffer_element,
    decode_buffer_element_with_headers,
    decode_buffer_key,
    decode_buffer_list,
    encode_buffer_element,
    encode_buffer_element_with_headers,
    encode_buffer_key,
    encode_buffer_list,
    plain_list_to_headers,
)
from headpond.windows.segment import OrderedBytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headpond.formats.headers import Header
    from headpond.windows.contract import ChangelogRecord


class Waiting(NamedTuple):
    """One record's value in the buffer, with the headers that were kept of it."""

    value: bytes
    headers: tuple[Header, ...] = ()


class Pairs(Protocol):
    """Where a buffer's bytes are: an ordered map."""

    format: BufferFormat

    def get(self, key: bytes) -> bytes | None:
        """Read one list."""

    def put(self, key: bytes, value: bytes) -> None:
        """Write one list."""

    def delete(self, key: bytes) -> None:
        """Remove one list, if it is there."""

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Read all in byte order of their keys; those read already may be removed meanwhile."""

    def close(self) -> None:
        """Bring everything to disk and let go."""


class OuterJoinBuffer:
    """Unmatched records by time, side and key; several of one time, side and key are a list.

    Args:
        pairs: Where the bytes are; decides whether headers are kept.
    """

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs

    @property
    def format(self) -> BufferFormat:
        """Whether headers are kept."""
        return self._pairs.format

    def append(
        self, timestamp: int, side: Side, key: bytes, value: bytes, headers: Iterable[Header] = ()
    ) -> None:
        """Put a record behind the others of its time, side and key."""
        stored = encode_buffer_key(timestamp, side, key)
        if self.format is BufferFormat.HEADERS:
            element = encode_buffer_element_with_headers(side, value, tuple(headers))
        else:
            element = encode_buffer_element(side, value)
        listed = self._pairs.get(stored)
        elements = [] if listed is None else decode_buffer_list(listed)
        self._pairs.put(stored, encode_buffer_list([*elements, element]))

    def remove(self, timestamp: int, side: Side, key: bytes) -> None:
        """Take out all records of a time, side and key, if there are any."""
        self._pairs.delete(encode_buffer_key(timestamp, side, key))

    def walk(self) -> Iterator[tuple[BufferKey, list[Waiting]]]:
        """Read everything by time, right side before left, then by key; what was read may be removed.

        Raises:
            SerializationError: An entry is damaged; `facts["buffer_key"]` says which.
        """
        for stored, listed in self._pairs.scan():
            try:
                key = decode_buffer_key(stored)
                waiting = [self._decode(element, key.side) for element in decode_buffer_list(listed)]
            except SerializationError as error:
                raise SerializationError(
                    f"The buffer's entry {stored.hex()}: {error.message}",
                    next_step="Restore the buffer from its changelog.",
                    **{**error.facts, "buffer_key": stored.hex()},
                ) from error
            yield key, waiting

    def _decode(self, element: bytes, expected: Side) -> Waiting:
        if self.format is BufferFormat.HEADERS:
            side, value, headers = decode_buffer_element_with_headers(element)
        else:
            side, value = decode_buffer_element(element)
            headers = []
        if side is not expected:
            raise SerializationError(
                f"an element of the {side.name.lower()} side lies under a key of the other.",
                reason="bad_side",
            )
        return Waiting(value, tuple(headers))

    def restore(self, records: Iterable[ChangelogRecord]) -> None:
        """Put records of Kafka Streams' changelog back, which holds elements without headers."""
        for record in records:
            if record.value is None:
                self._pairs.delete(record.key)
            elif self.format is BufferFormat.HEADERS:
                self._pairs.put(record.key, plain_list_to_headers(record.value))
            else:
                self._pairs.put(record.key, record.value)

    def close(self) -> None:
        """Bring everything to disk and let go."""
        self._pairs.close()


class MemoryPairs(OrderedBytes):
    """A buffer's bytes in memory."""

    def __init__(self, buffer_format: BufferFormat = BufferFormat.HEADERS) -> None:
        super().__init__()
        self.format = buffer_format

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Read all in order; each step looks its place up anew, so keys may go and come meanwhile."""
        at = 0
        while at < len(self._keys):
            key = self._keys[at]
            yield key, self._values[key]
            at = bisect_right(self._keys, key)
