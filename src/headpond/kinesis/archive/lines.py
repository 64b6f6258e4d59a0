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

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headpond.core.arrow import bytes_of, int64_array, offsets_of
from headpond.kpl.records import KINESIS_RECORD_SCHEMA

SHARDS = ("shard", "shard_id", "shardId")
NUMBERS = ("sequenceNumber", "sequence_number")
KEYS = ("partitionKey", "partition_key")
ARRIVALS = ("approximateArrivalTimestamp", "approximate_arrival_timestamp")
"""The spellings of each, the one that wins first."""
TEXT_BYTES = 1 << 20
"""Lines read at once: 4 MiB are new memory each time and take a fifth more CPU."""
MAX_LINE_BYTES = 64 << 20
"""Of a longer line only the beginning is kept: no record is as long, and a small file may expand to one."""
OVERLONG = b"line of more than 64 MiB that begins with "
_KEPT_BYTES = 1 << 10
MAX_DIGITS = 200  # more than any service gives; a bound for what is turned into an integer later
LEAST_MS = 10**11  # 1973 as milliseconds, the year 5138 as seconds: no stream holds either
MIN_ARRIVAL_US = -62_135_596_800_000_000  # the beginning of the year 1
MAX_ARRIVAL_MS = 253_402_300_799_999  # the end of the year 9999


_LINE: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    msgspec.defstruct(
        "Line",
        [
            ("data", bytes | None, None),
            *((name, Any, None) for name in ("blockAddress", *SHARDS, *NUMBERS, *KEYS, *ARRIVALS)),
        ],
        gc=False,
    )
)

BAD_LINE = "archive_bad_line"
_COLUMNS = list(KINESIS_RECORD_SCHEMA)[1:]
_NINE = 9
_COUNTED = 1 << 18  # bytes compared at once: what comes of it stays in the processor's cache


class BadLine(ValueError):
    """A line that is not a record; the message says in a few words why."""


def read_lines(lines: Iterable[bytes], *, stream: str, file: str, first_line: int = 1) -> pa.RecordBatch:
    """Turn lines into a batch of Kinesis records.

    `file` and the number of the line, of which `first_line` is the first, are the identity of records without
    shard or sequence number.

    Returns:
        A batch of `KINESIS_RECORD_SCHEMA`: a row per line that is not empty, bad ones with a `problem`.
    """
    rows: list[tuple[Any, ...]] = []
    for number, ended in enumerate(lines, first_line):
        line = ended.rstrip(b"\r\n")
        if not line or line.isspace():
            continue
        try:
            rows.append(read_line(line, file=file, line=number))
        except BadLine:
            rows.append((file, str(number), None, None, BAD_LINE, line))
    arrays = [pa.repeat(pa.scalar(stream), len(rows))]
    for column, field in zip(zip(*rows, strict=True) if rows else [()] * 6, _COLUMNS, strict=True):
        arrays.append(pa.array(column, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=KINESIS_RECORD_SCHEMA)


def read_text(text: bytes, *, stream: str, file: str, first_line: int = 1) -> pa.RecordBatch:
    """Turn a text of lines into a batch of Kinesis records; as `read_lines` otherwise.

    Lines that are all records with an identity of their own are read together: line by line an archive takes
    a quarter more CPU from its files to the tables.
    """
    columns = None
    try:
        if not text.isascii():
            text.decode()  # the decoder does not look at members that it passes over
        values = _LINE.decode_lines(text)
        if len(values) == _lines_of_objects(text):
            columns = _columns(values)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadLine, pa.ArrowTypeError):
        pass
    if columns is None:
        # A file may expand to very many empty lines.
        lines = [] if text.isspace() else text.removesuffix(b"\n").split(b"\n")
        return read_lines(lines, stream=stream, file=file, first_line=first_line)
    return pa.RecordBatch.from_arrays(
        [pa.repeat(pa.scalar(stream), len(values)), *columns], schema=KINESIS_RECORD_SCHEMA
    )


def _lines_of_objects(text: bytes) -> int | None:
    """Return how many lines a text of JSON objects has; None where one may hold no object, or a part of one.

    Within an object no `}` is followed by `{`: a line end between both is between two objects.
    """
    octets = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(octets[:-1] == ord("\n"))
    before = octets[ends - 1]
    before = np.where(before == ord("\r"), octets[ends - 2], before)
    between = (before == ord("}")).all() and (octets[ends + 1] == ord("{")).all()
    return len(ends) + 1 if text.startswith(b"{") and between else None


def _columns(values: list[Any]) -> list[pa.Array] | None:
    """Return the columns of lines that are read, but for the stream; None where one is not such a record."""
    data = list(map(attrgetter("data"), values))
    shards, numbers = _texts(values, SHARDS), _texts(values, NUMBERS)
    if None in data or shards is None or numbers is None or not _are_numbers(numbers):
        return None
    keys = _texts(values, KEYS)
    if keys is None:
        keys = pa.array([_text(value, KEYS) for value in values], pa.string())
    arrivals: list[Any] = list(map(attrgetter(ARRIVALS[0]), values))
    if set(map(type, arrivals)) == {int} and min(arrivals) >= LEAST_MS and max(arrivals) <= MAX_ARRIVAL_MS:
        arrived = int64_array(np.array(arrivals, np.int64) * 1000)
    else:
        arrived = pa.array(map(_arrival_us, values), pa.int64())
    problem = pa.nulls(len(values), pa.string())
    arrived = arrived.cast(_COLUMNS[3].type)
    return [shards, numbers, keys, arrived, problem, pa.array(data, pa.binary())]


def _texts(values: list[Any], names: tuple[str, ...]) -> pa.Array | None:
    """Return what all lines say under the first of these names that any has; None where one lacks it."""
    for name in names:
        found = list(map(attrgetter(name), values))
        if found.count(None) < len(found):
            texts = pa.array(found, pa.string())
            return None if texts.null_count else texts
    return None


def _are_numbers(texts: pa.Array) -> bool:
    """Return whether all of these are decimal numbers, as `read_line` takes them."""
    offsets = offsets_of(texts)
    sizes, digits = np.diff(offsets), bytes_of(texts)[offsets[0] : offsets[-1]]
    return bool(0 < sizes.min() <= sizes.max() <= MAX_DIGITS and (digits - ord("0") <= _NINE).all())


def cut_text(content: bytes, size_bytes: int = TEXT_BYTES) -> Iterator[tuple[bytes, int]]:
    """Cut a text after whole lines.

    Yields:
        Pieces that make up the text, of one line or at most `size_bytes`, and how many lines each has. Of a
        line that is too long there are words that cannot be a record.
    """
    start = 0
    while start < len(content):
        end = start + size_bytes
        if end < len(content):
            # A line that is longer than a piece goes on to its own end.
            end = content.rfind(b"\n", start, end) + 1 or content.find(b"\n", end) + 1 or len(content)
        piece = shortened(content[start:end])
        yield piece, count_lines(piece) + (not piece.endswith(b"\n"))
        start = end


def shortened(line: bytes) -> bytes:
    """Return a piece of lines; of one line that is too long what can be said of it."""
    if len(line) <= MAX_LINE_BYTES:
        return line
    begins = line.removeprefix(OVERLONG)[:_KEPT_BYTES]
    return OVERLONG + begins + (b"\n" if line.endswith(b"\n") else b"")


def count_lines(content: bytes) -> int:
    """Return how many lines end in bytes, in a fifth of the time that `bytes.count` takes."""
    octets = np.frombuffer(content, np.uint8)
    parts = (octets[at : at + _COUNTED] for at in range(0, len(octets), _COUNTED))
    return sum(int(np.count_nonzero(part == ord("\n"))) for part in parts)


def read_line(text: bytes, *, file: str, line: int) -> tuple[str, str, str | None, int | None, None, bytes]:
    """Read one line without its end.

    Returns:
        Shard, sequence number, partition key, arrival (µs since 1970), no problem, data.

    Raises:
        BadLine: It is not a record.
    """
    try:
        if not text.isascii():
            text.decode()  # the decoder does not look at members that it passes over
        value = _LINE.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadLine(f"not a record: {exc}") from exc
    if value.data is None:
        if value.blockAddress is None:
            raise BadLine("no `data`")
        return file, str(line), None, None, None, text
    shard, number = _text(value, SHARDS), _sequence_number(value)
    if shard is None or number is None:
        shard, number = file, str(line)
    return shard, number, _text(value, KEYS), _arrival_us(value), None, value.data


def _first(value: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if (found := getattr(value, name)) is not None:
            return found
    return None


def _text(value: Any, names: tuple[str, ...]) -> str | None:
    found = _first(value, names)
    if found is not None and not isinstance(found, str):
        raise BadLine(f"`{names[0]}` is not text")
    return found


def _sequence_number(value: Any) -> str | None:
    found = _first(value, NUMBERS)
    if found is None:
        return None
    if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
        return str(found)
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) <= MAX_DIGITS:
        return found
    raise BadLine("`sequenceNumber` is not a decimal number")


def _arrival_us(value: Any) -> int | None:
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
