"""Ion hashes of a value in many datums of one shape, field by field instead of datum by datum.

::

    field a   [ sha(name a · value of datum 0), sha(name a · value of datum 1), … ]     one list
    field b   [ sha(name b · value of datum 0), … ]
    struct    [ sha(0B D0 · sorted(a, b) of datum 0 · 0E), … ]

What is constant in the shape is joined once. A scalar that is not in the form the hash wants is written by
`ion.hash.scalar`.
"""

from __future__ import annotations

from hashlib import sha256

import numpy as np

from headpond.core.arrow import Bools, Ints
from headpond.ion import binary
from headpond.ion.binary import Node
from headpond.ion.hash import escape, scalar, symbol
from headpond.ion.symbols import Symbols
from headpond.qldb.shapes.page import Page, timestamps
from headpond.qldb.shapes.shape import Found, Item

_END = b"\x0e"
_TOP_BIT = 0x80


class ShapeHash:
    """Hashes values of one shape."""

    def __init__(self, page: Page, found: Found, symbols: Symbols) -> None:
        self._page = page
        self._found = found
        self._symbols = symbols
        self._raw = page.raw
        self._count = len(found.rows)
        self._markers = page.markers

    def hashes(self, item: Item) -> list[bytes]:
        """Return the Ion hash of a value of each datum."""
        return [sha256(one).digest() for one in self._serialised(item, b"")]

    def _serialised(self, item: Item, lead: bytes) -> list[bytes]:
        """Return a value of each datum, serialised, behind constant bytes."""
        if item.annotations:
            lead += b"\x0b\xe0" + item.annotations
            return [one + _END for one in self._bare(item, lead)]
        return self._bare(item, lead)

    def _bare(self, item: Item, lead: bytes) -> list[bytes]:
        if item.low == binary.IS_NULL:
            kind = binary.INT if item.kind == binary.NEGATIVE_INT else item.kind
            return [lead + bytes((0x0B, kind << 4 | binary.IS_NULL, 0x0E))] * self._count
        if item.slot >= 0:
            return self._scalars(item, lead)
        lead += bytes((0x0B, item.kind << 4))
        if not item.children:
            return [lead + _END] * self._count
        if item.kind == binary.STRUCT:
            return self._struct(item, lead)
        parts = [self._serialised(child, b"") for child in item.children]
        return [lead + b"".join(one) + _END for one in zip(*parts, strict=True)]

    def _struct(self, item: Item, lead: bytes) -> list[bytes]:
        digests = []
        for child in item.children:
            if child.name_slot >= 0:
                values = zip(self._names(child.name_slot), self._serialised(child, b""), strict=True)
                digests.append([sha256(name + value).digest() for name, value in values])
            else:
                digests.append([sha256(one).digest() for one in self._serialised(child, child.name)])
        return [lead + escape(b"".join(sorted(one))) + _END for one in zip(*digests, strict=True)]

    def _names(self, slot: int) -> list[bytes]:
        body, stop = self._found.body[slot].tolist(), self._found.stop[slot].tolist()
        return [symbol(self._raw[low:high].decode()) for low, high in zip(body, stop, strict=True)]

    def _scalars(self, item: Item, lead: bytes) -> list[bytes]:
        body, stop = self._found.body[item.slot], self._found.stop[item.slot]
        kind = item.kind
        raw, end = self._raw, _END
        if kind == binary.BOOL:
            both = [lead + b"\x0b\x10\x0e", lead + b"\x0b\x11\x0e"]
            return [both[tag & 1] for tag in self._found.tags[item.slot].tolist()]
        if kind in (binary.INT, binary.NEGATIVE_INT):
            heads = {tag: lead + bytes((0x0B, tag)) for tag in (0x20, 0x30)}
            tags = (self._found.tags[item.slot] & 0xF0).tolist()
            spans = zip(tags, body.tolist(), stop.tolist(), strict=True)
            found = [heads[tag] + raw[low:high] + end for tag, low, high in spans]
        else:
            head = lead + bytes((0x0B, kind << 4))
            found = [
                head + raw[low:high] + end for low, high in zip(body.tolist(), stop.tolist(), strict=True)
            ]
        usual = self._usual(kind, body, stop)
        if usual is not None and not usual.all():
            low_codes = stop - body
            for row in np.flatnonzero(~usual).tolist():
                tag = int(self._found.tags[item.slot][row]) >> 4 if item.slot in self._found.tags else kind
                place = Node(
                    tag, int(min(low_codes[row], 14)), int(body[row]) - 1, int(body[row]), int(stop[row])
                )
                found[row] = lead + scalar(raw, place, self._symbols)
        first = np.searchsorted(self._markers, body)
        odd = first < np.searchsorted(self._markers, stop)
        if usual is not None:
            odd &= usual
        cut = len(lead) + 2
        for row in np.flatnonzero(odd).tolist():
            one = found[row]
            found[row] = one[:cut] + escape(one[cut:-1]) + end
        return found

    def _usual(self, kind: int, body: Ints, stop: Ints) -> Bools | None:
        """Return which scalars are encoded as the hash wants them; None for all of them."""
        data = self._page.data
        length = stop - body
        if kind in (binary.STRING, binary.BLOB, binary.CLOB):
            return None
        if kind in (binary.INT, binary.NEGATIVE_INT):
            plain: Bools = (length == 0) | (data[body] != 0)
            return plain
        if kind == binary.DECIMAL:
            # An exponent of one byte, then a coefficient that is not 0 and does not begin with a zero byte.
            second = data[body + 1]
            whole = (length > 1) & (data[body] >= _TOP_BIT) & (data[body] != 0xC0)
            exact: Bools = (length == 0) | (whole & (second != 0) & (second != _TOP_BIT))
            return exact
        if kind == binary.TIMESTAMP:
            times = timestamps(self._page, body, stop)
            return times.usual & times.minimal
        return np.zeros(len(body), np.bool_)
