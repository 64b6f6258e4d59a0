"""Values to Ion binary: scalars, containers, and a symbol table that grows as names are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.formats.ion import (
    ANNOTATED,
    DECIMAL,
    INT,
    LIST,
    MARKER,
    NEGATIVE_INT,
    STRING,
    STRUCT,
    SYMBOL,
    TIMESTAMP,
)
from headpond.formats.ion_symbols import SYSTEM
from headpond.formats.ion_timestamps import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headpond.formats.ion_timestamps import Timestamp

_LONG = 14
_IDS = {name: sid for sid, name in enumerate(SYSTEM) if name is not None}
_TABLE_NAME, _SYMBOLS_FIELD = b"\x81\x83", b"\x87"


class SymbolWriter:
    """Gives ids to names, in order of first use."""

    __slots__ = ("_ids", "_own")

    def __init__(self) -> None:
        self._ids = dict(_IDS)
        self._own: list[str] = []

    def id_of(self, name: str) -> int:
        """The id of a name."""
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = len(SYSTEM) + len(self._own)
            self._own.append(name)
        return found

    def datum(self, value: bytes) -> bytes:
        """A datum of one value: marker, symbol table where one is needed, value."""
        if not self._own:
            return MARKER + value
        names = b"".join(tagged(STRING, name.encode()) for name in self._own)
        table = tagged(STRUCT, _SYMBOLS_FIELD + tagged(LIST, names))
        return MARKER + tagged(ANNOTATED, _TABLE_NAME + table) + value


def tagged(kind: int, body: bytes | bytearray) -> bytes:
    """A value: its type, the length of its body, and that."""
    # A struct of one byte would be read as an ordered one.
    if len(body) < _LONG and (kind != STRUCT or len(body) != 1):
        return bytes((kind << 4 | len(body),)) + body
    return bytes((kind << 4 | _LONG,)) + var_uint(len(body)) + body


def annotated(names: Sequence[int], value: bytes) -> bytes:
    """A value with annotations."""
    raw = b"".join(var_uint(name) for name in names)
    return tagged(ANNOTATED, var_uint(len(raw)) + raw + value) if names else value


def integer(value: int) -> bytes:
    """An int."""
    raw = magnitude(abs(value))
    return tagged(NEGATIVE_INT if value < 0 else INT, raw)


def symbol(sid: int) -> bytes:
    """A symbol."""
    return tagged(SYMBOL, magnitude(sid))


def decimal(*, negative: bool, coefficient: int, exponent: int) -> bytes:
    """A decimal; minus zero is kept."""
    if not (negative or coefficient or exponent):
        return tagged(DECIMAL, b"")
    return tagged(DECIMAL, var_int(exponent) + signed(coefficient, negative=negative))


def timestamp(time: Timestamp) -> bytes:
    """A timestamp, with its precision and offset."""
    fields = (time.utc.year, time.utc.month, time.utc.day, time.utc.hour, time.utc.minute, time.utc.second)
    used = PRECISIONS.index(time.precision) + 1
    used += used > 3  # noqa: PLR2004 - an hour never comes without its minute
    body = b"\xc0" if time.offset_minutes is None else var_int(time.offset_minutes)
    body += b"".join(var_uint(part) for part in fields[:used])
    if time.digits:
        body += var_int(-time.digits)
        if time.fraction:
            body += signed(time.fraction, negative=False)
    return tagged(TIMESTAMP, body)


def magnitude(value: int) -> bytes:
    """A UInt of as few bytes as hold it; none for 0."""
    return value.to_bytes((value.bit_length() + 7) // 8)


def signed(coefficient: int, *, negative: bool) -> bytes:
    """An Int of as few bytes as hold it; none for 0, one for minus 0."""
    if not coefficient and not negative:
        return b""
    raw = bytearray(magnitude(coefficient) or b"\x00")
    if raw[0] & 0x80:
        raw.insert(0, 0)
    if negative:
        raw[0] |= 0x80
    return bytes(raw)


def var_uint(value: int) -> bytes:
    """A VarUInt."""
    groups = [value & 0x7F | 0x80]
    while value := value >> 7:
        groups.append(value & 0x7F)
    return bytes(reversed(groups))


def var_int(value: int) -> bytes:
    """A VarInt."""
    sign = 0x40 if value < 0 else 0
    value = abs(value)
    groups = []
    end = 0x80
    while value > 0x3F:  # noqa: PLR2004 - what fits beside the sign
        groups.append(value & 0x7F | end)
        value >>= 7
        end = 0
    groups.append(value | sign | end)
    return bytes(reversed(groups))
