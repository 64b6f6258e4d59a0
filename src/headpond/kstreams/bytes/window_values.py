"""The four formats of a window store's value, and every conversion between them.

::

    plain                 value
    timestamped           timestamp, 8 bytes | value
    timestamped+headers   headersSize | headersBytes | timestamp, 8 bytes | value
    plain+headers         headersSize | headersBytes | value

Timestamps are milliseconds, big-endian and signed; -1 stands for "none" wherever a format has a place for
one and the other format had none. headersSize and headersBytes: see `headpond.kstreams.bytes.headers`. A
value of None is None (a tombstone) in every format, whatever its headers; an empty value is not None.

A conversion moves bytes and never reads headers: it checks the sizes that it needs, and no more. Adapters
and both kinds of migration are made of it.
Source: KIP-1300, KIP-1271; spec "window store", sections 3, 5 and 6.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import StrEnum

from headpond.kstreams.bytes.headers import (
    Header,
    Headers,
    damaged,
    decode_prefix,
    encode_prefix,
    prefix_bounds,
)

NO_TIMESTAMP = -1
"""What the formats with a timestamp hold where none is known."""
TIMESTAMP_BYTES = 8
_NO_TIMESTAMP_BYTES = b"\xff" * TIMESTAMP_BYTES
_TIMESTAMP = struct.Struct(">q")


class ValueFormat(StrEnum):
    """How the bytes of a stored value are laid out."""

    PLAIN = "plain"
    TIMESTAMPED = "timestamped"
    TIMESTAMPED_HEADERS = "timestamped_headers"
    PLAIN_HEADERS = "plain_headers"

    @property
    def has_timestamp(self) -> bool:
        """Whether a value holds a timestamp of its own."""
        return self in (ValueFormat.TIMESTAMPED, ValueFormat.TIMESTAMPED_HEADERS)

    @property
    def has_headers(self) -> bool:
        """Whether a value holds headers."""
        return self in (ValueFormat.TIMESTAMPED_HEADERS, ValueFormat.PLAIN_HEADERS)


def decode_value(data: bytes, value_format: ValueFormat) -> tuple[bytes, int | None, list[Header]]:
    """Split a value of any format into value, its own timestamp (None: the format has none) and headers."""
    headers, at = decode_prefix(data) if value_format.has_headers else ([], 0)
    timestamp = None
    if value_format.has_timestamp:
        _need_timestamp(data, at)
        timestamp = _TIMESTAMP.unpack_from(data, at)[0]
        at += TIMESTAMP_BYTES
    return data[at:] if at else data, timestamp, headers


def encode_value(value: bytes, timestamp: int, headers: Headers | None, value_format: ValueFormat) -> bytes:
    """Build a value of any format; what the format has no place for is left out."""
    prefix = encode_prefix(headers) if value_format.has_headers else b""
    return prefix + (_TIMESTAMP.pack(timestamp) if value_format.has_timestamp else b"") + value


def timestamp_of(data: bytes, value_format: ValueFormat) -> int | None:
    """Read a value's own timestamp (ms) without its headers; None where the format has none."""
    if not value_format.has_timestamp:
        return None
    at = prefix_bounds(data)[1] if value_format.has_headers else 0
    _need_timestamp(data, at)
    timestamp: int = _TIMESTAMP.unpack_from(data, at)[0]
    return timestamp


def _need_timestamp(data: bytes, at: int) -> None:
    if len(data) - at < TIMESTAMP_BYTES:
        raise damaged(
            "timestamp_cut",
            f"A timestamp takes 8 bytes, and {len(data) - at} are left at byte {at}.",
            offset=at,
            left=len(data) - at,
        )


def conversion(source: ValueFormat, target: ValueFormat) -> Callable[[bytes | None], bytes | None]:
    """Return the function that turns bytes of one format into bytes of another; None stays None.

    What the target has no place for is dropped: headers, a timestamp. What the source does not have becomes
    no headers, and the timestamp -1.
    """
    if source is target:
        return lambda data: data
    headers, timestamp = source.has_headers, source.has_timestamp
    keep_headers = headers and target.has_headers
    drop_timestamp = timestamp and not target.has_timestamp
    put = b"\x00" if target.has_headers and not headers else b""
    if target.has_timestamp and not timestamp:
        put += _NO_TIMESTAMP_BYTES

    def convert(data: bytes | None) -> bytes | None:
        if data is None:
            return None
        end = at = prefix_bounds(data)[1] if headers else 0
        if timestamp:
            _need_timestamp(data, end)
            if drop_timestamp:
                at += TIMESTAMP_BYTES
        return data[:end] + put + data[at:] if keep_headers else put + data[at:]

    return convert
