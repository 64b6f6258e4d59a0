"""Ion binary to canonical JSON.

::

    Ion                             JSON
    null of any type                null
    bool, int, string               true/false, number with all digits, string
    decimal                         number with all digits: 1.00 stays 1.00
    float                           number, shortest that reads back equal; nan, +inf, -inf are strings
    timestamp, symbol               string: the exact text
    blob, clob                      string: base64; one character per byte
    list, struct                    array, object
    s-expression, annotated value   string: Ion text

Names are sorted by their code points and nothing is written between tokens, so that equal values give equal
text. A name that a struct has more than once is kept as `name`, `name#2`, …, in the order of their values'
JSON. Based on the down-conversion in Ion's cookbook, but that drops annotations and makes nan null.
"""

from __future__ import annotations

import base64
import math
from json.encoder import encode_basestring
from typing import TYPE_CHECKING

from headpond.formats.ion import (
    BLOB,
    BOOL,
    CLOB,
    DECIMAL,
    FLOAT,
    SEXP,
    STRING,
    STRUCT,
    SYMBOL,
    TIMESTAMP,
    Node,
)
from headpond.formats.ion_scalars import decimal_parts, integer, text
from headpond.formats.ion_text import float_of, float_text, int_text, ion_text
from headpond.formats.ion_timestamps import read_timestamp
from headpond.formats.ion_walk import Step, walk

if TYPE_CHECKING:
    from headpond.formats.ion_symbols import Symbols

_PLAIN_ZEROS = 6


def canonical_json(data: bytes, found: Node, symbols: Symbols) -> str:
    """Write a value that was checked as canonical JSON.

    Raises:
        RefusedIon: `unknown_symbol`, `bad_ion` in a scalar.
    """
    stack: list[list[tuple[str, str]]] = []
    low = high = -1  # where the last value that became Ion text lies
    for step, node, sid in walk(data, found):
        if low <= node.start < high:
            continue
        if step is Step.CLOSE:
            members = stack.pop()
            done = _object(members) if node.kind == STRUCT else f"[{','.join(value for _, value in members)}]"
        elif node.annotated or (node.kind == SEXP and not node.is_null):
            done = encode_basestring(ion_text(data, node, symbols))
            low, high = node.start, node.stop
        elif step is Step.OPEN:
            stack.append([])
            continue
        else:
            done = json_scalar(data, node, symbols)
        name = "" if sid is None else field_name(symbols, sid, node)
        if not stack:
            return done
        stack[-1].append((name, done))
    raise AssertionError  # a walk ends with the close of what it began with


def field_name(symbols: Symbols, sid: int, node: Node) -> str:
    """A field's name; `$0` where its text is not known."""
    name = symbols.need(sid, node.start)
    return "$0" if name is None else name


def _object(members: list[tuple[str, str]]) -> str:
    members.sort()
    taken = {name for name, _ in members}
    if len(taken) < len(members):
        members = _told_apart(members, taken)
    return "{" + ",".join(f"{encode_basestring(name)}:{value}" for name, value in members) + "}"


def _told_apart(members: list[tuple[str, str]], taken: set[str]) -> list[tuple[str, str]]:
    """Number the repetitions of a name, around names that are there already."""
    found = []
    before, number = None, 1
    for name, value in members:
        if name != before:
            before, number = name, 1
            found.append((name, value))
            continue
        number += 1
        while f"{name}#{number}" in taken:
            number += 1
        found.append((f"{name}#{number}", value))
    return sorted(found)


def json_scalar(data: bytes, node: Node, symbols: Symbols) -> str:  # noqa: PLR0911 - one per type
    """A scalar or null without annotations as JSON."""
    kind = node.kind
    if node.is_null:
        return "null"
    if kind == BOOL:
        return "true" if node.low else "false"
    if kind == FLOAT:
        value = float_of(data, node)
        return repr(value) if math.isfinite(value) else f'"{float_text(value)}"'
    if kind == DECIMAL:
        return decimal_number(*decimal_parts(data, node))
    if kind == TIMESTAMP:
        return f'"{read_timestamp(data, node).text}"'
    if kind == STRING:
        return encode_basestring(text(data, node))
    if kind == SYMBOL:
        return encode_basestring(field_name(symbols, int.from_bytes(data[node.body : node.stop]), node))
    if kind == BLOB:
        return f'"{base64.b64encode(data[node.body : node.stop]).decode()}"'
    if kind == CLOB:
        return encode_basestring(data[node.body : node.stop].decode("latin-1"))
    return int_text(integer(data, node))


def decimal_number(negative: bool, coefficient: int, exponent: int) -> str:  # noqa: FBT001 - in their order
    """A decimal as a JSON number with all its digits."""
    sign = "-" if negative else ""
    digits = int_text(coefficient)
    point = len(digits) + exponent
    if exponent <= 0 and point > -_PLAIN_ZEROS:
        if not exponent:
            return sign + digits
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        return f"{sign}{digits[:point]}.{digits[point:]}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}E{point - 1:+}"
