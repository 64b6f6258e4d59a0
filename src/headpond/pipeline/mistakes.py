"""Mistakes of a pipeline file, and the one error that lists them by line.

A mistake names the key by its path in the file, what was expected, what was found and what to do.
A value that came from the environment is never shown: messages show the `env:NAME` that the file has.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headpond.core.errors import ConfigurationError

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_SHOWN_CHARACTERS = 60  # longer values are cut in messages
_CONTAINERS = {"abfs", "abfss", "wasb", "wasbs"}


@dataclass(frozen=True, slots=True)
class Place:
    """A spot in the file; `str` is its path as TOML writes it."""

    keys: tuple[str | int, ...] = ()
    secret: bool = False  # values here are never shown

    def __getitem__(self, key: str | int) -> Place:
        return Place((*self.keys, key), self.secret)

    def __str__(self) -> str:
        path = ""
        for key in self.keys:
            if isinstance(key, int):
                path += f"[{key}]"
            else:
                path += f".{key}" if _BARE.fullmatch(key) else f".{json.dumps(key, ensure_ascii=False)}"
        return path.removeprefix(".")


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing in the file that is wrong."""

    place: Place
    message: str
    next_step: str
    facts: Mapping[str, Any] = field(default_factory=dict)


def expectation(place: Place, expected: str, raw: object, next_step: str = "") -> Mistake:
    """Return the mistake of a value that is not what was expected."""
    found = describe(raw, secret=place.secret)
    return Mistake(place, f"{place} must be {expected}, not {found}.", next_step)


def describe(raw: object, *, secret: bool = False) -> str:
    """Return what a TOML value is, with the value itself unless it may be secret."""
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


def unknown_key(place: Place, known: Iterable[str], next_step: str = "") -> Mistake:
    """Return the mistake of an unknown key; it names the nearest known one."""
    known = list(known)
    near = difflib.get_close_matches(str(place.keys[-1]), known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(known)}."
    return Mistake(place, f"{place} is not a known key.", next_step or hint)


def raise_all(mistakes: Iterable[Mistake], text: str | None, file: str | None) -> None:
    """Raise the mistakes of a file as one error, in the order of its lines; return where there is none.

    Without a text they are those of keywords.

    Raises:
        ConfigurationError: its fact `mistakes` has `line`, `key`, `message` and `next_step` of each.
    """
    found = list(mistakes)
    if not found:
        return
    lines = line_of_each(text or "")
    called = "The pipeline" if text is None else "The pipeline file"

    def line(mistake: Mistake) -> int:
        keys = mistake.place.keys
        return next((lines[keys[:end]] for end in range(len(keys), 0, -1) if keys[:end] in lines), 0)

    found.sort(key=line)
    facts: list[dict[str, Any]] = [
        {"line": line(each), "key": str(each.place), "message": each.message, "next_step": each.next_step}
        for each in found
    ]
    first = facts[0]
    if len(found) == 1:
        at = f"line {first['line']}: " if file is None else f"{file}:{first['line']}: "
        message = (at if first["line"] else f"{file}: " if file else "") + first["message"]
        next_step = first["next_step"] or f"Correct {first['key']} in {called[0].lower()}{called[1:]}."
    else:
        message = f"{file or called} has {len(found)} mistakes:"
        for fact in facts:
            where = f"line {fact['line']}: " if fact["line"] else ""
            message += f"\n  {where}{fact['message']} {fact['next_step']}".rstrip()
        next_step = ""
    more = {"key": first["key"], "line": first["line"], "file": file} | dict(found[0].facts)
    raise ConfigurationError(message, next_step=next_step, mistakes=facts, **more)


def line_of_each(text: str) -> dict[tuple[str | int, ...], int]:
    """Return the line, from 1, of the statement that holds each section, key and entry of valid TOML.

    What tomllib, which gives no lines, can read below its header, and no less, is a statement.
    """
    lines: dict[tuple[str | int, ...], int] = {}
    header = statement = ""
    begin = 1
    for number, line in enumerate(text.split("\n"), 1):  # splitlines knows more ends of lines than TOML
        statement += line + "\n"
        if line.endswith(",") and "#" not in line:
            continue  # does not end a statement; a long list is not to be read once a line
        try:
            found = tomllib.loads(header + statement)
        except (tomllib.TOMLDecodeError, RecursionError):
            continue  # a list or string that goes on
        for path in _paths(found):
            lines.setdefault(path, begin)
        if statement.lstrip().startswith("["):
            header = statement
        statement, begin = "", number + 1
    return lines


def _paths(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in parts:
        yield (*path, key)
        yield from _paths(inner, (*path, key))


def has_credentials(url: str) -> bool:
    """Return whether a URL, which is shown, logged and kept in the lake, has keys or a password in it."""
    scheme, _, rest = url.lower().partition("://")
    authority = rest.partition("/")[0]
    user, named, _ = authority.rpartition("@")
    # A key with a slash in it ends what looks like the bucket; only an ARN has colons there.
    is_key = scheme.startswith("s3") and ":" in authority and not authority.startswith("arn:")
    return ":" in user or is_key or (bool(named) and scheme not in _CONTAINERS)  # Azure's container@account


def credentials(place: Place) -> Mistake:
    """Return the mistake of a URL with a secret in it."""
    return Mistake(
        place,
        f"{place} carries a user name, a key or a password in its URL.",
        'Remove it; keys belong in target.storage_options, as in AWS_SECRET_ACCESS_KEY = "env:NAME".',
    )
