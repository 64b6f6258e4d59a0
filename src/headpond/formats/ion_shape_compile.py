"""One datum of Ion binary to the shape that others may share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.formats.ion import (
    ANNOTATED,
    BOOL,
    FLOAT,
    IS_NULL,
    LIST,
    MARKER,
    NULL,
    STRING,
    STRUCT,
    Node,
    annotation_ids,
    header,
    node,
    var_uint,
)
from headpond.formats.ion_hash import symbol
from headpond.formats.ion_shape import BOOLEAN, CLOSE, CONST, FIXED, OPEN, SCALAR, Item, Op, Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.formats.ion_symbols import Symbols

    Path = tuple[str, ...]

_MAX_DEPTH = 32
_MAX_STEPS = 2000
_SYMBOL_TABLE, _SYMBOLS_FIELD, _FIRST_OWN = 3, 7, 10
_CONST_IN_WORD = 4
"""Constant bytes that fill a word together with a type byte and a length of two bytes."""


class NoShapeError(Exception):
    """A datum is legal, but not to be followed together with others."""


def compile_shape(
    data: bytes,
    value: Node,
    symbols: Symbols,
    *,
    varying: frozenset[int] = frozenset(),
    noted: Callable[[Path], bool] | None = None,
) -> Shape:
    """Compile.

    Args:
        data: A datum that was read and found good.
        value: Its value.
        symbols: Its symbols.
        varying: Ids of symbols whose text may differ; each may name fields and nothing else.
        noted: By path from the root, the containers whose place is wanted.

    Raises:
        NoShapeError: It holds what is not followed: padding, unusual symbol tables, ordered structs.
    """
    compiler = _Compiler(data, symbols, noted)
    compiler.pending += MARKER
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
        self.step(Op(BOOLEAN if kind == BOOL else SCALAR, bytes(self.pending), kind, self.slots))
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
        data, at = self.data, len(MARKER)
        if value.start == at:
            return
        table = node(data, at, len(data))
        if table.stop != value.start or not table.annotated or table.low == 1 or self._odd_symbols():
            raise NoShapeError
        sid, list_at = var_uint(data, table.body, table.stop)
        names = node(data, list_at, table.stop)
        if (annotation_ids(data, table), sid) != ([_SYMBOL_TABLE], _SYMBOLS_FIELD) or names.kind != LIST:
            raise NoShapeError
        if names.annotated or names.is_null or names.stop != table.stop:
            raise NoShapeError
        if not varying:
            self.constant_table = data[table.start : table.stop]
            self.pending += self.constant_table
            return
        self.open(ANNOTATED)
        self.pending += b"\x81\x83"
        self.open(STRUCT)
        self.pending += b"\x87"
        self.open(LIST)
        at, sid = names.body, _FIRST_OWN
        while at < names.stop:
            kind, low, _, stop = header(data, at, names.stop)
            if kind != STRING or low == IS_NULL:
                raise NoShapeError
            if sid in varying:
                self.text_slots[sid] = self.scalar(STRING)
            else:
                self.pending += data[at:stop]
            at, sid = stop, sid + 1
        for _ in range(3):
            self.close()

    def _odd_symbols(self) -> bool:
        return bool(self.symbols.imported) or None in self.symbols.own

    def value(self, found: Node, path: Path) -> Item:
        if len(path) > _MAX_DEPTH:
            raise NoShapeError
        item = Item(found.kind, found.low)
        if self.noted is not None and self.noted(path):
            item.span = self.spans
            self.spans += 1
        span = item.span
        if found.annotated:
            ids = annotation_ids(self.data, found)
            if any(sid in self.text_slots for sid in ids):
                raise NoShapeError
            item.annotations = b"".join(symbol(self.symbols.need(sid, found.start)) for sid in ids)
            _, _, at, _ = header(self.data, found.start, found.stop)
            length, names = var_uint(self.data, at, found.stop)
            self.open(ANNOTATED, span)
            span = -1
            self.pending += self.data[at : names + length]
        if found.is_null:
            self.pending.append(found.kind << 4 | IS_NULL)
        elif found.kind >= LIST:
            if found.kind == STRUCT and found.low == 1:
                raise NoShapeError
            self.open(found.kind, span)
            self.children(found, item, path)
            self.close()
        elif found.kind == FLOAT:
            self.pending.append(found.kind << 4 | found.low)
            item.slot = self.fixed(found.low)
        else:
            item.slot = self.scalar(found.kind)
        if found.annotated:
            self.close()
        return item

    def children(self, found: Node, item: Item, path: Path) -> None:
        at, is_struct = found.body, found.kind == STRUCT
        twice: set[str] = set()
        while at < found.stop:
            name: str | None = str(len(item.children))
            sid, before = 0, at
            if is_struct:
                sid, at = var_uint(self.data, at, found.stop)
                self.pending += self.data[before:at]
                name = self.symbols.text(sid)
            inner = node(self.data, at, found.stop)
            if inner.kind == NULL and not inner.is_null:
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
