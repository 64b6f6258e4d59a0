"""Ion binary to Ion text, exact: types, annotations, digits, precision and offsets are kept.

::

    DE 8A 8A 21 05  8B 52 C2 64 …      →     {a:5,b:1.00,…}

One line, no spaces beyond those an s-expression needs. Reading it gives a value of the same Ion hash.
"""

from __future__ import annotations

import base64
import decimal
import math
import re
import struct
from typing import TYPE_CHECKING

from headpond.formats.ion import (
    BLOB,
    BOOL,
    CLOB,
    DECIMAL,
    FLOAT,
    LIST,
    SEXP,
    STRING,
    STRUCT,
    SYMBOL,
    TIMESTAMP,
    Node,
    annotation_ids,
)
from headpond.formats.ion_scalars import decimal_parts, integer, text
from headpond.formats.ion_timestamps import read_timestamp
from headpond.formats.ion_walk import Step, walk

if TYPE_CHECKING:
    from headpond.formats.ion_symbols import Symbols

_PLAIN_SYMBOL = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_LIKE_AN_ID = re.compile(r"\$[0-9]+")
_KEYWORDS = frozenset({"null", "true", "false", "nan"})
_IN_STRING = re.compile(r'[\x00-\x1f\x7f-\x9f"\\]')
_IN_SYMBOL = re.compile(r"[\x00-\x1f\x7f-\x9f'\\]")
_IN_CLOB = re.compile(r'[\x00-\x1f\x7f-\xff"\\]')
_SHORT = {
    "\0": "\\0",
    "\a": "\\a",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\v": "\\v",
    "\f": "\\f",
    "\r": "\\r",
    "\\": "\\\\",
    '"': '\\"',
    "'": "\\'",
}
_BRACKETS = {LIST: "[]", SEXP: "()", STRUCT: "{}"}
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
_FEW_BITS = 8192
_PLAIN_ZEROS = 6
"""Zeros between the point and the first digit beyond which a decimal is written with an exponent."""


def ion_text(data: bytes, found: Node, symbols: Symbols) -> str:
    """Write a value that was checked as Ion text.

    Raises:
        RefusedIon: `unknown_symbol`, `bad_ion` in a scalar.
    """
    parts: list[str] = []
    openings: list[tuple[int, bool]] = []  # kind of the open containers; has something been written in it
    for step, node, sid in walk(data, found):
        if step is Step.CLOSE:
            openings.pop()
            parts.append(_BRACKETS[node.kind][1])
            continue
        if openings:
            kind, more = openings[-1]
            if more:
                parts.append(" " if kind == SEXP else ",")
            openings[-1] = (kind, True)
        if sid is not None:
            parts.append(symbol_text(symbols.need(sid, node.start)) + ":")
        if node.annotated:
            parts.extend(
                symbol_text(symbols.need(name, node.start)) + "::" for name in annotation_ids(data, node)
            )
        if step is Step.OPEN:
            openings.append((node.kind, False))
            parts.append(_BRACKETS[node.kind][0])
        else:
            parts.append(scalar_text(data, node, symbols))
    return "".join(parts)


def symbol_text(name: str | None) -> str:
    """A symbol as Ion text, quoted where it must be; None is $0."""
    if name is None:
        return "$0"
    if _PLAIN_SYMBOL.fullmatch(name) and name not in _KEYWORDS and not _LIKE_AN_ID.fullmatch(name):
        return name
    return f"'{_escaped(name, _IN_SYMBOL)}'"


def scalar_text(data: bytes, node: Node, symbols: Symbols) -> str:  # noqa: PLR0911 - one per type
    """A scalar or null as Ion text, without annotations."""
    kind = node.kind
    if node.is_null:
        return node.type_name
    if kind == BOOL:
        return "true" if node.low else "false"
    if kind == FLOAT:
        return float_text(float_of(data, node))
    if kind == DECIMAL:
        return _decimal_text(*decimal_parts(data, node))
    if kind == TIMESTAMP:
        return read_timestamp(data, node).text
    if kind == SYMBOL:
        return symbol_text(symbols.need(int.from_bytes(data[node.body : node.stop]), node.start))
    if kind == STRING:
        return f'"{_escaped(text(data, node), _IN_STRING)}"'
    if kind == CLOB:
        # An escape of two digits stands for one byte in a clob.
        raw = data[node.body : node.stop].decode("latin-1")
        return f'{{{{"{_escaped(raw, _IN_CLOB)}"}}}}'
    if kind == BLOB:
        return f"{{{{{base64.b64encode(data[node.body : node.stop]).decode()}}}}}"
    return int_text(integer(data, node))


def _escaped(plain: str, odd: re.Pattern[str]) -> str:
    return odd.sub(lambda match: _SHORT.get(match[0]) or f"\\x{ord(match[0]):02X}", plain)


def int_text(value: int) -> str:
    """Decimal digits of an integer of any size, in less than quadratic time."""
    if value.bit_length() < _FEW_BITS:
        return str(value)
    return f"{'-' if value < 0 else ''}{_digits(abs(value))}"


def _digits(value: int) -> decimal.Decimal:
    bits = value.bit_length()
    if bits < _FEW_BITS:
        return decimal.Decimal(value)
    low_bits = bits // 2
    high, low = value >> low_bits, value & ((1 << low_bits) - 1)
    power = _EXACT.power(decimal.Decimal(2), decimal.Decimal(low_bits))
    return _EXACT.add(_EXACT.multiply(_digits(high), power), _digits(low))


def float_of(data: bytes, node: Node) -> float:
    """Value of a float that is not null."""
    raw = data[node.body : node.stop]
    if not raw:
        return 0.0
    return float(struct.unpack(">f" if len(raw) == 4 else ">d", raw)[0])  # noqa: PLR2004 - of a binary32


def float_text(value: float) -> str:
    """A float as Ion text: an exponent tells it from a decimal."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "+inf" if value > 0 else "-inf"
    shortest = repr(value)
    return shortest if "e" in shortest else shortest.removesuffix(".0") + "e0"


def _decimal_text(negative: bool, coefficient: int, exponent: int) -> str:  # noqa: FBT001 - parts in their order
    sign = "-" if negative else ""
    digits = int_text(coefficient)
    if exponent >= 0:
        return f"{sign}{digits}d{exponent}"
    point = len(digits) + exponent
    if point < -_PLAIN_ZEROS:
        return f"{sign}{digits}d{exponent}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits[:point]}.{digits[point:]}"
