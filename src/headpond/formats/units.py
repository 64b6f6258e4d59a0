"""Sizes and spans of time as people write them: `64 MiB`, `5 seconds`, `1.5 hours`.

A size is a number and B, KB, KiB, MB, MiB, GB, GiB, TB or TiB (K, M, … are 1000; Ki, Mi, … are 1024). A
span is a number and milliseconds, seconds, minutes, hours, days or weeks, in full, in the singular, or as
ms, s, min, h, d. Numbers may have decimals as long as the result is a whole number of bytes or milliseconds.
"""

from __future__ import annotations

import re
from decimal import Decimal

SIZE_UNITS = {
    "b": 1,
    "byte": 1,
    "bytes": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
"""Unit in lower case → bytes."""

SPAN_UNITS = {
    "ms": 1,
    "millisecond": 1,
    "milliseconds": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "seconds": 1_000,
    "min": 60_000,
    "minute": 60_000,
    "minutes": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "hours": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "days": 86_400_000,
    "week": 604_800_000,
    "weeks": 604_800_000,
}
"""Unit in lower case → milliseconds."""

LARGEST = 2**62  # what fits a signed 64-bit integer with room for a sum

_SHAPE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)", re.ASCII)


def parse_size(text: str, *, bare: bool = False) -> int:
    """Read a size in bytes; with `bare` a number without a unit counts bytes.

    Raises:
        ValueError: No number, no unit, an unknown unit, a part of a byte, or more than 2^62.
    """
    return _parse(text, SIZE_UNITS, "64 MiB", bare=bare)


def parse_span(text: str, *, bare: bool = False) -> int:
    """Read a span of time in milliseconds; with `bare` a number without a unit counts milliseconds.

    Raises:
        ValueError: No number, no unit, an unknown unit, a part of a millisecond, or more than 2^62.
    """
    return _parse(text, SPAN_UNITS, "5 seconds", bare=bare)


def _parse(text: str, units: dict[str, int], example: str, *, bare: bool) -> int:
    match = _SHAPE.fullmatch(text.strip())
    factor = None if match is None else units.get(match[2].lower(), 1 if bare and not match[2] else None)
    if match is None or factor is None:
        raise ValueError(f"a number and a unit, as in {example!r}")
    exact = Decimal(match[1]) * factor
    if exact != int(exact) or exact > LARGEST:
        raise ValueError(f"a whole number of the smallest unit, at most 2^62, as in {example!r}")
    return int(exact)
