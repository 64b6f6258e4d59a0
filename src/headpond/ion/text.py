"""Ion binary to Ion text, and to canonical JSON.

::

    Ion                             Ion text, exact             canonical JSON
    null, of any type               null, null.int              null
    bool, int, string               as written                  true/false, number with all digits, string
    decimal                         1.00                        number with all digits: 1.00 stays 1.00
    float                           1e0                         number, shortest that reads back equal; nan,
                                                                +inf, -inf are strings
    timestamp, symbol               as written                  string: the exact text
    blob, clob                      {{aGk=}}                    string: base64; one character per byte
    list, struct                    [1,2], {a:5,b:1.00}         array, object
    s-expression, annotated value   (a b), x::1                 string: Ion text

Ion text is one line without spaces beyond those an s-expression needs; reading it gives a value of the same
Ion hash. In JSON names are sorted by their code points and nothing is written between tokens, so that equal
values have equal text. A name that a struct has more than once becomes `name`, `name#2`, …, in the order of
their values' JSON. Ion's cookbook has a down-conversion like it, which drops annotations and makes nan null.
"""

from __future__ import annotations

import base64
import decimal
import math
import re
import struct
from json.encoder import encode_basestring

from headpond.ion import binary
from headpond.ion.binary import Node, annotation_ids, decimal_parts, fold, integer, text
from headpond.ion.symbols import Symbols
from headpond.ion.timestamps import read_timestamp

_PLAIN_SYMBOL = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_LIKE_AN_ID = re.compile(r"\$[0-9]+")
_KEYWORDS = frozenset({"null", "true", "false", "nan"})
_IN_STRING = re.compile(r'[\x00-\x1f\x7f-\x9f"\\]')
_IN_SYMBOL = re.compile(r"[\x00-\x1f\x7f-\x9f'\\]")
_IN_CLOB = re.compile(r'[\x00-\x1f\x7f-\xff"\\]')
_SHORT = {
    "\0": "\\0", "\a": "\\a", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\v": "\\v", "\f": "\\f", "\r": "\\r",
    "\\": "\\\\", '"': '\\"', "'": "\\'",
}  # fmt: skip
_BRACKETS = {binary.LIST: ("[", "]"), binary.SEXP: ("(", ")"), binary.STRUCT: ("{", "}")}
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
_FEW_BITS = 8192
_PLAIN_ZEROS = 6
"""Zeros between the point and the first digit beyond which a decimal is written with an exponent."""


def ion_text(data: bytes, found: Node, symbols: Symbols) -> str:
    """Return a checked value as Ion text; raises `RefusedIon` (`unknown_symbol`, `bad_ion` in a scalar)."""

    def made(node: Node, sid: int | None, parts: list[str] | None) -> str:
        names = [] if sid is None else [symbol_text(symbols.need(sid, node.start)) + ":"]
        names += [symbol_text(symbols.need(one, node.start)) + "::" for one in annotation_ids(data, node)]
        if parts is None:
            return "".join(names) + scalar_text(data, node, symbols)
        first, last = _BRACKETS[node.kind]
        return "".join([*names, first, (" " if node.kind == binary.SEXP else ",").join(parts), last])

    return fold(data, found, made)


def symbol_text(name: str | None) -> str:
    """Return a symbol as Ion text, quoted where it must be; None is $0."""
    if name is None:
        return "$0"
    if _PLAIN_SYMBOL.fullmatch(name) and name not in _KEYWORDS and not _LIKE_AN_ID.fullmatch(name):
        return name
    return f"'{_escaped(name, _IN_SYMBOL)}'"


def scalar_text(data: bytes, node: Node, symbols: Symbols) -> str:
    """Return a scalar or null as Ion text, without annotations."""
    kind = node.kind
    if node.is_null:
        return node.type_name
    if kind == binary.BOOL:
        return "true" if node.low else "false"
    if kind == binary.FLOAT:
        return float_text(float_of(data, node))
    if kind == binary.DECIMAL:
        return _decimal_text(data, node)
    if kind == binary.TIMESTAMP:
        return read_timestamp(data, node).text
    if kind == binary.SYMBOL:
        return symbol_text(symbols.need(int.from_bytes(data[node.body : node.stop]), node.start))
    if kind == binary.STRING:
        return f'"{_escaped(text(data, node), _IN_STRING)}"'
    if kind == binary.CLOB:
        # An escape of two digits stands for one byte in a clob.
        raw = data[node.body : node.stop].decode("latin-1")
        return f'{{{{"{_escaped(raw, _IN_CLOB)}"}}}}'
    if kind == binary.BLOB:
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
    return float(struct.unpack(">f" if len(raw) == 4 else ">d", raw)[0])


def float_text(value: float) -> str:
    """Return a float as Ion text: an exponent tells it from a decimal."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "+inf" if value > 0 else "-inf"
    shortest = repr(value)
    return shortest if "e" in shortest else shortest.removesuffix(".0") + "e0"


def _decimal_text(data: bytes, node: Node) -> str:
    sign, digits, exponent = _decimal(data, node)
    point = len(digits) + exponent
    if exponent >= 0 or point < -_PLAIN_ZEROS:
        return f"{sign}{digits}d{exponent}"
    return sign + _pointed(digits, point)


def _decimal(data: bytes, node: Node) -> tuple[str, str, int]:
    negative, coefficient, exponent = decimal_parts(data, node)
    return "-" if negative else "", int_text(coefficient), exponent


def _pointed(digits: str, point: int) -> str:
    return f"{digits[:point]}.{digits[point:]}" if point > 0 else f"0.{'0' * -point}{digits}"


def canonical_json(data: bytes, found: Node, symbols: Symbols) -> str:
    """Return a checked value as canonical JSON; raises `RefusedIon` as `ion_text` does."""

    def made(node: Node, sid: int | None, parts: list[tuple[str, str]] | None) -> tuple[str, str]:
        if node.annotated or (node.kind == binary.SEXP and not node.is_null):
            done = encode_basestring(ion_text(data, node, symbols))
        elif parts is None:
            done = json_scalar(data, node, symbols)
        elif node.kind == binary.STRUCT:
            done = _object(parts)
        else:
            done = f"[{','.join(value for _, value in parts)}]"
        return "" if sid is None else field_name(symbols, sid, node), done

    return fold(data, found, made, lambda node, _: not node.annotated and node.kind != binary.SEXP)[1]


def field_name(symbols: Symbols, sid: int, node: Node) -> str:
    """Return a field's name; `$0` where its text is not known."""
    name = symbols.need(sid, node.start)
    return "$0" if name is None else name


def _object(members: list[tuple[str, str]]) -> str:
    members.sort()
    names = numbered([name for name, _ in members])
    pairs = sorted(zip(names, (value for _, value in members), strict=True))
    return "{" + ",".join(f"{encode_basestring(name)}:{value}" for name, value in pairs) + "}"


def numbered(names: list[str]) -> list[str]:
    """Return sorted names with repetitions as `name#2`, …, around names that are there already."""
    present = set(names)
    if len(present) == len(names):
        return names
    found: list[str] = []
    before, number = None, 1
    for name in names:
        number = number + 1 if name == before else 1
        while number > 1 and f"{name}#{number}" in present:
            number += 1
        found.append(name if number == 1 else f"{name}#{number}")
        before = name
    return found


def json_scalar(data: bytes, node: Node, symbols: Symbols) -> str:
    """Return a scalar or null without annotations as JSON."""
    kind = node.kind
    if node.is_null:
        return "null"
    if kind == binary.FLOAT:
        value = float_of(data, node)
        return repr(value) if math.isfinite(value) else f'"{float_text(value)}"'
    if kind == binary.DECIMAL:
        return decimal_number(data, node)
    if kind == binary.TIMESTAMP:
        return f'"{read_timestamp(data, node).text}"'
    if kind == binary.STRING:
        return encode_basestring(text(data, node))
    if kind == binary.SYMBOL:
        return encode_basestring(field_name(symbols, int.from_bytes(data[node.body : node.stop]), node))
    if kind == binary.BLOB:
        return f'"{base64.b64encode(data[node.body : node.stop]).decode()}"'
    if kind == binary.CLOB:
        return encode_basestring(data[node.body : node.stop].decode("latin-1"))
    return scalar_text(data, node, symbols)


def decimal_number(data: bytes, node: Node) -> str:
    """Return a decimal as a JSON number with all its digits."""
    sign, digits, exponent = _decimal(data, node)
    point = len(digits) + exponent
    if exponent <= 0 and point > -_PLAIN_ZEROS:
        return sign + (_pointed(digits, point) if exponent else digits)
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}E{point - 1:+}"
