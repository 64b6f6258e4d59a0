"""Versions are bytes that compare as the spec orders changes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.dsql.versions import decode_versions, encode_versions
from tests.dsql.driver import encode_version

changes = st.tuples(
    st.integers(0, 2**63 - 1) | st.integers(0, 3),
    st.text(st.sampled_from("ab\x00\x01é\U0001f680"), max_size=4),
    st.booleans(),
)


@given(changes, changes)
def test_bytes_compare_as_the_tuple(first: tuple[int, str, bool], second: tuple[int, str, bool]) -> None:
    """Commit time, then txId by its UTF-8 bytes, then delete before upsert."""
    encoded = [encode_version(ts_ns, tx_id, delete=delete) for ts_ns, tx_id, delete in (first, second)]
    tuples = [(ts_ns, tx_id.encode(), not delete) for ts_ns, tx_id, delete in (first, second)]
    assert (encoded[0] < encoded[1]) == (tuples[0] < tuples[1])
    assert (encoded[0] == encoded[1]) == (tuples[0] == tuples[1])


@given(st.lists(changes, max_size=5))
@pytest.mark.slow
def test_a_column_of_versions_is_encoded_as_one_by_one(rows: list[tuple[int, str, bool]]) -> None:
    """And can be read back."""
    columns = [
        pa.array([row[i] for row in rows], kind)
        for i, kind in enumerate((pa.int64(), pa.string(), pa.bool_()))
    ]
    found = encode_versions(*columns)
    assert found.to_pylist() == [encode_version(ts_ns, tx_id, delete=delete) for ts_ns, tx_id, delete in rows]
    decoded = decode_versions(pa.chunked_array([found[:2], found[2:]]))
    assert [column.to_pylist() for column in decoded] == [[row[i] for row in rows] for i in range(3)]
