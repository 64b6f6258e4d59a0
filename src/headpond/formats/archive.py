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
either is missing it is (file, line), lines counted from 1. A line that is no such object becomes a row whose
`problem` is `archive_bad_line` and whose `data` is the line as it stands; empty lines are counted but are no
records.

Relied on: a line ends with LF or CRLF; a file may lack the last one.
"""

from __future__ import annotations

import binascii
import io
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from headpond.formats.archive_quick import (
    ARRIVALS,
    KEYS,
    LEAST_MS,
    MAX_ARRIVAL_MS,
    MAX_DIGITS,
    NUMBERS,
    SHARDS,
    quick_line,
    quick_text,
)
from headpond.formats.kinesis_records import KINESIS_RECORD_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headpond.formats.archive_quick import Columns

BAD_LINE = "archive_bad_line"

_BLOCK = "blockAddress"
_LF = 0x0A


class BadLine(ValueError):
    """A line that is no record; the message says in a few words why."""


def read_lines(lines: Iterable[bytes], *, stream: str, file: str, first_line: int = 1) -> pa.RecordBatch:
    """Turn lines into a batch of Kinesis records.

    Args:
        lines: Lines in order, with or without their line ends.
        stream: What to call the stream.
        file: The file's name: part of the identity of records without shard or number.
        first_line: The number of the first of these lines in its file.

    Returns:
        A batch of `KINESIS_RECORD_SCHEMA`: a row per line that is not empty, bad ones with a `problem`.
    """
    lines = list(lines)
    quick = quick_text(b"".join([line if line.endswith(b"\n") else line + b"\n" for line in lines]))
    if quick is not None and len(quick[-1]) == len(lines):
        return _quick_batch(stream, quick)
    return _batch_of_each(lines, stream, file, first_line)


def read_text(text: bytes, *, stream: str, file: str, first_line: int = 1) -> pa.RecordBatch:
    """Turn a text of lines into a batch of Kinesis records; as `read_lines` otherwise.

    Args:
        text: Whole lines; the last one may lack its end.
        stream: As there.
        file: As there.
        first_line: As there.
    """
    if (quick := quick_text(text)) is not None:
        return _quick_batch(stream, quick)
    return _batch_of_each(io.BytesIO(text), stream, file, first_line)


def _quick_batch(stream: str, quick: Columns) -> pa.RecordBatch:
    *columns, data = quick
    return _batch(stream, [*columns, [None] * len(data), data])


def _batch_of_each(lines: Iterable[bytes], stream: str, file: str, first_line: int) -> pa.RecordBatch:
    rows: list[tuple[Any, ...]] = []
    for number, ended in enumerate(lines, first_line):
        line = ended.rstrip(b"\r\n")
        if not line or line.isspace():
            continue
        try:
            rows.append(quick_line(line) or read_line(line, file=file, line=number))
        except BadLine:
            rows.append((file, str(number), None, None, BAD_LINE, line))
    return _batch(stream, list(zip(*rows, strict=True)) or [()] * 6)


def cut_text(content: bytes, size_bytes: int, most_lines: int) -> Iterator[tuple[bytes, int]]:
    """Cut a text after whole lines.

    Args:
        content: Lines; the last one may lack its end.
        size_bytes: Bytes of a piece at most, unless one line has more.
        most_lines: Lines of a piece at most.

    Yields:
        Pieces that make up the text, none of them empty, and how many lines each has.
    """
    octets = np.frombuffer(content or b"\n", np.uint8)
    start = 0
    while start < len(content):
        ends = np.flatnonzero(octets[start : start + size_bytes] == _LF)[:most_lines] + start + 1
        if start + size_bytes >= len(content) and len(ends) < most_lines:
            end, lines = len(content), len(ends) + (not content.endswith(b"\n"))
        elif len(ends):
            end, lines = int(ends[-1]), len(ends)
        else:
            end, lines = content.find(b"\n", start) + 1 or len(content), 1
        yield content[start:end], lines
        start = end


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
        BadLine: It is no record.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise BadLine(f"no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise BadLine("no JSON object")
    encoded = value.get("data")
    if encoded is None and _BLOCK in value:
        return file, str(line), None, None, None, text
    if not isinstance(encoded, str):
        raise BadLine("no text in `data`")
    try:
        data = binascii.a2b_base64(encoded.encode(), strict_mode=True)
    except (binascii.Error, ValueError) as exc:
        raise BadLine(f"`data` is no base64: {exc}") from exc
    shard, number = _text(value, SHARDS), _sequence_number(value)
    if shard is None or number is None:
        shard, number = file, str(line)
    return shard, number, _text(value, KEYS), _arrival_us(value), None, data


def _first(value: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return the value under the first of the names that is there and not null."""
    for name in names:
        found = value.get(name)
        if found is not None:
            return found
    return None


def _text(value: dict[str, Any], names: tuple[str, ...]) -> str | None:
    found = _first(value, names)
    if found is not None and not isinstance(found, str):
        raise BadLine(f"`{names[0]}` is no text")
    return found


def _sequence_number(value: dict[str, Any]) -> str | None:
    found = _first(value, NUMBERS)
    if found is None:
        return None
    if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
        return str(found)
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) <= MAX_DIGITS:
        return found
    raise BadLine("`sequenceNumber` is no decimal number")


def _arrival_us(value: dict[str, Any]) -> int | None:
    found = _first(value, ARRIVALS)
    if found is None:
        return None
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found <= MAX_ARRIVAL_MS:
        # The service counts whole milliseconds; a double in seconds is exact to well under one of them.
        return (round(found) if found >= LEAST_MS else round(found * 1000)) * 1000
    if isinstance(found, str):
        return _iso_us(found)
    raise BadLine("`approximateArrivalTimestamp` is no time")


def _iso_us(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise BadLine("`approximateArrivalTimestamp` is no time") from exc
    if moment.tzinfo is None:
        raise BadLine("`approximateArrivalTimestamp` has no offset from UTC")
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
