"""Reading one section of a pipeline file: known keys, values of their kind, refusals with their path.

A section is described by a table `key → Key`. A kind is a function `(raw value, Place) → value`; it raises
ConfigurationError through `Place.wrong`, so that each message names the key by its path in the file, what
was expected and what was found. A value that came from the environment is never shown: messages show the
`env:NAME` that stands in the file.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from headpond.errors import ConfigurationError
from headpond.formats.units import LARGEST, parse_size, parse_span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
REQUIRED: Any = object()
"""Default of a key that must be given."""

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_SHOWN_CHARACTERS = 60  # longer values are cut in messages


@dataclass(frozen=True, slots=True)
class Place:
    """A spot in the file: its path as TOML writes it, and the environment that `env:` reads."""

    path: str
    environ: Mapping[str, str]
    secret: bool = False  # values here are never shown

    def child(self, key: str, *, secret: bool = False) -> Place:
        """The place of a key below this one."""
        bare = key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)
        path = f"{self.path}.{bare}" if self.path else bare
        return Place(path, self.environ, secret or self.secret)

    def item(self, index: int) -> Place:
        """The place of an entry of the list here."""
        return Place(f"{self.path}[{index}]", self.environ, self.secret)

    def wrong(self, expected: str, raw: object, *, next_step: str = "") -> ConfigurationError:
        """Make the refusal of the value at this place."""
        return ConfigurationError(
            f"{self.path} must be {expected}, not {describe(raw, secret=self.secret)}.",
            next_step=next_step or f"Correct {self.path} in the pipeline file.",
            key=self.path,
        )


def describe(raw: object, *, secret: bool = False) -> str:
    """Say what a TOML value is, with the value itself unless it may be secret."""
    if isinstance(raw, str):
        if secret and not raw.startswith("env:"):
            return "that string"
        cut = raw if len(raw) <= _SHOWN_CHARACTERS else raw[:_SHOWN_CHARACTERS] + "…"
        return json.dumps(cut, ensure_ascii=False)
    if isinstance(raw, (dict, list)):
        return "a table" if isinstance(raw, dict) else "a list"
    kind = {bool: "boolean", int: "integer", float: "number"}.get(type(raw), "date or time")
    shown = json.dumps(raw) if isinstance(raw, bool) else str(raw)
    return f"a {kind}".replace("a i", "an i") if secret else f"the {kind} {shown}"


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section.

    Args:
        kind: Reads the value.
        default: Value when the key is absent; REQUIRED when it must be there.
        stored_as: Name in the model when it differs from the key (units are added there).
        secret: The value is never shown.
    """

    kind: Callable[[Any, Place], Any]
    default: Any = None
    stored_as: str = ""
    secret: bool = False


def read_section(raw: object, keys: Mapping[str, Key], place: Place) -> dict[str, Any]:
    """Read a table of the file into the fields of its model.

    Raises:
        ConfigurationError: Not a table, an unknown key, a missing one, or a wrong value.
    """
    if not isinstance(raw, dict):
        raise place.wrong("a table", raw)
    for name in raw:
        if name not in keys:
            raise unknown_key(name, keys, place)
    values = {}
    for name, key in keys.items():
        at = place.child(name, secret=key.secret)
        if name in raw:
            value = key.kind(raw[name], at)
        elif key.default is REQUIRED:
            raise ConfigurationError(
                f"{at.path} is missing.", next_step=f"Add it to [{place.path}].", key=at.path
            )
        else:
            value = key.default
        values[key.stored_as or name] = value
    return values


def unknown_key(
    name: str, known: Mapping[str, Any], place: Place, *, next_step: str = ""
) -> ConfigurationError:
    """Make the refusal of an unknown key; it names the nearest known one."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(known)}."
    path = place.child(name).path
    return ConfigurationError(f"{path} is not a known key.", next_step=next_step or hint, key=path)


# Kinds.


def text(raw: object, place: Place) -> str:
    """A string that is not empty; `env:NAME` stands for the environment variable NAME."""
    value = any_text(raw, place)
    if not value:
        raise place.wrong("a string that is not empty", raw)
    return value


def any_text(raw: object, place: Place) -> str:
    """A string, possibly empty; `env:NAME` stands for the environment variable NAME."""
    if not isinstance(raw, str):
        raise place.wrong("a string", raw)
    if not raw.startswith("env:"):
        if "\0" in raw:  # no path, name or option can hold one
            raise place.wrong("a string without NUL characters", raw)
        return raw
    name = raw.removeprefix("env:")
    if name not in place.environ:
        raise ConfigurationError(
            f"{place.path} takes its value from the environment variable {name}, which is not set.",
            next_step=f"Set {name} before the start.",
            key=place.path,
            variable=name,
        )
    return place.environ[name]


def boolean(raw: object, place: Place) -> bool:
    """True or false."""
    if not isinstance(raw, bool):
        raise place.wrong("true or false", raw)
    return raw


def integer(low: int, high: int = 2**31 - 1) -> Callable[[object, Place], int]:
    """Make the kind of integers from `low` to `high`, both included."""

    def kind(raw: object, place: Place) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int) or not low <= raw <= high:
            raise place.wrong(f"an integer from {low} to {high}", raw)
        return raw

    return kind


def choice(*known: str) -> Callable[[object, Place], str]:
    """Make the kind of strings of a closed set."""
    words = [json.dumps(word) for word in known]
    expected = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"

    def kind(raw: object, place: Place) -> str:
        value = any_text(raw, place)
        if value not in known:
            near = difflib.get_close_matches(value, known, n=1)
            hint = f"Did you mean {json.dumps(near[0])}?" if near and value == raw else ""
            raise place.wrong(expected, raw, next_step=hint)
        return value

    return kind


def size(raw: object, place: Place) -> int:
    """A number of bytes from 1 to 2^62: an integer, or a string such as `64 MiB`."""
    if isinstance(raw, int) and not isinstance(raw, bool):
        value = raw
    else:
        written = any_text(raw, place)
        try:
            value = parse_size(written)
        except ValueError as error:
            raise place.wrong(str(error), raw) from error
    if not 1 <= value <= LARGEST:
        raise place.wrong("from one byte to 2^62", raw)
    return value


def span(low_ms: int) -> Callable[[object, Place], int]:
    """Make the kind of spans of time such as `5 seconds`, in milliseconds, of at least `low_ms`."""

    def kind(raw: object, place: Place) -> int:
        written = any_text(raw, place)
        try:
            value = parse_span(written)
        except ValueError as error:
            raise place.wrong(str(error), raw) from error
        if value < low_ms:
            raise place.wrong(f"at least {low_ms} ms", raw)
        return value

    return kind


def names(raw: object, place: Place) -> tuple[str, ...]:
    """A list of different names."""
    if not isinstance(raw, list):
        raise place.wrong("a list of strings", raw)
    found: list[str] = []
    for index, entry in enumerate(raw):
        name = text(entry, place.item(index))
        if name in found:
            raise place.item(index).wrong("a name that is not in the list yet", entry)
        found.append(name)
    return tuple(found)


def mapping(kind: Callable[[Any, Place], T]) -> Callable[[object, Place], dict[str, T]]:
    """Make the kind of tables whose values are all of one kind and whose keys are free."""

    def of_kind(raw: object, place: Place) -> dict[str, T]:
        if not isinstance(raw, dict):
            raise place.wrong("a table", raw)
        return {name: kind(value, place.child(name)) for name, value in raw.items()}

    return of_kind
