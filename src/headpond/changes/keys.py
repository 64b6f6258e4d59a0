"""The key of a row as canonical JSON text: an array of its key values after casting, in the order configured.

::

    keys = ["tenant", "doc_id"]      {"tenant": "a b", "doc_id": 11}      ["a b",11]

Integers, times and intervals are digits; texts JSON strings with the fewest escapes; decimals the string with
all digits of their scale; dates ISO strings; timestamps microseconds; bytes Base64; undeclared columns, and
those declared `any`, their canonical JSON.

Keys must stay apart: a value that would be clamped, become NULL or equal no other (NaN) is an error in a key
column of a table that keeps rows by key, whatever the options say of other columns. Of the two zeros of
floating point, one key in PostgreSQL, 0.0 is written.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.model import quote
from headpond.formats.dsql_columns import ColumnCast, cast_column
from headpond.formats.dsql_types import CastOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headpond.changes.config import TableSpec

_NEEDS_ESCAPE = r'["\\\x00-\x1f]'


_EXACT = CastOptions(infinity="error", special_numeric="error")


def cast_values(spec: TableSpec, column: str, tokens: pa.Array, options: CastOptions) -> ColumnCast:
    """Cast a column of a table, more strictly where it is a key that rows are told apart by.

    Args:
        spec: the table.
        column: the column, as named in the lake.
        tokens: its raw tokens.
        options: what becomes of infinities and special numerics where they are allowed.
    """
    kind = spec.columns.get(column, "any")
    if column not in spec.keys or spec.keep == "log":
        return cast_column(kind, tokens, options)
    found = cast_column(kind, tokens, _EXACT)
    if pa.types.is_floating(found.values.type):
        nan = pc.fill_null(pc.is_nan(found.values), fill_value=False)
        found.failures |= dict.fromkeys(pc.indices_nonzero(nan).to_pylist(), "special_numeric")
        zero = pc.equal(found.values, 0.0)
        found.values = pc.if_else(zero, pa.scalar(0.0, found.values.type), found.values)
    return found


def key_column(spec: TableSpec, values: Mapping[str, pa.Array]) -> pa.Array:
    """Give `m:key` of each row.

    Args:
        spec: the table, with keys.
        values: typed columns by name, every key column among them and free of nulls.
    """
    parts = [_json(values[key], raw=spec.is_raw(key)) for key in spec.keys]
    inner = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, ",")
    return pc.binary_join_element_wise("[", inner, "]", "")


def json_texts(values: pa.Array) -> pa.Array:
    """Give texts as JSON strings with the fewest escapes."""
    if pc.any(pc.match_substring_regex(values, _NEEDS_ESCAPE)).as_py():
        return pa.array([None if text is None else quote(text) for text in values.to_pylist()], pa.string())
    return pc.binary_join_element_wise('"', values, '"', "")


def _json(values: pa.Array, *, raw: bool) -> pa.Array:
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
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):  # noqa: PLR0124 - NaN
        return quote(str(value))
    return msgspec.json.encode(value).decode()
