"""Spans of one buffer become Arrow columns, and varints of many places are read at once."""

from __future__ import annotations

import runpy

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.core import arrow
from headpond.core.errors import MissingRequirement
from headpond.kstreams.bytes.headers import SerializationError, decode_varint, encode_varint


@given(st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=5))), st.binary(max_size=3))
def test_slices_are_the_spans(pairs: list[tuple[bytes, bytes]], end: bytes) -> None:
    """Each span is copied, whatever lies between, before and behind."""
    starts, ends, data = [], [], b""
    for gap, value in pairs:
        starts.append(len(data) + len(gap))
        data += gap + value
        ends.append(len(data))
    found = arrow.slices(pa.py_buffer(data + end), np.array(starts, np.int64), np.array(ends, np.int64))
    found.validate(full=True)
    assert found.type == pa.binary()
    assert found.to_pylist() == [value for _, value in pairs]


def test_slices_of_nothing() -> None:
    """Spans may be empty, end before they begin, or lie in no buffer at all."""
    some = np.array([3, 3, 5])
    assert arrow.slices(pa.py_buffer(b"abcdef"), some, np.array([3, 1, 6])).to_pylist() == [b"", b"", b"f"]
    assert arrow.slices(None, np.zeros(2, np.int64), np.zeros(2, np.int64)).to_pylist() == [b"", b""]
    assert arrow.slices(None, np.zeros(0, np.int64), np.zeros(0, np.int64)).to_pylist() == []


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_offsets_respect_slices(kind: pa.DataType) -> None:
    """Offsets are those of the values in a slice, in the width of the type."""
    values = pa.array([b"a", b"bcd", None, b"ef"]).cast(kind)
    assert arrow.offsets_of(values.slice(1, 2)).tolist() == [1, 4, 4]
    assert arrow.offsets_of(values.slice(4)).tolist() == [6]
    assert bytes(arrow.bytes_of(values)) == b"abcdef"
    assert arrow.valid(values).tolist() == [True, True, False, True]


def test_numbers_with_a_mask() -> None:
    """Numbers that are not given are null."""
    numbers = np.array([1, -2, 3], np.int64)
    assert arrow.int64_array(numbers).to_pylist() == [1, -2, 3]
    assert arrow.int64_array(numbers, np.array([True, False, True])).to_pylist() == [1, None, 3]


def test_texts_that_are_not_utf8_are_marked() -> None:
    """What is not UTF-8 is empty and marked; the others are strings."""
    found, good = arrow.texts(pa.array([b"a", b"\xff", None, "é".encode()]))
    assert found.to_pylist() == ["a", "", None, "é"]
    assert good.tolist() == [True, False, True, True]


def test_rows_are_taken_across_chunks() -> None:
    """Of chunks that are empty, or of which no row is wanted, too."""
    chunks = [[1, 2, 3], [], [4, 5], [6]]
    rows = pa.table({"n": pa.chunked_array(chunks, pa.int64())})
    for at in ([], [0], [2, 3], [0, 1, 2, 3, 4, 5], [5]):
        assert arrow.taken(rows, np.array(at, np.int64))["n"].to_pylist() == [n + 1 for n in at]


def test_ranges_are_written_out() -> None:
    """Every pair of start and count becomes its numbers."""
    assert arrow.ranges(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]


@given(
    st.lists(
        st.one_of(st.binary(max_size=7), st.integers(-(2**31), 2**31 - 1).map(encode_varint)), max_size=8
    )
)
def test_varints_as_the_scalar_reader(parts: list[bytes]) -> None:
    """Numbers, positions and refusals are those of the reader of one varint."""
    ends = np.cumsum([len(part) for part in parts]).astype(np.int64)
    starts = ends - np.array([len(part) for part in parts], np.int64)
    data = np.frombuffer(b"".join(parts), np.uint8)
    numbers, after, whole = arrow.zigzag_varints(data, starts, ends)
    for row, part in enumerate(parts):
        try:
            number, at = decode_varint(part, 0)
        except SerializationError:
            assert not whole[row]
        else:
            assert (numbers[row], after[row] - starts[row], whole[row]) == (number, at, True)


@given(st.lists(st.integers(-3, 3)))
def test_each_number_once(numbers: list[int]) -> None:
    assert arrow.distinct(np.array(numbers, np.int64)).tolist() == sorted(set(numbers))


def test_an_older_pyarrow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor has what its image brings, and an older one gives other bytes than it was given."""
    monkeypatch.setattr(pa, "__version__", "23.0.1")
    with pytest.raises(MissingRequirement, match=r"pyarrow 24 or .* has 23\.0\.1, .*'pyarrow>=24'"):
        runpy.run_path(arrow.__file__)
    monkeypatch.setattr(pa, "__version__", "100.0.0.dev7+gabc")
    runpy.run_path(arrow.__file__)


def test_part_of_a_column_keeps_its_bytes() -> None:
    """What an older pyarrow does not do."""
    part = pa.array([b"abc", b"de", None, "é".encode()]).slice(1)
    chosen = pc.if_else(pa.array([True, False, True]), part, pa.scalar(b"x"))
    assert chosen.to_pylist() == [b"de", b"x", "é".encode()]
