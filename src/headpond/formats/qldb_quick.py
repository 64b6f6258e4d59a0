"""QLDB records of one shape to columns, without a Python object per record.

`Quick` reads the fields that `qldb.read` reads and looks at the scalars it looks at. What is unusual in one
of them is left to the scalar reader; so is all that has not quite the shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headpond.formats.ion import (
    BLOB,
    DECIMAL,
    INT,
    IS_NULL,
    LIST,
    NEGATIVE_INT,
    STRING,
    STRUCT,
    SYMBOL,
    TIMESTAMP,
    Node,
)
from headpond.formats.ion_page import timestamp_texts, timestamps
from headpond.formats.ion_shape_compile import NoShapeError
from headpond.formats.ion_timestamps import read_timestamp
from headpond.formats.qldb_fields import HASH_BYTES
from headpond.formats.qldb_tables import HASH, ns_or_none

if TYPE_CHECKING:
    from headpond.formats.ion_page import Flags, Ints, Page
    from headpond.formats.ion_shape import Found, Item, Shape
    from headpond.formats.ion_symbols import Symbols

_VAR_END = 0x80


class Quick:
    """Reads the records that have a shape."""

    def __init__(self, page: Page, shape: Shape, symbols: Symbols, found: Found) -> None:
        self.page = page
        self.shape = shape
        self.symbols = symbols
        self.found = found
        self.count = len(found.rows)
        self.good: Flags = np.ones(self.count, np.bool_)
        """Cleared for records that the scalar reader has to judge."""

    def member(self, parent: Item, name: str) -> Item:
        """A field that has to be there."""
        item = parent.members.get(name)
        if item is None:
            raise NoShapeError
        return item

    def struct(self, parent: Item, name: str) -> Item:
        """A field that has to be a struct."""
        return self.is_struct(self.member(parent, name))

    def is_struct(self, item: Item) -> Item:
        """The item, if it is a struct."""
        if item.kind != STRUCT or item.low == IS_NULL:
            raise NoShapeError
        return item

    def items(self, parent: Item, name: str) -> list[Item]:
        """The items of a list."""
        item = self.member(parent, name)
        if item.kind != LIST or item.low == IS_NULL:
            raise NoShapeError
        return item.children

    def _place(self, item: Item, kind: int) -> tuple[Ints, Ints]:
        if item.kind != kind or item.slot < 0:
            raise NoShapeError
        return self.found.body[item.slot], self.found.stop[item.slot]

    def text(self, parent: Item, name: str) -> pa.Array:
        """A field of text."""
        return self._text(*self._place(self.member(parent, name), STRING))

    def text_of_slot(self, slot: int) -> pa.Array:
        """A text of the symbol table."""
        return self._text(self.found.body[slot], self.found.stop[slot])

    def _text(self, body: Ints, stop: Ints) -> pa.Array:
        texts, good = self.page.texts(body, stop)
        self.good &= good
        return texts

    def is_text(self, parent: Item, name: str, expected: str) -> None:
        """Leave out records whose field has another text."""
        body, stop = self._place(self.member(parent, name), STRING)
        raw = expected.encode()
        same = stop - body == len(raw)
        for at, byte in enumerate(raw):
            same &= self.page.data[np.minimum(body + at, len(self.page.data) - 1)] == byte
        self.good &= same

    def count_of(self, item: Item) -> pa.Array:
        """An integer from 0 to 2⁶³ - 1."""
        body, stop = self._place(item, INT)
        values, good = self.page.unsigned(body, stop)
        self.good &= good & (self.found.tags[item.slot] >> 4 == INT)
        return pa.array(values)

    def hash_of(self, item: Item) -> pa.Array:
        """A hash."""
        body, stop = self._place(item, BLOB)
        self.good &= stop - body == HASH_BYTES
        return self.page.fixed(np.minimum(body, len(self.page.data) - HASH_BYTES), HASH_BYTES)

    def timestamp(self, parent: Item, name: str) -> tuple[pa.Array, pa.Array]:
        """A field of a timestamp: its text, and nanoseconds since 1970."""
        body, stop = self._place(self.member(parent, name), TIMESTAMP)
        times = timestamps(self.page, body, stop)
        self.good &= times.usual
        texts, ns = timestamp_texts(times), pa.array(times.ns)
        odd = times.usual & ~times.zulu
        if odd.any():
            shown = texts.to_pylist()
            exact = ns.to_pylist()
            for row in np.flatnonzero(odd).tolist():
                low, high = int(body[row]), int(stop[row])
                time = read_timestamp(self.page.raw, Node(TIMESTAMP, 0, low - 1, low, high))
                shown[row], exact[row] = time.text, ns_or_none(time)
            return pa.array(shown, pa.string()), pa.array(exact, pa.int64())
        return texts, ns

    def sound(self, item: Item) -> None:
        """Look at every scalar inside a value that is kept or hashed whole."""
        for child in item.children:
            self.sound(child)
        if item.slot < 0:
            return
        body, stop = self.found.body[item.slot], self.found.stop[item.slot]
        data, kind = self.page.data, item.kind
        if kind == STRING:
            self._text(body, stop)
        elif kind in (INT, NEGATIVE_INT):
            negative = self.found.tags[item.slot] >> 4 == NEGATIVE_INT
            self.good &= ~negative | ((stop > body) & (data[body] != 0))
        elif kind == DECIMAL:
            self.good &= (stop == body) | (data[body] >= _VAR_END)
        elif kind == TIMESTAMP:
            self.good &= timestamps(self.page, body, stop).usual
        elif kind == SYMBOL:
            sid, fits = self.page.unsigned(body, stop)
            self.good &= fits & (sid <= self.symbols.max_id)
            if self.shape.varying:  # its text is another one in each record
                self.good &= ~np.isin(sid, list(self.shape.varying))

    def nulls(self, kind: Any) -> pa.Array:
        """A column of nothing."""
        return pa.nulls(self.count, kind)

    def same(self, value: str) -> pa.Array:
        """A column of one text."""
        return pa.array([value]).take(pa.array(np.zeros(self.count, np.int64)))

    def lists(self, columns: list[pa.Array], kind: Any) -> pa.Array:
        """A list per record, of one value of each column."""
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
