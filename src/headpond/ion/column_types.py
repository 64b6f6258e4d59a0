"""Column types that can be declared for fields of Ion data, and how a value becomes one.

::

    declared       taken from Ion                              Arrow
    string         string, symbol; bool, int, decimal, float,  string
                   timestamp as their exact text
    boolean        bool                                        bool
    bigint         int, decimal without fraction, of 64 bits   int64
    decimal(p,s)   int, decimal that fit without rounding      decimal128(p, s)
    double         float; int and decimal, rounded             double
    timestamp      timestamp                                   timestamp[us, UTC], offset beside it
    binary         blob, clob                                  binary
    json           anything, as canonical JSON                 string

A null of any type, and a field that is not there, are null. Annotations are left out, but for json. Anything
else fails: `cast_error`, or `out_of_range` where the type is right and the value does not fit.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from headpond.core.errors import UsageError
from headpond.ion import binary
from headpond.ion.binary import Node, decimal_parts, integer, text
from headpond.ion.symbols import Symbols
from headpond.ion.text import canonical_json, decimal_number, field_name, float_of, int_text, scalar_text
from headpond.ion.timestamps import read_timestamp

NAMES = ("string", "boolean", "bigint", "decimal(p,s)", "double", "timestamp", "binary", "json")
_ARROW = {
    "string": pa.string(),
    "json": pa.string(),
    "boolean": pa.bool_(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "binary": pa.binary(),
}
_DECIMAL = re.compile(r"decimal\s*\(\s*(\d{1,2})\s*(?:,\s*(\d{1,2})\s*)?\)")
_MAX_PRECISION = 38
_INT64 = 2**63
_EXACT = Context(prec=2 * _MAX_PRECISION)


@dataclass(frozen=True, slots=True)
class IonType:
    """A declared type; `precision` and `scale` are a decimal's."""

    name: str
    precision: int = 0
    scale: int = 0

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its column."""
        return pa.decimal128(self.precision, self.scale) if self.name == "decimal" else _ARROW[self.name]

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name


JSON = IonType("json")


class CannotCast(Exception):
    """A value is not of the declared type; the first argument is `cast_error` or `out_of_range`."""


class Instant(NamedTuple):
    """A timestamp as a column takes it."""

    us: int
    """Microseconds since 1970 UTC; finer digits are cut."""
    offset_minutes: int | None


def parse_ion_type(declared: str) -> IonType:
    """Read a declared type; raises `UsageError` where there is none of that name."""
    plain = declared.strip().lower()
    if plain in _ARROW:
        return IonType(plain)
    match = _DECIMAL.fullmatch(plain)
    if match is not None:
        precision, scale = int(match[1]), int(match[2] or 0)
        if 1 <= precision <= _MAX_PRECISION and scale <= precision:
            return IonType("decimal", precision, scale)
        raise UsageError(
            f"decimal({precision},{scale}) is not a type a table can have.",
            next_step=f"Choose a precision from 1 to {_MAX_PRECISION} and a scale up to it.",
        )
    raise UsageError(
        f"There is no type {declared!r} for a field of Ion data.",
        next_step=f"Choose one of {', '.join(NAMES)}.",
    )


def ion_type_of(kind: pa.DataType) -> str | None:
    """Return the declared type that is kept as an Arrow type; None for texts, which two are kept as."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next((name for name, each in _ARROW.items() if each == kind and each != pa.string()), None)


def cast_ion(kind: IonType, data: bytes, node: Node, symbols: Symbols) -> Any:
    """Cast a value that was checked: an `Instant` for a timestamp, None for a null; raises `CannotCast`."""
    if node.is_null:
        return None
    if kind.name == "json":
        return canonical_json(data, node, symbols)
    if kind.name == "string":
        return _string(data, node, symbols)
    if kind.name == "boolean" and node.kind == binary.BOOL:
        return bool(node.low)
    if kind.name == "bigint" and node.kind in (binary.INT, binary.NEGATIVE_INT, binary.DECIMAL):
        return _bigint(data, node)
    if kind.name == "decimal" and node.kind in (binary.INT, binary.NEGATIVE_INT, binary.DECIMAL):
        return _decimal(kind, data, node)
    if kind.name == "double" and node.kind in (binary.INT, binary.NEGATIVE_INT, binary.DECIMAL, binary.FLOAT):
        return _double(data, node)
    if kind.name == "timestamp" and node.kind == binary.TIMESTAMP:
        time = read_timestamp(data, node)
        return Instant(time.ns // 1000, time.offset_minutes)
    if kind.name == "binary" and node.kind in (binary.BLOB, binary.CLOB):
        return data[node.body : node.stop]
    raise CannotCast("cast_error")


def _string(data: bytes, node: Node, symbols: Symbols) -> str:
    if node.kind == binary.STRING:
        return text(data, node)
    if node.kind == binary.SYMBOL:
        return field_name(symbols, int.from_bytes(data[node.body : node.stop]), node)
    if node.kind == binary.DECIMAL:
        return decimal_number(data, node)
    if node.kind >= binary.LIST or node.kind in (binary.BLOB, binary.CLOB):
        raise CannotCast("cast_error")
    if node.kind == binary.FLOAT:
        value = float_of(data, node)
        if math.isfinite(value):
            return repr(value)
    return scalar_text(data, node, symbols)


def _parts(data: bytes, node: Node) -> tuple[int, int]:
    """Coefficient with its sign and exponent of an int or decimal."""
    if node.kind != binary.DECIMAL:
        return integer(data, node), 0
    negative, coefficient, exponent = decimal_parts(data, node)
    return -coefficient if negative else coefficient, exponent


def _scaled(coefficient: int, exponent: int, scale: int, digits: int) -> int:
    """Coefficient * 10^(exponent + scale), exact, of at most this many digits."""
    shift = exponent + scale
    if not coefficient:
        return 0
    if shift >= 0:
        if shift > digits:
            raise CannotCast("out_of_range")
        value = coefficient * int(10**shift)
    else:
        # A coefficient that is divided more often than it has digits has no whole part left.
        if -shift > coefficient.bit_length():
            raise CannotCast("out_of_range")
        value, rest = divmod(coefficient, int(10**-shift))
        if rest:
            raise CannotCast("out_of_range")
    if abs(value) >= 10**digits:
        raise CannotCast("out_of_range")
    return value


def _bigint(data: bytes, node: Node) -> int:
    value = _scaled(*_parts(data, node), 0, 19)
    if not -_INT64 <= value < _INT64:
        raise CannotCast("out_of_range")
    return value


def _decimal(kind: IonType, data: bytes, node: Node) -> Decimal:
    value = _scaled(*_parts(data, node), kind.scale, kind.precision)
    return Decimal(value).scaleb(-kind.scale, _EXACT)


def _double(data: bytes, node: Node) -> float:
    if node.kind == binary.FLOAT:
        return float_of(data, node)
    coefficient, exponent = _parts(data, node)
    value = float(f"{int_text(coefficient)}e{exponent}")
    if math.isinf(value):
        raise CannotCast("out_of_range")
    return value
