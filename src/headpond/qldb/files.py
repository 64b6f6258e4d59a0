"""Files of QLDB records that are not JSON Lines, cut into datums: records one after the other, or an export.

::

    E0 01 00 EA table struct │ E0 01 00 EA table struct │ 0A │ E0 01 00 EA tab █ E0 01 00 EA table struct
    datum                      datum                      newline, skipped    │  datum
                                                          damaged: one datum ─┘  found again at a marker
    F3 89 9A C2 … digest │ E0 01 00 EA …      a KPL aggregate ends where its digest holds, before the next
                                              record or the end
    $ion_1_0 …, {blockAddress: …              Ion text of an export: a datum of Ion binary per block;
                                              damaged text stays as it is
    <strand>.<first>-<last>.ion | .json       an object of an export: blocks one after the other
    <export>.<strand>.completed.manifest      { keys: [ object, … ] }

Each record begins with a version marker of its own. A value that shares one is returned with the symbol
tables before it, so that it can be read alone. Damage costs the datum it lies in: the search for the next one
goes from marker to marker until the value there holds.

An exported object is Ion text, Ion binary or JSON Lines. The last are a down-conversion: types are lost, so
hashes of contents cannot be computed again; hashes of blocks and the chain can.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from headpond.core.formats import one_batch
from headpond.core.schemas import filled
from headpond.ion import binary
from headpond.ion.binary import MARKER, Node, RefusedIon, annotation_ids, header, node
from headpond.ion.stream import next_value, values
from headpond.ion.symbols import SYSTEM_SYMBOLS, Symbols
from headpond.ion.text_reader import text_values
from headpond.ion.write import restated
from headpond.kpl import MAGIC
from headpond.kpl.records import KINESIS_RECORD_SCHEMA
from headpond.qldb.records import DownConverted, ExportedBlock, Reader, Refused, read_block

MAX_DATUM_BYTES = 16 * 1024 * 1024
"""Bytes a datum may have; a Kinesis record has at most 10 MiB."""
_NEWLINES = b"\r\n"
_MARKER, _AGGREGATE, _LINE = (re.compile(re.escape(mark)) for mark in (MARKER, MAGIC, b"\n{"))
_END = re.compile(b"|".join(map(re.escape, (MARKER, MAGIC, b"\n"))))
_SYMBOL_TABLE = 3
_LARGE_TABLES = 8 * 1024
"""Symbol tables beyond this many bytes are not repeated with each value that they serve."""


class Datum(NamedTuple):
    """A datum of a file; `data` is to be read as one record, which finds what is wrong with a damaged one."""

    start: int
    stop: int
    data: bytes
    refused: Refused | None = None
    """What is wrong with Ion text that could not be read; `data` is that text."""


def split_datums(
    data: bytes, *, max_depth: int = binary.MAX_DEPTH, max_datum_bytes: int = MAX_DATUM_BYTES
) -> Iterator[Datum]:
    """Yield the datums of a file in order; only newlines between datums are in none of them."""
    at = 0
    while True:
        at = _after_newlines(data, at)
        if at >= len(data):
            return
        end = min(len(data), at + max_datum_bytes)
        stop = _whole(data, at, end, max_depth)
        if stop is not None:
            yield Datum(at, stop, data[at:stop])
            at = stop
            continue
        found, stop = _shared(data, at, max_depth, max_datum_bytes)
        yield from found
        if stop > at:
            at = stop
            continue
        resume = _first_sound(
            (match.start() for match in _MARKER.finditer(data, at + 1)),
            lambda at: values(data, at, min(len(data), at + max_datum_bytes), max_depth=max_depth),
            len(data),
        )
        yield Datum(at, resume, data[at:resume])
        at = resume


def _after_newlines(data: bytes, at: int) -> int:
    """Skip newlines that a marker or the end follows; before anything else 0A is padding."""
    after = at
    while data[after : after + 1] and data[after] in _NEWLINES:
        after += 1
    return after if after >= len(data) or data.startswith(MARKER, after) else at


def _boundary(data: bytes, at: int) -> bool:
    after = _after_newlines(data, at)
    return after >= len(data) or data.startswith(MARKER, after)


def _whole(data: bytes, at: int, end: int, max_depth: int) -> int | None:
    """Return where the datum at `at` stops, if it has one value and a marker or the end follows."""
    try:
        stop = _skip(data, at, end)
        if stop is None or not _boundary(data, stop):
            return None
        # A length that was damaged may reach over other datums to the start of one.
        if data.find(MARKER, at + len(MARKER), stop) >= 0:
            list(values(data, at, stop, max_depth=max_depth))
    except RefusedIon:
        return None
    return stop


def _skip(data: bytes, at: int, end: int) -> int | None:
    """Go by the lengths alone over one value, the symbol tables before it and padding on both sides."""
    if not data.startswith(MARKER, at):
        return None
    seen = False
    while at < end and not (seen and _boundary(data, at)):
        if data.startswith(MARKER, at):
            at += len(MARKER)
            continue
        kind, low, _, stop = header(data, at, end)
        if kind != binary.NULL or low == 15:
            found = node(data, at, end)
            table = found.annotated and annotation_ids(data, found)[:1] == [_SYMBOL_TABLE]
            if seen:
                return None
            seen = not table
        at = stop
    return at if seen else None


def _shared(data: bytes, at: int, max_depth: int, max_datum_bytes: int) -> tuple[list[Datum], int]:
    """Return several values under one marker, and where the last of them stops."""
    found: list[Datum] = []
    stop = place = at
    symbols = SYSTEM_SYMBOLS
    if not data.startswith(MARKER, at):
        return found, at
    while place < len(data):
        if found and data.startswith(MARKER, place):
            stop = place
            break
        end = min(len(data), place + max_datum_bytes)
        try:
            value, symbols, after = next_value(data, place, end, symbols, max_depth=max_depth)
        except RefusedIon:
            beyond = _by_length(data, place, end)
            if beyond is None:
                break
            raw = symbols.preamble + data[place:beyond] if found else data[at:beyond]
            found.append(Datum(stop, beyond, raw))
            stop = place = beyond
            continue
        place = after
        if value is not None:
            found.append(Datum(stop, after, _alone(data, value, symbols)))
            stop = after
    else:
        stop = len(data) if found else at
    # A datum that lost bytes takes them from the next one, and may still hold.
    for number, datum in enumerate(found):
        inside = data.find(MARKER, datum.start + 1, datum.stop + len(MARKER) - 1)
        end = min(len(data), inside + max_datum_bytes)
        if inside >= 0 and _whole(data, inside, end, max_depth) is not None:
            return [*found[:number], Datum(datum.start, inside, data[datum.start : inside])], inside
    return found, stop


def _alone(data: bytes, value: Node, symbols: Symbols) -> bytes:
    """Return a value with the symbol tables it needs: those before it, unless they are large."""
    if symbols.table_bytes > _LARGE_TABLES:
        return restated(data, value, symbols)
    return symbols.preamble + data[value.start : value.stop]


def _by_length(data: bytes, at: int, end: int) -> int | None:
    """Where a struct that does not hold stops by its own length, if another value or the end is there."""
    try:
        kind, _, _, stop = header(data, at, end)
    except RefusedIon:
        return None
    if kind != binary.STRUCT or data.find(MARKER, at, stop + len(MARKER) - 1) >= 0:
        return None
    if (
        stop < len(data)
        and not data.startswith(MARKER, stop)
        and data[stop] >> 4 not in (binary.STRUCT, binary.ANNOTATED)
    ):
        return None
    return stop


def _first_sound(places: Iterable[int], values_at: Callable[[int], Iterator[Any]], end: int) -> int:
    """Return the first of some places at which a value holds, else the end."""
    for at in places:
        with suppress(RefusedIon):
            if next(values_at(at), None):
                return at
    return end


_TEXT = re.compile(rb"\s*(\$ion_1_0\s|\{\s*blockAddress\s*:)")
_AT_ONCE = 2_000


def is_ion(head: bytes) -> bool:
    """Return, by its first bytes, whether a file is of this kind."""
    return head.startswith((MARKER, MAGIC)) or _TEXT.match(head) is not None


def ion_records(content: bytes, *, stream: str, file: str) -> Iterator[pa.RecordBatch]:
    """Yield a file that is not compressed as batches of `KINESIS_RECORD_SCHEMA`."""
    parts = (
        split_mixed(content)
        if content.startswith((MARKER, MAGIC))
        else (each.data for each in split_export(content))
    )
    first = 1
    while some := list(islice(parts, _AT_ONCE)):
        count = len(some)
        columns = {
            "stream": pa.repeat(stream, count),
            "shard_id": pa.repeat(file, count),
            "sequence_number": pa.array([str(number) for number in range(first, first + count)]),
            "data": pa.array(some, pa.binary()),
        }
        yield one_batch(filled(columns, KINESIS_RECORD_SCHEMA, count))
        first += count


MAX_AGGREGATE_BYTES = 10 << 20
"""Bytes an aggregate may have: a Kinesis record's bound."""
_DIGEST_BYTES = 16


def split_mixed(data: bytes) -> Iterator[bytes]:
    """Yield records that lie one after the other, aggregates among them, newlines between or not."""
    at = 0
    while at < len(data):
        if data.startswith(MAGIC, at):
            stop = _digest_holds(data, at) or _next_aggregate(data, at + len(MAGIC))  # one that is damaged
            yield data[at:stop]
            at = stop
            while data[at : at + 1] in (b"\n", b"\r"):
                at += 1
            continue
        stop = _next_aggregate(data, at)
        yield from (datum.data for datum in split_datums(data[at:stop]))
        at = stop


def _next_aggregate(data: bytes, at: int) -> int:
    """Return where the next aggregate begins whose digest holds; the end where there is none."""
    found = (match.start() for match in _AGGREGATE.finditer(data, at))
    return next((place for place in found if _digest_holds(data, place) is not None), len(data))


def _digest_holds(data: bytes, at: int) -> int | None:
    """Return where an aggregate ends, going from one place where a record may begin to the next."""
    digest = hashlib.md5(usedforsecurity=False)
    hashed = at + len(MAGIC)
    for stop in _ends(data, hashed + _DIGEST_BYTES):
        if stop - _DIGEST_BYTES > hashed:
            digest.update(data[hashed : stop - _DIGEST_BYTES])
            hashed = stop - _DIGEST_BYTES
        if digest.digest() == data[stop - _DIGEST_BYTES : stop]:
            return stop
        if stop - at > MAX_AGGREGATE_BYTES:
            return None
    return None


def _ends(data: bytes, at: int) -> Iterator[int]:
    """Places at or after `at` where a record may end: before a marker, an aggregate, a newline, the end."""
    yield from (match.start() for match in _END.finditer(data, at))
    yield len(data)


def split_export(data: bytes, *, max_depth: int = binary.MAX_DEPTH) -> Iterator[Datum]:
    """Cut an exported object, Ion binary or text, into blocks: datums of Ion binary, and damaged text."""
    if data.startswith(MARKER):
        yield from split_datums(data, max_depth=max_depth)
        return
    at = 0
    while at < len(data):
        stop = at
        try:
            for value in text_values(data, at, max_depth=max_depth):
                yield Datum(value.start, value.stop, value.datum)
                stop = value.stop
        except RefusedIon as error:
            # Damage costs the lines up to the next that begins a value that holds.
            lines = (match.end() - 1 for match in _LINE.finditer(data, max(stop, at)))
            at = _first_sound(lines, lambda at: text_values(data, at, max_depth=max_depth), len(data))
            yield Datum(stop, at, data[stop:at], Refused(error.reason, error.detail, error.offset))
        else:
            return


def is_down_converted(data: bytes) -> bool:
    """Return whether an exported object is JSON Lines: these begin with a brace and a quote."""
    start = data[:4096].lstrip()
    return start[:1] == b"{" and start[1:].lstrip()[:1] == b'"'


def read_export(data: bytes, *, max_depth: int = binary.MAX_DEPTH) -> Iterator[ExportedBlock | Refused]:
    """Yield the blocks of an exported object of any kind, not compressed; never raises."""
    kind = DownConverted if is_down_converted(data) else Reader
    for found in split_export(data, max_depth=max_depth):
        yield found.refused or read_block(found.data, kind, max_depth=max_depth)


def read_manifest(data: bytes) -> list[str]:
    """Return the object keys that a `.completed.manifest` lists; raises `RefusedIon` where it is none."""
    if not data.startswith(MARKER):
        data = next((value.datum for value in text_values(data)), MARKER)
    reader, top = Reader.of(data, binary.MAX_DEPTH)
    members = reader.struct(top, "the manifest", frozenset({"keys"}))
    return [reader.text(item, "keys item") for item in members.items("keys")]
