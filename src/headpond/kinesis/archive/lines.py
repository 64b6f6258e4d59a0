r"""The archive: Kinesis records in files, one JSON object a line.

::

    {"data": "8wt2...", "shard": "shardId-000000000001", "sequenceNumber": "4960...", ...}\n

    data                                 base64, needed; the Kinesis record's bytes (may be a KPL aggregate)
    shard | shard_id | shardId           text
    sequenceNumber | sequence_number     decimal digits, as text or number
    partitionKey | partition_key         text
    approximateArrivalTimestamp |        milliseconds since 1970, or seconds (a number below 10^11: as
        approximate_arrival_timestamp    seconds it lies before the year 5139), or ISO 8601 with an offset

A line that has no `data` but a `blockAddress` is a block of a QLDB journal export (JSON Lines): a record
whose bytes are the line. Other names are ignored. A record's identity is (shard, sequence number); where
either is missing it is (file, line), lines counted from 1. Any other line becomes a row whose
`problem` is `archive_bad_line` and whose `data` is the line as it stands; empty lines are counted but are not
records.

Relied on: a line ends with LF or CRLF; a file may lack the last one.
"""

from __future__ import annotations

import binascii
import io
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import orjson
import pyarrow as pa

from headpond.kpl.records import KINESIS_RECORD_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHARDS = ("shard", "shard_id", "shardId")
NUMBERS = ("sequenceNumber", "sequence_number")
KEYS = ("partitionKey", "partition_key")
ARRIVALS = ("approximateArrivalTimestamp", "approximate_arrival_timestamp")
"""The spellings of each, the one that wins first."""
MAX_DIGITS = 200  # more than any service gives; a bound for what is turned into an integer later
LEAST_MS = 10**11  # 1973 as milliseconds, the year 5138 as seconds: no stream holds either
MIN_ARRIVAL_US = -62_135_596_800_000_000  # the beginning of the year 1
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


def fast_line(text: bytes) -> Row | None:
    """Read a line as `archive.read_line` does, or return None where it is not of the common form."""
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


def fast_text(text: bytes) -> Columns | None:
    """Read lines as `fast_line` reads each, or return None where they are not all of the common form.

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
    """Return the values of all records under one of the names, or None for each; [] where they differ."""
    for name in names:
        values = [*map(attrgetter(name), records)]
        missing = values.count(None)
        if missing == 0:
            return values
        if missing < len(values):
            return []
    return values


BAD_LINE = "archive_bad_line"

_BLOCK = "blockAddress"


class BadLine(ValueError):
    """A line that is not a record; the message says in a few words why."""


def read_lines(lines: Iterable[bytes], *, stream: str, file: str, first_line: int = 1) -> pa.RecordBatch:
    """Turn lines into a batch of Kinesis records.

    `file` and the number of the line, of which `first_line` is the first, are the identity of records without
    shard or sequence number.

    Returns:
        A batch of `KINESIS_RECORD_SCHEMA`: a row per line that is not empty, bad ones with a `problem`.
    """
    lines = list(lines)
    fast = fast_text(b"".join([line if line.endswith(b"\n") else line + b"\n" for line in lines]))
    if fast is not None and len(fast[-1]) == len(lines):
        return _fast_batch(stream, fast)
    return _batch_of_each(lines, stream, file, first_line)


def read_text(text: bytes, *, stream: str, file: str, first_line: int = 1) -> pa.RecordBatch:
    """Turn a text of lines into a batch of Kinesis records; as `read_lines` otherwise."""
    if (fast := fast_text(text)) is not None:
        return _fast_batch(stream, fast)
    # A file may expand to very many empty lines.
    lines = () if text.isspace() else io.BytesIO(text)
    return _batch_of_each(lines, stream, file, first_line)


def _fast_batch(stream: str, fast: Columns) -> pa.RecordBatch:
    *columns, data = fast
    return _batch(stream, [*columns, [None] * len(data), data])


def _batch_of_each(lines: Iterable[bytes], stream: str, file: str, first_line: int) -> pa.RecordBatch:
    rows: list[tuple[Any, ...]] = []
    for number, ended in enumerate(lines, first_line):
        line = ended.rstrip(b"\r\n")
        if not line or line.isspace():
            continue
        try:
            rows.append(fast_line(line) or read_line(line, file=file, line=number))
        except BadLine:
            rows.append((file, str(number), None, None, BAD_LINE, line))
    return _batch(stream, list(zip(*rows, strict=True)) or [()] * 6)


def cut_text(content: bytes, size_bytes: int, most_lines: int) -> Iterator[tuple[bytes, int]]:
    """Cut a text after whole lines.

    Yields:
        Pieces that make up the text, none of them empty, and how many lines each has.
    """
    octets = np.frombuffer(content or b"\n", np.uint8)
    start = 0
    while start < len(content):
        ends = np.flatnonzero(octets[start : start + size_bytes] == _LF) + start + 1
        last = start + size_bytes >= len(content)
        if not len(ends) and not last:
            ends = np.array([content.find(b"\n", start) + 1 or len(content)])
        for at in range(0, len(ends), most_lines):
            some = ends[at : at + most_lines]
            end = int(some[-1])
            yield content[start:end], len(some)
            start = end
        if last and start < len(content):
            yield content[start:], 1
            return


def _batch(stream: str, columns: list[Any]) -> pa.RecordBatch:
    names = [pa.array([stream] * len(columns[0]), pa.string())]
    arrays = [
        pa.array(column, field.type)
        for column, field in zip(columns, list(KINESIS_RECORD_SCHEMA)[1:], strict=True)
    ]
    return pa.RecordBatch.from_arrays(names + arrays, schema=KINESIS_RECORD_SCHEMA)


def read_line(text: bytes, *, file: str, line: int) -> tuple[str, str, str | None, int | None, None, bytes]:
    """Read one line without its end.

    Returns:
        Shard, sequence number, partition key, arrival (µs since 1970), no problem, data.

    Raises:
        BadLine: It is not a record.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise BadLine(f"not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise BadLine("not a JSON object")
    encoded = value.get("data")
    if encoded is None and _BLOCK in value:
        return file, str(line), None, None, None, text
    if not isinstance(encoded, str):
        raise BadLine("no text in `data`")
    try:
        data = binascii.a2b_base64(encoded.encode(), strict_mode=True)
    except (binascii.Error, ValueError) as exc:
        raise BadLine(f"`data` is not base64: {exc}") from exc
    shard, number = _text(value, SHARDS), _sequence_number(value)
    if shard is None or number is None:
        shard, number = file, str(line)
    return shard, number, _text(value, KEYS), _arrival_us(value), None, data


def _first(value: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return the value under the first of the names that has one."""
    for name in names:
        found = value.get(name)
        if found is not None:
            return found
    return None


def _text(value: dict[str, Any], names: tuple[str, ...]) -> str | None:
    found = _first(value, names)
    if found is not None and not isinstance(found, str):
        raise BadLine(f"`{names[0]}` is not text")
    return found


def _sequence_number(value: dict[str, Any]) -> str | None:
    found = _first(value, NUMBERS)
    if found is None:
        return None
    if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
        return str(found)
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) <= MAX_DIGITS:
        return found
    raise BadLine("`sequenceNumber` is not a decimal number")


def _arrival_us(value: dict[str, Any]) -> int | None:
    found = _first(value, ARRIVALS)
    if found is None:
        return None
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found <= MAX_ARRIVAL_MS:
        # The service counts whole milliseconds; a double in seconds is exact to well under one of them.
        return (round(found) if found >= LEAST_MS else round(found * 1000)) * 1000
    if isinstance(found, str):
        return _iso_us(found)
    raise BadLine("`approximateArrivalTimestamp` is not a time")


def _iso_us(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise BadLine("`approximateArrivalTimestamp` is not a time") from exc
    if moment.tzinfo is None:
        raise BadLine("`approximateArrivalTimestamp` has no offset from UTC")
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    arrival_us = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if not MIN_ARRIVAL_US <= arrival_us < (MAX_ARRIVAL_MS + 1) * 1000:  # by its offset
        raise BadLine("`approximateArrivalTimestamp` is outside the years 1 to 9999 UTC")
    return arrival_us
