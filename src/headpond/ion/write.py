"""Values to Ion binary: scalars, containers, and a symbol table that grows as names are used.

A value out of a stream whose symbol tables serve many values is `restated` with a table of its own names;
only symbol ids and lengths are rewritten, so the Ion hash stays::

    table of 10,000 names │ {a: 1, b: x} │ {c: 2} │ …     →    names a b x │ {a: 1, b: x}
"""

from __future__ import annotations

from collections.abc import Sequence

from headpond.ion import binary
from headpond.ion.binary import Node, RefusedIon, annotation_ids, fold
from headpond.ion.symbols import SYSTEM, Symbols
from headpond.ion.timestamps import PRECISIONS, Timestamp

_LONG = 14
_IDS = {name: sid for sid, name in enumerate(SYSTEM) if name is not None}
_TABLE_NAME, _SYMBOLS_FIELD = b"\x81\x83", b"\x87"


class SymbolWriter:
    """Ids of names, in order of first use."""

    __slots__ = ("_ids", "_own")

    def __init__(self) -> None:
        self._ids = dict(_IDS)
        self._own: list[str] = []

    def id_of(self, name: str) -> int:
        """Return the id of a name."""
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = len(SYSTEM) + len(self._own)
            self._own.append(name)
        return found

    def datum(self, value: bytes) -> bytes:
        """Return a datum of one value: marker, symbol table where one is needed, value."""
        if not self._own:
            return binary.MARKER + value
        names = b"".join(tagged(binary.STRING, name.encode()) for name in self._own)
        table = tagged(binary.STRUCT, _SYMBOLS_FIELD + tagged(binary.LIST, names))
        return binary.MARKER + tagged(binary.ANNOTATED, _TABLE_NAME + table) + value


def tagged(kind: int, body: bytes | bytearray) -> bytes:
    """Return a value: its type, the length of its body, and that."""
    # A struct of one byte would be read as an ordered one.
    if len(body) < _LONG and (kind != binary.STRUCT or len(body) != 1):
        return bytes((kind << 4 | len(body),)) + body
    return bytes((kind << 4 | _LONG,)) + var_uint(len(body)) + body


def annotated(names: Sequence[int], value: bytes) -> bytes:
    """Return a value with annotations."""
    raw = b"".join(var_uint(name) for name in names)
    return tagged(binary.ANNOTATED, var_uint(len(raw)) + raw + value) if names else value


def integer(value: int) -> bytes:
    """Return an int."""
    raw = magnitude(abs(value))
    return tagged(binary.NEGATIVE_INT if value < 0 else binary.INT, raw)


def symbol(sid: int) -> bytes:
    """Return a symbol."""
    return tagged(binary.SYMBOL, magnitude(sid))


def decimal(*, negative: bool, coefficient: int, exponent: int) -> bytes:
    """Return a decimal; minus zero is kept."""
    if not (negative or coefficient or exponent):
        return tagged(binary.DECIMAL, b"")
    return tagged(binary.DECIMAL, var_int(exponent) + signed(coefficient, negative=negative))


def timestamp(time: Timestamp) -> bytes:
    """Return a timestamp, with its precision and offset."""
    fields = (time.utc.year, time.utc.month, time.utc.day, time.utc.hour, time.utc.minute, time.utc.second)
    used = PRECISIONS.index(time.precision) + 1
    used += used > 3
    body = b"\xc0" if time.offset_minutes is None else var_int(time.offset_minutes)
    body += b"".join(var_uint(part) for part in fields[:used])
    if time.digits:
        body += var_int(-time.digits)
        if time.fraction:
            body += signed(time.fraction, negative=False)
    return tagged(binary.TIMESTAMP, body)


def magnitude(value: int) -> bytes:
    """Return a UInt of as few bytes as hold it; none for 0."""
    return value.to_bytes((value.bit_length() + 7) // 8)


def signed(coefficient: int, *, negative: bool) -> bytes:
    """Return an Int of as few bytes as hold it; none for 0, one for minus 0."""
    if not coefficient and not negative:
        return b""
    raw = bytearray(magnitude(coefficient) or b"\x00")
    if raw[0] & 0x80:
        raw.insert(0, 0)
    if negative:
        raw[0] |= 0x80
    return bytes(raw)


def var_uint(value: int) -> bytes:
    """Return a VarUInt."""
    groups = [value & 0x7F | 0x80]
    while value := value >> 7:
        groups.append(value & 0x7F)
    return bytes(reversed(groups))


def var_int(value: int) -> bytes:
    """Return a VarInt."""
    sign = 0x40 if value < 0 else 0
    value = abs(value)
    groups = []
    end = 0x80
    while value > 0x3F:
        groups.append(value & 0x7F | end)
        value >>= 7
        end = 0
    groups.append(value | sign | end)
    return bytes(reversed(groups))


def restated(data: bytes, found: Node, symbols: Symbols) -> bytes:
    """Return a checked value as a datum of its own.

    Where a symbol has no text (it is of a shared table, or not defined), it keeps the tables it came with.
    """
    writer = SymbolWriter()
    ids = {0: 0}

    def new_id(sid: int) -> int:
        known = ids.get(sid)
        if known is None:
            known = ids[sid] = writer.id_of(symbols.need(sid, 0) or "")  # only $0 has no text
        return known

    def opens(_: Node, sid: int | None) -> bool:
        if sid is not None:
            new_id(sid)  # names get their ids in the order in which they are read
        return True

    def made(node: Node, sid: int | None, parts: list[bytes] | None) -> bytes:
        name = b"" if sid is None else var_uint(new_id(sid))
        if parts is not None:
            value = tagged(node.kind, b"".join(parts))
        elif node.is_null or node.kind == binary.BOOL:
            value = bytes((node.kind << 4 | node.low,))
        elif node.kind == binary.SYMBOL:
            value = symbol(new_id(int.from_bytes(data[node.body : node.stop])))
        else:
            value = tagged(node.kind, data[node.body : node.stop])
        return name + annotated([new_id(one) for one in annotation_ids(data, node)], value)

    try:
        return writer.datum(fold(data, found, made, opens))
    except RefusedIon:
        return symbols.preamble + data[found.start : found.stop]
