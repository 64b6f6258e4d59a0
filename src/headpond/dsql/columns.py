"""Raw JSON tokens of one column → a typed Arrow array, without a Python object per value where it is regular.

::

    tokens   "29.99"   null   "1.005"   12        what the images held, as binary
    easy       yes      -       no      no        a vectorised cast proves these right
    values    29.99    null    null    null       the rest goes to the scalar `cast`, one by one
    failures                 {2: "cast_error", 3: "cast_error"}

`cast_column` gives for every token what `pg_types.cast` gives. With that alone decoding takes 17 µs of CPU a
change instead of 5.4 (as in `batch`), and a whole job by calculation twice as much.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import bytes_of, offsets_of, slices, valid
from headpond.dsql.pg_types import (
    BASE64_TEXT,
    DATE_RANGE,
    INTEGER_RANGES,
    NUMERIC_TEXT,
    TEXT_TYPES,
    TIMESTAMP_RANGE,
    UUID_TEXT,
    CastError,
    CastOptions,
    PgType,
    arrow_type,
    cast,
    is_out_of_range,
    parse_type,
)

_QUOTE, _BACKSLASH, _LETTER_N = b'"\\n'
_STRING = msgspec.json.Decoder(str)


@dataclass(slots=True)
class ColumnCast:
    """A typed column; `failures` maps the rows that could not be cast to a code, their value is null."""

    values: pa.Array
    failures: dict[int, str] = field(default_factory=dict)
    out_of_range: int = 0


def cast_column(pg_type: str | PgType, tokens: pa.Array, options: CastOptions = CastOptions()) -> ColumnCast:  # noqa: B008 - frozen
    """Cast raw tokens, string or binary, each a valid JSON value; null and the token `null` give null."""
    kind = parse_type(pg_type) if isinstance(pg_type, str) else pg_type
    tokens = tokens.cast(pa.binary())
    is_null = (first_bytes(tokens) == _LETTER_N) & valid(tokens)  # no other JSON value begins with an n
    if is_null.any():
        tokens = pc.if_else(pa.array(is_null), pa.scalar(None, tokens.type), tokens)
    target = arrow_type(kind)
    if tokens.null_count == len(tokens):
        return ColumnCast(pa.nulls(len(tokens), target))
    values = _easy(kind, tokens)
    odd = pc.and_(pc.is_valid(tokens), pc.is_null(values))
    result = ColumnCast(values)
    if not pc.any(odd).as_py():
        return result
    found: dict[int, Any] = {}
    for row in np.flatnonzero(odd.to_numpy(zero_copy_only=False)).tolist():
        token = tokens[row].as_py().decode()
        result.out_of_range += is_out_of_range(kind, token)
        value = cast(kind, token, options)
        if isinstance(value, CastError):
            result.failures[row] = value.code
            value = None
        found[row] = value
    if pa.types.is_list(target):  # replace_with_mask knows no lists, and no value of one is easy
        result.values = pa.array([found.get(row) for row in range(len(tokens))], target)
    else:
        result.values = pc.replace_with_mask(values, odd, pa.array(list(found.values()), target))
    return result


def first_bytes(values: pa.Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the first byte of each value, 0 for empty and null ones."""
    offsets, data = offsets_of(values), bytes_of(values)
    if len(data) == 0:
        return np.zeros(len(values), np.uint8)
    there = offsets[:-1] < offsets[1:]
    if values.null_count:
        there &= valid(values)  # Arrow lets bytes lie under a null
    starts = offsets[:-1] if there.all() else np.minimum(offsets[:-1], len(data) - 1)
    return np.where(there, data[starts], np.uint8(0))


def trimmed(values: pa.Array, left: int, right: int) -> pa.Array:
    """Binary values without their first `left` and last `right` bytes; null and shorter ones are empty.

    (`pc.binary_slice` of pyarrow 26 fails on empty values.)
    """
    offsets = offsets_of(values)
    starts = np.minimum(offsets[:-1] + left, offsets[1:])
    return slices(values.buffers()[2], starts, np.maximum(offsets[1:] - right, starts))


def texts_of(tokens: pa.Array) -> pa.Array:
    """Contents of the string tokens, escapes read, as strings; null for all other tokens."""
    is_text = first_bytes(tokens) == _QUOTE
    texts = trimmed(tokens, 1, 1)
    if not is_text.all():
        texts = pc.if_else(pa.array(is_text), texts, pa.scalar(None, texts.type))
    at = np.flatnonzero(holding(tokens, _BACKSLASH) & is_text)
    if len(at):
        read = _STRING.decode
        escaped = tokens.take(pa.array(at)).to_pylist()
        mask = np.zeros(len(tokens), bool)
        mask[at] = True
        texts = pc.replace_with_mask(
            texts.cast(pa.string()), pa.array(mask), pa.array(map(read, escaped), pa.string())
        )
    return texts.cast(pa.string())


def holding(values: pa.Array, byte: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which binary values hold a byte."""
    found = np.zeros(len(values), bool)
    offsets = offsets_of(values)
    at = np.flatnonzero(bytes_of(values)[offsets[0] : offsets[-1]] == byte) + offsets[0]
    found[np.searchsorted(offsets, at, side="right") - 1] = True
    return found


def counts_between(
    values: pa.Array, borders: np.ndarray[Any, Any], byte: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return how often a byte is in each part of binary values, cut at offsets into their bytes."""
    at = np.flatnonzero(bytes_of(values)[borders[0] : borders[-1]] == byte) + borders[0]
    return np.diff(np.searchsorted(at, borders))


def _easy(kind: PgType, tokens: pa.Array) -> pa.Array:
    """Values of tokens that are certainly fine; null for the others, which the scalar cast then judges."""
    target = arrow_type(kind)
    if kind.name == "any":
        return tokens.cast(pa.string())
    if kind.name in INTEGER_RANGES:
        return _within(_integers(tokens), *INTEGER_RANGES[kind.name]).cast(target)
    if kind.name == "date":
        return _within(_integers(tokens), *DATE_RANGE).cast(pa.int32()).cast(target)
    if kind.name in {"timestamp", "timestamptz"}:
        return _within(_integers(tokens), *TIMESTAMP_RANGE).cast(target)
    if kind.name in {"real", "double precision"}:
        return _floats(tokens, target)
    if kind.name == "boolean":
        first = first_bytes(tokens)
        return pc.if_else(
            pa.array((first == ord("t")) | (first == ord("f"))), pa.array(first == ord("t")), None
        )
    if kind.name == "oidvector":
        return pa.nulls(len(tokens), target)
    texts = texts_of(tokens)
    if kind.name in TEXT_TYPES:
        return texts
    # RE2 knows ^ and $ as ends of the text; `\z` keeps a final newline out.
    pattern = rf"\A(?:{_PATTERNS[kind.name].pattern})\z"
    texts = pc.if_else(pc.match_substring_regex(texts, pattern), texts, pa.scalar(None, pa.string()))
    if kind.name == "bytea":
        return pa.array(
            [None if t is None else binascii.a2b_base64(t) for t in texts.to_pylist()], pa.binary()
        )
    return _decimals(kind, texts) if kind.is_decimal else texts


_PATTERNS = {"uuid": UUID_TEXT, "bytea": BASE64_TEXT, "numeric": NUMERIC_TEXT}


def _integers(tokens: pa.Array) -> pa.Array:
    """Digit tokens as int64. Of JSON tokens Arrow reads exactly these: there is no +, no 0x and no space."""
    texts = tokens.cast(pa.string())
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:
        short = pc.match_substring_regex(texts, r"\A-?[0-9]{1,18}\z")
        return pc.if_else(short, texts, pa.scalar(None, pa.string())).cast(pa.int64())


def _within(values: pa.Array, low: int, high: int) -> pa.Array:
    ends = pc.min_max(values).as_py()
    if ends["min"] is None or (low <= ends["min"] and ends["max"] <= high):
        return values
    fits = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
    return pc.if_else(fits, values, pa.scalar(None, values.type))


def _floats(tokens: pa.Array, target: pa.DataType) -> pa.Array:
    first = first_bytes(tokens)
    number = (first == ord("-")) | ((first >= ord("0")) & (first <= ord("9")))
    texts = pc.if_else(pa.array(number), tokens, pa.scalar(None, tokens.type)).cast(pa.string())
    try:
        values = texts.cast(pa.float64())
    except pa.ArrowInvalid:
        return pa.nulls(len(tokens), target)
    if pa.types.is_float32(target):
        with np.errstate(over="ignore", under="ignore"):
            narrow = values.to_numpy(zero_copy_only=False).astype(np.float32)
        values = pa.array(narrow, target, mask=~valid(values))
    return pc.if_else(pc.is_inf(values), pa.scalar(None, target), values)


def _decimals(kind: PgType, texts: pa.Array) -> pa.Array:
    assert kind.precision is not None
    assert kind.scale is not None
    pattern = rf"\A-?0*[0-9]{{0,{kind.precision - kind.scale}}}(?:\.[0-9]{{0,{kind.scale}}}0*)?\z"
    texts = pc.if_else(pc.match_substring_regex(texts, pattern), texts, pa.scalar(None, pa.string()))
    try:
        return texts.cast(arrow_type(kind))
    except pa.ArrowInvalid:
        return pa.nulls(len(texts), arrow_type(kind))
