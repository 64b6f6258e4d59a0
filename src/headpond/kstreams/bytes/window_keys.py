"""Keys of a window store, and the bounds of its scans.

::

    store key       key | window start, 8 bytes | sequence number, 4 bytes

Window starts are milliseconds, big-endian and signed; sequence numbers tell entries of one key and window
start apart and are 0 where duplicates are not kept. A changelog's key is the store key. Byte order is
not key order: keys are not delimited, so a scan's bounds let entries of other keys through and whoever
scans must compare the decoded key. Source: spec "window store", section 4.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from headpond.kstreams.bytes.headers import damaged

_SUFFIX = struct.Struct(">qi")
_START = struct.Struct(">q")
SUFFIX_BYTES = _SUFFIX.size
"""Bytes after the key in a store key."""
MAX_SEQNUM = (1 << 31) - 1
MAX_TIMESTAMP = (1 << 63) - 1
_MAX_SEQNUM_BYTES = b"\x7f\xff\xff\xff"


class WindowKey(NamedTuple):
    """What a store key says; `timestamp` is the window start (ms)."""

    key: bytes
    timestamp: int
    seqnum: int = 0


def encode_store_key(key: bytes, timestamp: int, seqnum: int = 0) -> bytes:
    """Build a store key."""
    return key + _SUFFIX.pack(timestamp, seqnum)


def decode_store_key(data: bytes) -> WindowKey:
    """Split a store key.

    Raises:
        SerializationError: `key_too_short`: there are fewer than 12 bytes.
    """
    size = len(data) - SUFFIX_BYTES
    if size < 0:
        raise damaged("key_too_short", f"A store key ends in 12 bytes, and this one has {len(data)}.")
    timestamp, seqnum = _SUFFIX.unpack_from(data, size)
    return WindowKey(data[:size], timestamp, seqnum)


def lower_bound(key: bytes, timestamp: int) -> bytes:
    """Return the first store key of one key at or after a window start."""
    return key + _SUFFIX.pack(max(0, timestamp), 0)


def upper_bound(key: bytes, timestamp: int) -> bytes:
    """Return the last store key of one key at or before a window start; inclusive."""
    return key + _SUFFIX.pack(timestamp, MAX_SEQNUM)


def lower_bound_of_range(key: bytes) -> bytes:
    """Return a lower bound of the store keys of all keys from `key` on, whatever the window start."""
    return key + bytes(SUFFIX_BYTES)


def upper_bound_of_range(key: bytes, timestamp: int) -> bytes:
    """Return an upper bound, inclusive, of the store keys of all keys up to `key` and to a window start.

    A shorter key that is a prefix of `key` sorts by its window start, so bytes of `key` smaller than the
    first byte of the suffix must not stand before it. Kafka Streams' own rule, with its gap: entries of a
    shorter key are missed where `key` is that key and a byte not greater than the suffix's first (zero).
    """
    suffix = _START.pack(timestamp) + _MAX_SEQNUM_BYTES
    size = 0
    while size < len(key) and (size == 0 or key[size] >= suffix[0]):
        size += 1
    return key[:size] + suffix


def window_end(timestamp: int, window_size_ms: int) -> int:
    """Return the end of the window that starts at `timestamp` (ms), capped at the greatest 64-bit number."""
    return min(timestamp + window_size_ms, MAX_TIMESTAMP)
