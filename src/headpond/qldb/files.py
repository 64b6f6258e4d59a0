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

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import pyarrow as pa

from headpond.core.formats import one_batch
from headpond.core.schemas import filled
from headpond.ion import binary
from headpond.ion.binary import MARKER, Node, RefusedIon, annotation_ids, header, node
from headpond.ion.stream import MAX_TABLES, next_value, values
from headpond.ion.symbols import SYSTEM_SYMBOLS, Symbols
from headpond.ion.text_reader import text_values
from headpond.ion.write import restated
from headpond.kpl import MAGIC
from headpond.kpl.records import KINESIS_RECORD_SCHEMA
from headpond.kpl.wire import end_of_aggregate
from headpond.qldb.records import DownConverted, ExportedBlock, Reader, Refused, read_block

MAX_DATUM_BYTES = 16 * 1024 * 1024
"""Bytes a datum may have; a Kinesis record has at most 10 MiB."""
MAX_DAMAGED_BYTES = 64 << 20
"""Of longer damage only the beginning is kept: a small file may expand to it."""
OVERLONG = b"damage of more than 64 MiB that begins with "
_KEPT_BYTES = 1 << 10
SEARCH_TIMES, LEAST_SEARCH_BYTES = 16, 16 << 20
"""How many times over the bytes of a file are read in vain, and how many bytes of a small file."""
_NEWLINES = re.compile(rb"[\r\n]*+")
_FEW_NEWLINES = re.compile(rb"[\r\n]{0,4096}+")
_MARKER, _AGGREGATE, _LINE = (re.compile(re.escape(mark)) for mark in (MARKER, MAGIC, b"\n{"))
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


class Search:
    """Where a file goes on behind damage, looked for within a bound for the whole file.

    A few bytes can look like the beginning of something large, and many places like such a beginning. What is
    read in vain is counted; after `left` bytes of it the rest of the file is one datum.
    """

    def __init__(self, size_bytes: int) -> None:
        self.left = max(LEAST_SEARCH_BYTES, SEARCH_TIMES * size_bytes)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is looked for."""
        return self.left <= 0

    def spend(self, size_bytes: int) -> None:
        """Count what was read in vain."""
        self.left -= size_bytes

    def first(self, places: Iterable[int], wasted: Callable[[int], int | None], end: int) -> int:
        """Return the first place for which `wasted`, which says how much is read in vain there, is None.

        Where there is none, or nothing more is looked for, it is the end.
        """
        for at in places:
            if self.is_over:
                break
            spent = wasted(at)
            if spent is None:
                return at
            self.spend(max(_LEAST_TRY_BYTES, spent))
        return end


_LEAST_TRY_BYTES = 1 << 10
_ITEM_BYTES = 16  # what going over a marker, a table or padding costs, in bytes read
_MOST_ITEMS = 100
"""Markers, symbol tables and paddings before the first value behind damage."""


def split_datums(
    data: bytes,
    *,
    max_depth: int = binary.MAX_DEPTH,
    max_datum_bytes: int = MAX_DATUM_BYTES,
    search: Search | None = None,
) -> Iterator[Datum]:
    """Yield the datums of a file in order; only newlines between datums are in none of them."""
    yield from _Datums(data, max_depth, max_datum_bytes, search or Search(len(data))).split()


class _Datums:
    """Cuts a file of records one after the other."""

    def __init__(self, data: bytes, max_depth: int, max_datum_bytes: int, search: Search) -> None:
        self.data, self.search = data, search
        self.max_depth, self.max_datum_bytes = max_depth, max_datum_bytes

    def split(self) -> Iterator[Datum]:
        data, at = self.data, 0
        while True:
            at = _after_newlines(data, at)
            if at >= len(data):
                return
            if self.search.is_over:
                yield Datum(at, len(data), data[at:])
                return
            stop = self._whole(at)
            if stop is not None:
                yield Datum(at, stop, data[at:stop])
                at = stop
                continue
            found, stop = self._shared(at)
            yield from found
            if stop > at:
                at = stop
                continue
            markers = (match.start() for match in _MARKER.finditer(data, at + 1))
            resume = self.search.first(markers, self._wasted, len(data))
            yield Datum(at, resume, data[at:resume])
            at = resume

    def _end(self, at: int) -> int:
        return min(len(self.data), at + self.max_datum_bytes)

    def _wasted(self, at: int) -> int | None:
        """Return how much is read in vain at a marker; None where a value holds behind it."""
        end = self._end(at)
        try:
            found = values(self.data, at, end, max_depth=self.max_depth, max_tables=_MOST_ITEMS)
            return end - at if next(found, None) is None else None
        except RefusedIon as error:
            return _read_for(error, at, end)

    def _whole(self, at: int) -> int | None:
        """Return where the datum at `at` stops, if it has one value and a marker or the end follows."""
        data = self.data
        try:
            stop = self._skip(at)
            if stop is None or not _boundary(data, stop):
                return None
            # A length that was damaged may reach over other datums to the start of one.
            if data.find(MARKER, at + len(MARKER), stop) >= 0:
                list(values(data, at, stop, max_depth=self.max_depth))
        except RefusedIon as error:
            self.search.spend(_read_for(error, at, self._end(at)))
            return None
        return stop

    def _skip(self, at: int) -> int | None:
        """Go by the lengths alone over one value, the symbol tables before it and padding on both sides."""
        data, end = self.data, self._end(at)
        if not data.startswith(MARKER, at):
            return None
        seen = False
        for count in range(MAX_TABLES):
            if at >= end or (seen and _boundary(data, at)):
                return at if seen else None
            if data.startswith(MARKER, at):
                at += len(MARKER)
                continue
            kind, low, _, stop = header(data, at, end)
            if kind != binary.NULL or low == 15:
                found = node(data, at, end)
                table = found.annotated and annotation_ids(data, found)[:1] == [_SYMBOL_TABLE]
                if seen:
                    self.search.spend(count * _ITEM_BYTES)
                    return None
                seen = not table
            at = stop
        self.search.spend(MAX_TABLES * _ITEM_BYTES)
        return None

    def _shared(self, at: int) -> tuple[list[Datum], int]:
        """Return several values under one marker, and where the last of them stops."""
        data = self.data
        found: list[Datum] = []
        stop = place = at
        symbols = SYSTEM_SYMBOLS
        if not data.startswith(MARKER, at):
            return found, at
        left = MAX_TABLES
        while place < len(data):
            if found and data.startswith(MARKER, place):
                return found, place
            end = self._end(place)
            try:
                value, symbols, after = next_value(data, place, end, symbols, max_depth=self.max_depth)
            except RefusedIon as error:
                self.search.spend(_read_for(error, place, end))
                beyond = _by_length(data, place, end)
                if beyond is None:
                    return found, stop
                datum = Datum(
                    stop, beyond, symbols.preamble + data[place:beyond] if found else data[at:beyond]
                )
                after = beyond
            else:
                if value is None:
                    place, left = after, left - 1
                    if left < 0:
                        self.search.spend(MAX_TABLES * _ITEM_BYTES)
                        return found, stop
                    continue
                datum = Datum(stop, after, _alone(data, value, symbols))
            # A datum that lost bytes takes them from the next one, and may still hold.
            inside = data.find(MARKER, datum.start + 1, datum.stop + len(MARKER) - 1)
            if inside >= 0 and self._whole(inside) is not None:
                return [*found, Datum(datum.start, inside, data[datum.start : inside])], inside
            found.append(datum)
            stop, place, left = after, after, MAX_TABLES
        return found, len(data) if found else at


def _read_for(error: RefusedIon, at: int, end: int) -> int:
    """Return how many bytes from `at` were read before that; a place beyond `end` is what a length says."""
    return error.offset - at if error.offset <= end else 0


def _after_newlines(data: bytes, at: int, newlines: re.Pattern[bytes] = _NEWLINES) -> int:
    """Skip newlines that a marker or the end follows; before anything else 0A is padding."""
    match = newlines.match(data, at)
    after = at if match is None else match.end()
    return after if after >= len(data) or data.startswith(MARKER, after) else at


def _boundary(data: bytes, at: int) -> bool:
    after = _after_newlines(data, at, _FEW_NEWLINES)
    return after >= len(data) or data.startswith(MARKER, after)


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


_TEXT = re.compile(rb"\s*(\$ion_1_0\s|\{\s*blockAddress\s*:)")
_AT_ONCE = 2_000
LOOK_BYTES = 64
"""Bytes at the beginning of a file that say whether it is of this kind."""


def is_ion(head: bytes) -> bool:
    """Return, by its first bytes, whether a file is of this kind."""
    return head.startswith((MARKER, MAGIC)) or _TEXT.match(head[:LOOK_BYTES]) is not None


def records_in(content: bytes) -> Iterator[bytes]:
    """Yield the records and blocks of a file of this kind that is not compressed."""
    if content.startswith((MARKER, MAGIC)):
        return split_mixed(content)
    return (each.data for each in split_export(content))


def ion_records(content: bytes, *, stream: str, file: str) -> Iterator[pa.RecordBatch]:
    """Yield a file that is not compressed as batches of `KINESIS_RECORD_SCHEMA`."""
    parts, first = records_in(content), 1
    while some := list(map(_shortened, islice(parts, _AT_ONCE))):
        count = len(some)
        columns = {
            "stream": pa.repeat(stream, count),
            "shard_id": pa.repeat(file, count),
            "sequence_number": pa.array([str(number) for number in range(first, first + count)]),
            "data": pa.array(some, pa.binary()),
        }
        yield one_batch(filled(columns, KINESIS_RECORD_SCHEMA, count))
        first += count


def _shortened(data: bytes) -> bytes:
    """Return a datum; of one that no record is as long as, words that cannot be one."""
    return data if len(data) <= MAX_DAMAGED_BYTES else OVERLONG + data[:_KEPT_BYTES]


def split_mixed(data: bytes) -> Iterator[bytes]:
    """Yield records that lie one after the other, aggregates among them, newlines between or not."""
    search = Search(len(data))

    def wasted(at: int) -> int | None:
        stop, is_end = end_of_aggregate(data, at)
        return None if is_end else stop - at

    def next_aggregate(at: int) -> int:
        found = (match.start() for match in _AGGREGATE.finditer(data, at))
        return search.first(found, wasted, len(data))

    at = 0
    while at < len(data):
        if not data.startswith(MAGIC, at):
            stop = next_aggregate(at)
            yield from (datum.data for datum in split_datums(data[at:stop], search=search))
            at = stop
            continue
        stop, is_end = end_of_aggregate(data, at)
        if not is_end:  # it is damaged
            stop = next_aggregate(at + len(MAGIC))
        yield data[at:stop]
        match = _NEWLINES.match(data, stop)
        at = stop if match is None else match.end()


_TEXT_TIMES = 8
"""How many times as long as a byte of Ion binary one of text takes to read."""


def split_export(data: bytes, *, max_depth: int = binary.MAX_DEPTH) -> Iterator[Datum]:
    """Cut an exported object, Ion binary or text, into blocks: datums of Ion binary, and damaged text."""
    if data.startswith(MARKER):
        yield from split_datums(data, max_depth=max_depth)
        return
    search = Search(len(data))

    def spent(at: int, error: RefusedIon) -> int:
        # What does not end was looked for up to the end.
        reached = len(data) if error.reason == "truncated" else error.offset
        return _TEXT_TIMES * (reached - at)

    def wasted(at: int) -> int | None:
        try:
            found = next(text_values(data, at, max_depth=max_depth), None)
            return _TEXT_TIMES * (len(data) - at) if found is None else None
        except RefusedIon as error:
            return spent(at, error)

    at = 0
    while at < len(data):
        stop = at
        try:
            for value in text_values(data, at, max_depth=max_depth):
                yield Datum(value.start, value.stop, value.datum)
                stop = value.stop
        except RefusedIon as error:
            # Damage costs the lines up to the next that begins a value that holds.
            search.spend(spent(stop, error))
            lines = (match.end() - 1 for match in _LINE.finditer(data, stop))
            at = search.first(lines, wasted, len(data))
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
