"""Options of a Spark source or sink, read strictly: known names, typed values, sizes and spans of time.

Spark's option names do not tell upper from lower case, so neither does this; `snake_case` is understood too,
and so are the names that a pipeline file has (`stream`, `start`, `probe_lag_ms`).

A size is a number and B, KB, KiB, …, TB or TiB (K is 1000, Ki is 1024). A span is a number and milliseconds,
seconds, minutes, hours, days or weeks, in full, in the singular, or as ms, s, min, h, d. Numbers may have
decimals as long as the result is a whole number of bytes or milliseconds; a bare number counts those.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable, Mapping
from decimal import Decimal
from typing import Protocol

import msgspec

from headpond.core.errors import ConfigurationError

SIZE_UNITS = {
    "b": 1,
    "byte": 1,
    "bytes": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
"""Unit in lower case → bytes."""

SPAN_UNITS = {
    name: each_ms
    for each_ms, names in (
        (1, "ms millisecond milliseconds"),
        (1_000, "s sec second seconds"),
        (60_000, "min minute minutes"),
        (3_600_000, "h hour hours"),
        (86_400_000, "d day days"),
        (604_800_000, "week weeks"),
    )
    for name in names.split()
}
"""Unit in lower case → milliseconds."""

LARGEST = 2**62  # what fits a signed 64-bit integer with room for a sum

_SHAPE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)", re.ASCII)


def parse_size(text: str, *, bare: bool = False) -> int:
    """Read a size in bytes; with `bare` a number without a unit counts bytes."""
    return _parse(text, SIZE_UNITS, "64 MiB", bare=bare)


def parse_span(text: str, *, bare: bool = False) -> int:
    """Read a span of time in milliseconds; with `bare` a number without a unit counts milliseconds."""
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


_IN_A_FILE = {"stream": "streamname", "start": "startingposition"}
_ELSEWHERE = {
    "consumertype": "consumermode",
    "initialposition": "startingposition",
    "maxfetchduration": "maxspanpertrigger",
    "maxfetchrecordspershard": "maxrecordspertrigger",
    "maxfetchtimepershardsec": "maxspanpertrigger",
    "stsrolearn": "rolearn",
    "stssessionname": "rolesessionname",
}
"""What other sources of Kinesis call an option: suggested, since what it takes may differ."""


def spelled(name: str, known: Container[str]) -> str | None:
    """Return an option's name in lower case, of any of its spellings; None where it is not known.

    >>> known = {"streamname", "probelag"}
    >>> [spelled(name, known) for name in ("streamName", "stream", "probe_lag_ms", "lag")]
    ['streamname', 'streamname', 'probelag', None]
    """
    low = name.lower()
    plain = low.replace("_", "")
    tries = (low, plain, plain.removesuffix("ms") if low.endswith("_ms") else plain, _IN_A_FILE.get(low, low))
    return next((each for each in tries if each in known), None)


class _Parser(Protocol):
    def __call__(self, text: str, *, bare: bool = False) -> int: ...


class Options:
    """Options as given, read one by one under the names the caller knows."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str], owner: str) -> None:
        """Check the names of the options; `owner` is what they belong to, for messages: `source kinesis`."""
        names = {name.lower(): name for name in known}
        self._owner = owner
        self._values: dict[str, str] = {}
        written: dict[str, str] = {}
        for name, value in given.items():
            known_as = spelled(name, names)
            if known_as is None:
                raise self._unknown(name, names)
            if known_as in written:
                raise ConfigurationError(
                    f"The {owner} has its option {names[known_as]} twice: as {written[known_as]} and {name}.",
                    next_step="Remove one of the two.",
                    option=names[known_as],
                )
            self._values[known_as], written[known_as] = str(value), name

    def _unknown(self, name: str, names: Mapping[str, str]) -> ConfigurationError:
        plain = name.lower().replace("_", "").removeprefix("kinesis.")
        elsewhere = _ELSEWHERE.get(plain, plain)
        near = difflib.get_close_matches(elsewhere if elsewhere in names else plain, names, 1, 0.5)
        return ConfigurationError(
            f"The {self._owner} has no option {name}.",
            next_step=f"Did you mean {names[near[0]]}?"
            if near
            else f"Its options are {', '.join(sorted(names.values()))}.",
            option=name,
        )

    def wrong(self, name: str, expected: str) -> ConfigurationError:
        """Return the error of an option's value."""
        return ConfigurationError(
            f"Option {name} of the {self._owner} must be {expected}, not {self._values.get(name.lower())!r}.",
            next_step=f"Correct or remove {name}.",
            option=name,
        )

    def text(self, name: str) -> str | None:
        """Return the value as it is; None when it was not given or is empty."""
        return self._values.get(name.lower()) or None

    def texts(self, name: str) -> dict[str, str]:
        """Read a JSON object of texts; empty when it was not given."""
        try:
            return msgspec.json.decode(self.text(name) or "{}", type=dict[str, str])
        except msgspec.DecodeError:
            raise ConfigurationError(
                f"The option {name} is not a JSON object of texts.",  # it is not shown: it may hold keys
                next_step='Write it as {"AWS_REGION": "us-east-1"}.',
                option=name,
            ) from None

    def flag(self, name: str, *, default: bool) -> bool:
        """Read `true` or `false`."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise self.wrong(name, "true or false")
        return value.lower() == "true"

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """Read one of a few words."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in allowed:
            raise self.wrong(name, "one of " + ", ".join(allowed))
        return value.lower()

    def count(self, name: str, *, most: int = LARGEST) -> int | None:
        """Read a whole number of at least 1."""
        value = self.text(name)
        if value is None:
            return None
        if not (re.fullmatch("[0-9]{1,19}", value) and 1 <= int(value) <= most):
            raise self.wrong(
                name, f"a whole number from 1 to {most}" if most < LARGEST else "a whole number above 0"
            )
        return int(value)

    def size_bytes(self, name: str, default: int | None) -> int | None:
        """Read a size above zero."""
        value = self.text(name)
        if value is None:
            return default
        size_bytes = self._quantity(name, value, parse_size)
        if size_bytes == 0:
            raise self.wrong(name, "more than zero bytes")
        return size_bytes

    def time_ms(self, name: str, default: int) -> int:
        """Read a span of time, zero allowed."""
        value = self.text(name)
        return default if value is None else self._quantity(name, value, parse_span)

    def _quantity(self, name: str, value: str, parse: _Parser) -> int:
        try:
            return parse(value, bare=True)
        except ValueError as error:
            raise self.wrong(name, str(error)) from error
