"""One walk over a value of Ion binary that refuses what breaks the grammar.

Depth is a bound of ours and not of the interpreter: the walk has a stack of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.formats.ion import (
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
    MAX_DEPTH,
    NEGATIVE_INT,
    NULL,
    PLAIN,
    STRING,
    STRUCT,
    SYMBOL,
    TIMESTAMP,
    Node,
    header,
    refuse,
    var_uint,
)
from headpond.formats.ion_scalars import decimal_parts, integer, text
from headpond.formats.ion_timestamps import read_timestamp

if TYPE_CHECKING:
    from headpond.formats.ion_symbols import Symbols

_ENDS = 0x80
"""The bit of the last byte of a VarUInt."""
_SURE = frozenset({NULL, BOOL, INT, FLOAT, CLOB, BLOB})
"""Scalars that hold whatever their bytes are."""
_NONE = 0xFF
"""Begins no value."""


def check(  # noqa: C901, PLR0912 - every value of every record read by itself passes here: no calls
    data: bytes, at: int, end: int, *, max_depth: int = MAX_DEPTH, symbols: Symbols | None = None
) -> int:
    """Walk the one value at `at` and refuse what breaks the grammar.

    Args:
        data: The bytes.
        at: Where the value begins, its annotations included.
        end: Where its container ends.
        max_depth: Bound of nesting.
        symbols: Look at the scalars too: text is UTF-8, symbols have a text (or are $0), timestamps exist.
            Without it only types and lengths are looked at.

    Returns:
        Where the value stops.

    Raises:
        RefusedIon: `truncated`, `bad_ion`, `too_deep`, and with `symbols` `unknown_symbol`.
    """
    stack: list[tuple[int, bool]] = []
    limit, in_struct = end, False
    names = () if symbols is None else symbols.by_id
    count = len(names)
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
