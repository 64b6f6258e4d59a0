"""Structs of Ion data to typed Arrow columns, a field each.

::

    {a: 1, b: "x"}          a: bigint    b: string    c (not declared): canonical JSON
    {a: 2, c: [1, 2]}   →   1            x            null
    {a: "q"}                2            null         [1,2]
                            null         null         null        failures of a: {2: cast_error}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headpond.core.arrow import Ints, valid
from headpond.core.formats import NameBound
from headpond.ion.binary import STRUCT, fields
from headpond.ion.column_types import JSON, CannotCast, IonType, cast_ion, parse_ion_type
from headpond.ion.stream import IonPart, only_value
from headpond.ion.text import canonical_json, field_name, numbered
from headpond.qldb import shapes
from headpond.qldb.shapes import ColumnPart, column_of

_LEAST_FIELD_BYTES = 2
"""A symbol's number and a value's first byte."""


@dataclass(slots=True)
class IonColumns:
    """The fields of many structs, in order of first appearance, declared ones first."""

    columns: dict[str, ColumnPart]
    """Each of all rows: null where the field is absent, null, or failed."""
    repeated: dict[int, list[str]] = field(default_factory=dict)
    """Rows whose struct has a field more than once, with the names; see `ion_columns`."""
    refused: dict[int, str] = field(default_factory=dict)
    """Rows without values, since their structs have more fields than the bound, with the reason."""


def ion_columns(
    data: Any,
    declared: Mapping[str, str | IonType] | None = None,
    *,
    max_columns: int | None = None,
) -> IonColumns:
    """Return the fields of structs as columns.

    Of a field that a struct has more than once, the column has the value whose canonical JSON is least, and
    columns `name#2`, … have the others, as in canonical JSON; `repeated` names the row.

    Args:
        data: Arrow binary, each null or one Ion struct that can be read alone (`data` of the revisions).
        declared: Field to type, one of `column_types.NAMES`.
        max_columns: Bound on the fields of one struct, and on the columns of all of them together: each is
            an array over all rows. Structs beyond it are `refused`; which, depends on their order.

    Raises:
        UsageError: There is no such type.
        RefusedIon: A value is not such a struct.
    """
    types = {
        name: parse_ion_type(kind) if isinstance(kind, str) else kind
        for name, kind in (declared or {}).items()
    }
    gathered = _Gathered(types, max_columns=max_columns)
    left = valid(data).copy()
    for found in shapes.fields(data, types, most=max_columns):
        gathered.many(found.rows, found.parts[0])
        left[found.rows] = False
    for row in np.flatnonzero(left).tolist():
        gathered.one(row, data[row].as_py())
    return gathered.result(len(data))


class _Gathered:
    """Fields by name, as they are found: of one struct, or of many alike."""

    def __init__(self, types: Mapping[str, IonType], *, max_columns: int | None) -> None:
        self.types = types
        self.bound = NameBound(max_columns, "the document has {} fields", set(types))
        self.refused: dict[int, str] = {}
        self.values: dict[str, dict[int, Any]] = {name: {} for name in types}
        self.failures: dict[str, dict[int, str]] = {}
        self.parts: dict[str, list[tuple[Ints, ColumnPart]]] = {}
        self.seen: dict[str, tuple[int, int]] = {}
        """Where a field appears first: row, and place in its struct."""
        self.repeated: dict[int, list[str]] = {}

    def one(self, row: int, raw: bytes) -> None:
        """Add a struct that is read by itself."""
        part = only_value(raw)
        if part.node.kind != STRUCT or part.node.is_null:
            return
        most = self.bound.most
        if most is not None and len(part.data) >= _LEAST_FIELD_BYTES * most:  # before names are made of them
            count = sum(1 for _ in fields(part.data, part.node))
            if count > most:
                self.refused[row] = f"the document has {count} fields, more than {most}"
                return
        members = _members(part, row, self.repeated)
        if (why := self.bound.refuses([name for name, _ in members])) is not None:
            self.repeated.pop(row, None)
            self.refused[row] = why
            return
        for place, (name, member) in enumerate(members):
            kind = self.types.get(name)
            if kind is None:
                kind = JSON
                self._see(name, row, place)
            try:
                value = cast_ion(kind, part.data, member, part.symbols)
            except CannotCast as error:
                self.failures.setdefault(name, {})[row] = str(error)
                continue
            if value is not None:
                self.values.setdefault(name, {})[row] = value

    def many(self, rows: Ints, columns: dict[str, ColumnPart]) -> None:
        """Keep what was taken of structs that are alike."""
        if (why := self.bound.refuses(list(columns))) is not None:
            self.refused.update(dict.fromkeys(rows.tolist(), why))
            return
        for place, (name, taken) in enumerate(columns.items()):
            self._see(name, int(rows[0]), place)
            self.parts.setdefault(name, []).append((rows, taken))
            for at, why in (taken.failures or {}).items():
                self.failures.setdefault(name, {})[int(rows[at])] = why

    def _see(self, name: str, row: int, place: int) -> None:
        self.seen[name] = min((row, place), self.seen.get(name, (row, place)))

    def result(self, rows: int) -> IonColumns:
        """Return all columns, declared fields first."""
        others = sorted((at, name) for name, at in self.seen.items() if name not in self.types)
        result = IonColumns({}, dict(sorted(self.repeated.items())), dict(sorted(self.refused.items())))
        for name in (*self.types, *(name for _, name in others)):
            kind, failures = self.types.get(name, JSON), dict(sorted(self.failures.get(name, {}).items()))
            values = self.values.get(name, {})
            alone = np.array(sorted(values), np.int64)
            part = column_of(kind, [values[row] for row in alone.tolist()])
            parts = [*self.parts.get(name, []), (alone, part)]
            offsets = None
            if part.offsets is not None:
                offsets = _placed([(at, taken.offsets) for at, taken in parts], rows)
            placed = _placed([(at, taken.values) for at, taken in parts], rows)
            result.columns[name] = ColumnPart(placed, offsets, failures)
        return result


def _placed(parts: list[tuple[Ints, Any]], rows: int) -> pa.Array:
    at = np.full(rows, -1, np.int64)
    places = np.concatenate([some for some, _ in parts])
    at[places] = np.arange(len(places))
    return pa.concat_arrays([values for _, values in parts]).take(pa.array(at, mask=at < 0))


def _members(part: IonPart, row: int, repeated: dict[int, list[str]]) -> list[tuple[str, Any]]:
    members = [
        (field_name(part.symbols, sid, member), member) for sid, member in fields(part.data, part.node)
    ]
    if len({name for name, _ in members}) == len(members):
        return members
    ordered = sorted(
        (name, canonical_json(part.data, member, part.symbols), at)
        for at, (name, member) in enumerate(members)
    )
    names = numbered([name for name, _, _ in ordered])
    pairs = list(zip(names, ordered, strict=True))
    repeated[row] = [name for shown, (name, _, _) in pairs if shown != name]
    return [(shown, members[at][1]) for shown, (_, _, at) in pairs]


def ion_json_column(data: Any) -> pa.Array:
    """Return the canonical JSON of each value that can be read alone; null stays null."""
    left = valid(data).copy()
    parts: list[tuple[Ints, Any]] = []
    for found in shapes.json_texts(data):
        parts.append((found.rows, found.parts[0]["json"]))
        left[found.rows] = False
    alone = np.flatnonzero(left)
    values = [only_value(data[row].as_py()) for row in alone.tolist()]
    texts = [canonical_json(one.data, one.node, one.symbols) for one in values]
    return _placed([*parts, (alone, pa.array(texts, pa.string()))], len(data))
