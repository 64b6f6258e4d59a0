"""Find the records of a batch that have one shape, follow them together, and read their fields.

::

    page of datums ─► groups by symbol table ─► a shape from the first of each ─► followed together
                               │                                   └ not of the shape: the next shape
                               └ few of a kind: left to the scalar reader

Revisions of one document shape share the bytes of their symbol table. Blocks do not: the table has the ids of
their documents, so those may vary, and blocks are tried against each other whatever their table. What is
unusual in a field, or has not quite the shape, is left to the scalar reader.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headpond.core.arrow import Bools, Ints
from headpond.core.arrow import texts as texts_of
from headpond.core.arrow import valid as is_valid
from headpond.ion import binary
from headpond.ion.binary import MARKER, RefusedIon
from headpond.ion.symbols import Symbols
from headpond.qldb.records import HASH_BYTES
from headpond.qldb.schemas import HASH
from headpond.qldb.shapes.page import Page, pages, timestamp_texts, timestamps
from headpond.qldb.shapes.shape import Found, Item, NoShapeError, Shape

_VAR_END = 0x80


class ShapedRecords:
    """Reads the records that have a shape."""

    def __init__(self, page: Page, known: LearnedShape, found: Found, starts: Ints) -> None:
        self.page = page
        self.record_type, self.shape, self.symbols = known
        self.found = found
        self.starts = starts[found.rows]
        self.count = len(found.rows)
        self.good: Bools = np.ones(self.count, np.bool_)
        """Cleared for records that the scalar reader has to judge."""

    def member(self, parent: Item, name: str) -> Item:
        """Return a field that has to be there."""
        item = parent.members.get(name)
        if item is None:
            raise NoShapeError
        return item

    def struct(self, parent: Item, name: str) -> Item:
        """Return a field that has to be a struct."""
        return self.is_struct(self.member(parent, name))

    def is_struct(self, item: Item) -> Item:
        """Return the item, if it is a struct."""
        if item.kind != binary.STRUCT or item.low == binary.IS_NULL:
            raise NoShapeError
        return item

    def items(self, parent: Item, name: str) -> list[Item]:
        """Return the items of a list."""
        item = self.member(parent, name)
        if item.kind != binary.LIST or item.low == binary.IS_NULL:
            raise NoShapeError
        return item.children

    def structs(self, parent: Item, name: str) -> list[Item]:
        """Return the items of a list of structs."""
        return [self.is_struct(item) for item in self.items(parent, name)]

    def _place(self, item: Item, kind: int) -> tuple[Ints, Ints]:
        if item.kind != kind or item.slot < 0:
            raise NoShapeError
        return self.found.body[item.slot], self.found.stop[item.slot]

    def text(self, parent: Item, name: str) -> pa.Array:
        """Return a field of text."""
        return self.texts(*self._place(self.member(parent, name), binary.STRING))

    def texts(self, body: Ints, stop: Ints) -> pa.Array:
        """Strings that lie at these places."""
        texts, good = texts_of(self.page.pieces(body, stop))
        self.good &= good
        return texts

    def is_text(self, parent: Item, name: str, expected: str) -> None:
        """Leave out records whose field has another text."""
        body, stop = self._place(self.member(parent, name), binary.STRING)
        raw = expected.encode()
        same = stop - body == len(raw)
        for at, byte in enumerate(raw):
            same &= self.page.data[np.minimum(body + at, len(self.page.data) - 1)] == byte
        self.good &= same

    def count_of(self, item: Item) -> pa.Array:
        """Return an integer from 0 to 2⁶³ - 1."""
        body, stop = self._place(item, binary.INT)
        values, good = self.page.unsigned(body, stop)
        self.good &= good & (self.found.tags[item.slot] >> 4 == binary.INT)
        return pa.array(values)

    def hash_of(self, item: Item) -> pa.Array:
        """Return a hash."""
        body, stop = self._place(item, binary.BLOB)
        self.good &= stop - body == HASH_BYTES
        return self.page.fixed(np.minimum(body, len(self.page.data) - HASH_BYTES), HASH_BYTES)

    def times(self, column: str, parent: Item, name: str) -> dict[str, pa.Array]:
        """Return a field of a timestamp as two columns: its text, and nanoseconds since 1970."""
        body, stop = self._place(self.member(parent, name), binary.TIMESTAMP)
        times = timestamps(self.page, body, stop)
        self.good &= times.usual & times.zulu
        return {column: timestamp_texts(times), f"{column}_ns": pa.array(times.ns)}

    def sound(self, item: Item) -> None:
        """Look at every scalar inside a value that is kept or hashed whole."""
        for child in item.children:
            self.sound(child)
        if item.slot < 0:
            return
        body, stop = self.found.body[item.slot], self.found.stop[item.slot]
        data, kind = self.page.data, item.kind
        if kind == binary.STRING:
            self.texts(body, stop)
        elif kind in (binary.INT, binary.NEGATIVE_INT):
            negative = self.found.tags[item.slot] >> 4 == binary.NEGATIVE_INT
            self.good &= ~negative | ((stop > body) & (data[body] != 0))
        elif kind == binary.DECIMAL:
            self.good &= (stop == body) | (data[body] >= _VAR_END)
        elif kind == binary.TIMESTAMP:
            self.good &= timestamps(self.page, body, stop).usual
        elif kind == binary.SYMBOL:
            sid, fits = self.page.unsigned(body, stop)
            self.good &= fits & (sid <= self.symbols.max_id)
            if self.shape.varying:  # its text is another one in each record
                self.good &= ~np.isin(sid, list(self.shape.varying))

    def nulls(self, kind: Any) -> pa.Array:
        """Return a column of nothing."""
        return pa.nulls(self.count, kind)

    def same(self, value: str) -> pa.Array:
        """Return a column of one text."""
        return pa.repeat(value, self.count)

    def lists(self, columns: list[pa.Array], kind: Any) -> pa.Array:
        """Return a list per record, of one value of each column."""
        width = len(columns)
        offsets = pa.array(np.arange(self.count + 1, dtype=np.int32) * width)
        if not columns:
            return pa.ListArray.from_arrays(offsets, pa.array([], kind))
        order = (np.arange(width) * self.count + np.arange(self.count)[:, np.newaxis]).ravel()
        values = columns[0] if width == 1 else pa.concat_arrays(columns).take(pa.array(order))
        return pa.ListArray.from_arrays(offsets, values.cast(kind))


def binaries(values: list[bytes]) -> pa.Array:
    """Hashes as a column."""
    return pa.Array.from_buffers(HASH, len(values), [None, pa.py_buffer(b"".join(values))])


LEAST = 32
"""Records that are followed together rather than read one by one: a shape costs as much as some twenty."""
PAGE_BYTES = 32 * 1024 * 1024
"""Input that is followed together; it is copied."""
_MISSES = 6
"""Shapes in a row that found few records, after which the rest of a group is left."""
_SHAPES_OF_A_GROUP, _REMEMBERED_GROUPS = 64, 1024
"""Shapes that are kept from batch to batch; without them revisions of 244 tables take an eighth more CPU."""
_OF_BLOCKS = b"blockTimestamp"
"""A name that only symbol tables of blocks have."""
_WRAPPER = 0xEE
_ENDS = 0x80


class LearnedShape(NamedTuple):
    """A shape, and what the scalar reader said of the record that it is from."""

    record_type: str
    shape: Shape
    symbols: Symbols


class Kind(ABC):
    """What records are read as."""

    def __init__(self, *, verify: bool, max_depth: int) -> None:
        self.verify, self.max_depth = verify, max_depth

    @abstractmethod
    def shape_of(self, datum: bytes) -> LearnedShape | None:
        """Return the shape of a record; None, or an error, where the scalar reader has to read it."""

    @abstractmethod
    def columns(self, shaped: ShapedRecords) -> list[dict[str, Any]]:
        """Return columns by name, for good and other rows; raises `NoShapeError`."""

    def fill_in(self, shaped: ShapedRecords, parts: list[dict[str, Any]]) -> None:  # noqa: B027 - most have none
        """Fill in hashes, once every row is good."""


class Together(NamedTuple):
    """Records of one shape."""

    record_type: str
    rows: Ints
    """Their positions in the batch."""
    parts: list[dict[str, Any]]
    """Columns by name; of exported blocks also those of the first revision of each, of the second, …"""


def together(blobs: Any, kind: Kind, page_bytes: int = PAGE_BYTES) -> Iterator[Together]:
    """Yield what is read together of an Arrow binary; what is in none of it is for the scalar reader."""
    valid = None
    if blobs.null_count:
        valid = np.flatnonzero(is_valid(blobs))
        blobs = blobs.drop_null()
    for first, raw, offsets in pages(blobs, page_bytes):
        if len(offsets) <= LEAST:
            continue
        page = Page.of(raw)
        for table, rows in _grouped(page, offsets[:-1], offsets[1:]):
            for found in _follow(page, offsets, table, rows, kind):
                at = found.rows + first
                yield found._replace(rows=at if valid is None else valid[at])


def _grouped(page: Page, starts: Ints, ends: Ints) -> Iterator[tuple[bytes, Ints]]:
    """Yield symbol tables and the rows that have them, then all others, whose table is given as empty."""
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
        if len(some) >= LEAST and _OF_BLOCKS not in table:
            yield table, np.array(some, np.int64)
        else:
            others.extend(some)
    if len(others) >= LEAST:
        yield b"", np.array(sorted(others), np.int64)


def _follow(page: Page, offsets: Ints, table: bytes, rows: Ints, kind: Kind) -> Iterator[Together]:
    """Follow the records of a group, shape after shape, until those left have too little in common."""
    remembered = _remembered.setdefault((type(kind), table, kind.max_depth), [])
    while len(_remembered) > _REMEMBERED_GROUPS:
        del _remembered[next(iter(_remembered))]
    before = list(remembered)
    misses = 0
    while len(rows) >= LEAST and misses < _MISSES:
        row = int(rows[0])
        is_new = not before
        known = _learned(kind, page.raw[offsets[row] : offsets[row + 1]]) if is_new else before.pop(0)
        found = None if known is None else _followed(page, offsets, rows, known, kind)
        if found is not None:
            yield found
            rows = rows[~np.isin(rows, found.rows)]
        if not is_new:
            continue
        if known is None or found is None or len(found.rows) < LEAST:
            misses += 1
        else:
            misses = 0
            remembered.insert(0, known)
            del remembered[_SHAPES_OF_A_GROUP:]
        if len(rows) and int(rows[0]) == row:  # it is left to be read by itself
            rows = rows[1:]


def _learned(kind: Kind, datum: bytes) -> LearnedShape | None:
    try:
        return kind.shape_of(datum)
    except (NoShapeError, RefusedIon):
        return None


_remembered: dict[tuple[type[Kind], bytes, int], list[LearnedShape]] = {}


def _followed(page: Page, offsets: Ints, rows: Ints, known: LearnedShape, kind: Kind) -> Together | None:
    found = known.shape.match(page, offsets[rows], offsets[rows + 1])
    if not len(found.rows):
        return None
    shaped = ShapedRecords(page, known, found, offsets[rows])
    try:
        parts = kind.columns(shaped)
    except (NoShapeError, RefusedIon):
        return None
    if not shaped.good.all():
        keep = np.flatnonzero(shaped.good)
        if not len(keep):
            return None
        at = pa.array(keep)
        parts = [{name: column.take(at) for name, column in part.items()} for part in parts]
        shaped = ShapedRecords(page, known, found.pick(keep), offsets[rows])
    if kind.verify:
        kind.fill_in(shaped, parts)
    return Together(known.record_type, rows[shaped.found.rows], parts)
