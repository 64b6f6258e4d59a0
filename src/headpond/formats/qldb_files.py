"""A file of QLDB stream records written one after the other, cut into datums.

::

    E0 01 00 EA table struct │ E0 01 00 EA table struct │ 0A │ E0 01 00 EA tab █ E0 01 00 EA table struct
    datum                      datum                      newline, skipped    │  datum
                                                          damaged: one datum ─┘  found again at a marker

Each record begins with a version marker of its own. Where values share one, each is given out with the symbol
tables before it, so that it can be read alone. Damage costs the datum it lies in: the search for the next one
goes from marker to marker until the value there holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headpond.formats.ion import (
    ANNOTATED,
    MARKER,
    MAX_DEPTH,
    NULL,
    STRUCT,
    RefusedIon,
    annotation_ids,
    header,
    node,
)
from headpond.formats.ion_restate import restated
from headpond.formats.ion_symbols import SYSTEM_SYMBOLS, next_value, values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.formats.ion import Node
    from headpond.formats.ion_symbols import Symbols

MAX_DATUM_BYTES = 16 * 1024 * 1024
"""Bytes a datum may have; a Kinesis record has at most 10 MiB."""
_NEWLINES = b"\r\n"
_SYMBOL_TABLE = 3
_LARGE_TABLES = 8 * 1024
"""Symbol tables beyond so many bytes are not repeated with each value that they serve."""


class Datum(NamedTuple):
    """A datum of a file; `data` is to be read as one record, which tells what is wrong with a damaged one."""

    start: int
    stop: int
    data: bytes


def split_datums(
    data: bytes, *, max_depth: int = MAX_DEPTH, max_datum_bytes: int = MAX_DATUM_BYTES
) -> Iterator[Datum]:
    """Cut a file into datums, in order; together they have every byte of it but newlines between datums.

    Args:
        data: The file, not compressed.
        max_depth: Bound of nesting.
        max_datum_bytes: Bound of one datum.
    """
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
        resume = _resume(data, at + 1, max_depth, max_datum_bytes)
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
    """Where the datum at `at` stops, if it has one value and a marker or the end follows."""
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
        if kind != NULL or low == 15:  # noqa: PLR2004 - of a null; else it is padding
            found = node(data, at, end)
            table = found.annotated and annotation_ids(data, found)[:1] == [_SYMBOL_TABLE]
            if seen:
                return None
            seen = not table
        at = stop
    return at if seen else None


def _shared(data: bytes, at: int, max_depth: int, max_datum_bytes: int) -> tuple[list[Datum], int]:
    """Several values under one marker, and where the last of them stops.

    A value that does not hold costs itself where its length leads to another one.
    """
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
            raw = MARKER + symbols.tables + data[place:beyond] if found else data[at:beyond]
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
    """A value with the symbol tables it needs: those before it, unless they are large."""
    if len(symbols.tables) > _LARGE_TABLES:
        return restated(data, value, symbols)
    return MARKER + symbols.tables + data[value.start : value.stop]


def _by_length(data: bytes, at: int, end: int) -> int | None:
    """Where a struct that does not hold stops by its own length, if another value or the end is there."""
    try:
        kind, _, _, stop = header(data, at, end)
    except RefusedIon:
        return None
    if kind != STRUCT or data.find(MARKER, at, stop + len(MARKER) - 1) >= 0:
        return None
    if stop < len(data) and not data.startswith(MARKER, stop) and data[stop] >> 4 not in (STRUCT, ANNOTATED):
        return None
    return stop


def _resume(data: bytes, at: int, max_depth: int, max_datum_bytes: int) -> int:
    """Where the next marker lies whose value holds, else the end."""
    while True:
        at = data.find(MARKER, at)
        if at < 0:
            return len(data)
        try:
            if next(values(data, at, min(len(data), at + max_datum_bytes), max_depth=max_depth), None):
                return at
        except RefusedIon:
            pass
        at += 1
