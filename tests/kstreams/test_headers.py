"""Header lists and varints: the vectors, the round trip, every cut, and what a reader accepts on purpose."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import InvalidData, UsageError
from headpond.kstreams.bytes.headers import (
    SerializationError,
    decode_headers,
    decode_prefix,
    decode_varint,
    encode_headers,
    encode_prefix,
    encode_varint,
    prefix_bounds,
)
from tests.kit.support import share_of, vector_json

HEADERS = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.one_of(st.none(), st.binary(max_size=80)),
    ),
    max_size=6,
)
VARINTS = {
    0: "00",
    -1: "01",
    1: "02",
    2: "04",
    63: "7e",
    64: "8001",
    8191: "fe7f",
    8192: "808001",
    2**31 - 1: "feffffff0f",
    -(2**31): "ffffffff0f",
}


@pytest.mark.parametrize(("number", "data"), VARINTS.items())
def test_varints_are_zigzag_groups_of_seven_bits(number: int, data: str) -> None:
    """The spec's table, in both directions."""
    assert encode_varint(number).hex() == data
    assert decode_varint(bytes.fromhex(data)) == (number, len(data) // 2)


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=4))
@settings(max_examples=share_of(200))
@pytest.mark.slow
def test_a_varint_ends_where_it_ends(number: int, behind: bytes) -> None:
    """Whatever follows a varint is left alone."""
    data = encode_varint(number)
    assert decode_varint(data + behind) == (number, len(data))


def test_longer_varints_and_excess_bits_are_read_like_in_java() -> None:
    """A non-minimal form is fine, and the fifth byte's bits above the 32nd vanish."""
    assert decode_varint(bytes.fromhex("8000")) == (0, 2)
    assert decode_varint(bytes.fromhex("feffffff7f")) == (2**31 - 1, 5)


@pytest.mark.parametrize(
    ("data", "reason"), [("80", "varint_cut"), ("", "varint_cut"), ("8080808080", "varint_too_long")]
)
def test_bad_varints_have_a_reason(data: str, reason: str) -> None:
    """A cut and an endless varint are told apart."""
    with pytest.raises(SerializationError) as caught:
        decode_varint(bytes.fromhex(data))
    assert caught.value.facts["reason"] == reason


def test_numbers_beyond_32_bits_are_refused() -> None:
    """A varint has 32 bits."""
    with pytest.raises(UsageError, match="32 bits"):
        encode_varint(2**31)


def test_headers_bytes_equal_the_vectors() -> None:
    """Every header list of the vectors gives its bytes, and the bytes give it back."""
    for case in vector_json("window-store/value-formats.json"):
        listed = case["headers"]
        headers = listed and [(key, None if value is None else bytes.fromhex(value)) for key, value in listed]
        data = encode_headers(headers)
        assert data.hex() == case["headers_bytes"]
        assert decode_headers(data) == (headers or [])


@given(HEADERS)
@settings(max_examples=share_of(150))
def test_headers_survive(headers: list[tuple[str, bytes | None]]) -> None:
    """Order, repeated keys, empty keys, and null against empty values all come back."""
    assert decode_headers(encode_headers(headers)) == headers
    prefix = encode_prefix(headers)
    assert decode_prefix(prefix + b"rest") == (headers, len(prefix))


@given(HEADERS.filter(bool))
@settings(max_examples=share_of(50))
def test_every_cut_of_a_block_is_an_error(headers: list[tuple[str, bytes | None]]) -> None:
    """A block that lost bytes at its end is never read as fewer headers, except where all are gone."""
    data = encode_headers(headers)
    for size in range(1, len(data)):
        with pytest.raises(SerializationError):
            decode_headers(data[:size])


@pytest.mark.parametrize("block", ["00", "01", "00ffff", "02026b0276ffff"])
def test_what_a_reader_accepts_on_purpose(block: str) -> None:
    """Counts of zero or less are no headers; bytes after the last header are skipped."""
    expected = [("k", b"v")] if block.startswith("02") else []
    assert decode_headers(bytes.fromhex(block)) == expected


def test_ill_formed_utf8_becomes_the_replacement_character() -> None:
    """A key is text for whoever reads it, damaged or not."""
    assert decode_headers(bytes.fromhex("0202ff00")) == [("\ufffd", b"")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "empty"),
        ("80", "varint_cut"),
        ("8080808080", "varint_too_long"),
        ("01", "negative_length"),
        ("0600", "length_beyond_end"),
        ("0802016b01", "negative_length"),
        ("0802026b0300", "negative_length"),
        ("04020202", "length_beyond_end"),
        ("0a04026b0180", "varint_cut"),
        ("0804026b01", "headers_cut"),
    ],
)
def test_each_kind_of_damage_has_its_reason(data: str, reason: str) -> None:
    """The table of the spec; the error is also a InvalidData and a ValueError."""
    with pytest.raises(SerializationError) as caught:
        decode_prefix(bytes.fromhex(data))
    assert caught.value.facts["reason"] == reason
    assert isinstance(caught.value, InvalidData)


def test_bounds_do_not_read_the_block() -> None:
    """Who only strips headers gets their place even where the block itself is damaged."""
    assert prefix_bounds(bytes.fromhex("04ffffaa")) == (1, 3)


@pytest.mark.parametrize("header", [(None, b""), (b"k", b""), ("\ud800", b""), ("k", "v")])
def test_headers_that_cannot_be_are_refused(header: tuple[object, object]) -> None:
    """A key is well-formed text; a value is bytes or null."""
    with pytest.raises(UsageError):
        encode_headers([header])  # type: ignore[list-item]


@pytest.mark.parametrize("headers", [{"trace-id": b"1"}, [("k",)], 5, [b"k"]])
def test_what_is_no_list_of_pairs_is_refused(headers: object) -> None:
    """A dictionary, above all."""
    with pytest.raises(UsageError, match="pairs of key and value"):
        encode_headers(headers)  # type: ignore[arg-type]
