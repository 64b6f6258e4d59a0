"""Timestamps of Ion: any precision from the year to digits of a second, the offset beside the instant.

::

    6L  offset   year     month day hour minute second  fraction
        VarInt   VarUInt  VarUInt …                     exponent VarInt, coefficient Int
        minutes  └──────── all in UTC ───────────────┘  of a second, below 1
        C0 = unknown (-00:00)

    2019-09-18T17:00:14.601000001-07:00      text shows the local time, as it was written
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headpond.ion.binary import Node, refuse, sign_and_magnitude, var_int, var_uint

PRECISIONS = ("year", "month", "day", "minute", "second")
_DAY = 3
_NS = 1_000_000_000
_MAX_OFFSET = 24 * 60
_MAX_DIGITS = 4096
"""Digits of a fraction that are written out; more are refused as damaged."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_MINUTE = timedelta(minutes=1)
_TEXT = re.compile(
    r"([0-9]{4})(?:T|-([0-9]{2})(?:T|-([0-9]{2})(?:T(?:([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?"
    r"(Z|[+-][0-9]{2}:[0-9]{2}))?)?))"
)


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A timestamp; fields are UTC, those finer than the precision have their least value."""

    precision: str
    """One of `PRECISIONS`; a second may have a fraction."""
    utc: datetime
    """Without its fraction."""
    offset_minutes: int | None
    """Minutes east of UTC; None where it is not known (`-00:00`, and all dates)."""
    digits: int = 0
    """Digits of the fraction."""
    fraction: int = 0
    """The fraction, in units of 10^-digits seconds."""

    @property
    def ns(self) -> int:
        """Nanoseconds since 1970 UTC; digits beyond the ninth are cut. May exceed 64 bits."""
        since = self.utc - _EPOCH
        seconds = since.days * 86_400 + since.seconds
        nine = 9
        if self.digits <= nine:
            return seconds * _NS + self.fraction * int(10 ** (nine - self.digits))
        return seconds * _NS + self.fraction // int(10 ** (self.digits - nine))

    @property
    def text(self) -> str:
        """The text form, exact: precision, offset and every digit are kept."""
        if self.precision in PRECISIONS[:3]:
            cut = PRECISIONS.index(self.precision)
            day = f"{self.utc.year:04}-{self.utc.month:02}-{self.utc.day:02}"
            return day if cut == _DAY - 1 else f"{day[: 4 + 3 * cut]}T"
        offset = self.offset_minutes
        local = self.utc + _ONE_MINUTE * (offset or 0)
        said = f"{local.year:04}-{local.month:02}-{local.day:02}T{local.hour:02}:{local.minute:02}"
        if self.precision == "second":
            said += f":{local.second:02}"
            if self.digits:
                said += f".{self.fraction:0{self.digits}}"
        if offset is None:
            return f"{said}-00:00"
        if not offset:
            return f"{said}Z"
        return f"{said}{'-' if offset < 0 else '+'}{abs(offset) // 60:02}:{abs(offset) % 60:02}"


def read_timestamp(data: bytes, node: Node) -> Timestamp:
    """Read a timestamp that is not null; raises `RefusedIon` where no such time exists."""
    at, stop = node.body, node.stop
    if at == stop:
        refuse("bad_ion", node.start, "a timestamp without a year")
    negative, offset, at = var_int(data, at, stop)
    parts: list[int] = []
    while at < stop and len(parts) < 6:
        part, at = var_uint(data, at, stop)
        parts.append(part)
    count = len(parts)
    if count in (0, 4):
        refuse("bad_ion", node.start, "a timestamp without a year, or with an hour and no minute")
    if offset >= _MAX_OFFSET:
        refuse("bad_ion", node.start, f"a timestamp {offset} minutes from UTC")
    digits, fraction = _fraction(data, at, node) if at < stop else (0, 0)
    parts += [1] * (3 - count)
    known = None if negative and not offset else -offset if negative else offset
    try:
        utc = datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]
        if count > _DAY:
            utc + _ONE_MINUTE * (known or 0)
        else:
            known = None
    except (ValueError, OverflowError) as error:
        refuse("bad_ion", node.start, f"a timestamp that does not exist: {error}")
    precision = PRECISIONS[count - 1] if count <= _DAY else PRECISIONS[count - 2]
    return Timestamp(precision, utc, known, digits, fraction)


def _fraction(data: bytes, at: int, node: Node) -> tuple[int, int]:
    """Digits and value of the fraction of a second at `at`."""
    negative, exponent, at = var_int(data, at, node.stop)
    below, coefficient = sign_and_magnitude(data, at, node.stop)
    if not negative or not exponent:
        if coefficient:
            refuse("bad_ion", node.start, "a fraction of a second that is one second or more")
        return 0, 0
    if exponent > _MAX_DIGITS:
        refuse("bad_ion", node.start, f"a fraction of a second of {exponent} digits")
    if (below and coefficient) or coefficient >= 10**exponent:
        refuse("bad_ion", node.start, "a fraction of a second that is below 0 or one second or more")
    return exponent, coefficient


def parse_text(text: str) -> Timestamp | None:
    """Read a timestamp's text form; None where it is none."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    count = 6 if second else 5 if minute else 3 if day else 2 if month else 1
    parts = [int(part) for part in (year, month or 1, day or 1, hour or 0, minute or 0, second or 0)]
    offset: int | None = None
    try:
        local = datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]
        if zone == "Z":
            offset = 0
        elif zone and zone != "-00:00":
            hours, minutes = int(zone[1:3]), int(zone[4:6])
            if minutes >= 60 or hours >= 24:
                return None
            offset = (hours * 60 + minutes) * (-1 if zone[0] == "-" else 1)
        utc = local - _ONE_MINUTE * (offset or 0)
    except (ValueError, OverflowError):
        return None
    precision = PRECISIONS[count - 1] if count <= _DAY else PRECISIONS[count - 2]
    return Timestamp(precision, utc, offset, len(fraction or ""), int(fraction or 0))
