"""What left and outer joins keep of records that found no partner yet.

::

    key        timestamp, 8 bytes | side: 01 left, 00 right | key
    element    side: 01 left, 00 right | value
    list       01 | count, 4 bytes | length, 4 bytes | element | length | element | …

    element with headers    headersSize | headersBytes | side: 01 left, 00 right | value

All numbers are big-endian and signed. One key holds the list of all its values, in order of insertion. By
byte order of keys entries come by timestamp, the right side before the left, then by key. The leading 01 of
a list says that elements have sizes of their own; the other forms belong to lists of fixed-size items and
are refused.

Kafka Streams' released buffer has no headers; elements with headers are its open change KAFKA-20413. The two
cannot be told apart by their bytes: a right element's 00 would pass for "no headers" and lose the value's
first byte. Whoever stores them must say which ones they are (`headpond.kstreams.join.stores` gives each
its column family). Source: spec "window store", section 8.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from headpond.kstreams.bytes.headers import Header, Headers, damaged, decode_prefix, encode_prefix

_KEY_HEAD = struct.Struct(">qB")
_INT = struct.Struct(">i")
_VARIABLE_SIZE = b"\x01"
_LIST_HEAD_BYTES = 5


class Side(Enum):
    """A side of a join, by its byte."""

    RIGHT = 0
    LEFT = 1


class BufferFormat(Enum):
    """Whether the elements of a buffer have headers."""

    PLAIN = "plain"
    HEADERS = "headers"


class BufferKey(NamedTuple):
    """What a key of the buffer says; `timestamp` in ms."""

    timestamp: int
    side: Side
    key: bytes


def encode_buffer_key(timestamp: int, side: Side, key: bytes) -> bytes:
    """Build a key of the buffer."""
    return _KEY_HEAD.pack(timestamp, side.value) + key


def decode_buffer_key(data: bytes) -> BufferKey:
    """Split a key of the buffer.

    Raises:
        SerializationError: `key_too_short` or `bad_side`.
    """
    if len(data) < _KEY_HEAD.size:
        raise damaged("key_too_short", f"A buffer key starts with 9 bytes, and this one has {len(data)}.")
    timestamp, side = _KEY_HEAD.unpack_from(data)
    return BufferKey(timestamp, _side(side), data[_KEY_HEAD.size :])


def encode_buffer_element(side: Side, value: bytes) -> bytes:
    """Put the side before a value."""
    return bytes((side.value,)) + value


def decode_buffer_element(data: bytes) -> tuple[Side, bytes]:
    """Split an element into side and value.

    Raises:
        SerializationError: `empty` or `bad_side`.
    """
    if not data:
        raise damaged("empty", "An element of the buffer has at least one byte, and this one has none.")
    return _side(data[0]), data[1:]


def encode_buffer_element_with_headers(side: Side, value: bytes, headers: Headers | None) -> bytes:
    """Put headers and side before a value."""
    return encode_prefix(headers) + encode_buffer_element(side, value)


def decode_buffer_element_with_headers(data: bytes) -> tuple[Side, bytes, list[Header]]:
    """Split an element with headers into side, value and headers.

    Raises:
        SerializationError: `empty`, `bad_side`, or the headers are damaged.
    """
    headers, at = decode_prefix(data)
    return *decode_buffer_element(data[at:]), headers


def plain_list_to_headers(data: bytes) -> bytes:
    """Convert a list to the format with headers: each element gets none.

    Raises:
        SerializationError: `bad_list`.
    """
    return encode_buffer_list(b"\x00" + element for element in decode_buffer_list(data))


def encode_buffer_list(elements: Iterable[bytes]) -> bytes:
    """Build the list of all elements under one key."""
    parts = list(elements)
    sized = (_INT.pack(len(part)) + part for part in parts)
    return _VARIABLE_SIZE + _INT.pack(len(parts)) + b"".join(sized)


def decode_buffer_list(data: bytes) -> list[bytes]:
    """Split a list into its elements.

    Raises:
        SerializationError: `bad_list`: the mark, the count or a length does not fit the bytes.
    """
    if data[:1] != _VARIABLE_SIZE or len(data) < _LIST_HEAD_BYTES:
        raise damaged(
            "bad_list", f"A list starts with 01 and a count, not with {data[:5].hex() or 'nothing'}."
        )
    (count,) = _INT.unpack_from(data, 1)
    at = _LIST_HEAD_BYTES
    elements = []
    # Each element takes four bytes at least, so a false count ends with the bytes.
    for number in range(count):
        size = _INT.unpack_from(data, at)[0] if at + _INT.size <= len(data) else -1
        at += _INT.size
        if size < 0 or at + size > len(data):
            raise damaged("bad_list", f"Element {number} of {count} does not fit into the list.", offset=at)
        elements.append(data[at : at + size])
        at += size
    if count < 0 or at != len(data):
        raise damaged("bad_list", f"{len(data) - at} bytes follow the {count} elements of a list.", offset=at)
    return elements


def _side(byte: int) -> Side:
    try:
        return Side(byte)
    except ValueError as error:
        raise damaged("bad_side", f"A side is 00 or 01, not {byte:02x}.", found=byte) from error
