"""Archive lines of the common form, read by msgspec in one step; all else is left to `archive.read_line`.

What is taken is read alike: plain ASCII without escapes, identity and key as texts, the arrival as a whole
number. msgspec opens the base64 of `data` by the same strict rules. Many lines are taken at once where all
are of the common form and spell their names alike.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

SHARDS = ("shard", "shard_id", "shardId")
NUMBERS = ("sequenceNumber", "sequence_number")
KEYS = ("partitionKey", "partition_key")
ARRIVALS = ("approximateArrivalTimestamp", "approximate_arrival_timestamp")
"""The spellings of each, the one that wins first."""
MAX_DIGITS = 200  # more than any service gives; a bound for what is turned into an integer later
LEAST_MS = 10**11  # 1973 as milliseconds, the year 5138 as seconds: no stream holds either
MAX_ARRIVAL_MS = 253_402_300_799_999  # the end of the year 9999


class _Line(msgspec.Struct, gc=False):
    """One record under all its spellings."""

    data: bytes
    shard: str | None = None
    shard_id: str | None = None
    shardId: str | None = None  # noqa: N815 - the service's spelling
    sequenceNumber: str | None = None  # noqa: N815 - the names of the file format
    sequence_number: str | None = None
    partitionKey: str | None = None  # noqa: N815 - the names of the file format
    partition_key: str | None = None
    approximateArrivalTimestamp: int | None = None  # noqa: N815 - the names of the file format
    approximate_arrival_timestamp: int | None = None


_LF, _CR, _OPEN, _CLOSE = b"\n\r{}"

_DECODER = msgspec.json.Decoder(_Line)
_DECODE, _DECODE_LINES = _DECODER.decode, _DECODER.decode_lines

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
    if shard is None or number is None or not number.isdigit() or len(number) > MAX_DIGITS:
        return None
    if arrival is None:
        return shard, number, key, None, None, line.data
    if not LEAST_MS <= arrival <= MAX_ARRIVAL_MS:
        return None
    return shard, number, key, arrival * 1000, None, line.data


Columns = tuple[list[str], list[str], list[str | None], list[int | None], list[bytes]]


def quick_text(text: bytes) -> Columns | None:
    """Read lines as `quick_line` reads each, or give None: not all are alike, ask that.

    Args:
        text: lines with their ends; the last one may lack it.

    Returns:
        Shards, sequence numbers, partition keys, arrivals (µs since 1970) and data.
    """
    if not text.isascii() or b"\\" in text or (count := _objects_in(text)) is None:
        return None
    try:
        records = _DECODE_LINES(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if len(records) != count:
        return None
    shards, numbers = _spelled(records, SHARDS), _spelled(records, NUMBERS)
    keys, arrivals = _spelled(records, KEYS), _spelled(records, ARRIVALS)
    if not (_are_there(shards) and _are_there(numbers) and keys and arrivals and _are_numbers(numbers)):
        return None
    if _are_there(arrivals):
        if min(arrivals) < LEAST_MS or max(arrivals) > MAX_ARRIVAL_MS:
            return None
        arrivals = [1000 * arrival for arrival in arrivals]
    return shards, numbers, keys, arrivals, [record.data for record in records]


def _objects_in(text: bytes) -> int | None:
    """How many lines there are if each begins and ends as an object does: so many values are one in each.

    msgspec splits by values, not by lines. But what begins a line with ``{`` cannot go on with a value whose
    last line ended with ``}``: no value reaches over such a border.
    """
    if not (text.startswith(b"{") and text[-3:].rstrip(b"\r\n").endswith(b"}")):
        return None
    octets = np.frombuffer(text, np.uint8)
    borders = np.flatnonzero(octets[:-1] == _LF)
    before = octets[borders - 1]
    before = np.where(before == _CR, octets[borders - 2], before)
    if (before != _CLOSE).any() or (octets[borders + 1] != _OPEN).any():
        return None
    return len(borders) + 1


def _are_there(values: list[Any]) -> bool:
    return bool(values) and values[0] is not None


def _are_numbers(values: list[str]) -> bool:
    lengths = [*map(len, values)]
    return min(lengths) > 0 and max(lengths) <= MAX_DIGITS and "".join(values).isdigit()


def _spelled(records: list[_Line], names: tuple[str, ...]) -> list[Any]:
    """The values of all records under one of the names, or nulls; nothing where they differ in that."""
    for name in names:
        values = [*map(attrgetter(name), records)]
        nulls = values.count(None)
        if nulls == 0:
            return values
        if nulls < len(values):
            return []
    return values
