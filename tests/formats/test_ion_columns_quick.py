"""Columns of Ion values that are alike: what the scalar reader gives, value by value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.formats import ion_columns as columns_module
from headpond.formats.ion import RefusedIon
from headpond.formats.ion_columns import ion_columns, ion_json_column, ion_text_column
from headpond.formats.ion_columns_quick import MIN_ALIKE
from headpond.formats.ion_from_text import to_binary

NEVER = 10**9
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


def shown(result: Any) -> Any:
    """All that a result tells; text, because NaN is not equal to itself."""
    told = [
        (
            name,
            str(one.type),
            one.values.type,
            repr(one.values.to_pylist()),
            None if one.offsets is None else one.offsets.to_pylist(),
            one.failures,
        )
        for name, one in result.columns.items()
    ]
    return told, result.repeated


@pytest.mark.thorough
@settings(max_examples=15)
@given(
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3),
    pool=st.lists(SCALARS, min_size=1, max_size=6),
    draw=st.randoms(use_true_random=False),
    kind=st.sampled_from(KINDS),
    others=st.booleans(),
)
def test_alike_or_one_by_one(shapes: list[str], pool: list[str], draw: Any, kind: str, others: bool) -> None:  # noqa: FBT001 - drawn
    """Any mixture of shapes and types, with nulls between, in one piece or several."""
    texts = [draw.choice(shapes).format(*draw.choices(pool, k=3)) for _ in range(3 * MIN_ALIKE)]
    datums = [to_binary(text) for text in texts]
    rows: list[bytes | None] = [*datums[:5], None, *datums[5:], None]
    data = pa.array(rows, pa.binary())
    quick = ion_columns(data, {"a": kind, "gone": "bigint"}, others=others)
    parts = ion_columns(
        pa.chunked_array([data[:70], data[70:]]), {"a": kind, "gone": "bigint"}, others=others
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_module, "MIN_ALIKE", NEVER)
        scalar = ion_columns(data, {"a": kind, "gone": "bigint"}, others=others)
        as_json, as_text = ion_json_column(data), ion_text_column(data)
    assert shown(quick) == shown(scalar)
    assert shown(parts) == shown(scalar)
    assert ion_json_column(data).equals(as_json)
    assert ion_text_column(data).equals(as_text)


@pytest.mark.parametrize("kind", KINDS)
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
        data = pa.array([to_binary(f"{{a:{text}}}")] * MIN_ALIKE, pa.binary())
        quick = ion_columns(data, {"a": kind})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns_module, "MIN_ALIKE", NEVER)
            assert shown(quick) == shown(ion_columns(data, {"a": kind})), text
            texts = ion_text_column(data)
        assert ion_text_column(data).equals(texts), text


def test_one_that_is_damaged_is_refused() -> None:
    """A value that is no Ion raises, wherever it lies among others that are alike."""
    good = to_binary('{a:"text",b:2020-01-01T00:00:00Z}')
    for at in range(4, len(good)):
        damaged = good[:at] + bytes((good[at] ^ 0xFF,)) + good[at + 1 :]
        data = pa.array([good] * MIN_ALIKE + [damaged], pa.binary())
        outcomes = []
        for least in (MIN_ALIKE, NEVER):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(columns_module, "MIN_ALIKE", least)
                try:
                    outcomes.append(shown(ion_columns(data)))
                except RefusedIon as error:
                    outcomes.append(error.reason)
        assert outcomes[0] == outcomes[1]
