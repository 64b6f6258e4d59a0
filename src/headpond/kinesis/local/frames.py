"""AWS event-stream framing, as SubscribeToShard answers with it.

::

    total length (4) │ headers length (4) │ CRC-32 of the 8 bytes (4) │ headers │ payload │ CRC-32 of all (4)
    header: name length (1) │ name │ 7 (text) │ value length (2) │ value

Numbers are big-endian. Source: the framing that botocore's `eventstream` module reads.
"""

from __future__ import annotations

from struct import pack
from zlib import crc32

__all__ = ["event_frame", "exception_frame"]

_TEXT = 7
_PRELUDE_AND_CHECKSUMS = 16


def event_frame(event_type: str, payload: bytes) -> bytes:
    """Write one event, such as `initial-response` or `SubscribeToShardEvent`."""
    headers = {
        ":message-type": "event",
        ":event-type": event_type,
        ":content-type": "application/x-amz-json-1.1",
    }
    return _frame(headers, payload)


def exception_frame(code: str, payload: bytes) -> bytes:
    """Write an exception, after which the stream ends."""
    return _frame({":message-type": "exception", ":exception-type": code}, payload)


def _frame(headers: dict[str, str], payload: bytes) -> bytes:
    head = b"".join(
        pack(">B", len(name)) + name.encode() + pack(">BH", _TEXT, len(value)) + value.encode()
        for name, value in headers.items()
    )
    lengths = pack(">II", _PRELUDE_AND_CHECKSUMS + len(head) + len(payload), len(head))
    start = lengths + pack(">I", crc32(lengths)) + head
    return b"".join([start, payload, pack(">I", crc32(payload, crc32(start)))])
