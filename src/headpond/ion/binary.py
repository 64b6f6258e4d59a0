"""Ion 1.0 binary, straight from the bytes.

::

    E0 01 00 EA   EE 8D 81 83 …        DE …        one datum: version marker, symbol table, value
    └─ marker     └ annotation wrapper └ struct
                    (81 83 = one annotation, $ion_symbol_table)

    value   TL [length] body           T  0 null  1 bool  2 int≥0  3 int<0  4 float  5 decimal  6 timestamp
            ││                            7 symbol  8 string  9 clob  A blob  B list  C s-expression
            │└ 0…13 length, 14 length follows (VarUInt), 15 null of the type
            └─ type                       D struct  E annotations + one value   F reserved
    struct  (VarUInt field name, value)…  T = 0 with a length is padding, as value or as field

`stream.check` walks a value once and refuses what breaks the grammar; after that `node`, `children` and
`fields` find their way in it, `text`, `integer` and `decimal_parts` read scalars, and `fold` goes through a
value from the inside out.

Source: Amazon Ion specification, "Ion 1.0 binary encoding".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn, TypeVar

from headpond.core.errors import InvalidData

T = TypeVar("T")

MARKER = b"\xe0\x01\x00\xea"
"""The Ion 1.0 version marker."""
MAX_DEPTH = 512
"""Default bound on nesting: lists, s-expressions and structs that are open at once."""

NULL, BOOL, INT, NEGATIVE_INT, FLOAT, DECIMAL, TIMESTAMP = range(7)
SYMBOL, STRING, CLOB, BLOB, LIST, SEXP, STRUCT, ANNOTATED = range(7, 15)
TYPE_NAMES = (
    "null", "bool", "int", "int", "float", "decimal", "timestamp",
    "symbol", "string", "clob", "blob", "list", "sexp", "struct", "annotation wrapper",
)  # fmt: skip
IS_NULL = 15
"""The length code of a typed null."""

_LONG = 14
SATURATED = 1 << 64
_SHOWN_BITS = 128
"""Numbers of variable length are held here where they are more."""
_SHORTEST = 3
"""Bytes an annotation wrapper has at least: a length, a name, a value."""
_FLOAT_LENGTHS = (0, 4, 8)
_RARE = frozenset({BOOL, FLOAT, ANNOTATED, 15})
"""Types not all of whose length codes are lengths."""
_CONTINUES, _PAYLOAD = 0x80, 0x7F


AHEAD = -2
"""A length that follows the type byte."""


def _plain(byte: int) -> int:
    kind, low = byte >> 4, byte & 15
    if low == IS_NULL:
        return 0 if kind < ANNOTATED else -1
    if kind == BOOL:
        return 0 if low <= 1 else -1
    if kind >= ANNOTATED or (kind == STRUCT and low == 1) or (kind == FLOAT and low not in _FLOAT_LENGTHS):
        return -1
    return low if low != _LONG else AHEAD


PLAIN = tuple(map(_plain, range(256)))
"""By type byte, the length of a body whose header is that byte alone, or `AHEAD`; -1 for all others."""
_node = tuple.__new__


class RefusedIon(InvalidData):
    """The bytes are not the Ion they should be; `reason` is a verdict of the record spec, `offset` where."""

    def __init__(
        self, message: str, *, next_step: str = "", reason: str, offset: int = 0, detail: str = ""
    ) -> None:
        super().__init__(message, next_step=next_step, reason=reason, offset=offset, detail=detail)
        self.reason = reason
        self.offset = offset
        self.detail = detail


def refuse(reason: str, offset: int, detail: str) -> NoReturn:
    """Raise `RefusedIon`; `detail` says what was expected and found."""
    raise RefusedIon(
        f"The Ion is refused as {reason} at byte {offset}: {detail}.",
        reason=reason,
        offset=offset,
        detail=f"byte {offset}: {detail}",
    )


class Node(NamedTuple):
    """Where a value lies; [start, stop) is all of it with its annotations, [body, stop) its contents."""

    kind: int
    low: int
    """The length code: 15 of a null, 0 or 1 of a bool."""
    start: int
    body: int
    stop: int
    annotated: bool = False

    @property
    def is_null(self) -> bool:
        """`null`, or a null of any type."""
        return self.low == IS_NULL

    @property
    def type_name(self) -> str:
        """Ion's word for it, as in messages."""
        name = TYPE_NAMES[self.kind]
        return name if not self.is_null or self.kind == NULL else f"null.{name}"


def var_uint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a VarUInt: value (held at 2⁶⁴ where it is more) and the position after it."""
    value = 0
    start = at
    while at < end:
        byte = data[at]
        at += 1
        if byte & _CONTINUES:
            return value << 7 | byte & _PAYLOAD, at
        value = min(value << 7 | byte, SATURATED)
    refuse("truncated", start, "a number that does not end inside its container")


def var_int(data: bytes, at: int, end: int) -> tuple[bool, int, int]:
    """Read a VarInt: is it negative (-0 is), its magnitude (held at 2⁶⁴) and the position after it."""
    if at >= end:
        refuse("truncated", at, "a number that does not end inside its value")
    first = data[at]
    negative, value = bool(first & 0x40), first & 0x3F
    at += 1
    while not first & _CONTINUES:
        if at >= end:
            refuse("truncated", at, "a number that does not end inside its value")
        first = data[at]
        value = min(value << 7 | first & _PAYLOAD, SATURATED)
        at += 1
    return negative, value, at


def header(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Read a value's type, length code, and where its body begins and stops."""
    if at >= end:
        refuse("truncated", at, "expected a value, found the end of its container")
    start = at
    kind, low = data[at] >> 4, data[at] & 15
    at += 1
    length = low
    if low == IS_NULL and kind < ANNOTATED:
        return kind, low, at, at
    if kind in _RARE:
        if kind == BOOL and low <= 1:
            return kind, low, at, at
        if kind != FLOAT and (kind != ANNOTATED or not _SHORTEST <= low <= _LONG):
            refuse("bad_ion", start, f"the byte {data[start]:02X} begins no value")
        if kind == FLOAT and low not in _FLOAT_LENGTHS:
            refuse("bad_ion", start, f"the byte {data[start]:02X} is a float of {low} bytes")
    if low == _LONG or (kind == STRUCT and low == 1):
        length, at = var_uint(data, at, end)
        if kind == STRUCT and low == 1 and not length:
            refuse("bad_ion", start, "an ordered struct without fields")
    stop = at + length
    if stop > end:
        refuse("truncated", start, f"a {TYPE_NAMES[kind]} of {length} bytes where {end - at} are left")
    return kind, low, at, stop


def node(data: bytes, at: int, end: int) -> Node:
    """Find the value at `at`, inside its annotations; the bytes must have been checked."""
    if at < end:
        byte, body = data[at], at + 1
        length = PLAIN[byte]
        if length == AHEAD and body < end and data[body] & _CONTINUES:
            length = data[body] & _PAYLOAD
            body += 1
        if length >= 0 and body + length <= end:
            return _node(Node, (byte >> 4, byte & 15, at, body, body + length, False))
    kind, low, body, stop = header(data, at, end)
    if kind != ANNOTATED:
        return Node(kind, low, at, body, stop)
    length, body = var_uint(data, body, stop)
    kind, low, body, stop = header(data, body + length, stop)
    return Node(kind, low, at, body, stop, annotated=True)


def annotation_ids(data: bytes, found: Node) -> list[int]:
    """Symbol ids of a value's annotations, in order."""
    if not found.annotated:
        return []
    _, _, at, stop = header(data, found.start, found.stop)
    length, at = var_uint(data, at, stop)
    names_end = at + length
    names = []
    while at < names_end:
        sid, at = var_uint(data, at, names_end)
        names.append(sid)
    return names


def children(data: bytes, parent: Node) -> Iterator[Node]:
    """Yield the values of a list or s-expression, padding skipped."""
    at, stop = parent.body, parent.stop
    while at < stop:
        found = node(data, at, stop)
        at = found.stop
        if found.kind != NULL or found.low == IS_NULL:
            yield found


def fields(data: bytes, parent: Node) -> Iterator[tuple[int, Node]]:
    """Yield the fields of a struct as symbol id and value, padding skipped."""
    at, stop = parent.body, parent.stop
    while at < stop:
        sid = data[at]
        if sid & _CONTINUES:
            sid, at = sid & _PAYLOAD, at + 1
        else:
            sid, at = var_uint(data, at, stop)
        found = node(data, at, stop)
        at = found[4]
        if found[0] != NULL or found[1] == IS_NULL:
            yield sid, found


def text(data: bytes, node: Node) -> str:
    """Return the text of a string; raises `RefusedIon` (`bad_ion`) where it is not UTF-8."""
    try:
        return data[node.body : node.stop].decode()
    except UnicodeDecodeError as error:
        refuse("bad_ion", node.body + error.start, f"the string is not valid UTF-8: {error.reason}")


def shown_integer(value: int) -> str:
    """Return an integer for a message; of a huge one, whose digits Python will not write, the size."""
    return str(value) if value.bit_length() <= _SHOWN_BITS else f"of {value.bit_length()} bits"


def integer(data: bytes, node: Node) -> int:
    """Value of an int that is not null."""
    value = int.from_bytes(data[node.body : node.stop])
    if node.kind == NEGATIVE_INT:
        if not value:
            refuse("bad_ion", node.start, "a negative integer of value zero")
        return -value
    return value


def sign_and_magnitude(data: bytes, at: int, end: int) -> tuple[bool, int]:
    """Read an Int, whose topmost bit is its sign."""
    if at == end:
        return False, 0
    negative = bool(data[at] & 0x80)
    value = int.from_bytes(data[at:end])
    return negative, value - (0x80 << 8 * (end - at - 1)) if negative else value


def decimal_parts(data: bytes, node: Node) -> tuple[bool, int, int]:
    """Sign, coefficient (without it) and exponent of a decimal that is not null; -0 keeps its sign."""
    if node.body == node.stop:
        return False, 0, 0
    negative_exponent, exponent, at = var_int(data, node.body, node.stop)
    if exponent >= SATURATED:
        refuse("bad_ion", node.start, "a decimal's exponent beyond 64 bits")
    negative, coefficient = sign_and_magnitude(data, at, node.stop)
    return negative, coefficient, -exponent if negative_exponent else exponent


def fold(
    data: bytes,
    found: Node,
    made: Callable[[Node, int | None, list[T] | None], T],
    opens: Callable[[Node, int | None], bool] = lambda _node, _sid: True,
) -> T:
    """Make something of a value that was checked, from the inside out and without recursion.

    `made` gets a value, in a struct the symbol id of its name, and what was made of the members of a
    container: None for a scalar, a null, and a container that `opens` leaves shut.
    """
    stack: list[tuple[Node, int | None, Iterator[tuple[int | None, Node]], list[T]]] = []
    stack.append((found, None, iter([(None, found)]), []))
    while True:
        container, name, rest, parts = stack[-1]
        for sid, child in rest:
            if child.kind >= LIST and child.low != IS_NULL and opens(child, sid):
                members: Any = fields if child.kind == STRUCT else _nameless
                stack.append((child, sid, members(data, child), []))
                break
            parts.append(made(child, sid, None))
        else:
            stack.pop()
            if not stack:
                return parts[0]
            stack[-1][3].append(made(container, name, parts))


def _nameless(data: bytes, parent: Node) -> Iterator[tuple[None, Node]]:
    return ((None, child) for child in children(data, parent))
