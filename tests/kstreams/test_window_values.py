"""Value formats and conversions, one by one and by the batch, against Kafka Streams' own bytes."""

from __future__ import annotations

from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import UsageError
from headpond.kstreams.bytes.headers import SerializationError
from headpond.kstreams.bytes.window_keys import encode_store_key
from headpond.kstreams.bytes.window_values import (
    ValueFormat,
    conversion,
    decode_value,
    encode_value,
    timestamp_of,
)
from headpond.kstreams.bytes.window_values_arrow import (
    bytes_of,
    column_of,
    convert_values,
    numbers_of,
    value_timestamps,
    window_starts,
)
from tests.kit.support import share_of, vector_json

CASES = vector_json("window-store/value-formats.json")
FORMATS = list(ValueFormat)
PAIRS = list(product(FORMATS, FORMATS))


def unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def headers_of(listed: list[Any] | None) -> list[tuple[str, bytes | None]] | None:
    return None if listed is None else [(key, unhex(value)) for key, value in listed]


def scalar_outcome(
    data: list[bytes | None], source: ValueFormat, target: ValueFormat
) -> tuple[list[bytes | None], str | None]:
    """What converting one by one gives: the results, or the reason of the first error."""
    try:
        return [conversion(source, target)(each) for each in data], None
    except SerializationError as error:
        return [], str(error.facts["reason"])


def test_values_encode_to_the_vectors() -> None:
    """Every value, timestamp and header list gives the four byte strings of Kafka Streams."""
    for case in CASES:
        value, timestamp, headers = unhex(case["value"]), case["timestamp"], headers_of(case["headers"])
        for each in FORMATS:
            encoded = None if value is None else encode_value(value, timestamp, headers, each)
            assert encoded == unhex(case[each.value])


def test_values_decode_from_the_vectors() -> None:
    """The bytes give value, timestamp and headers back; null headers come back as none."""
    for case in CASES:
        if case["value"] is None:
            continue
        for each in FORMATS:
            assert decode_value(bytes.fromhex(case[each.value]), each) == (
                unhex(case["value"]),
                case["timestamp"] if each.has_timestamp else None,
                (headers_of(case["headers"]) or []) if each.has_headers else [],
            )


def test_conversions_equal_the_vectors() -> None:
    """Each conversion that Kafka Streams has gives its bytes, by its name."""
    for case in CASES:
        for name, expected in case["conversions"].items():
            source, target = name.split("_to_")
            convert = conversion(ValueFormat(source), ValueFormat(target))
            assert convert(unhex(case[source])) == unhex(expected), name


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_conversions_equal_decoding_and_encoding_anew(source: ValueFormat, target: ValueFormat) -> None:
    """Moving bytes gives what reading and writing gives; -1 and no headers stand for what was not there."""
    convert = conversion(source, target)
    assert convert(None) is None
    for case in CASES:
        data = unhex(case[source.value])
        if data is None:
            continue
        value, timestamp, headers = decode_value(data, source)
        expected = encode_value(value, -1 if timestamp is None else timestamp, headers, target)
        assert convert(data) == expected
        assert timestamp_of(data, source) == timestamp


@pytest.mark.parametrize("form", ["timestamped_headers", "plain_headers"])
def test_damaged_bytes_end_as_the_vectors_say(form: str) -> None:
    """Error or not is as in Kafka Streams, and so is what is read where it is not."""
    for case in vector_json("window-store/decode-outcomes.json"):
        data, expected = bytes.fromhex(case["bytes"]), case[f"as_{form}"]
        if "error" in expected:
            with pytest.raises(SerializationError) as caught:
                decode_value(data, ValueFormat(form))
            assert caught.value.facts["reason"]
        else:
            found = decode_value(data, ValueFormat(form))
            assert found[0] == unhex(expected["value"])
            assert found[-1] == headers_of(expected["headers"])
            if form == "timestamped_headers":
                assert found[1] == expected["timestamp"]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_stripping_damaged_bytes_raises_our_error_or_nothing(
    source: ValueFormat, target: ValueFormat
) -> None:
    """A conversion checks sizes only, but never fails with an index error; by the batch it fails alike."""
    for case in vector_json("window-store/decode-outcomes.json"):
        data = bytes.fromhex(case["bytes"])
        expected, reason = scalar_outcome([data], source, target)
        if reason:
            with pytest.raises(SerializationError, match="Row 1") as caught:
                convert_values(pa.array([None, data]), source, target)
            assert caught.value.facts["reason"] == reason
            assert caught.value.facts["row"] == 1
        else:
            assert convert_values(pa.array([None, data]), source, target).to_pylist() == [None, *expected]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_batches_convert_like_single_values(source: ValueFormat, target: ValueFormat) -> None:
    """All vectors as one Arrow array, as a slice of one, and as large_binary."""
    data = [unhex(case[source.value]) for case in CASES]
    expected = [conversion(source, target)(each) for each in data]
    array = pa.array(data, pa.binary())
    assert convert_values(array, source, target).to_pylist() == expected
    assert convert_values(array.slice(7, 90), source, target).to_pylist() == expected[7:97]
    large = convert_values(pa.array(data, pa.large_binary()), source, target)
    assert large.type == pa.large_binary()
    assert large.to_pylist() == expected


VALUES = st.one_of(
    st.none(),
    st.tuples(
        st.binary(max_size=90),
        st.integers(-(2**63), 2**63 - 1),
        st.lists(
            st.tuples(st.sampled_from(["k", "trace-id", ""]), st.one_of(st.none(), st.binary(max_size=70)))
        ),
    ),
)


@pytest.mark.slow
@given(st.lists(VALUES, max_size=12), st.sampled_from(PAIRS), st.integers(0, 3), st.data())
@settings(max_examples=share_of(200))
def test_batch_and_scalar_conversions_are_one(
    values: list[Any], pair: tuple[ValueFormat, ValueFormat], skipped: int, data: st.DataObject
) -> None:
    """For any values, nulls among them, any pair of formats, any slice, and any cut of one value."""
    source, target = pair
    encoded = [None if each is None else encode_value(*each, source) for each in values]
    array = pa.array(encoded, pa.binary()).slice(skipped)
    assert convert_values(array, source, target).to_pylist() == [
        conversion(source, target)(each) for each in encoded[skipped:]
    ]
    if source.has_timestamp:
        assert value_timestamps(array, source).to_pylist() == [each and each[1] for each in values[skipped:]]
    cut = [each[: data.draw(st.integers(0, len(each)))] if each else each for each in encoded]
    expected, reason = scalar_outcome(cut, source, target)
    if reason:
        with pytest.raises(SerializationError) as caught:
            convert_values(pa.array(cut, pa.binary()), source, target)
        assert caught.value.facts["reason"] == reason
    else:
        assert convert_values(pa.array(cut, pa.binary()), source, target).to_pylist() == expected


def test_bytes_under_a_null_do_not_come_through() -> None:
    """An Arrow null may hide bytes; they neither count as damage nor reach the result."""
    hidden = pa.Array.from_buffers(
        pa.binary(),
        3,
        [
            pa.py_buffer(bytes([0b101])),
            pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 10, 12, 22))),
            pa.py_buffer(b"\x00" + bytes(8) + b"a" + b"\x80\x80" + b"\x00" + bytes(8) + b"b"),
        ],
    )
    converted = convert_values(hidden, ValueFormat.TIMESTAMPED_HEADERS, ValueFormat.PLAIN_HEADERS)
    assert converted.to_pylist() == [b"\x00a", None, b"\x00b"]
    assert value_timestamps(hidden, ValueFormat.TIMESTAMPED_HEADERS).to_pylist() == [0, None, 0]


def test_window_starts_come_out_of_keys() -> None:
    """The eight bytes before the sequence number, whatever the key; a short key is named."""
    keys = [encode_store_key(b"k" * size, start, size) for size, start in enumerate([0, -5, 2**62])]
    assert window_starts(pa.array(keys).slice(1)).to_pylist() == [-5, 2**62]
    with pytest.raises(SerializationError, match="row 1"):
        window_starts(pa.array([keys[0], b"short"]))


def test_columns_are_made_of_lists_and_give_their_bytes() -> None:
    """A column equals Arrow's own; its bytes are those of the values behind each other, also of a slice."""
    values = [b"a", b"", b"bcd"]
    assert column_of(values).equals(pa.array(values, pa.large_binary()))
    assert column_of([]).to_pylist() == []
    assert bytes(bytes_of(column_of(values))) == b"abcd"
    assert bytes(bytes_of(pa.array(values).slice(1))) == b"bcd"
    assert numbers_of(pa.array([1, -2, 3]).slice(1)).tolist() == [-2, 3]


def test_other_arrays_are_refused() -> None:
    """Text is not bytes, and a plain value has no timestamp to read."""
    with pytest.raises(UsageError, match="string"):
        convert_values(pa.array(["a"]), ValueFormat.PLAIN, ValueFormat.PLAIN_HEADERS)
    with pytest.raises(UsageError, match="no timestamp"):
        value_timestamps(pa.array([b"a"]), ValueFormat.PLAIN)
