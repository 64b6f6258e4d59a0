"""Sizes and spans of time as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headpond.core.options import parse_size, parse_span


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64 MiB", 67_108_864),
        ("1kb", 1000),
        ("1.5 KiB", 1536),
        ("7 B", 7),
        (" 2 GiB ", 2**31),
        ("1 TB", 10**12),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    """Decimal and binary units, with and without a space."""
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500 ms", 500),
        ("5 seconds", 5_000),
        ("1 Second", 1_000),
        ("1.5 h", 5_400_000),
        ("7 days", 604_800_000),
        ("2min", 120_000),
        ("1 week", 604_800_000),
    ],
)
def test_spans(text: str, expected: int) -> None:
    """Units in full and short, singular and plural."""
    assert parse_span(text) == expected


@pytest.mark.parametrize(
    "text", ["", "5", "seconds", "-5 s", "5 parsecs", "1e3 s", "0.5 ms", "\u0661 s", "9" * 19 + " d"]
)
def test_no_spans(text: str) -> None:
    """No number, no unit, a sign, an unknown unit, a part of a millisecond, too much."""
    with pytest.raises(ValueError, match="as in '5 seconds'"):
        parse_span(text)


@given(st.integers(0, 10**12), st.sampled_from(["B", "kB", "KiB", "MiB"]))
@pytest.mark.slow
def test_whole_sizes_are_exact(number: int, unit: str) -> None:
    """No size goes through a binary fraction."""
    factor = {"B": 1, "kB": 1000, "KiB": 1024, "MiB": 1024**2}[unit]
    assert parse_size(f"{number} {unit}") == number * factor


def test_a_bare_number_counts_where_it_is_allowed() -> None:
    """Options of Spark take it, the pipeline file does not."""
    assert parse_size("64", bare=True) == 64
    assert parse_span("500", bare=True) == 500
    with pytest.raises(ValueError, match="as in '64 MiB'"):
        parse_size("64")
    with pytest.raises(ValueError, match="as in '64 MiB'"):
        parse_size("64 parsecs", bare=True)
