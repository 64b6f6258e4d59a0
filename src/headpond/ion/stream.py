"""The values of an Ion stream, each checked, and a value taken out of it.

::

    E0 01 00 EA │ $ion_symbol_table::{symbols: […]} │ value │ $ion_symbol_table::{…} │ value │ E0 01 00 EA …
                                                      └─ symbols of the tables before it ─► `IonPart`

`check` walks a value once and rejects what breaks the grammar; it has a stack of its own, so that nesting is
bounded by `max_depth` and not by the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headpond.ion.binary import (
    AHEAD,
    ANNOTATED,
    BLOB,
    BOOL,
    CLOB,
    DECIMAL,
    FLOAT,
    INT,
    IS_NULL,
    LIST,
    MARKER,
    MAX_DEPTH,
    NEGATIVE_INT,
    NULL,
    PLAIN,
    STRING,
    STRUCT,
    SYMBOL,
    TIMESTAMP,
    Node,
    decimal_parts,
    header,
    integer,
    node,
    refuse,
    text,
    var_uint,
)
from headpond.ion.hash import ion_hash
from headpond.ion.symbols import SYSTEM_SYMBOLS, Symbols, is_table, read_table
from headpond.ion.timestamps import read_timestamp

_ENDS = 0x80
"""The bit of the last byte of a VarUInt."""
_SURE = frozenset({NULL, BOOL, INT, FLOAT, CLOB, BLOB})
"""Scalars that hold whatever their bytes are."""
_NONE = 0xFF
"""Begins no value."""


def check(  # noqa: C901, PLR0912 - every value of every record read by itself passes here: no calls
    data: bytes, at: int, end: int, *, max_depth: int = MAX_DEPTH, symbols: Symbols | None = None
) -> int:
    """Walk the one value at `at`, annotations included, in a container up to `end`; return where it stops.

    With `symbols` the scalars are checked too: text is UTF-8, symbols have a text (or are $0), timestamps
    exist.

    Raises:
        RefusedIon: `truncated`, `bad_ion`, `too_deep`, and with `symbols` `unknown_symbol`.
    """
    stack: list[tuple[int, bool]] = []
    limit, in_struct = end, False
    names, count = ((), 0) if symbols is None else (symbols.by_id, symbols.known)
    while True:
        if in_struct:
            if at < limit and data[at] & _ENDS:
                sid, name_end = data[at] & ~_ENDS, at + 1
            else:
                sid, name_end = var_uint(data, at, limit)
            if symbols is not None and (sid >= count or names[sid] is None):
                symbols.need(sid, at)
            at = name_end
        byte = data[at] if at < limit else _NONE
        body = at + 1
        length = PLAIN[byte]
        if length == AHEAD and body < limit and data[body] & _ENDS:
            length = data[body] & ~_ENDS
            body += 1
        stop = body + length
        if length >= 0 and stop <= limit:
            kind, low = byte >> 4, byte & 15
        else:
            kind, low, body, stop = header(data, at, limit)
            if kind == ANNOTATED:
                kind, low, body, stop = _wrapped(data, at, body, stop, symbols)
        if kind >= LIST and low != IS_NULL:
            if len(stack) >= max_depth:
                refuse("too_deep", at, f"nesting deeper than {max_depth}")
            stack.append((limit, in_struct))
            limit, in_struct = stop, kind == STRUCT
            at = body
        else:
            if symbols is not None and kind not in _SURE and low != IS_NULL:
                _scalar(data, Node(kind, low, at, body, stop), symbols)
            at = stop
        while stack and at == limit:
            limit, in_struct = stack.pop()
        if not stack:
            return at


def _wrapped(
    data: bytes, start: int, at: int, stop: int, symbols: Symbols | None
) -> tuple[int, int, int, int]:
    """Header of the value in an annotation wrapper whose contents are [at, stop)."""
    length, at = var_uint(data, at, stop)
    names_end = at + length
    if names_end > stop:
        refuse("truncated", start, f"annotations of {length} bytes where {stop - at} are left")
    if not length:
        refuse("bad_ion", start, "an annotation wrapper without annotations")
    while at < names_end:
        before = at
        if data[at] & _ENDS:  # of one byte, as nearly all are
            sid, at = data[at] & ~_ENDS, at + 1
        else:
            sid, at = var_uint(data, at, names_end)
        if symbols is not None:
            symbols.need(sid, before)
    if at == stop:
        refuse("bad_ion", start, "an annotation wrapper without a value")
    kind, low, body, inner_stop = header(data, at, stop)
    if kind == ANNOTATED:
        refuse("bad_ion", at, "an annotation wrapper in an annotation wrapper")
    if kind == NULL and low != IS_NULL:
        refuse("bad_ion", at, "padding in an annotation wrapper")
    if inner_stop != stop:
        refuse("bad_ion", at, f"an annotated value that ends at {inner_stop}, its wrapper at {stop}")
    return kind, low, body, stop


def _scalar(data: bytes, node: Node, symbols: Symbols) -> None:
    if node.kind == STRING:
        text(data, node)
    elif node.kind == SYMBOL:
        symbols.need(int.from_bytes(data[node.body : node.stop]), node.start)
    elif node.kind == NEGATIVE_INT:
        integer(data, node)
    elif node.kind == DECIMAL:
        decimal_parts(data, node)
    elif node.kind == TIMESTAMP:
        read_timestamp(data, node)


class IonPart(NamedTuple):
    """A value inside a stream or a datum."""

    data: bytes
    """All of it."""
    node: Node
    symbols: Symbols

    @property
    def raw(self) -> bytes:
        """The value with its symbol tables: Ion that can be read alone."""
        return self.symbols.preamble + self.data[self.node.start : self.node.stop]

    def ion_hash(self) -> bytes:
        """Its Ion hash (SHA-256)."""
        return ion_hash(self.data, self.node, self.symbols)


MAX_TABLES = 10_000
"""Default bound on the markers, symbol tables and padding before one value."""


def values(
    data: bytes,
    at: int = 0,
    end: int | None = None,
    *,
    max_depth: int = MAX_DEPTH,
    max_tables: int = MAX_TABLES,
) -> Iterator[IonPart]:
    """Yield the top-level values of a stream, types and lengths checked.

    Raises:
        RefusedIon: `empty`, `not_binary_ion`, `too_many_symbols`, or what `check` raises.
    """
    end = len(data) if end is None else end
    if at >= end:
        refuse("empty", at, "there are no bytes")
    if data[at : at + 4] != MARKER:
        refuse("not_binary_ion", at, not_ion(data[at : min(end, at + 64)]))
    symbols = SYSTEM_SYMBOLS
    left = max_tables
    while at < end:
        found, symbols, at = next_value(data, at, end, symbols, max_depth=max_depth)
        if found is not None:
            yield IonPart(data, found, symbols)
            left = max_tables
        elif (left := left - 1) < 0:
            many = f"more than {max_tables} markers, symbol tables and paddings before a value"
            refuse("too_many_symbols", at, many)


def next_value(
    data: bytes, at: int, end: int, symbols: Symbols, *, max_depth: int = MAX_DEPTH
) -> tuple[Node | None, Symbols, int]:
    """Read what begins at `at`: a marker, a symbol table, padding, or a value, which is checked.

    Returns:
        The value, None where it was none; the symbols from there on; where it stops.
    """
    if data[at] == MARKER[0]:
        if data[at : at + 4] != MARKER:
            cut = end - at < len(MARKER)
            refuse("truncated" if cut else "bad_ion", at, "a version marker other than E0 01 00 EA")
        return None, SYSTEM_SYMBOLS, at + 4
    stop = check(data, at, end, max_depth=max_depth)
    found = node(data, at, end)
    if is_table(data, found):
        return None, read_table(data, found, symbols), stop
    if found.kind == NULL and not found.is_null:  # padding
        return None, symbols, stop
    return found, symbols, stop


def only_value(data: bytes, *, max_depth: int = MAX_DEPTH, max_tables: int = MAX_TABLES) -> IonPart:
    """Return the one value of a datum.

    Raises:
        RefusedIon: What `values` raises, `no_value` or `multiple_values`.
    """
    found: IonPart | None = None
    for value in values(data, max_depth=max_depth, max_tables=max_tables):
        if found is not None:
            refuse(
                "multiple_values", value.node.start, "expected one value, found a second one that begins here"
            )
        found = value
    if found is None:
        refuse("no_value", len(data), "only version markers, symbol tables and padding")
    return found


def not_ion(start: bytes) -> str:
    """Return what bytes that do not begin with the version marker look like."""
    expected = "expected the Ion 1.0 marker E0 01 00 EA, found"
    if start[:4] == b"\xf3\x89\x9a\xc2":
        return f"{expected} F3 89 9A C2: this is a KPL aggregate that was not opened"
    if start[:1] == b"\xe0" and start[3:4] == b"\xea":
        return f"{expected} the marker of Ion {start[1]}.{start[2]}"
    if start[:2] == b"\x1f\x8b":
        return f"{expected} 1F 8B: this is gzip"
    shown = start[:4].hex(" ").upper()
    if start.lstrip()[:1] in (b"{", b"[", b"$", b"'") or start[:1].isalpha():
        return f"{expected} {shown}: this looks like text (Ion text or JSON)"
    return f"{expected} {shown}"
