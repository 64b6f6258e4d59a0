"""Read the options of a Spark source or sink strictly: known names, typed values, units.

Spark's option names do not tell upper from lower case, so neither does this. Sizes and times are written
with a unit (`64 MiB`, `500 ms`); a bare whole number counts bytes or milliseconds.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Protocol

from headpond.errors import ConfigurationError
from headpond.formats.units import LARGEST, parse_size, parse_span

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class _Parser(Protocol):
    def __call__(self, text: str, *, bare: bool = False) -> int: ...


class Options:
    """Options as given, read one by one under the names the caller knows."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str], owner: str) -> None:
        """Take the options.

        Args:
            given: Names and values as Spark hands them over.
            known: Every name there is, as documented.
            owner: What the options belong to, for messages: `source kinesis`.

        Raises:
            ConfigurationError: A name is not known; the message names the nearest that is.
        """
        names = {name.lower(): name for name in known}
        self._owner = owner
        self._values: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() not in names:
                raise self._unknown(name, names)
            self._values[name.lower()] = str(value)

    def _unknown(self, name: str, names: Mapping[str, str]) -> ConfigurationError:
        near = difflib.get_close_matches(name.lower(), names, 1, 0.5)
        return ConfigurationError(
            f"The {self._owner} has no option {name}.",
            next_step=f"Did you mean {names[near[0]]}?"
            if near
            else f"Its options are {', '.join(sorted(names.values()))}.",
            option=name,
        )

    def wrong(self, name: str, expected: str) -> ConfigurationError:
        """Make the refusal of an option's value."""
        return ConfigurationError(
            f"Option {name} of the {self._owner} must be {expected}, not {self._values.get(name.lower())!r}.",
            next_step=f"Correct or remove {name}.",
            option=name,
        )

    def text(self, name: str) -> str | None:
        """Return the value as it is; None when it was not given or is empty."""
        return self._values.get(name.lower()) or None

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
        if not (value.isascii() and value.isdigit() and len(value) < 20 and 1 <= int(value) <= most):  # noqa: PLR2004 (digits of 2^62)
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
