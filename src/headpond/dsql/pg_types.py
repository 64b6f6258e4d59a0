"""PostgreSQL types of change records: their names, their Arrow types, and one value at a time.

The stream carries no types, so they are declared by PostgreSQL name. `cast` turns one raw JSON token into a
value and is the oracle of `columns.cast_column`.

Value classes given by `cast`: int, float, `Decimal`, bool, str, bytes, `date`, `datetime` (aware for
timestamptz), `[]` for oidvector, None for JSON null. Times and intervals are microseconds as int.
"""

from __future__ import annotations

import binascii
import difflib
import functools
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headpond.core.errors import ConfigurationError
from headpond.dsql.strict_json import unescape

MAX_DECIMAL_PRECISION = 38
MAX_NUMERIC_PRECISION = 1000

INTEGER_RANGES = {
    "smallint": (-(2**15), 2**15 - 1),
    "integer": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
    "oid": (0, 2**32 - 1),
    "time": (0, 86_400_000_000),  # 24:00:00 is a time
    "timetz": (0, 86_399_999_999),
    "interval": (-(2**63), 2**63 - 1),
}
"""Types that are plain integers here, and the values each may have."""

DATE_RANGE = (-719_162, 2_932_896)
"""Days since 1970 that Spark can hold: 0001-01-01 … 9999-12-31."""
DATE_FINITE = (-2_440_588, 2_145_042_905)
"""Days since 1970 that PostgreSQL can mean; anything beyond is an infinity."""
DATE_INFINITY_WRAPPED = frozenset({-2_147_472_692, -622_191_234, -622_191_233})
"""Negative day counts that mean +infinity: the greatest one, moved by 10,957 days, beyond 32 bits (Debezium's
streams have the first, readers by JDBC the others). What Aurora DSQL writes is not published."""
TIMESTAMP_RANGE = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""Microseconds since 1970 that Spark can hold."""
TIMESTAMP_INFINITIES = (-9_223_372_036_832_400_000, 9_223_372_036_825_200_000)

TEXT_TYPES = frozenset({"text", "varchar", "bpchar", "name", '"char"', "json"})
SPECIAL_NUMERICS = frozenset({"NaN", "Infinity", "-Infinity"})

INTEGER_TOKEN = re.compile(r"-?[0-9]+")
NUMERIC_TEXT = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
UUID_TEXT = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
BASE64_TEXT = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")

_ALIASES = {
    "smallint": ("int2", "smallserial", "serial2"),
    "integer": ("int", "int4", "serial", "serial4"),
    "bigint": ("int8", "bigserial", "serial8"),
    "oid": (),
    "real": ("float4",),
    "double precision": ("float8", "float", "double"),
    "numeric": ("decimal", "dec"),
    "boolean": ("bool",),
    "text": (),
    "varchar": ("character varying", "char varying"),
    "bpchar": ("char", "character"),
    "name": (),
    '"char"': (),
    "bytea": (),
    "date": (),
    "time": ("time without time zone",),
    "timetz": ("time with time zone",),
    "timestamp": ("timestamp without time zone",),
    "timestamptz": ("timestamp with time zone",),
    "interval": (),
    "uuid": (),
    "oidvector": (),
    "json": (),
    "any": (),
}
_NAMES = {alias: name for name, aliases in _ALIASES.items() for alias in (name, *aliases)}
_WITH_LENGTH = frozenset({"varchar", "bpchar", "time", "timetz", "timestamp", "timestamptz", "interval"})
# "timestamp (3) with time zone": the bound is in the middle of the name
_SPELLING = re.compile(r"([^()]+)(?:\(([^()]*)\)([^()]*))?")

_ARROW = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "oidvector": pa.list_(pa.int64()),
}


@dataclass(frozen=True, slots=True)
class PgType:
    """A PostgreSQL type by its canonical name; precision and scale only where numeric fits a decimal."""

    name: str
    precision: int | None = None
    scale: int | None = None

    @property
    def is_decimal(self) -> bool:
        """Numeric that an Arrow decimal holds exactly; other numerics stay text."""
        return self.precision is not None

    @property
    def is_loose(self) -> bool:
        """Whether texts that differ are one value: of a UUID, or a numeric that is kept as text."""
        return self.name == "uuid" or (self.name == "numeric" and not self.is_decimal)


@dataclass(frozen=True, slots=True)
class CastOptions:
    """What becomes of values that a column cannot hold."""

    infinity: Literal["clamp", "null", "error"] = "clamp"
    special_numeric: Literal["error", "null"] = "error"


@dataclass(frozen=True, slots=True)
class CastError:
    """A value that cannot be had; codes: `cast_error`, `special_numeric`, `infinity`, `out_of_range`."""

    code: str


_NO = CastError("cast_error")
_DEFAULTS = CastOptions()


@functools.lru_cache(maxsize=4096)
def parse_type(text: str) -> PgType:
    """Read a PostgreSQL type name with its bounds; lengths of texts and times are read and left aside.

    Raises:
        ConfigurationError: no such type here, with the nearest one, or bounds that PostgreSQL refuses.
    """
    match = _SPELLING.fullmatch(text)
    if match is None:
        raise _unknown(text)
    head, bounds, tail = match.groups()
    spelled = " ".join(f"{head} {tail or ''}".lower().split())
    name = _NAMES.get(spelled)
    if name is None or (
        bounds is not None and name not in _WITH_LENGTH and name != "numeric" and spelled != "float"
    ):
        raise _unknown(text)
    if bounds is None:
        return PgType(name)
    try:
        numbers = [int(number) for number in bounds.split(",")]
    except ValueError:
        raise _wrong_bounds(text, "its bounds are no integers") from None
    if name != "numeric":
        if len(numbers) != 1:
            raise _wrong_bounds(text, "it takes one bound")
        single = spelled == "float" and numbers[0] <= 24
        return PgType("real" if single else name)
    if len(numbers) > 2:
        raise _wrong_bounds(text, "it takes a precision and a scale")
    precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
    if not (1 <= precision <= MAX_NUMERIC_PRECISION and abs(scale) <= MAX_NUMERIC_PRECISION):
        raise _wrong_bounds(text, "precision is 1 … 1000 and scale -1000 … 1000")
    if precision <= MAX_DECIMAL_PRECISION and 0 <= scale <= precision:
        return PgType(name, precision, scale)
    return PgType(name)


def _unknown(text: str) -> ConfigurationError:
    spelled = " ".join(text.lower().split("(")[0].split())
    near = difflib.get_close_matches(spelled, _NAMES, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"Known types: {', '.join(_ALIASES)}."
    return ConfigurationError(
        f"Unknown PostgreSQL type {text!r}: change records have no such type.", next_step=hint, type=text
    )


def _wrong_bounds(text: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The type {text!r} is wrong: {why}.", next_step="Write it as in CREATE TABLE.", type=text
    )


def arrow_type(pg_type: str | PgType) -> pa.DataType:
    """Return the Arrow type of a column of this PostgreSQL type; Spark and Delta follow from it."""
    kind = parse_type(pg_type) if isinstance(pg_type, str) else pg_type
    if kind.is_decimal:
        return pa.decimal128(kind.precision, kind.scale)
    if kind.name in INTEGER_RANGES:
        return _ARROW.get(kind.name, pa.int64())
    return _ARROW.get(kind.name, pa.string())


def pg_type_of(kind: pa.DataType) -> str | None:
    """Return a PostgreSQL type that is kept as an Arrow type; None for texts, which many are kept as."""
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    return next((name for name, each in (*_ARROW.items(), ("bigint", pa.int64())) if each == kind), None)


_WIDER = {"smallint": ("integer", "bigint"), "integer": ("bigint",), "real": ("double precision",)}


def is_wider(kind: PgType, than: PgType) -> bool:
    """Return whether a type has all values of another one, and more."""
    if kind.is_decimal and than.is_decimal:
        whole = (kind.precision or 0) - (kind.scale or 0) - (than.precision or 0) + (than.scale or 0)
        return kind != than and whole >= 0 and (kind.scale or 0) >= (than.scale or 0)
    return kind.name in _WIDER.get(than.name, ())


def cast(pg_type: str | PgType, token: str, options: CastOptions = _DEFAULTS) -> Any:
    """Turn one raw JSON token, read as valid before, into a value, or give a `CastError`."""
    kind = parse_type(pg_type) if isinstance(pg_type, str) else pg_type
    if token == "null":  # noqa: S105 - a JSON token
        return None
    if kind.name == "any":
        return token
    if kind.name in INTEGER_RANGES:
        value = _int64(token)
        low, high = INTEGER_RANGES[kind.name]
        return value if value is not None and low <= value <= high else _NO
    return _CASTS[kind.name](kind, token, options)


def _int64(token: str) -> int | None:
    """Value of a digit token inside 64 bits, None for any other token."""
    if INTEGER_TOKEN.fullmatch(token) is None or len(token) > 20:
        return None
    value = int(token)
    return value if -(2**63) <= value < 2**63 else None


def _text(_kind: PgType, token: str, _options: CastOptions) -> str | CastError:
    return unescape(token) if token.startswith('"') else _NO


def _uuid(_kind: PgType, token: str, _options: CastOptions) -> str | CastError:
    text = unescape(token) if token.startswith('"') else ""
    return text if UUID_TEXT.fullmatch(text) else _NO


def _bytea(_kind: PgType, token: str, _options: CastOptions) -> bytes | CastError:
    text = unescape(token) if token.startswith('"') else "-"
    return binascii.a2b_base64(text) if BASE64_TEXT.fullmatch(text) else _NO


def _numeric(kind: PgType, token: str, options: CastOptions) -> str | Decimal | CastError | None:
    text = unescape(token) if token.startswith('"') else ""
    if text in SPECIAL_NUMERICS:
        if not kind.is_decimal:
            return text
        return None if options.special_numeric == "null" else CastError("special_numeric")
    if not NUMERIC_TEXT.fullmatch(text):
        return _NO
    if not kind.is_decimal:
        return text
    assert kind.precision is not None
    assert kind.scale is not None
    whole, _, fraction = text.lstrip("-").partition(".")
    if len(whole.lstrip("0")) > kind.precision - kind.scale or len(fraction.rstrip("0")) > kind.scale:
        return _NO  # never rounded
    return Decimal(text).quantize(
        Decimal(1).scaleb(-kind.scale), context=Context(prec=2 * MAX_NUMERIC_PRECISION)
    )


def _floating(kind: PgType, token: str, _options: CastOptions) -> float | CastError:
    if token.startswith('"'):
        text = unescape(token)
        return float(text) if text in SPECIAL_NUMERICS else _NO
    if not (token[0] == "-" or token[0].isdigit()):
        return _NO
    value = float(token)
    if kind.name == "real":
        with np.errstate(over="ignore", under="ignore"):
            value = float(np.float32(value))
    return value if abs(value) != float("inf") else _NO


def clamp(value: int, infinite: int, ends: tuple[int, int], options: CastOptions) -> int | CastError | None:
    """Apply the option `infinity` to a count of days or microseconds.

    `infinite` is -1 or +1 for an infinity, else 0; `ends` are what Spark can hold.
    """
    if not infinite and ends[0] <= value <= ends[1]:
        return value
    if options.infinity == "error":
        return CastError("infinity" if infinite else "out_of_range")
    if options.infinity == "null":
        return None
    return ends[1] if infinite > 0 or value > ends[1] else ends[0]


def _date(_kind: PgType, token: str, options: CastOptions) -> date | CastError | None:
    days = _int64(token)
    if days is None:
        return _NO
    above = days > DATE_FINITE[1] or days in DATE_INFINITY_WRAPPED
    infinite = 1 if above else -1 if days < DATE_FINITE[0] else 0
    found = clamp(days, infinite, DATE_RANGE, options)
    return date(1970, 1, 1) + timedelta(days=found) if isinstance(found, int) else found


def _timestamp(kind: PgType, token: str, options: CastOptions) -> datetime | CastError | None:
    micros = _int64(token)
    if micros is None:
        return _NO
    infinite = (micros == TIMESTAMP_INFINITIES[1]) - (micros == TIMESTAMP_INFINITIES[0])
    found = clamp(micros, infinite, TIMESTAMP_RANGE, options)
    epoch = datetime(1970, 1, 1, tzinfo=UTC if kind.name == "timestamptz" else None)
    return epoch + timedelta(microseconds=found) if isinstance(found, int) else found


def is_out_of_range(pg_type: PgType, token: str) -> bool:
    """Whether a date or timestamp is finite and still beyond what Spark can hold (counter `out_of_range`)."""
    if pg_type.name not in {"date", "timestamp", "timestamptz"}:
        return False
    found = cast(pg_type, token, CastOptions(infinity="error"))
    return isinstance(found, CastError) and found.code == "out_of_range"


_CASTS: dict[str, Any] = {
    **dict.fromkeys(TEXT_TYPES, _text),
    "boolean": lambda _kind, token, _options: {"true": True, "false": False}.get(token, _NO),
    "uuid": _uuid,
    "bytea": _bytea,
    "oidvector": lambda _kind, token, _: [] if token[:1] == "[" and not token[1:-1].strip() else _NO,
    "numeric": _numeric,
    "real": _floating,
    "double precision": _floating,
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamp,
}
