"""Ion values of one shape to columns, without a Python object per value.

::

    {a: 1, b: "x"}                 a   int     → an Arrow column at once
    {a: 2, b: "y"}   one shape →   b   string  → an Arrow column at once
    {a: 3, b: "x"}                 other types → each distinct value through `cast_ion`, then taken
                                   JSON of a struct: that of its members, joined in the order of their names

The result is that of `cast_ion` and `canonical_json` for every value; what is unusual is left to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.ion import binary
from headpond.ion.binary import Node
from headpond.ion.column_types import JSON, CannotCast, IonType, cast_ion
from headpond.ion.stream import only_value
from headpond.qldb.shapes.groups import Kind, LearnedShape, ShapedRecords
from headpond.qldb.shapes.page import timestamps
from headpond.qldb.shapes.shape import Item, NoShapeError, shape_of

_TO_ESCAPE = r'["\\\x00-\x1f]'
_INTS = (binary.INT, binary.NEGATIVE_INT)


class ColumnPart(NamedTuple):
    """A column of some rows."""

    values: pa.Array
    offsets: pa.Array | None = None
    """Of timestamps: minutes east of UTC (int16), null where unknown."""
    failures: dict[int, str] | None = None
    """By position in `values`: `cast_error` or `out_of_range`."""

    def take(self, at: pa.Array) -> ColumnPart:
        """Return some of the rows."""
        failures = None
        if self.failures:
            places = enumerate(at.to_pylist())
            failures = {new: self.failures[old] for new, old in places if old in self.failures}
        offsets = None if self.offsets is None else self.offsets.take(at)
        return ColumnPart(self.values.take(at), offsets, failures)


class _Values(Kind):
    """Values that can be read alone."""

    def __init__(self) -> None:
        super().__init__(verify=False, max_depth=binary.MAX_DEPTH)

    def shape_of(self, datum: bytes) -> LearnedShape | None:
        """Return the shape of a value."""
        value = only_value(datum)
        shape = shape_of(datum, value.node, value.symbols)
        # What annotations mean to a column is the scalar reader's to say.
        return None if shape.root.is_annotated else LearnedShape("", shape, value.symbols)


class Texts(_Values):
    """Each value as canonical JSON, in the column `json`."""

    def columns(self, shaped: ShapedRecords) -> list[dict[str, Any]]:
        """Return the texts."""
        shaped.sound(shaped.shape.root)
        return [{"json": _json(shaped, shaped.shape.root)}]


class Fields(_Values):
    """The fields of structs, each a `ColumnPart`."""

    def __init__(self, types: Mapping[str, IonType], *, most: int | None) -> None:
        super().__init__()
        self.types, self.most = types, most

    def columns(self, shaped: ShapedRecords) -> list[dict[str, Any]]:
        """Return the fields; none for a null or another type."""
        root = shaped.shape.root
        shaped.sound(root)
        if root.kind != binary.STRUCT or root.is_null:
            return [{}]
        repeats = len(root.members) != len(root.children)
        if repeats or (self.most is not None and len(root.members) > self.most):
            raise NoShapeError
        return [
            {name: _cast(shaped, self.types.get(name, JSON), member) for name, member in root.members.items()}
        ]


def _cast(shaped: ShapedRecords, kind: IonType, item: Item) -> ColumnPart:
    """Return a field as a column: `cast_ion` of each."""
    if item.is_null:
        return ColumnPart(
            shaped.nulls(kind.arrow), shaped.nulls(pa.int16()) if kind.name == "timestamp" else None
        )
    if kind.name == "json":
        return ColumnPart(_json(shaped, item))
    if item.kind >= binary.LIST or item.slot < 0:
        raise NoShapeError
    body, stop = shaped.found.body[item.slot], shaped.found.stop[item.slot]
    if kind.name == "string" and item.kind == binary.STRING:
        return ColumnPart(shaped.texts(body, stop))
    if kind.name == "boolean" and item.kind == binary.BOOL:
        return ColumnPart(pa.array(shaped.found.tags[item.slot] & 1 == 1))
    if kind.name == "bigint" and item.kind in _INTS:
        return ColumnPart(_ints(shaped, item))
    if kind.name == "binary" and item.kind in (binary.BLOB, binary.CLOB):
        return ColumnPart(shaped.page.pieces(body, stop))
    if kind.name == "timestamp" and item.kind == binary.TIMESTAMP:
        times = timestamps(shaped.page, body, stop)
        if times.zulu.all():
            values = pa.array(times.ns // 1000).cast(kind.arrow)
            return ColumnPart(values, pa.array(np.zeros(shaped.count, np.int16)))
    return _distinct(shaped, kind, item)


def _json(shaped: ShapedRecords, item: Item) -> pa.Array:
    if item.is_null:
        return shaped.same("null")
    if item.kind == binary.LIST:
        return _joined(shaped, "[", [("", _json(shaped, child)) for child in item.children], "]")
    if item.kind == binary.STRUCT:
        if len(item.members) != len(item.children):
            raise NoShapeError
        members = [
            (f"{encode_basestring(name)}:", _json(shaped, child))
            for name, child in sorted(item.members.items())
        ]
        return _joined(shaped, "{", members, "}")
    if item.slot < 0:
        raise NoShapeError
    if item.kind == binary.STRING:
        texts = shaped.texts(shaped.found.body[item.slot], shaped.found.stop[item.slot])
        shaped.good &= ~pc.match_substring_regex(texts, _TO_ESCAPE).to_numpy(zero_copy_only=False)
        return _joined(shaped, '"', [("", texts)], '"')
    if item.kind == binary.BOOL:
        return pc.if_else(pa.array(shaped.found.tags[item.slot] & 1 == 1), "true", "false")
    if item.kind in _INTS:
        return _ints(shaped, item).cast(pa.string())
    return _distinct(shaped, JSON, item).values


def _joined(shaped: ShapedRecords, first: str, parts: list[tuple[str, pa.Array]], last: str) -> pa.Array:
    pieces: list[Any] = []
    before = first
    for name, values in parts:
        pieces += [pa.scalar(before + name), values]
        before = ","
    if not parts:
        return shaped.same(first + last)
    return pc.binary_join_element_wise(*pieces, pa.scalar(last), "")


def _ints(shaped: ShapedRecords, item: Item) -> pa.Array:
    values, fits = shaped.page.unsigned(shaped.found.body[item.slot], shaped.found.stop[item.slot])
    shaped.good &= fits
    return pa.array(np.where(shaped.found.tags[item.slot] >> 4 == binary.NEGATIVE_INT, -values, values))


def _distinct(shaped: ShapedRecords, kind: IonType, item: Item) -> ColumnPart:
    """Return each distinct value through the scalar reader."""
    raw = shaped.page.pieces(shaped.found.body[item.slot], shaped.found.stop[item.slot]).dictionary_encode()
    type_, low = item.kind, item.low if item.kind == binary.FLOAT else 0
    if type_ in _INTS:
        type_ = binary.INT
        shaped.good &= shaped.found.tags[item.slot] >> 4 == binary.INT
    elif type_ == binary.BOOL:
        raise NoShapeError
    values: list[Any] = []
    failed: dict[int, str] = {}
    for at, data in enumerate(raw.dictionary.to_pylist()):
        try:
            values.append(cast_ion(kind, data, Node(type_, low, 0, 0, len(data)), shaped.symbols))
        except CannotCast as error:
            failed[at] = str(error)
            values.append(None)
    return column_of(kind, values)._replace(failures=failed).take(raw.indices)


def column_of(kind: IonType, values: list[Any]) -> ColumnPart:
    """Return values that `cast_ion` gave as a column."""
    if kind.name != "timestamp":
        return ColumnPart(pa.array(values, kind.arrow))
    us = pa.array([None if one is None else one.us for one in values], pa.int64())
    offsets = pa.array([None if one is None else one.offset_minutes for one in values], pa.int16())
    return ColumnPart(us.cast(kind.arrow), offsets)
