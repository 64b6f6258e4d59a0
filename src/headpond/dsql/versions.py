"""What identifies a change: its version, the hash of its image, and the key of its row.

A version is bytes that compare as changes are ordered, whatever made them. Of a DSQL change::

    ┌──────────────────┬─────────────────────────────┬───────────┬──────┐
    │ ts_ns, 8 bytes   │ txId in UTF-8, 00 as 00 FF  │ end 00 00 │ rank │
    │ big-endian       │                             │           │      │
    └──────────────────┴─────────────────────────────┴───────────┴──────┘
                                            rank: 00 delete, 01 upsert

An image's hash is the SHA-256 of its canonical JSON: names sorted by their code points, no spaces, members
that are null left out (absent equals null), strings with the fewest escapes, numbers as they were written.

A row's key is canonical JSON text, an array of its key values after casting, in the order of their names::

    keys = ["tenant", "doc_id"]      {"tenant": "a b", "doc_id": 11}      [11,"a b"]

Integers, times and intervals are digits; texts JSON strings with the fewest escapes; decimals the string with
all digits of their scale; dates ISO strings; timestamps microseconds; bytes Base64; undeclared columns, and
those declared `any`, their canonical JSON.

Keys must stay apart: a value that would be clamped, become NULL or equal no other (NaN) is an error in a key
column of a table that keeps rows by key. Values that are one key in PostgreSQL are written in one way: a UUID
in lower case, a numeric that is kept as text without zeros at the end of its fraction (2.50 is 2.5), and of
the two zeros of floating point 0.0. Tables that were made before (`TableSpec.key_rule` 1) have keys in the
order configured then, and these values as they came.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import Ints, bytes_of, int64_array
from headpond.core.schemas import json_texts, quote, whole
from headpond.dsql.columns import ColumnCast, cast_column, first_bytes, holding
from headpond.dsql.config import TableSpec
from headpond.dsql.pg_types import CastOptions, parse_type
from headpond.dsql.strict_json import read_object

MAX_CANONICAL_DEPTH = 64
"""Brackets a value may hold to be put into canonical form."""

_STRING = msgspec.json.Decoder(str)
_END = b"\x00\x00"
_RANK = {True: b"\x00", False: b"\x01"}  # delete?


def encode_time(ts_ns: int) -> bytes:
    """Give what all versions of a commit time begin with; no version of that time or a later one is less."""
    return struct.pack(">q", ts_ns)


def encode_versions(
    ts_ns: pa.Array | pa.ChunkedArray, tx_id: pa.Array | pa.ChunkedArray, delete: pa.Array | pa.ChunkedArray
) -> pa.Array:
    """Return the versions of many DSQL changes; null where any part is null."""
    ts_ns, tx_id, delete = (whole(column) for column in (ts_ns, tx_id, delete))
    times = pc.fill_null(ts_ns, 0).to_numpy(zero_copy_only=False).astype(">i8")
    heads = pa.Array.from_buffers(pa.binary(8), len(times), [None, pa.py_buffer(times.tobytes())])
    heads = pc.if_else(pc.is_valid(ts_ns), heads.cast(pa.binary()), pa.scalar(None, pa.binary()))
    texts = tx_id.cast(pa.binary())
    if (bytes_of(texts) == 0).any():
        texts = pa.array(
            [None if t is None else t.replace(b"\x00", b"\x00\xff") for t in texts.to_pylist()], pa.binary()
        )
    ranks = pc.if_else(delete, pa.scalar(_RANK[True]), pa.scalar(_RANK[False]))
    return pc.binary_join_element_wise(heads, texts, pa.scalar(_END), ranks, pa.scalar(b""))


def decode_versions(versions: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the `ts_ns`, txId and whether it is a delete of many versions, none of them null."""
    versions = whole(versions).cast(pa.binary())
    heads = pc.binary_slice(versions, 0, 8).buffers()[2] or b""
    texts = pc.binary_slice(versions, 8, -3)
    if (bytes_of(texts) == 0).any():
        texts = pa.array([text.replace(b"\x00\xff", b"\x00") for text in texts.to_pylist()], pa.binary())
    delete = pc.equal(pc.binary_slice(versions, -1), pa.scalar(_RANK[True]))
    return int64_array(np.frombuffer(heads, ">i8", len(versions))), texts.cast(pa.string()), delete


def canonical_token(token: str) -> str:
    """Canonical JSON of one raw JSON value that was read as valid before.

    Values nested deeper than `MAX_CANONICAL_DEPTH` can be are taken as they were written.
    """
    if token[0] == '"':
        return token if "\\" not in token else quote(_STRING.decode(token))
    if token[0] not in "[{" or token.count("[") + token.count("{") > MAX_CANONICAL_DEPTH:
        return token
    return _dump(json.loads(token, parse_int=_Verbatim, parse_float=_Verbatim))


def canonical(tokens: pa.Array, of: Ints | None = None) -> pa.Array:
    """Canonical JSON of tokens, or `of` some: only strings with escapes, lists and objects are touched."""
    first = first_bytes(tokens)
    unusual = (first == ord("[")) | (first == ord("{"))
    escaped = np.flatnonzero(holding(tokens, ord("\\")) & (first == ord('"')))
    # Of all escapes only these two have a shorter form.
    short = pc.match_substring_regex(tokens.take(int64_array(escaped)), r"\\[/u]")
    unusual[escaped] = short.to_numpy(zero_copy_only=False)
    if of is not None:
        asked = np.zeros(len(tokens), bool)
        asked[of] = True
        unusual &= asked
    at = np.flatnonzero(unusual)
    if len(at) == 0:
        return tokens
    mended = [canonical_token(tokens[row].as_py().decode()).encode() for row in at.tolist()]
    return pc.replace_with_mask(tokens, pa.array(unusual), pa.array(mended, pa.binary()))


class _Verbatim(str):
    """A number's text."""

    __slots__ = ()


def _dump(value: Any) -> str:
    """Canonical JSON of a value whose numbers were kept as text."""
    if isinstance(value, _Verbatim):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(_dump, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{quote(name)}:{_dump(value[name])}" for name in sorted(value)) + "}"
    return json.dumps(value, ensure_ascii=False)


def image_hash(image: str | None) -> bytes:
    """SHA-256, 32 bytes, of the canonical JSON of an image's raw text; no image counts as `null`."""
    if image is None:
        return hashlib.sha256(b"null").digest()
    # Its nesting was looked at when the record was read, by a bound that may be any.
    members = sorted(read_object(image, max_depth=len(image)).items())
    kept = (f"{quote(name)}:{canonical_token(value)}" for name, value in members if value != "null")
    return hashlib.sha256(f"{{{','.join(kept)}}}".encode()).digest()


NO_IMAGE_HASH = image_hash(None)
"""Hash of a change without an image: every delete has it."""


def sha256_each(texts: pa.Array) -> pa.Array:
    """SHA-256 of each binary value."""
    digest = hashlib.sha256
    return pa.array([digest(text).digest() for text in texts.to_pylist()], pa.binary())


_EXACT = CastOptions(infinity="error", special_numeric="error")


def cast_values(spec: TableSpec, column: str, tokens: pa.Array, options: CastOptions) -> ColumnCast:
    """Cast the raw tokens of a column, named as in the lake, to the values that its table keeps.

    Where it is a key of rows they are cast more strictly, and what equals another is written alike.
    """
    kind = spec.columns.get(column, "any")
    if column not in spec.keys:
        found = cast_column(kind, tokens, options)
    elif spec.is_raw(column):
        found = ColumnCast(canonical(tokens).cast(pa.string()))  # two spellings of one JSON text are one key
    elif spec.keep == "log":
        found = cast_column(kind, tokens, options)
    else:
        found = _cast_key(spec, kind, tokens)
    found.values = spec.values_of(found.values)
    return found


def _cast_key(spec: TableSpec, kind: str, tokens: pa.Array) -> ColumnCast:
    found = cast_column(kind, tokens, _EXACT)
    if spec.key_rule > 1:
        found.values = one_spelling(kind, found.values)
    if pa.types.is_floating(found.values.type):
        nan = pc.fill_null(pc.is_nan(found.values), fill_value=False)
        found.failures |= dict.fromkeys(pc.indices_nonzero(nan).to_pylist(), "special_numeric")
        zero = pc.equal(found.values, 0.0)
        found.values = pc.if_else(zero, pa.scalar(0.0, found.values.type), found.values)
    return found


def one_spelling(kind: str, values: pa.Array) -> pa.Array:
    """Return texts of a declared type of which several are one value in PostgreSQL in one spelling."""
    pg_type = parse_type(kind)
    if not pg_type.is_loose:
        return values
    if pg_type.name == "uuid":
        return pc.utf8_lower(values)
    short = pc.replace_substring_regex(values, r"^(-?)0*([0-9].*)$", r"\1\2")
    short = pc.replace_substring_regex(short, r"(\.[0-9]*?)0+$", r"\1")
    short = pc.replace_substring_regex(short, r"\.$", "")
    return pc.if_else(pc.equal(short, "-0"), "0", short)


def key_column(spec: TableSpec, values: Mapping[str, pa.Array]) -> pa.Array:
    """Return `m:key` of each row; among the typed columns is every key column, free of nulls."""
    parts = [value_texts(values[key], raw=spec.is_raw(key)) for key in spec.key_order]
    inner = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, ",")
    return pc.binary_join_element_wise("[", inner, "]", "")


def key_tokens(text: str) -> list[str]:
    """Return the values of a key text, each as canonical JSON."""
    return [_dump(value) for value in json.loads(text, parse_int=_Verbatim, parse_float=_Verbatim)]


def value_texts(values: pa.Array, *, raw: bool) -> pa.Array:
    """Return values as a key has them: canonical JSON, one text for one value; `raw` is JSON already."""
    if raw:
        return values
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return values.cast(pa.string())
    if pa.types.is_timestamp(kind):
        return values.cast(pa.int64()).cast(pa.string())
    if pa.types.is_string(kind):
        return json_texts(values)
    if pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return pc.binary_join_element_wise('"', values.cast(pa.string()), '"', "")
    return pa.array([_one(value) for value in values.to_pylist()], pa.string())


def _one(value: Any) -> str:
    if isinstance(value, bytes):
        return quote(base64.b64encode(value).decode())
    if isinstance(value, float) and not math.isfinite(value):
        return quote(str(value))
    return msgspec.json.encode(value).decode()
