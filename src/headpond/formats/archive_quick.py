"""An archive line of the common form, read by msgspec in one step; all else is left to `archive.read_line`.

What it takes it reads alike: plain ASCII without escapes, identity and key as texts, the arrival as a whole
number. msgspec opens the base64 of `data` by the same strict rules.
"""

from __future__ import annotations

import msgspec

_MAX_DIGITS = 200
_LEAST_MS = 10**11
_MAX_ARRIVAL_MS = 253_402_300_799_999


class _Line(msgspec.Struct, gc=False):
    """One record under all its spellings."""

    data: bytes
    shard: str | None = None
    shard_id: str | None = None
    shardId: str | None = None  # noqa: N815 - the service's spelling
    sequenceNumber: str | None = None  # noqa: N815
    sequence_number: str | None = None
    partitionKey: str | None = None  # noqa: N815
    partition_key: str | None = None
    approximateArrivalTimestamp: int | None = None  # noqa: N815
    approximate_arrival_timestamp: int | None = None


_DECODE = msgspec.json.Decoder(_Line).decode

Row = tuple[str, str, str | None, int | None, None, bytes]


def quick_line(text: bytes) -> Row | None:
    """Read a line as `archive.read_line` does, or give None: it may be anything, ask that."""
    if not text.isascii() or b"\\" in text:
        return None
    try:
        line = _DECODE(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    shard = line.shard
    if shard is None:
        shard = line.shard_id if line.shard_id is not None else line.shardId
    number = line.sequenceNumber if line.sequenceNumber is not None else line.sequence_number
    key = line.partitionKey if line.partitionKey is not None else line.partition_key
    arrival = line.approximateArrivalTimestamp
    if arrival is None:
        arrival = line.approximate_arrival_timestamp
    if shard is None or number is None or not number.isdigit() or len(number) > _MAX_DIGITS:
        return None
    if arrival is None:
        return shard, number, key, None, None, line.data
    if not _LEAST_MS <= arrival <= _MAX_ARRIVAL_MS:
        return None
    return shard, number, key, arrival * 1000, None, line.data
