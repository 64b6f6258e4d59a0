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
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import bytes_of, offsets_of
from headpond.kpl.records import KINESIS_RECORD_SCHEMA

SHARDS = ("shard", "shard_id", "shardId")
NUMBERS = ("sequenceNumber", "sequence_number")
KEYS = ("partitionKey", "partition_key")
ARRIVALS = ("approximateArrivalTimestamp", "approximate_arrival_timestamp")
"""The spellings of each, the one that wins first."""
TEXT_BYTES = 4 << 20
"""Lines read at once: 16 MiB are new memory each time, 1 MiB more calls; both take a third more CPU."""
MAX_DIGITS = 200  # more than any service gives; a bound for what is turned into an integer later
LEAST_MS = 10**11  # 1973 as milliseconds, the year 5138 as seconds: no stream holds either
MIN_ARRIVAL_US = -62_135_596_800_000_000  # the beginning of the year 1
MAX_ARRIVAL_MS = 253_402_300_799_999  # the end of the year 9999


_LF, _ZERO, _NINE = b"\n09"
_NAMES = (*SHARDS, *NUMBERS, *KEYS)
_Milliseconds = Annotated[int, msgspec.Meta(ge=LEAST_MS, le=MAX_ARRIVAL_MS)]
_USUAL_LINE: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    msgspec.defstruct(
        "UsualLine",
        [
            ("data", bytes),
            *((name, str | None, None) for name in _NAMES),
            *((name, _Milliseconds | None, None) for name in ARRIVALS),
        ],
        gc=False,
    )
)
"""Reads what `fast_text` takes: data, texts, and times in milliseconds."""
_ANY_LINE: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    msgspec.defstruct("AnyLine", [(name, Any, None) for name in ("data", "blockAddress", *_NAMES, *ARRIVALS)])
)
"""Reads any object; `read_line` says what is wrong with its members."""


def fast_text(text: bytes, stream: str) -> pa.RecordBatch | None:
    """Read lines as `read_line` reads each, or return None where they are not all of the usual kind.

    Such lines are ASCII, have shards and numbers as texts, and times in milliseconds. Read one by one they
    take 5.4 µs of CPU instead of 2.5 (1,000 bytes each), and a whole job by calculation a fifth more.

    Args:
        text: lines with their ends; the last one may lack it.
        stream: where the records come from.
    """
    if not text.isascii():
        return None
    try:
        lines = list(map(_USUAL_LINE.decode, text.removesuffix(b"\n").split(b"\n")))
    except (msgspec.DecodeError, RecursionError):
        return None
    shards, keys, arrivals = (_given(lines, names) for names in (SHARDS, KEYS, ARRIVALS))
    numbers = pa.array(_given(lines, NUMBERS), pa.string())
    if None in shards or numbers.null_count or not _are_digits(numbers):
        return None
    arrivals_us = pc.multiply(pa.array(arrivals, pa.int64()), 1000)
    return _batch(stream, [shards, numbers, keys, arrivals_us, None, [line.data for line in lines]])


def _given(lines: list[Any], names: tuple[str, ...]) -> list[Any]:
    """Return of each line the value under the first of the names that has one."""
    found = [getattr(line, names[0]) for line in lines]
    for name in names[1:]:
        if None in found:
            found = [
                getattr(line, name) if one is None else one for one, line in zip(found, lines, strict=True)
            ]
    return found


def _are_digits(texts: pa.Array) -> bool:
    octets, sizes = bytes_of(texts), np.diff(offsets_of(texts))
    digits = ((octets >= _ZERO) & (octets <= _NINE)).all()
    return bool(digits and sizes.min() > 0 and sizes.max() <= MAX_DIGITS)


BAD_LINE = "archive_bad_line"


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
    fast = fast_text(b"".join([line if line.endswith(b"\n") else line + b"\n" for line in lines]), stream)
    if fast is not None and fast.num_rows == len(lines):
        return fast
    return _batch_of_each(lines, stream, file, first_line)


def read_text(text: bytes, *, stream: str, file: str, first_line: int = 1) -> pa.RecordBatch:
    """Turn a text of lines into a batch of Kinesis records; as `read_lines` otherwise."""
    if (fast := fast_text(text, stream)) is not None:
        return fast
    # A file may expand to very many empty lines.
    lines = () if text.isspace() else io.BytesIO(text)
    return _batch_of_each(lines, stream, file, first_line)


def _batch_of_each(lines: Iterable[bytes], stream: str, file: str, first_line: int) -> pa.RecordBatch:
    rows: list[tuple[Any, ...]] = []
    for number, ended in enumerate(lines, first_line):
        line = ended.rstrip(b"\r\n")
        if not line or line.isspace():
            continue
        try:
            rows.append(read_line(line, file=file, line=number))
        except BadLine:
            rows.append((file, str(number), None, None, BAD_LINE, line))
    return _batch(stream, list(zip(*rows, strict=True)) or [()] * 6)


def cut_text(content: bytes, size_bytes: int = TEXT_BYTES) -> Iterator[tuple[bytes, int]]:
    """Cut a text after whole lines.

    Yields:
        Pieces that make up the text, of one line or at most `size_bytes`, and how many lines each has.
    """
    start = 0
    while start < len(content):
        end = start + size_bytes
        if end < len(content):
            # A line that is longer than a piece goes on to its own end.
            end = content.rfind(b"\n", start, end) + 1 or content.find(b"\n", end) + 1 or len(content)
        piece = content[start:end]
        ends = int(
            np.count_nonzero(np.frombuffer(piece, np.uint8) == _LF)
        )  # in a fifth of the time that `count` takes
        yield piece, ends + (not piece.endswith(b"\n"))
        start = end


def _batch(stream: str, columns: list[Any]) -> pa.RecordBatch:
    """Return a batch of the columns after the first, each a list of values, an array or None for nulls."""
    count = len(columns[-1])
    arrays = [pa.repeat(pa.scalar(stream), count)]
    for column, field in zip(columns, list(KINESIS_RECORD_SCHEMA)[1:], strict=True):
        if isinstance(column, pa.Array):
            arrays.append(column.cast(field.type))
        else:
            arrays.append(pa.nulls(count, field.type) if column is None else pa.array(column, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=KINESIS_RECORD_SCHEMA)


def read_line(text: bytes, *, file: str, line: int) -> tuple[str, str, str | None, int | None, None, bytes]:
    """Read one line without its end.

    Returns:
        Shard, sequence number, partition key, arrival (µs since 1970), no problem, data.

    Raises:
        BadLine: It is not a record.
    """
    try:
        value = _ANY_LINE.decode(text)
    except msgspec.ValidationError as exc:
        raise BadLine("not a JSON object") from exc
    except (msgspec.DecodeError, RecursionError) as exc:
        raise BadLine(f"not JSON: {exc}") from exc
    encoded = value.data
    if encoded is None and value.blockAddress is not None:
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


def _text(value: Any, names: tuple[str, ...]) -> str | None:
    (found,) = _given([value], names)
    if found is not None and not isinstance(found, str):
        raise BadLine(f"`{names[0]}` is not text")
    return found


def _sequence_number(value: Any) -> str | None:
    (found,) = _given([value], NUMBERS)
    if found is None:
        return None
    if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
        return str(found)
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) <= MAX_DIGITS:
        return found
    raise BadLine("`sequenceNumber` is not a decimal number")


def _arrival_us(value: Any) -> int | None:
    (found,) = _given([value], ARRIVALS)
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
