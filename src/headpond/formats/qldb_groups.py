"""Finds records of one shape in a batch, and follows them together.

Revisions of one document shape share the bytes of their symbol table. Blocks do not: the table has the ids of
their documents, so those are let vary, and blocks are tried against each other whatever their table.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from headpond.formats.ion import MARKER, RefusedIon
from headpond.formats.ion_shape_compile import NoShapeError, compile_shape
from headpond.formats.ion_symbols import only_value
from headpond.formats.qldb import read
from headpond.formats.qldb_model import BlockSummary, RevisionDetails
from headpond.formats.qldb_quick import Quick
from headpond.formats.qldb_quick_blocks import quick_blocks, varying_symbols, verify_blocks
from headpond.formats.qldb_quick_revisions import data_is_noted, quick_revisions, verify_revisions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headpond.formats.ion_page import Ints, Page
    from headpond.formats.ion_shape import Shape
    from headpond.formats.ion_symbols import Symbols

MIN_GROUP = 16
"""Records that are followed together rather than read one by one."""
_MISSES = 8
"""Shapes that found few records, after which the rest of a group is read one by one."""
_SHAPES_OF_A_GROUP, _REMEMBERED_GROUPS = 64, 1024
"""Shapes that are kept from batch to batch."""
_OF_BLOCKS = b"blockTimestamp"
"""A name that only symbol tables of blocks have."""
_WRAPPER = 0xEE
_ENDS = 0x80


class Followed(NamedTuple):
    """Records of one shape that were read together."""

    record_type: str
    rows: Ints
    """Their places in the page."""
    quick: Quick
    read_columns: dict[str, Any]
    verify: Callable[[Quick, dict[str, Any]], None]

    def columns(self, *, verify: bool) -> dict[str, Any]:
        """Their columns."""
        if verify:
            self.verify(self.quick, self.read_columns)
        return self.read_columns


class Group(NamedTuple):
    """Records that have a chance to share a shape."""

    table: bytes
    """Their symbol table; empty where it differs."""
    rows: Ints


def grouped(page: Page, starts: Ints, ends: Ints) -> Iterator[Group]:
    """Give groups of rows: equal symbol tables, then all others."""
    data = page.data
    first, second = data[starts + 5].astype(np.int64), data[starts + 6].astype(np.int64)
    one = first >= _ENDS
    stop = starts + np.where(one, 6 + (first & 0x7F), 7 + (first << 7 | second & 0x7F))
    usual = (page.words[starts] & np.uint64(0xFFFFFFFFFF)) == np.uint64(
        int.from_bytes(MARKER + bytes((_WRAPPER,)), "little")
    )
    usual &= (stop < ends) & (one | (second >= _ENDS))
    by_table: dict[bytes, list[int]] = defaultdict(list)
    rows = np.flatnonzero(usual)
    for row, low, high in zip(rows.tolist(), starts[rows].tolist(), stop[rows].tolist(), strict=True):
        by_table[page.raw[low:high]].append(row)
    others: list[int] = []
    for table, some in by_table.items():
        if len(some) >= MIN_GROUP and _OF_BLOCKS not in table:
            yield Group(table, np.array(some, np.int64))
        else:
            others.extend(some)
    if len(others) >= MIN_GROUP:
        yield Group(b"", np.array(sorted(others), np.int64))


def follow(page: Page, starts: Ints, ends: Ints, group: Group, max_depth: int) -> Iterator[Followed]:
    """Follow the records of a group, shape after shape, until those left have too little in common."""
    rows, misses = group.rows, 0
    known_before = _remembered.setdefault((group.table, max_depth), [])
    while len(_remembered) > _REMEMBERED_GROUPS:
        del _remembered[next(iter(_remembered))]
    for known in tuple(known_before):
        if len(rows) < MIN_GROUP:
            return
        followed = _followed(page, starts, ends, rows, known)
        if followed is not None:
            yield followed
            rows = rows[~np.isin(rows, followed.rows)]
    while len(rows) >= MIN_GROUP and misses < _MISSES:
        row = int(rows[0])
        shape = _shape_of(page.raw[int(starts[row]) : int(ends[row])], max_depth)
        followed = None if shape is None else _followed(page, starts, ends, rows, shape)
        if followed is None or len(followed.rows) < MIN_GROUP:
            misses += 1
        else:
            misses = 0
            if shape is not None:
                _remember(known_before, shape)
        if followed is not None:
            yield followed
            rows = rows[~np.isin(rows, followed.rows)]
        if len(rows) and int(rows[0]) == row:  # it is left to be read by itself
            rows = rows[1:]


def _remember(known: list[_Known], shape: _Known) -> None:
    """Keep a shape for later batches."""
    known.insert(0, shape)
    del known[_SHAPES_OF_A_GROUP:]


class _Known(NamedTuple):
    record_type: str
    shape: Shape
    symbols: Symbols


_remembered: dict[tuple[bytes, int], list[_Known]] = {}


def _shape_of(datum: bytes, max_depth: int) -> _Known | None:
    record = read(datum, max_depth=max_depth)
    try:
        value = only_value(datum, max_depth=max_depth)
        if isinstance(record, RevisionDetails):
            shape = compile_shape(datum, value.node, value.symbols, noted=data_is_noted)
            return _Known("REVISION_DETAILS", shape, value.symbols)
        if isinstance(record, BlockSummary):
            varying = varying_symbols(record, value.symbols)
            shape = compile_shape(datum, value.node, value.symbols, varying=varying)
            return _Known("BLOCK_SUMMARY", shape, value.symbols)
    except (NoShapeError, RefusedIon):
        pass
    return None


def _followed(page: Page, starts: Ints, ends: Ints, rows: Ints, known: _Known) -> Followed | None:
    found = known.shape.match(page, starts[rows], ends[rows])
    if not len(found.rows):
        return None
    quick = Quick(page, known.shape, known.symbols, found)
    block = known.record_type == "BLOCK_SUMMARY"
    try:
        columns = quick_blocks(quick) if block else quick_revisions(quick)
    except NoShapeError:
        return None
    if not quick.good.all():
        keep = np.flatnonzero(quick.good)
        if not len(keep):
            return None
        columns = {name: column.take(pa.array(keep)) for name, column in columns.items()}
        quick = Quick(page, known.shape, known.symbols, found.pick(keep))
    verify = verify_blocks if block else verify_revisions
    return Followed(known.record_type, rows[quick.found.rows], quick, columns, verify)
