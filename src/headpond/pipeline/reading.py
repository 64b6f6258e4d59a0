"""From the values of a TOML file to those of a section, by the declarations in `model`."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import inspect

from headpond.core.errors import UsageError
from headpond.core.options import parse_size, parse_span
from headpond.core.tabular import said_ms
from headpond.pipeline.mistakes import Mistake, Place, credentials, expectation, has_credentials, unknown_key


class Wrong(Exception):
    """A value that cannot be used, for these reasons."""

    def __init__(self, *mistakes: Mistake) -> None:
        super().__init__(*mistakes)
        self.mistakes = mistakes


class Unread(Exception):
    """A rule asked for a value that is wrong itself."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section, as `model` declares it."""

    name: str  # in the file
    attribute: str  # in the section's class
    type: inspect.Type
    default: Any  # MISSING: the key must be there
    more: Mapping[str, Any]  # the arguments of `model.key`

    @property
    def names(self) -> set[str]:
        """All names that it may have in the file."""
        return {self.name, self.more.get("alias", self.name)}


@cache
def keys_of(model: type) -> dict[str, Key]:
    """Return the keys of a section by name, in the order of their declaration."""
    declared = inspect.type_info(model)
    assert isinstance(declared, inspect.DataclassType)
    keys = {}
    types = {each.name: each.type for each in declared.fields}
    for each in fields(model):
        if "description" in each.metadata:
            name = each.name.removesuffix("_ms").removesuffix("_bytes")  # units are the file's business
            default = {} if each.default_factory is not MISSING else each.default
            keys[name] = Key(name, each.name, types[each.name], default, each.metadata)
    return keys


def unwrapped(declared: inspect.Type) -> tuple[inspect.Type, Mapping[str, Any]]:
    """Return a type without `None` and metadata, and its `Meta(extra=…)`."""
    extra: dict[str, Any] = {}
    if isinstance(declared, inspect.UnionType):
        declared = next(each for each in declared.types if not isinstance(each, inspect.NoneType))
    while isinstance(declared, inspect.Metadata):
        extra |= declared.extra or {}
        declared = declared.type
    return declared, extra


def _expected(kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=low, le=high):
            return f"an integer from {low} to {high}"
        case inspect.LiteralType(values=values):
            *others, last = map(json.dumps, values)
            return f"{', '.join(others)} or {last}"
        case inspect.VarTupleType():
            return "a list of strings"
    return "a table"


@dataclass(slots=True)
class Read:
    """A section that was read: values by the names of their fields, without those that are wrong."""

    place: Place
    raw: Mapping[str, Any]
    values: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, attribute: str) -> Any:
        if attribute not in self.values:
            raise Unread
        return self.values[attribute]


Refuse = Callable[[Key, Place, object], Mistake | None]
"""Returns why a key that is in the file with this value has no meaning there."""


@dataclass(slots=True)
class Reader:
    """Reads sections of one file and collects their mistakes."""

    environ: Mapping[str, str]  # what `env:NAME` reads
    folder: Path  # what relative paths are relative to
    mistakes: list[Mistake] = field(default_factory=list)

    def table(self, raw: object, place: Place) -> Mapping[str, Any]:
        """Return a table of the file; an empty one, and a mistake more, where it is something else."""
        if isinstance(raw, dict):
            return raw
        self.mistakes.append(expectation(place, "a table", raw))
        return {}

    def section(
        self,
        raw: object,
        model: type,
        place: Place,
        refuse: Refuse = lambda _key, _place, _raw: None,
        gone: Mapping[str, tuple[str, str]] = MappingProxyType({}),
        *,
        partly: bool = False,
    ) -> Read:
        """Read a table of the file by its model; `gone` has names that it had → why, and what to do.

        With `partly` keys that it does not have are left out.
        """
        read = Read(place, self.table(raw, place))
        if not isinstance(raw, dict):
            return read
        keys = keys_of(model)
        known = [key.name for key in keys.values() if refuse(key, place, key.default) is None]
        names = keys.keys() | {key.more.get("alias") for key in keys.values()}
        for name in (name for name in raw if name not in names):
            if name in gone:
                why, fix = gone[name]
                self.mistakes.append(Mistake(place[name], f"{place[name]} {why}", fix))
            else:
                self.mistakes.append(unknown_key(place[name], known))
        for key in keys.values():
            if partly and not key.names & raw.keys():
                continue
            try:
                read.values[key.attribute] = self._of_key(raw, key, place, refuse)
            except Wrong as wrong:
                self.mistakes += wrong.mistakes
        return read

    def _of_key(self, raw: Mapping[str, Any], key: Key, place: Place, refuse: Refuse) -> Any:
        alias = key.more.get("alias", key.name)
        written = key.name if key.name in raw else alias
        at = replace(place[written], secret=place.secret or key.more["secret"])
        if written not in raw:
            if key.default is MISSING:
                also = ", or to [defaults] for all tables" if place.keys[0] == "tables" else ""
                raise Wrong(Mistake(at, f"{at} is missing.", f"Add it to [{place}]{also}."))
            return key.default
        if (refused := refuse(key, at, raw[written])) is not None:
            raise Wrong(refused)
        if written != alias and alias in raw:
            message = f"{place[alias]} and {at} say the same thing."
            raise Wrong(Mistake(place[alias], message, "Keep one of the two."))
        value = raw[written]
        if written != key.name and (words := key.more.get("alias_values")):
            if type(value) not in {int, str} or str(value) not in words:
                hint = f'Or write {key.name} = "log".'
                raise Wrong(expectation(at, key.more["alias_expected"], value, hint))
            return words[str(value)]
        return self.value(value, key.type, at)

    def value(self, raw: object, declared: inspect.Type, place: Place) -> Any:
        """Return a value as its field holds it; raise `Wrong` with every mistake in it."""
        kind, extra = unwrapped(declared)
        match kind:
            case inspect.IntType() if "unit" in extra:
                return self._quantity(raw, kind, extra["unit"], place)
            case inspect.StrType():
                return self._written(raw, kind, extra, place)
            case inspect.BoolType() if isinstance(raw, bool):
                return raw
            case inspect.IntType(ge=int(low), le=int(high)) if type(raw) is int and low <= raw <= high:
                return raw
            case inspect.LiteralType(values=words) if isinstance(raw, str):
                if (value := self.text(raw, place)) in words:
                    return value
                near = difflib.get_close_matches(raw, map(str, words), n=1) if value == raw else []
                hint = f"Did you mean {json.dumps(near[0])}?" if near else ""
                raise Wrong(expectation(place, _expected(kind), raw, hint))
            case inspect.DictType(value_type=inner) if isinstance(raw, dict):
                return self._each(raw, inner, place)
            case inspect.VarTupleType(item_type=inner) if isinstance(raw, list):
                return tuple(self._each(dict(enumerate(raw)), inner, place, distinct=True).values())
        raise Wrong(expectation(place, _expected(kind), raw))

    def _each(
        self, parts: Mapping[Any, object], declared: inspect.Type, place: Place, *, distinct: bool = False
    ) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        mistakes: list[Mistake] = []
        for name, raw in parts.items():
            try:
                value = self.value(raw, declared, place[name])
            except Wrong as wrong:
                mistakes += wrong.mistakes
                continue
            if distinct and value in values.values():
                mistakes.append(expectation(place[name], "a name that is not in the list yet", raw))
            values[name] = value
        if mistakes:
            raise Wrong(*mistakes)
        return values

    def text(self, raw: object, place: Place) -> str:
        """Return a string; `env:NAME` stands for the environment variable NAME."""
        if not isinstance(raw, str):
            raise Wrong(expectation(place, "a string", raw))
        if not raw.startswith("env:"):
            if "\0" in raw:  # no path, name or option can hold one
                raise Wrong(expectation(place, "a string without NUL characters", raw))
            return raw
        name = raw.removeprefix("env:")
        if name not in self.environ:
            message = f"{place} takes its value from the environment variable {name}, which is not set."
            raise Wrong(Mistake(place, message, f"Set {name} before the start.", {"variable": name}))
        return self.environ[name]

    def _quantity(self, raw: object, kind: inspect.IntType, unit: str, place: Place) -> int:
        try:
            if type(raw) is int and unit == "size":
                value = raw
            else:  # what is not text gets the parsers' own words
                written = self.text(raw, place) if isinstance(raw, str) else ""
                value = parse_size(written) if unit == "size" else parse_span(written)
        except ValueError as error:
            raise Wrong(expectation(place, str(error), raw)) from error
        low = kind.ge or 0
        if value < low or (kind.le is not None and value > kind.le):
            wanted = "from one byte to 2^62" if unit == "size" else f"at least {said_ms(low)}"
            raise Wrong(expectation(place, wanted, raw))
        return value

    def _written(self, raw: object, kind: inspect.StrType, extra: Mapping[str, Any], place: Place) -> str:
        value = self.text(raw, place)
        if not value and kind.min_length:
            raise Wrong(expectation(place, "a string that is not empty", raw))
        try:
            if "check" in extra:
                extra["check"](value)
            if "read" in extra:
                return str(extra["read"](value))
        except UsageError as error:
            if value != raw:  # from the environment
                raise Wrong(expectation(place, extra["expected"], raw)) from error
            raise Wrong(Mistake(place, f"{place} is wrong: {error.message}", error.next_step)) from error
        except ValueError as error:
            raise Wrong(expectation(place, str(error), raw)) from error
        if not extra.get("located"):
            return value
        if "://" not in value:
            return os.path.normpath(self.folder / Path(value).expanduser())
        if has_credentials(value):
            raise Wrong(credentials(place))
        return value
