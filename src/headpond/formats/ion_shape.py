"""The shape of an Ion datum: everything that stays when only lengths and scalars change.

::

    E0 01 00 EA EE .. 81 83 DE .. 87 BE .. 8A recordType …  DE .. 8A 8E .. arn:… 8B 8E .. REVISION…
    ─────────────  ┬  ─────    ┬  ──    ┬  ─────────────    ┬  ── ──────┬─────── ──
    constant       │  constant │        │  constant         │           scalar, its length may vary
                   └─ containers: opened, and closed where their length says

A datum of the same shape has the same types and names in the same order, so it is legal where the first is,
if its lengths fit each other and its scalars hold. Many are followed at once, one cursor each: a step reads a
type and a length, or compares constant bytes, of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headpond.formats.ion import ANNOTATED, BOOL, INT, IS_NULL, NEGATIVE_INT, STRUCT

if TYPE_CHECKING:
    from headpond.formats.ion_page import Ints, Page

_LONG = 14
_ENDS = 0x80
"""The bit of the last byte of a VarUInt."""
_SHORTEST_WRAPPER = 3
_HALF = 2
_MASKS = [(1 << 8 * count) - 1 for count in range(9)]
_INTS = (INT, NEGATIVE_INT)


@dataclass(slots=True)
class Item:
    """A value of a shape."""

    kind: int
    low: int
    name: bytes = b""
    """Its field name serialised for the Ion hash; empty outside of structs and where it varies."""
    annotations: bytes = b""
    """Its annotations, serialised too."""
    slot: int = -1
    """The number of a scalar whose bytes vary."""
    name_slot: int = -1
    """The number of its field name's text in the symbol table, where that varies."""
    children: list[Item] = field(default_factory=list)
    members: dict[str, Item] = field(default_factory=dict)
    """Of a struct: its fields by name; one that is there twice is not among them."""
    span: int = -1
    """The number of a container whose place is noted."""


class Found(NamedTuple):
    """The datums that have a shape, and where their scalars lie."""

    rows: Ints
    """Positions among those that were asked about, ascending."""
    body: list[Ints]
    stop: list[Ints]
    tags: dict[int, Ints]
    """The type byte of bools and ints, whose low bits or sign vary."""
    spans: dict[int, tuple[Ints, Ints]]
    """Where the noted containers start and stop, annotations included."""

    def pick(self, keep: Ints) -> Found:
        """Some of the datums."""
        return Found(
            self.rows[keep],
            [some[keep] for some in self.body],
            [some[keep] for some in self.stop],
            {slot: some[keep] for slot, some in self.tags.items()},
            {span: (low[keep], high[keep]) for span, (low, high) in self.spans.items()},
        )


def _lengths() -> Ints:
    """Tabulate, for the two bytes after a type byte, length * 4 + bytes of the length; 0 if it has more."""
    both = np.arange(1 << 16)
    low, high = both & 0xFF, both >> 8
    two = np.where(high >= _ENDS, (low << 7 | high & 0x7F) << 2 | 2, 0)
    return np.where(low >= _ENDS, (low & 0x7F) << 2 | 1, two).astype(np.int64)


_LENGTHS = _lengths()

CONST, OPEN, CLOSE, SCALAR, FIXED, BOOLEAN = range(6)


class Op(NamedTuple):
    """A step: constant bytes, then what `what` says."""

    what: int
    const: bytes = b""
    kind: int = 0
    """The type; of FIXED the length."""
    slot: int = -1
    """Of scalars their number, of containers the number of their span or -1."""


@dataclass(slots=True)
class Shape:
    """What `ion_shape_compile.compile_shape` makes of one datum."""

    root: Item
    program: list[Op]
    slots: int
    spans: int
    table: bytes
    """The symbol table's bytes; empty where one of its texts varies, or there is none."""
    varying: frozenset[int] = frozenset()
    """Ids of symbols whose text varies: they name fields, and a value that is one of them is no scalar."""

    def match(self, page: Page, start: Ints, end: Ints) -> Found:
        """Follow the datums at [start, end) as far as they have this shape.

        Args:
            page: Their bytes.
            start: Where each begins, ascending.
            end: Where each ends.
        """
        run = _Run(page, start)
        for op in self.program:
            if not run.step(op):
                break
        run.good &= run.at == end[run.rows]
        run.keep()
        return Found(run.rows, run.body, run.stop, run.tags, run.spans)


class _Run:
    """Cursors of many datums on their way through a program."""

    def __init__(self, page: Page, start: Ints) -> None:
        self.words = page.words
        self.last = len(page.words) - 1
        self.rows = np.arange(len(start))
        self.at = start.copy()
        self.good = np.ones(len(start), np.bool_)
        self.body: list[Ints] = []
        self.stop: list[Ints] = []
        self.tags: dict[int, Ints] = {}
        self.spans: dict[int, tuple[Ints, Ints]] = {}
        self.ends: list[tuple[Ints, int]] = []

    def keep(self) -> None:
        """Go on with those that are good."""
        if self.good.all():
            return
        keep = np.flatnonzero(self.good)
        self.rows, self.at, self.good = self.rows[keep], self.at[keep], self.good[keep]
        self.body, self.stop = [some[keep] for some in self.body], [some[keep] for some in self.stop]
        self.tags = {slot: some[keep] for slot, some in self.tags.items()}
        self.spans = {span: (low[keep], high[keep]) for span, (low, high) in self.spans.items()}
        self.ends = [(some[keep], span) for some, span in self.ends]

    def step(self, op: Op) -> bool:
        """Take a step; False where nobody is left."""
        if op.what == CLOSE:
            limit, span = self.ends.pop()
            self.good &= self.at == limit
            if span >= 0:
                self.spans[span] = (self.spans[span][0], self.at)
            return True
        if np.count_nonzero(self.good) * _HALF < len(self.good):
            self.keep()
            if not len(self.rows):
                return False
        if op.what == CONST:
            self._compare(op.const)
        elif op.what == FIXED:
            self._scalar(self.at, np.minimum(self.at + op.kind, self.last))
        else:
            self._value(op)
        return True

    def _scalar(self, body: Ints, stop: Ints) -> None:
        self.body.append(body)
        self.stop.append(stop)
        self.at = stop

    def _value(self, op: Op) -> None:
        """Constant bytes, then a type and a length: eight bytes at most."""
        begin, word = self.at, self.words[self.at]
        if op.const:
            expected = np.uint64(int.from_bytes(op.const, "little"))
            self.good &= (word & np.uint64(_MASKS[len(op.const)])) == expected
            word = word >> np.uint64(8 * len(op.const))
            begin = begin + len(op.const)
        tag = (word & np.uint64(0xFF)).astype(np.int64)
        if op.what == BOOLEAN:
            self.good &= tag & 0xFE == BOOL << 4
            self.tags[op.slot] = tag
            after = np.minimum(begin + 1, self.last)
            self._scalar(after, after)
            return
        if op.kind in _INTS:
            self.good &= tag & 0xE0 == INT << 4
            self.tags[op.slot] = tag
        else:
            self.good &= tag >> 4 == op.kind
        length = tag & 15
        self.good &= length != IS_NULL
        if op.kind == STRUCT:
            self.good &= length != 1
        elif op.kind == ANNOTATED:
            self.good &= length >= _SHORTEST_WRAPPER
        inside = begin + 1
        long = length == _LONG
        if long.any():
            told = _LENGTHS[(word >> np.uint64(8) & np.uint64(0xFFFF)).astype(np.int64)]
            self.good &= ~long | (told > 0)
            length = np.where(long, told >> 2, length)
            inside = np.where(long, inside + (told & 3), inside)
        inside = np.minimum(inside, self.last)
        after = np.minimum(inside + length, self.last)
        if op.what == OPEN:
            if op.slot >= 0:
                self.spans[op.slot] = (begin, begin)
            self.ends.append((after, op.slot))
            self.at = inside
        else:
            self._scalar(inside, after)

    def _compare(self, const: bytes) -> None:
        for offset in range(0, len(const), 8):
            piece = const[offset : offset + 8]
            word = self.words[np.minimum(self.at + offset, self.last)]
            if len(piece) < 8:  # noqa: PLR2004 - bytes of a word
                word = word & np.uint64(_MASKS[len(piece)])
            self.good &= word == np.uint64(int.from_bytes(piece, "little"))
        self.at = np.minimum(self.at + len(const), self.last)
