"""Headers by the batch against the scalar codec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import UsageError
from headpond.kstreams.bytes.headers import (
    SerializationError,
    decode_headers,
    encode_headers,
    encode_prefix,
    encode_varint,
)
from headpond.kstreams.bytes.headers_arrow import (
    HEADERS_TYPE,
    canonical_headers,
    decode_headers_column,
    encode_headers_column,
    join_prefix,
    merge_headers_columns,
    split_prefix,
    varints,
)
from tests.kit.support import share_of, vector_json
from tests.kstreams.vectors import value_and_headers

HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["", "k", "trace-id", "é" * 40]) | st.text(max_size=3),
        st.none() | st.binary(max_size=3) | st.just(b"x" * 200),
    ),
    max_size=4,
)
ROWS = st.lists(HEADERS, max_size=6)


def column(rows: list[Any]) -> pa.Array:
    return pa.array(
        [None if r is None else [{"key": k, "value": v} for k, v in r] for r in rows], HEADERS_TYPE
    )


def pairs(decoded: pa.Array) -> list[list[tuple[str, bytes | None]]]:
    return [[(each["key"], each["value"]) for each in row] for row in decoded.to_pylist()]


@settings(max_examples=share_of(60))
@given(ROWS, ROWS)
@pytest.mark.slow
def test_columns_are_what_single_records_are(rows: list[Any], others: list[Any]) -> None:
    """Encoding, decoding, slices, merging, and values with their headers before them."""
    encoded = encode_headers_column(column(rows))
    assert encoded.to_pylist() == [encode_headers(each) for each in rows]
    assert pairs(decode_headers_column(encoded)) == rows
    assert pairs(decode_headers_column(encoded[1:])) == rows[1:]
    assert encode_headers_column(column([[("x", b"")], *rows])[1:]).equals(encoded)
    count = min(len(rows), len(others))
    merged = merge_headers_columns(
        encoded[:count], pa.array([encode_headers(each) for each in others[:count]], pa.binary())
    )
    assert pairs(decode_headers_column(merged)) == [a + b for a, b in zip(rows, others, strict=False)]
    values = pa.array([b"v" * len(each) for each in rows], pa.binary())
    payloads = join_prefix(encoded, values)
    assert payloads.to_pylist() == [
        encode_prefix(h) + v for v, h in zip(values.to_pylist(), rows, strict=True)
    ]
    blocks, back = split_prefix(payloads)
    assert (blocks, back) == (encoded, values)


@settings(max_examples=share_of(150))
@given(st.lists(st.binary(max_size=8) | HEADERS.map(encode_headers), max_size=4))
@pytest.mark.slow
def test_any_bytes_have_the_outcome_of_the_scalar_reader(blocks: list[bytes]) -> None:
    """The same headers, or the same reason for the first row that has one."""
    wanted: Any
    try:
        wanted = [decode_headers(each) for each in blocks]
    except SerializationError as error:
        wanted = error.facts["reason"]
    data = pa.array(blocks, pa.binary())
    if isinstance(wanted, str):
        for function in (decode_headers_column, canonical_headers):
            with pytest.raises(SerializationError) as failure:
                function(data)
            assert failure.value.facts["reason"] == wanted
        return
    assert pairs(decode_headers_column(data)) == wanted
    assert canonical_headers(data).to_pylist() == [encode_headers(each) for each in wanted]


@settings(max_examples=share_of(150))
@given(st.lists(st.binary(max_size=8) | HEADERS.map(lambda h: encode_prefix(h) + b"v"), max_size=4))
@pytest.mark.slow
def test_any_payload_is_split_as_the_scalar_reader_splits_it(payloads: list[bytes]) -> None:
    """Or refused for the reason of the first one that cannot be."""
    sound = True
    try:
        wanted = [value_and_headers(each)[0] for each in payloads]
    except SerializationError:
        sound = False
    try:
        blocks, values = split_prefix(pa.array(payloads, pa.binary()))
        decode_headers_column(blocks)
    except SerializationError:
        assert not sound
        return
    assert sound
    assert values.to_pylist() == wanted


def test_every_golden_value_is_split() -> None:
    """Kafka Streams' own bytes."""
    vectors = [each for each in vector_json("window-store/value-formats.json") if each["plain_headers"]]
    payloads = pa.array([bytes.fromhex(each["plain_headers"]) for each in vectors], pa.binary())
    blocks, values = split_prefix(payloads)
    assert [each.hex() for each in blocks.to_pylist()] == [each["headers_bytes"] or "" for each in vectors]
    assert [each.hex() for each in values.to_pylist()] == [each["plain"] for each in vectors]
    assert join_prefix(blocks, values).equals(payloads)


def test_null_lists_are_empty_and_null_keys_are_refused() -> None:
    """Kafka has no header without a key."""
    assert encode_headers_column(column([None, [("k", None)], None])).to_pylist() == [
        b"",
        b"\x02\x02k\x01",
        b"",
    ]
    assert encode_headers_column(column([None] * 100)).to_pylist() == [b""] * 100
    with pytest.raises(UsageError, match="key of a header is null"):
        encode_headers_column(pa.array([[{"key": None, "value": b""}]], HEADERS_TYPE))


@pytest.mark.parametrize(
    "numbers", [range(-1, 1023), range(-1, 1024), range(-2, 100), range(60), [70_000] * 65]
)
def test_columns_of_varints_are_those_of_the_scalar_codec(numbers: list[int]) -> None:
    """Few and many, within what is looked up and beyond it on both ends."""
    found = varints(np.array(numbers, np.int64)).to_pylist()
    assert found == [encode_varint(number) for number in numbers]
