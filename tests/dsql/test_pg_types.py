"""PostgreSQL types: names, Arrow types, values one by one and by the column."""

from __future__ import annotations

import json
import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import ConfigurationError
from headpond.dsql.columns import cast_column
from headpond.dsql.pg_types import CastError, CastOptions, arrow_type, cast, parse_type
from tests.kit.support import share_of, vector_lines

SPARK = {
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "array<bigint>": pa.list_(pa.int64()),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,10)": pa.decimal128(38, 10),
}
STRICT = CastOptions(infinity="error")
FIRST, LAST = date(1, 1, 1), date(9999, 12, 31)


def shown(value: Any, wanted: str) -> Any:
    """A value in the spelling of the vector file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return np.float32(wanted) if np.float32(value) == value != np.float64(wanted) else np.float64(wanted)
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds")
    if isinstance(value, bytes):
        return "hex:" + value.hex()
    return value.isoformat() if isinstance(value, date) else str(value)


@pytest.mark.parametrize(
    "case", vector_lines("dsql/types.jsonl"), ids=lambda c: f"{c['pg_type']} {c['wire'][:40]}"
)
def test_each_value_of_the_vectors(case: dict[str, Any]) -> None:
    """Type, value and error of all 192 values, cast alone and in a column."""
    kind, wire = case["pg_type"], case["wire"]
    assert arrow_type(kind) == SPARK[case["spark_type"]]
    value = cast(kind, wire, STRICT)
    column = cast_column(kind, pa.array([wire]), STRICT)
    if case["error"]:
        assert value == CastError(case["error"])
        assert column.failures == {0: case["error"]}
        assert column.values.to_pylist() == [None]
        return
    assert not column.failures
    assert same(column.values.to_pylist()[0], value)
    if value is None:
        assert case["value"] is None
    elif isinstance(value, float):
        assert same(value, float(shown(value, case["value"])))
    else:
        assert shown(value, case["value"]) == case["value"]


def same(left: Any, right: Any) -> bool:
    """Equal, of one sign, NaN equal to NaN."""
    if isinstance(left, float) and isinstance(right, float):
        alike = math.copysign(1, left) == math.copysign(1, right) and left == right
        return alike or (math.isnan(left) and math.isnan(right))
    return bool(left == right)


NAMES = sorted(
    {case["pg_type"] for case in vector_lines("dsql/types.jsonl")} | {"any", "numeric(5,5)", "numeric(38,0)"}
)
WIRES = [case["wire"] for case in vector_lines("dsql/types.jsonl")]
tokens = st.one_of(
    st.sampled_from(WIRES),
    st.sampled_from(
        ["null", "true", "false", "{}", "[]", "[ ]", "[1]", '"\\u0031"', '"\\/+8="', '"1.50"', "-0", "1E5"]
    ),
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(lambda d: f'"{d:f}"'),
    st.text(st.characters(codec="utf-8"), max_size=6).map(json.dumps),
    st.text(st.characters(codec="utf-8"), max_size=6).map(lambda t: json.dumps(t, ensure_ascii=False)),
    st.integers(1, 6000).map(lambda n: "9" * n),
)


@pytest.mark.thorough
@settings(max_examples=share_of(300))
@given(
    kind=st.sampled_from(NAMES),
    column=st.lists(st.one_of(st.none(), tokens), max_size=12),
    infinity=st.sampled_from(["clamp", "null", "error"]),
    special=st.sampled_from(["null", "error"]),
)
def test_a_column_is_cast_as_its_values_one_by_one(
    kind: str, column: list[str | None], infinity: Any, special: Any
) -> None:
    """The vectorised cast gives what the scalar cast gives: values, failures and the count out of range."""
    options = CastOptions(infinity=infinity, special_numeric=special)
    found = cast_column(kind, pa.array(column, pa.string()), options)
    found.values.validate(full=True)
    values = [None if token is None else cast(kind, token, options) for token in column]
    assert found.failures == {
        row: value.code for row, value in enumerate(values) if isinstance(value, CastError)
    }
    expected = [None if isinstance(value, CastError) else value for value in values]
    assert all(same(a, b) for a, b in zip(found.values.to_pylist(), expected, strict=True))
    strict = [None if token is None else cast(kind, token, STRICT) for token in column]
    assert found.out_of_range == strict.count(CastError("out_of_range"))


def test_a_sliced_column_is_cast_alike() -> None:
    """Arrow slices carry an offset; it is respected."""
    column = pa.array(['"x"', '"a\\n"', None, "null", "7", '"é"']).slice(1)
    assert cast_column("text", column).values.to_pylist() == ["a\n", None, None, None, "é"]
    assert cast_column("text", column).failures == {3: "cast_error"}


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("int4", "integer"),
        ("INT8", "bigint"),
        ("varchar(20)", "varchar"),
        ("character varying (3)", "varchar"),
        ("char(3)", "bpchar"),
        ('"char"', '"char"'),
        ("double  precision", "double precision"),
        ("float(24)", "real"),
        ("float(25)", "double precision"),
        ("timestamp(3) with time zone", "timestamptz"),
        ("timestamp without time zone", "timestamp"),
        ("time with time zone", "timetz"),
        ("decimal(10)", "numeric"),
        ("bool", "boolean"),
    ],
)
def test_types_have_their_other_names(spelled: str, name: str) -> None:
    """Aliases, bounds and case as PostgreSQL takes them."""
    assert parse_type(spelled).name == name


def test_decimal_where_it_fits_and_text_beyond() -> None:
    """numeric(p,s) is a decimal for p up to 38 and 0 ≤ s ≤ p."""
    assert arrow_type("numeric(38,38)") == pa.decimal128(38, 38)
    assert arrow_type("decimal(7)") == pa.decimal128(7, 0)
    assert {arrow_type(kind) for kind in ("numeric", "numeric(39,0)", "numeric(3,5)", "numeric(5,-2)")} == {
        pa.string()
    }


@pytest.mark.parametrize(
    "spelled", ["intger", "text(3)", "numeric(0)", "numeric(1001,0)", "numeric(a)", "numeric(1,2,3)", ""]
)
def test_an_unknown_type_is_refused_with_help(spelled: str) -> None:
    """The message names the type, the next step the nearest known one."""
    with pytest.raises(ConfigurationError) as caught:
        parse_type(spelled)
    assert repr(spelled) in caught.value.message
    assert caught.value.next_step


def test_the_nearest_type_is_named() -> None:
    """A slip of the pen is answered with the type that was meant."""
    with pytest.raises(ConfigurationError, match="Did you mean integer"):
        parse_type("intger")


@pytest.mark.parametrize(
    ("days", "end"),
    [(days, LAST) for days in (2147494604, 2147483647, 106751991167, -2147472692, -622191234, -622191233)]
    + [(days, FIRST) for days in (-2147472691, -2147483648, -106751991168, -622191235, -2440589)],
)
def test_infinite_dates_become_the_end_they_mean(days: int, end: date) -> None:
    """One by one and by the column; a count that wrapped at 32 bits is not the other infinity."""
    assert cast("date", str(days)) == end
    assert cast("date", str(days), CastOptions(infinity="error")) == CastError("infinity")
    tokens = pa.array([str(days).encode(), b"19000"])
    assert cast_column(parse_type("date"), tokens).values.to_pylist() == [end, date(2022, 1, 8)]


def test_infinities_follow_the_option() -> None:
    """Both infinities and finite values beyond Spark's range are clamped, made null, or errors."""
    assert cast("date", "2147494604") == date(9999, 12, 31)
    assert cast("date", "-106751991168") == date(1, 1, 1)
    assert cast("date", "2932897") == date(9999, 12, 31)
    assert cast("timestamp", "-9223372036832400000") == datetime(1, 1, 1)  # noqa: DTZ001 - no zone
    assert cast("timestamp", "9223372036825200000", CastOptions(infinity="null")) is None
    assert cast("numeric(5,1)", '"NaN"', CastOptions(special_numeric="null")) is None
    assert cast("numeric(5,1)", '"-7"') == Decimal("-7.0")


def test_bytes_under_a_null_are_not_read() -> None:
    """Arrow lets a null have bytes; they are no value."""
    texts = pa.array(['"a"', '"b"', "true", "7"])
    hidden = pa.Array.from_buffers(pa.string(), 4, [pa.py_buffer(b"\x01"), *texts.buffers()[1:]])
    for kind in ("text", "boolean", "bigint", "real"):
        found = cast_column(kind, hidden)
        assert found.values.null_count >= 3
        assert set(found.failures) <= {0}
