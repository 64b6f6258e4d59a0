"""Structs of Ion data to typed Arrow columns, a field each.

::

    {a: 1, b: "x"}          a: bigint    b: string    c (not declared): canonical JSON
    {a: 2, c: [1, 2]}   →   1            x            null
    {a: "q"}                2            null         [1,2]
                            null         null         null        failures of a: {2: cast_error}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headpond.formats.ion import STRUCT, fields
from headpond.formats.ion_json import canonical_json, field_name
from headpond.formats.ion_part import IonPart
from headpond.formats.ion_text import ion_text
from headpond.formats.ion_types import JSON, CannotCast, Instant, IonType, cast_ion, parse_ion_type

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class IonColumn:
    """A field of many structs."""

    type: IonType
    values: pa.Array
    """Null where the field is absent, null, or failed."""
    offsets: pa.Array | None
    """Of timestamps: minutes east of UTC (int16), null where unknown; None for other types."""
    failures: dict[int, str] = field(default_factory=dict)
    """Row to `cast_error` or `out_of_range`."""


@dataclass(slots=True)
class IonColumns:
    """The fields of many structs, in order of first appearance, declared ones first."""

    columns: dict[str, IonColumn]
    repeated: dict[int, list[str]] = field(default_factory=dict)
    """Rows whose struct has a field more than once, with the names; see `ion_columns`."""


def ion_columns(
    data: Any, declared: Mapping[str, str | IonType] | None = None, *, others: bool = True
) -> IonColumns:
    """Take structs apart.

    Of a field that a struct has more than once, the column has the value whose canonical JSON is least, and
    columns `name#2`, … have the others, as in canonical JSON; `repeated` names the row.

    Args:
        data: Arrow binary, each null or one Ion struct that can be read alone (`data` of the revisions).
        declared: Field to type, one of `ion_types.NAMES`.
        others: Take fields that are not declared too, as canonical JSON.

    Raises:
        UsageError: There is no such type.
        RefusedIon: A value is not such a struct.
    """
    types = {
        name: parse_ion_type(kind) if isinstance(kind, str) else kind
        for name, kind in (declared or {}).items()
    }
    found: dict[str, dict[int, Any]] = {name: {} for name in types}
    result = IonColumns({})
    failures: dict[str, dict[int, str]] = {}
    for row, raw in enumerate(data):
        if not raw.is_valid:
            continue
        part = IonPart.alone(raw.as_py())
        if part.node.kind != STRUCT or part.node.is_null:
            continue
        for name, member in _members(part, row, result.repeated):
            kind = types.get(name)
            if kind is None:
                if not others:
                    continue
                kind = JSON
            try:
                value = cast_ion(kind, part.data, member, part.symbols)
            except CannotCast as error:
                failures.setdefault(name, {})[row] = str(error)
                continue
            if value is not None or name not in found:
                found.setdefault(name, {})[row] = value
    for name, values in found.items():
        result.columns[name] = _column(types.get(name, JSON), values, len(data), failures.get(name, {}))
    return result


def _members(part: IonPart, row: int, repeated: dict[int, list[str]]) -> list[tuple[str, Any]]:
    members = [
        (field_name(part.symbols, sid, member), member) for sid, member in fields(part.data, part.node)
    ]
    taken = {name for name, _ in members}
    if len(taken) == len(members):
        return members
    told = sorted(
        (name, canonical_json(part.data, member, part.symbols), at)
        for at, (name, member) in enumerate(members)
    )
    numbered: list[tuple[str, Any]] = []
    before, number = None, 1
    for name, _, at in told:
        shown = name
        if name == before:
            repeated.setdefault(row, []).append(name)
            number += 1
            while f"{name}#{number}" in taken:
                number += 1
            shown = f"{name}#{number}"
        else:
            before, number = name, 1
        numbered.append((shown, members[at][1]))
    return numbered


def _column(kind: IonType, values: dict[int, Any], rows: int, failures: dict[int, str]) -> IonColumn:
    column: list[Any] = [None] * rows
    offsets: list[int | None] | None = None
    if kind.name == "timestamp":
        offsets = [None] * rows
        for row, value in values.items():
            if isinstance(value, Instant):
                column[row] = value.us
                offsets[row] = value.offset_minutes
        return IonColumn(
            kind, pa.array(column, pa.int64()).cast(kind.arrow), pa.array(offsets, pa.int16()), failures
        )
    for row, value in values.items():
        column[row] = value
    return IonColumn(kind, pa.array(column, kind.arrow), None, failures)


def ion_json_column(data: Any) -> pa.Array:
    """Canonical JSON of each value that can be read alone; null stays null."""
    return _mapped(data, lambda part: canonical_json(part.data, part.node, part.symbols))


def ion_text_column(data: Any) -> pa.Array:
    """Ion text of each value that can be read alone; null stays null."""
    return _mapped(data, lambda part: ion_text(part.data, part.node, part.symbols))


def _mapped(data: Any, write: Any) -> pa.Array:
    return pa.array(
        [write(IonPart.alone(raw.as_py())) if raw.is_valid else None for raw in data], pa.string()
    )
