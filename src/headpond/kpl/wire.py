"""Strict reader of the protobuf message inside an aggregate.

::

    AggregatedRecord   0A partition key table entry, string, repeated
                       12 explicit hash key table entry, string, repeated
                       1A Record, repeated
    Record             08 partition_key_index, required     10 explicit_hash_key_index
                       1A data, bytes, required             22 Tag, repeated
    Tag                0A key, string, required             12 value, string

As forgiving as protobuf's own readers and no more: any order of fields, scalars repeated (the last
one wins), unknown fields of every wire type, varints longer than needed. Unlike them it reports
where it stopped, checks indices in full width, and never keeps half an aggregate. Everything is
positions in the blob; values are cut out by the caller. Groups are walked with a counter, not by
recursion, and every byte is visited a bounded number of times.

Order of findings: a broken wire format anywhere comes before a missing field anywhere, and that
before what is wrong with a single record (index, then UTF-8), as with a parser that runs to the end
first. Source: spec "KPL aggregated records", parsing rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple, NoReturn

from headpond.kpl.model import CHECKSUM_BYTES, MAGIC, Malformed, MalformedReason

MAX_GROUP_DEPTH = 100
"""Nesting of messages and groups that is followed: protobuf's own limit."""
MAX_EXPANDED_BYTES = 256 * 1024 * 1024
"""Keys of one aggregate, each counted as often as records use it. A table entry of 5 MiB that a
million records point at would otherwise unfold to terabytes; honest aggregates stay below 64 MiB."""
MAX_AGGREGATE_BYTES = 10 << 20
"""Bytes an aggregate may have: a Kinesis record's bound."""
MAX_FIELDS = 500_000
"""Fields of one aggregate that are read, and messages in it; a record in the usual shape is one."""

_VARINT, _FIXED64, _LENGTH, _GROUP_START, _GROUP_END, _FIXED32 = range(6)
_CONTENT_BYTES = {_FIXED64: 8, _FIXED32: 4, _GROUP_START: 0, _GROUP_END: 0}
_MASK64 = (1 << 64) - 1
_MASK32 = (1 << 32) - 1
_MAX_VARINT_BYTES = 10
_CONTINUED = 0x80

# Numbers of fields, and tags, as in the picture above.
_KEY_ENTRY, _HASH_KEY_ENTRY, _RECORD = 1, 2, 3
_TAG_KEY, _TAG_VALUE = 1, 2
_INDEX_TAG, _DATA_TAG = 0x08, 0x1A
_USUAL_BYTES = 4
"""Header of nearly every record: 08 index 1A length."""

Span = tuple[int, int]


class RecordSpans(NamedTuple):
    """One record: indices into the tables (-1: no explicit hash key) and positions in the blob."""

    partition_key_index: int
    explicit_hash_key_index: int
    data_start: int
    data_end: int
    tags: tuple[tuple[Span, Span | None], ...]


class ParsedAggregate(NamedTuple):
    """A sound aggregate as positions; used table entries and (when asked for) tags are valid UTF-8."""

    partition_keys: list[Span]
    explicit_hash_keys: list[Span]
    records: list[RecordSpans]


class WireError(Exception):
    """The message is not usable; carries the outcome to report."""

    def __init__(self, malformed: Malformed) -> None:
        super().__init__(malformed.message)
        self.malformed = malformed


class _Field(NamedTuple):
    number: int
    wire_type: int
    value: int  # of a varint; else the start of the content
    end: int
    at: int  # where its tag is


def _fail(reason: MalformedReason, offset: int, message: str) -> NoReturn:
    raise WireError(Malformed(reason, offset, f"At byte {offset} {message}."))


def parse_aggregate(
    blob: bytes,
    *,
    tags: bool = True,
    max_group_depth: int = MAX_GROUP_DEPTH,
    max_expanded_bytes: int = MAX_EXPANDED_BYTES,
) -> ParsedAggregate:
    """Read a whole blob whose magic and checksum are right.

    Tags are always parsed; their UTF-8 is checked only if they are wanted. `max_expanded_bytes` bounds the
    keys when every record gets its own copy.

    Raises:
        WireError: The message is malformed.
    """
    partition_keys: list[Span] = []
    explicit_hash_keys: list[Span] = []
    records: list[RecordSpans] = []
    starts: list[int] = []
    missing: tuple[int, str] | None = None
    left = iter(range(MAX_FIELDS))
    for field in _fields(blob, len(MAGIC), len(blob) - CHECKSUM_BYTES, max_group_depth, left):
        if field.wire_type != _LENGTH:
            continue
        if field.number == _RECORD:
            record, lacks = _record(blob, field.value, field.end, max_group_depth - 1, left)
            if lacks and missing is None:
                missing = (field.at, lacks)
            if missing is None:
                records.append(record)
                starts.append(field.at)
        elif field.number == _KEY_ENTRY:
            partition_keys.append((field.value, field.end))
        elif field.number == _HASH_KEY_ENTRY:
            explicit_hash_keys.append((field.value, field.end))
    if missing:
        _fail("missing_required", missing[0], f"a record has no {missing[1]}")
    parsed = ParsedAggregate(partition_keys, explicit_hash_keys, records)
    _check_keys(blob, parsed, starts, max_expanded_bytes)
    if tags:
        _check_tags(blob, records)
    return parsed


def end_of_aggregate(data: bytes, at: int, *, max_bytes: int = MAX_AGGREGATE_BYTES) -> tuple[int, bool]:
    """Look for the end of the aggregate that begins at `at`, which has no length: behind a field its digest.

    Returns:
        Where it ends, and True; or how far its message was read where no digest of it is found, and False.
    """
    digest = hashlib.md5(usedforsecurity=False)
    stop = at + len(MAGIC)
    end = min(len(data), at + max_bytes) - CHECKSUM_BYTES
    fields = _fields(data, stop, end, MAX_GROUP_DEPTH, iter(range(MAX_FIELDS)))
    try:
        for field_end in chain((stop,), (field.end for field in fields)):
            digest.update(data[stop:field_end])
            stop = field_end
            if digest.digest() == data[stop : stop + CHECKSUM_BYTES]:
                return stop + CHECKSUM_BYTES, True
    except WireError:
        pass
    return stop, False


def _record(blob: bytes, start: int, end: int, depth: int, left: Iterator[int]) -> tuple[RecordSpans, str]:
    """Read one Record; the second value names a required field that is missing, or is empty."""
    # The shape nearly every writer gives: 08 index 1A length data, all of one byte.
    if (
        end - start >= _USUAL_BYTES
        and blob[start] == _INDEX_TAG
        and blob[start + 1] < _CONTINUED
        and blob[start + 2] == _DATA_TAG
        and blob[start + 3] == end - start - _USUAL_BYTES < _CONTINUED
    ):
        return RecordSpans(blob[start + 1], -1, start + _USUAL_BYTES, end, ()), ""
    partition_key_index = explicit_hash_key_index = data_start = data_end = -1
    found_tags: list[tuple[Span, Span | None]] = []
    tag_lacks = ""
    for field in _fields(blob, start, end, depth, left):
        match field.number, field.wire_type:
            case 1, 0:
                partition_key_index = field.value
            case 2, 0:
                explicit_hash_key_index = field.value
            case 3, 2:
                data_start, data_end = field.value, field.end
            case 4, 2:
                key, value = _tag(blob, field.value, field.end, depth - 1, left)
                if key is None:
                    tag_lacks = "key in one of its tags"
                else:
                    found_tags.append((key, value))
            case _:
                continue
    record = RecordSpans(
        partition_key_index, explicit_hash_key_index, data_start, data_end, tuple(found_tags)
    )
    if partition_key_index < 0:
        return record, "partition_key_index"
    if data_start < 0:
        return record, "data"
    return record, tag_lacks


def _tag(
    blob: bytes, start: int, end: int, depth: int, left: Iterator[int]
) -> tuple[Span | None, Span | None]:
    key: Span | None = None
    value: Span | None = None
    for field in _fields(blob, start, end, depth, left):
        if field.wire_type == _LENGTH:
            if field.number == _TAG_KEY:
                key = (field.value, field.end)
            elif field.number == _TAG_VALUE:
                value = (field.value, field.end)
    return key, value


def _check_keys(blob: bytes, parsed: ParsedAggregate, starts: list[int], max_expanded_bytes: int) -> None:
    """Check indices, UTF-8 of the table entries in use, and the size of all keys written out."""
    tables = (
        ("partition key", parsed.partition_keys, set[int]()),
        ("explicit hash key", parsed.explicit_hash_keys, set[int]()),
    )
    expanded = 0
    for record, at in zip(parsed.records, starts, strict=True):
        for (what, table, valid), index in zip(tables, record[:2], strict=True):
            if index < 0:
                continue
            if index >= len(table):
                _fail(
                    "index_out_of_range",
                    at,
                    f"a record points at entry {index} of the {what} table, which has {len(table)}",
                )
            start, end = table[index]
            if index not in valid:
                _check_utf8(blob, start, end, f"entry {index} of the {what} table")
                valid.add(index)
            expanded += end - start
        if expanded > max_expanded_bytes:
            _fail(
                "expansion_limit",
                at,
                f"the keys of the records so far come to {expanded} bytes, more than the {max_expanded_bytes}"
                " that one aggregate may unfold to",
            )


def _check_tags(blob: bytes, records: list[RecordSpans]) -> None:
    for record in records:
        for key, value in record.tags:
            _check_utf8(blob, *key, "a tag's key")
            if value is not None:
                _check_utf8(blob, *value, "a tag's value")


def _check_utf8(blob: bytes, start: int, end: int, what: str) -> None:
    try:
        blob[start:end].decode()
    except UnicodeDecodeError as error:
        _fail("invalid_utf8", start + error.start, f"{what} is not UTF-8")


def _fields(blob: bytes, start: int, end: int, depth: int, left: Iterator[int]) -> Iterator[_Field]:
    """Yield the fields of the message at [start, end), unknown groups skipped.

    `depth` may still nest; as many fields as `left` yields may come, here and in all messages.
    """
    open_groups: list[int] = []
    at = start
    next(left, None)
    while at < end:
        if next(left, None) is None:
            _fail("expansion_limit", at, f"the aggregate has more than {MAX_FIELDS} fields")
        tag, value_at = _varint(blob, at, end)
        if tag > _MASK32:
            _fail("protobuf_error", at, f"a field's tag {tag:#x} exceeds 32 bits")
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            _fail("protobuf_error", at, "a field has the number 0")
        value, next_at = _content(blob, wire_type, at, value_at, end)
        if next_at > end:
            _fail(
                "protobuf_error",
                at,
                f"field {number} ends {next_at - end} bytes beyond the message around it",
            )
        if wire_type in (_GROUP_START, _GROUP_END):
            _step_group(open_groups, wire_type, number, at, depth)
        elif not open_groups:
            yield _Field(number, wire_type, value, next_at, at)
        at = next_at
    if open_groups:
        _fail("protobuf_error", end, f"the message ends inside group {open_groups[-1]}")


def _step_group(open_groups: list[int], wire_type: int, number: int, at: int, depth: int) -> None:
    if wire_type == _GROUP_START:
        open_groups.append(number)
        if len(open_groups) > depth:
            _fail("protobuf_error", at, "groups nest too deeply")
    elif not open_groups or open_groups.pop() != number:
        _fail("protobuf_error", at, f"group {number} ends without having begun")


def _content(blob: bytes, wire_type: int, at: int, value_at: int, end: int) -> tuple[int, int]:
    """Find a field's value (a varint, or where the content starts) and the position after the field."""
    if wire_type == _LENGTH:
        length, value_at = _varint(blob, value_at, end)
        return value_at, value_at + length
    if wire_type == _VARINT:
        return _varint(blob, value_at, end)
    fixed = _CONTENT_BYTES.get(wire_type)
    if fixed is None:
        _fail("protobuf_error", at, f"a field has wire type {wire_type}, which does not exist")
    return value_at, value_at + fixed


def _varint(blob: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a varint: its value (bits above 64 dropped, as protobuf does) and the position after it."""
    if at < end and blob[at] < _CONTINUED:
        return blob[at], at + 1
    value = 0
    for length in range(_MAX_VARINT_BYTES):
        if at + length >= end:
            _fail("protobuf_error", at, "a varint is cut off")
        byte = blob[at + length]
        value |= (byte & 0x7F) << (7 * length)
        if byte < _CONTINUED:
            return value & _MASK64, at + length + 1
    _fail("protobuf_error", at, f"a varint is longer than {_MAX_VARINT_BYTES} bytes")
