"""Times in milliseconds since 1970 and as people write them: ISO 8601, with a zone.

>>> as_utc(parse_time_ms("2026-01-01T02:00:00.500+02:00"))
'2026-01-01T00:00:00Z'
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_utc(time_ms: int) -> str:
    """Write a time for a message, to the second."""
    try:
        return f"{_EPOCH + timedelta(seconds=time_ms // 1000):%Y-%m-%dT%H:%M:%SZ}"
    except OverflowError:
        return f"{time_ms} ms"


def parse_time_ms(text: str) -> int:
    """Read a time in ISO 8601 with its zone, in milliseconds since 1970; a ValueError says what is wrong."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time in ISO 8601") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone, such as Z or +02:00")
    return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))
