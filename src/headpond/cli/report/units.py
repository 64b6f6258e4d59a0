"""Numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

_KIBI = 1024
_STEPS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


def figure(number: float) -> str:
    """A number with thin spaces between thousands; decimals only below 10."""
    text = f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.2g}"  # noqa: PLR2004 - from two digits on
    return text.replace(",", "\N{NARROW NO-BREAK SPACE}")


def size(number: float) -> str:
    """Bytes in the largest unit of which there is one."""
    unit = 0
    while number >= _KIBI and unit < len(_STEPS) - 1:
        number /= _KIBI
        unit += 1
    return f"{number:.0f} {_STEPS[unit]}" if number >= 10 or unit == 0 else f"{number:.1f} {_STEPS[unit]}"  # noqa: PLR2004 - from two digits on


def span(seconds: float) -> str:
    """A span of time in the unit that suits it."""
    if seconds < _MINUTE_S:
        return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h" if seconds < _DAY_S else f"{seconds / _DAY_S:.1f} days"


def moment(at_ms: int, *, date: bool = False) -> str:
    """A time of day in UTC, with its date if wanted."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}" if date else f"{at:%H:%M:%S}"
