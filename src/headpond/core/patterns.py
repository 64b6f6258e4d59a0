"""Entries that stand for every table whose name matches, as in `[tables."public.*"]`.

::

    public.*       public.orders                          the star stands for "orders"
    history.*      schema = "public", table = "*"         the table public.orders goes to history.orders

A name in the lake is a function of the table's names at the source, and the other way round, so that every
executor, every batch and every later start finds the same one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from urllib.parse import unquote

from headpond.core.formats import TableEntry, wrong_entry

if TYPE_CHECKING:
    Place = tuple[str, ...]

STAR = "*"
_ENCODED = ".:/"
"""What stands in a name in the lake only where its pattern has it."""
Entry = TypeVar("Entry", bound="TableEntry")


def is_pattern(name: str) -> bool:
    """Return whether a name stands for all that match it."""
    return STAR in name


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile("(.*)".join(map(re.escape, pattern.split(STAR))), re.DOTALL)


def parts_of(text: str, pattern: str) -> list[str] | None:
    """Return what the stars of a pattern stand for in a text; None where it does not match.

    >>> parts_of("app_7.orders", "app_*.*"), parts_of("public.orders", "app_*.*")
    (['7', 'orders'], None)
    """
    found = _expression(pattern).fullmatch(text)
    return None if found is None else list(found.groups())


def put_in(pattern: str, parts: Iterable[str]) -> str:
    """Return a pattern with a text for each star.

    >>> put_in("history.*", ["orders"])
    'history.orders'
    """
    first, *others = pattern.split(STAR)
    return first + "".join(part + other for part, other in zip(parts, others, strict=True))


@cache
def overlap(a: str, b: str) -> bool:
    """Return whether two patterns of names in the lake have a name in common.

    >>> overlap("*.*", "history.*"), overlap("*", "history.*"), overlap("app_*", "*_7")
    (True, False, True)
    """
    if not a or not b:
        return not (a or b).strip(STAR)
    if STAR not in (a[0], b[0]):
        return a[0] == b[0] and overlap(a[1:], b[1:])
    one, other = (a, b) if a[0] == STAR else (b, a)
    return overlap(one[1:], other) or (other[0] not in _ENCODED and overlap(one, other[1:]))


def encoded(part: str, beside: str = "%*" + _ENCODED) -> str:
    """Return a part of a name as it is in the lake: what cannot be printed, and these, as ``%XX``.

    >>> encoded("a.b"), encoded("orders")
    ('a%2Eb', 'orders')
    """
    return "".join(
        c if c.isprintable() and c not in beside else "".join(f"%{byte:02X}" for byte in c.encode())
        for c in part
    )


class Entries(Generic[Entry]):
    """The entries of a configuration: `tables` for one table each, `patterns` for all that match.

    `made` names those of the tables that are there because a pattern matches.

    A table has the entries that name it; else those of the longest pattern that matches, of equally long ones
    the first. Several entries of one table, or of one pattern, keep it in several forms.
    """

    __slots__ = ()
    tables: tuple[Entry, ...]
    patterns: tuple[Entry, ...]
    made: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise ConfigurationError where two entries have one name: one of them would be lost in silence."""
        names = Counter(entry.name for entry in (*self.tables, *self.patterns))
        if twice := [name for name, count in names.items() if count > 1]:
            raise wrong_entry(
                twice[0], "is configured twice", "Remove one of the two, or give it another name."
            )

    def entries_of(self, places: Iterable[Place]) -> dict[Place, tuple[Entry, ...]]:
        """Return the entries of each table at the source; none for one that is not configured."""
        known: dict[Place, list[Entry]] = {}
        made = {*self.made}
        for entry in self.tables:
            if entry.name in made:
                continue
            known.setdefault(entry.place, []).append(entry)
        return {place: tuple(known.get(place) or self._made(place)) for place in dict.fromkeys(places)}

    def entry(self, name: str) -> Entry | None:
        """Return the entry of a table by its name in the lake; None where there is none."""
        for entry in self.tables:
            if entry.name == name:
                return entry
        for pattern in self.patterns:
            parts = parts_of(name, pattern.name)
            if parts is None:
                continue
            place = _place(pattern, map(unquote, parts))
            for entry in self.entries_of([place])[place]:
                if entry.name == name:
                    return entry
        return None

    def with_tables(self, entries: Iterable[Entry]) -> Self:
        """Return the configuration with more entries of one table each, which patterns made."""
        changed: Any = self
        new = tuple(entries)
        made = (*self.made, *(entry.name for entry in new))
        again: Self = replace(changed, tables=(*self.tables, *new), made=made)
        return again

    def _made(self, place: Place) -> list[Entry]:
        found = [(pattern, _parts(pattern, place)) for pattern in self.patterns]
        matching = [(pattern, parts) for pattern, parts in found if parts is not None]
        if not matching:
            return []
        best, _ = max(matching, key=lambda each: len("".join(each[0].place)))
        return [
            pattern.at(place, put_in(pattern.name, map(encoded, parts)))
            for pattern, parts in matching
            if pattern.place == best.place
        ]


def _parts(pattern: TableEntry, place: Place) -> list[str] | None:
    parts: list[str] = []
    for one, text in zip(pattern.place, place, strict=True):
        found = parts_of(text, one)
        if found is None:
            return None
        parts += found
    return parts


def _place(pattern: TableEntry, parts: Iterable[str]) -> Place:
    left = list(parts)
    found = []
    for one in pattern.place:
        count = one.count(STAR)
        found.append(put_in(one, left[:count]))
        left = left[count:]
    return tuple(found)
