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

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headpond.core.arrow import Ints
from headpond.ion import binary
from headpond.ion.binary import Node, annotation_ids, header, node, var_uint
from headpond.ion.hash import symbol
from headpond.ion.symbols import SYSTEM, Symbols
from headpond.qldb.shapes.page import Page

if TYPE_CHECKING:
    Path = tuple[str, ...]

_LONG = 14
_ENDS = 0x80
"""The bit of the last byte of a VarUInt."""
_SHORTEST_WRAPPER = 3
_HALF = 2
_MASKS = [(1 << 8 * count) - 1 for count in range(9)]
_INTS = (binary.INT, binary.NEGATIVE_INT)
_MAX_DEPTH = 32
_MAX_STEPS = 2000
_SYMBOL_TABLE, _SYMBOLS_FIELD, _FIRST_OWN = 3, 7, 10
_CONST_IN_WORD = 4
"""Constant bytes that fill a word together with a type byte and a length of two bytes."""


class NoShapeError(Exception):
    """A datum is legal, but not to be followed together with others."""


@dataclass(slots=True)
class Item:
    """A value of a shape."""

    kind: int
    low: int
    annotations: bytes = b""
    """Its annotations serialised for the Ion hash."""
    name: bytes = b""
    """Its field name serialised for the Ion hash; empty outside of structs and where it varies."""
    slot: int = -1
    """The number of a scalar whose bytes vary."""
    name_slot: int = -1
    """The number of its field name's text in the symbol table, where that varies."""
    children: list[Item] = field(default_factory=list)
    members: dict[str, Item] = field(default_factory=dict)
    """Of a struct: its fields by name; one that is there twice is not among them."""
    span: int = -1
    """The number of a container whose place is noted."""

    @property
    def is_annotated(self) -> bool:
        """Whether it or a value in it has annotations."""
        return bool(self.annotations) or any(child.is_annotated for child in self.children)

    @property
    def is_null(self) -> bool:
        """A null of any type."""
        return self.low == binary.IS_NULL and self.slot < 0


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
        """Return some of the datums."""
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
    """What `shape_of` makes of one datum."""

    root: Item
    program: list[Op]
    slots: int
    spans: int
    table: bytes
    """The symbol table's bytes; empty where one of its texts varies, or there is none."""
    varying: frozenset[int] = frozenset()
    """Ids of symbols whose text varies: they name fields, and a value that is one of them is not a scalar."""

    def match(self, page: Page, start: Ints, end: Ints) -> Found:
        """Follow the datums at [start, end) as far as they have this shape; start ascends."""
        run = _Run(page, start)
        for op in self.program:
            if not run.step(op):
                break
        run.good &= run.at == end[run.found.rows]
        run.keep()
        return run.found


class _Run:
    """Cursors of many datums on their way through a program."""

    def __init__(self, page: Page, start: Ints) -> None:
        self.words = page.words
        self.last = len(page.words) - 1
        self.found = Found(np.arange(len(start)), [], [], {}, {})
        self.at = start.copy()
        self.good = np.ones(len(start), np.bool_)
        self.ends: list[tuple[Ints, int]] = []

    def keep(self) -> None:
        """Go on with those that are good."""
        if self.good.all():
            return
        keep = np.flatnonzero(self.good)
        self.found, self.at, self.good = self.found.pick(keep), self.at[keep], self.good[keep]
        self.ends = [(some[keep], span) for some, span in self.ends]

    def step(self, op: Op) -> bool:
        """Make a step; return False where no datum is left."""
        if op.what == CLOSE:
            limit, span = self.ends.pop()
            self.good &= self.at == limit
            if span >= 0:
                self.found.spans[span] = (self.found.spans[span][0], self.at)
            return True
        if np.count_nonzero(self.good) * _HALF < len(self.good):
            self.keep()
            if not len(self.at):
                return False
        if op.what == CONST:
            self._compare(op.const)
        elif op.what == FIXED:
            self._scalar(self.at, np.minimum(self.at + op.kind, self.last))
        else:
            self._value(op)
        return True

    def _scalar(self, body: Ints, stop: Ints) -> None:
        self.found.body.append(body)
        self.found.stop.append(stop)
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
            self.good &= tag & 0xFE == binary.BOOL << 4
            self.found.tags[op.slot] = tag
            after = np.minimum(begin + 1, self.last)
            self._scalar(after, after)
            return
        if op.kind in _INTS:
            self.good &= tag & 0xE0 == binary.INT << 4
            self.found.tags[op.slot] = tag
        else:
            self.good &= tag >> 4 == op.kind
        length = tag & 15
        self.good &= length != binary.IS_NULL
        if op.kind == binary.STRUCT:
            self.good &= length != 1
        elif op.kind == binary.ANNOTATED:
            self.good &= length >= _SHORTEST_WRAPPER
        inside = begin + 1
        long = length == _LONG
        if long.any():
            packed = _LENGTHS[(word >> np.uint64(8) & np.uint64(0xFFFF)).astype(np.int64)]
            self.good &= ~long | (packed > 0)
            length = np.where(long, packed >> 2, length)
            inside = np.where(long, inside + (packed & 3), inside)
        inside = np.minimum(inside, self.last)
        after = np.minimum(inside + length, self.last)
        if op.what == OPEN:
            if op.slot >= 0:
                self.found.spans[op.slot] = (begin, begin)
            self.ends.append((after, op.slot))
            self.at = inside
        else:
            self._scalar(inside, after)

    def _compare(self, const: bytes) -> None:
        for offset in range(0, len(const), 8):
            piece = const[offset : offset + 8]
            word = self.words[np.minimum(self.at + offset, self.last)]
            if len(piece) < 8:
                word = word & np.uint64(_MASKS[len(piece)])
            self.good &= word == np.uint64(int.from_bytes(piece, "little"))
        self.at = np.minimum(self.at + len(const), self.last)


def shape_of(
    data: bytes,
    value: Node,
    symbols: Symbols,
    *,
    varying: frozenset[int] = frozenset(),
    noted: Callable[[Path], bool] | None = None,
) -> Shape:
    """Return the shape of a datum that was read and found good.

    `varying` are ids of symbols whose text may differ; each may name fields and nothing else. `noted` says by
    its path from the root whether the place of a container is wanted.

    Raises:
        NoShapeError: It has annotations, padding, ordered structs or an unusual symbol table.
    """
    compiler = _Compiler(data, symbols, noted)
    compiler.pending += binary.MARKER
    compiler.table(value, varying)
    if value.stop != len(data):
        raise NoShapeError
    root = compiler.value(value, ())
    compiler.flush()
    return Shape(root, compiler.program, compiler.slots, compiler.spans, compiler.constant_table, varying)


class _Compiler:
    def __init__(self, data: bytes, symbols: Symbols, noted: Callable[[Path], bool] | None) -> None:
        self.data = data
        self.symbols = symbols
        self.noted = noted
        self.program: list[Op] = []
        self.pending = bytearray()
        self.slots = 0
        self.spans = 0
        self.text_slots: dict[int, int] = {}
        self.constant_table = b""

    def flush(self, room: int = 0) -> None:
        """Make a step of the constant bytes so far, unless they fit into the next one."""
        if len(self.pending) > room:
            self.step(Op(CONST, bytes(self.pending)))
            self.pending.clear()

    def step(self, op: Op) -> None:
        if len(self.program) >= _MAX_STEPS:
            raise NoShapeError
        self.program.append(op)

    def open(self, kind: int, span: int = -1) -> None:
        self.flush(_CONST_IN_WORD)
        self.step(Op(OPEN, bytes(self.pending), kind, span))
        self.pending.clear()

    def close(self) -> None:
        self.flush()
        self.step(Op(CLOSE))

    def scalar(self, kind: int) -> int:
        self.flush(_CONST_IN_WORD)
        self.step(Op(BOOLEAN if kind == binary.BOOL else SCALAR, bytes(self.pending), kind, self.slots))
        self.pending.clear()
        self.slots += 1
        return self.slots - 1

    def fixed(self, length: int) -> int:
        self.flush()
        self.step(Op(FIXED, b"", length, self.slots))
        self.slots += 1
        return self.slots - 1

    def table(self, value: Node, varying: frozenset[int]) -> None:
        """Follow `$ion_symbol_table::{symbols: [string, …]}` right behind the marker, or nothing."""
        data, at = self.data, len(binary.MARKER)
        if value.start == at:
            return
        table = node(data, at, len(data))
        if table.stop != value.start or not table.annotated or table.low == 1 or self._odd_symbols():
            raise NoShapeError
        sid, list_at = var_uint(data, table.body, table.stop)
        names = node(data, list_at, table.stop)
        if (annotation_ids(data, table), sid) != (
            [_SYMBOL_TABLE],
            _SYMBOLS_FIELD,
        ) or names.kind != binary.LIST:
            raise NoShapeError
        if names.annotated or names.is_null or names.stop != table.stop:
            raise NoShapeError
        if not varying:
            self.constant_table = data[table.start : table.stop]
            self.pending += self.constant_table
            return
        self.open(binary.ANNOTATED)
        self.pending += b"\x81\x83"
        self.open(binary.STRUCT)
        self.pending += b"\x87"
        self.open(binary.LIST)
        at, sid = names.body, _FIRST_OWN
        while at < names.stop:
            kind, low, _, stop = header(data, at, names.stop)
            if kind != binary.STRING or low == binary.IS_NULL:
                raise NoShapeError
            if sid in varying:
                self.text_slots[sid] = self.scalar(binary.STRING)
            else:
                self.pending += data[at:stop]
            at, sid = stop, sid + 1
        for _ in range(3):
            self.close()

    def _odd_symbols(self) -> bool:
        own = islice(self.symbols.names, len(SYSTEM), self.symbols.count)
        return bool(self.symbols.imported) or None in own

    def value(self, found: Node, path: Path) -> Item:
        if len(path) > _MAX_DEPTH:
            raise NoShapeError
        item = Item(found.kind, found.low)
        if self.noted is not None and self.noted(path):
            item.span = self.spans
            self.spans += 1
        span = item.span
        if found.annotated:
            self.annotate(found, item)
            span = -1
        if found.is_null:
            self.pending.append(found.kind << 4 | binary.IS_NULL)
        elif found.kind >= binary.LIST:
            if found.kind == binary.STRUCT and found.low == 1:
                raise NoShapeError
            self.open(found.kind, span)
            self.children(found, item, path)
            self.close()
        elif found.kind == binary.FLOAT:
            self.pending.append(found.kind << 4 | found.low)
            item.slot = self.fixed(found.low)
        else:
            item.slot = self.scalar(found.kind)
        if found.annotated:
            self.close()
        return item

    def annotate(self, found: Node, item: Item) -> None:
        ids = annotation_ids(self.data, found)
        if any(sid in self.text_slots for sid in ids):
            raise NoShapeError
        item.annotations = b"".join(symbol(self.symbols.need(sid, found.start)) for sid in ids)
        _, _, at, _ = header(self.data, found.start, found.stop)
        length, names = var_uint(self.data, at, found.stop)
        self.open(binary.ANNOTATED, item.span)
        self.pending += self.data[at : names + length]

    def children(self, found: Node, item: Item, path: Path) -> None:
        at, is_struct = found.body, found.kind == binary.STRUCT
        twice: set[str] = set()
        while at < found.stop:
            name: str | None = str(len(item.children))
            sid, before = 0, at
            if is_struct:
                sid, at = var_uint(self.data, at, found.stop)
                self.pending += self.data[before:at]
                name = self.symbols.text(sid)
            inner = node(self.data, at, found.stop)
            if inner.kind == binary.NULL and not inner.is_null:
                raise NoShapeError
            child = self.value(inner, (*path, name or ""))
            item.children.append(child)
            at = inner.stop
            if not is_struct:
                continue
            child.name_slot = self.text_slots.get(sid, -1)
            if child.name_slot < 0:
                if name is None and sid:
                    raise NoShapeError
                child.name = symbol(name)
                if name is not None and item.members.setdefault(name, child) is not child:
                    twice.add(name)
        for name in twice:
            del item.members[name]
