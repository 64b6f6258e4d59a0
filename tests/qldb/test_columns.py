"""Columns of Ion values that are alike: what the scalar reader gives, value by value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.ion.binary import RefusedIon
from headpond.ion.text_reader import to_binary
from headpond.qldb.columns import ion_columns, ion_json_column
from headpond.qldb.shapes import LEAST
from tests.kit.support import share_of

KINDS = ("string", "boolean", "bigint", "decimal(12,2)", "double", "timestamp", "binary", "json")
SCALARS = st.sampled_from(
    [
        *('"x"', '"é\\n\\"\\\\"', '""', "true", "false", "0", "7", "-7", "9223372036854775807"),
        *("9223372036854775808", "-9223372036854775808", "1.00", "-0.5", "1d40", "0d-3", "2e0", "nan"),
        *("2020-02-29", "2020-02-29T12:34:56.789Z", "1969-12-31T23:59:59.9999999Z", "2020-01-01T00:00+05:30"),
        *("2020-01-01T00:00-00:00", "0001-01-01T00:00:00Z", "word", "'two words'", "{{aGk=}}", '{{"clob"}}'),
        *("null", "null.string", "null.struct", "note::1", "(a 1)", "[]", "{}", '[1,"a"]', "{b:1,a:[true]}"),
        *("{a:1,a:2}", "[{z:\"q\",'a b':1.5}]", "x::{a:1}"),
    ]
)  # fmt: skip
SHAPES = (
    "{{a:{0},b:{1}}}",
    "{{b:{0},a:{1},c:{{d:{2},'é\"':{0}}}}}",
    "{{a:{0},a:{1}}}",
    "note::{{a:{0},e:[{1},{2}]}}",
    "{{}}",
    "{0}",
)


def shown(result: Any, rows: int) -> Any:
    """Return all that a result says, row by row; as text, because NaN is not equal to itself."""
    columns = {
        name: (
            one.values.type,
            [repr(value) for value in one.values.to_pylist()],
            [None] * rows if one.offsets is None else one.offsets.to_pylist(),
            one.failures,
        )
        for name, one in result.columns.items()
    }
    return columns, result.repeated


def one_by_one(data: Any, declared: dict[str, str]) -> Any:
    """Return what `shown` has of each row read by itself, put together."""
    columns: dict[str, Any] = {}
    repeated = {}
    for row, value in enumerate(data):
        alone = ion_columns(pa.array([value.as_py()], data.type), declared)
        found, names = shown(alone, 1)
        repeated |= dict.fromkeys([row] if names else [], names.get(0))
        for name, (arrow, values, offsets, failures) in found.items():
            column = columns.setdefault(name, (arrow, ["None"] * len(data), [None] * len(data), {}))
            column[1][row], column[2][row] = values[0], offsets[0]
            column[3].update(dict.fromkeys([row] if failures else [], failures.get(0)))
    return columns, repeated


@pytest.mark.thorough
@settings(max_examples=share_of(15))
@given(
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3),
    pool=st.lists(SCALARS, min_size=1, max_size=6),
    draw=st.randoms(use_true_random=False),
    kind=st.sampled_from(KINDS),
)
def test_alike_or_one_by_one(shapes: list[str], pool: list[str], draw: Any, kind: str) -> None:
    """Any mixture of shapes and types, with nulls between, in one piece or several."""
    texts = [draw.choice(shapes).format(*draw.choices(pool, k=3)) for _ in range(5 * LEAST)]
    datums = [to_binary(text) for text in texts]
    rows: list[bytes | None] = [*datums[:5], None, *datums[5:], None]
    data = pa.array(rows, pa.binary())
    declared = {"a": kind, "gone": "bigint"}
    quick = ion_columns(data, declared)
    parts = ion_columns(pa.chunked_array([data[:70], data[70:]]), declared)
    scalar = one_by_one(data, declared)
    assert shown(quick, len(data)) == scalar
    assert list(quick.columns) == list(scalar[0])
    assert shown(parts, len(data)) == scalar
    alone = [ion_json_column(pa.array([row], pa.binary()))[0] for row in rows]
    assert ion_json_column(data).to_pylist() == [text.as_py() for text in alone]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_each_type_from_values_that_are_alike(kind: str) -> None:
    """Every scalar as often as a shape needs: the way through the shapes is the one that is tried."""
    for text in (
        '"x"',
        "true",
        "7",
        "-7",
        "1.25",
        "2e0",
        "2020-02-29T12:34:56.789Z",
        "2020-02-29",
        "word",
        "{{aGk=}}",
    ):
        data = pa.array([to_binary(f"{{a:{text}}}")] * LEAST, pa.binary())
        assert shown(ion_columns(data, {"a": kind}), LEAST) == one_by_one(data, {"a": kind}), text


def test_one_that_is_damaged_is_refused() -> None:
    """A value that is not Ion raises, wherever it lies among others that are alike."""
    good = to_binary('{a:"text",b:2020-01-01T00:00:00Z}')
    for at in range(4, len(good)):
        damaged = good[:at] + bytes((good[at] ^ 0xFF,)) + good[at + 1 :]
        data = pa.array([good] * LEAST + [damaged], pa.binary())
        try:
            judged: Any = one_by_one(data, {})
        except RefusedIon as error:
            judged = error.reason
        try:
            found: Any = shown(ion_columns(data), len(data))
        except RefusedIon as error:
            found = error.reason
        assert found == judged
