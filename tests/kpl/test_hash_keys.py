"""Hash keys: the vectors, the strict and the forgiving reading of explicit ones."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.kpl.hash_keys import (
    FULL_RANGE,
    MAX_HASH_KEY,
    HashKeyRange,
    InvalidHashKey,
    canonical_hash_key,
    effective_hash_key,
    hash_key,
    number_of,
)
from tests.kit.support import vector_json


@pytest.mark.parametrize(
    "case", vector_json("kpl/hash_keys.json"), ids=lambda c: ascii(c["partition_key"])[:20]
)
def test_vector(case: dict[str, Any]) -> None:
    """A partition key's hash key, and its place among four equal shards, are the KPL's."""
    found = hash_key(case["partition_key"])
    assert str(found) == case["hash_key"]
    assert found >> 126 == case["shard_index_of_4_equal"]
    assert hash_key(case["partition_key"].encode()) == found


def test_works_where_md5_is_blocked_for_security(monkeypatch: pytest.MonkeyPatch) -> None:
    """The MD5 is asked for as not for security, as FIPS builds require."""
    real = hashlib.md5

    def guarded(data: Any = b"", *, usedforsecurity: bool = True) -> Any:
        if usedforsecurity:
            raise ValueError("disabled for FIPS")
        return real(data, usedforsecurity=False)

    monkeypatch.setattr(hashlib, "md5", guarded)
    assert hash_key("partition-key") == 171922231538597478840392253176536055210


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("00", "0"),
        ("010", "10"),
        (" 7\n", "7"),
        (str(MAX_HASH_KEY), str(MAX_HASH_KEY)),
        ("0" * 5000 + "5", "5"),
    ],
)
def test_canonical_form(text: str, canonical: str) -> None:
    """Leading zeros and blanks go; the number stays."""
    assert canonical_hash_key(text) == canonical


@pytest.mark.parametrize(
    "text", ["", " ", "-1", "+1", "0x10", "1e3", "1_0", "\u0663", str(MAX_HASH_KEY + 1), "9" * 9999]
)
def test_refused_spellings(text: str) -> None:
    """What is not plain digits up to 2^128 - 1 is refused, with the facts."""
    with pytest.raises(InvalidHashKey) as caught:
        canonical_hash_key(text)
    assert caught.value.facts["what"] == "explicit_hash_key"
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12),
        ("+12", 12),
        ("-3", -1),
        ("-0", 0),
        ("\u0663\u0664", 34),
        ("undefined", None),
        ("", None),
        ("1_0", None),
        ("- 1", None),
        ("0" * 6000 + "7", 7),
        ("\u0660" * 6000 + "\u0667", 7),
        ("0" * 6000, 0),
        ("9" * 6000, MAX_HASH_KEY + 1),
        ("-" + "9" * 6000, -1),
        (str(MAX_HASH_KEY), MAX_HASH_KEY),
        (str(MAX_HASH_KEY + 1), MAX_HASH_KEY + 1),
    ],
)
def test_reading_what_is_in_a_stream(text: str, number: int | None) -> None:
    """Numbers are read as the KCL reads them; anything beyond the ring is one step beyond it."""
    assert number_of(text) == number


@given(st.integers(min_value=0, max_value=MAX_HASH_KEY), st.integers(0, 5))
def test_every_hash_key_has_one_spelling(number: int, zeros: int) -> None:
    """Any spelling of a number leads to the same text and back to the number."""
    assert canonical_hash_key("0" * zeros + str(number)) == str(number)
    assert number_of("0" * zeros + str(number)) == number


def test_ranges_include_both_ends() -> None:
    """A shard's range holds its start and its end."""
    shard = HashKeyRange(5, 7)
    assert [key in shard for key in (4, 5, 7, 8)] == [False, True, True, False]
    assert MAX_HASH_KEY in FULL_RANGE
    assert "5" not in shard


def test_explicit_key_goes_before_the_hash() -> None:
    """A user record routes by its explicit hash key, else by its partition key."""
    assert effective_hash_key("k", "5") == 5
    assert effective_hash_key("k", None) == hash_key("k")
    assert effective_hash_key("k", "undefined") is None
