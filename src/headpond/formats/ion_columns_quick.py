"""Ion values of one shape to columns, without a Python object per value.

::

    {a: 1, b: "x"}                 a   int     → an Arrow column at once
    {a: 2, b: "y"}   one shape →   b   string  → an Arrow column at once
    {a: 3, b: "x"}                 other types → each distinct value through `cast_ion`, then taken
                                   JSON of a struct: that of its members, joined in the order of their names

The result is that of `cast_ion` and `canonical_json` for every value; what is unusual is left to them.
"""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.formats.ion import (
    BLOB,
    BOOL,
    CLOB,
    FLOAT,
    INT,
    IS_NULL,
    LIST,
    NEGATIVE_INT,
    SEXP,
    STRING,
    STRUCT,
    TIMESTAMP,
    Node,
    RefusedIon,
)
from headpond.formats.ion_page import Page, timestamps
from headpond.formats.ion_shape_compile import NoShapeError, compile_shape
from headpond.formats.ion_symbols import only_value
from headpond.formats.ion_text import scalar_text, symbol_text
from headpond.formats.ion_types import JSON, CannotCast, Instant, IonType, cast_ion
from headpond.formats.qldb_groups import grouped
from headpond.formats.qldb_quick import Quick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headpond.formats.ion_page import Ints
    from headpond.formats.ion_shape import Item

MIN_ALIKE = 48
"""Values that are followed together rather than taken one by one: a shape costs as much as so many."""
_MISSES = 4
"""Shapes that few values have, after which the rest of a group is taken one by one."""
_TO_ESCAPE = r'["\\\x00-\x1f]'
_TO_ESCAPE_IN_ION = r'["\\\x00-\x1f\x7f-\x{9f}]'
_BRACKETS = {LIST: ("[", ",", "]"), SEXP: ("(", " ", ")"), STRUCT: ("{", ",", "}")}
_INTS = (INT, NEGATIVE_INT)


class Taken(NamedTuple):
    """A column of some rows."""

    values: pa.Array
    offsets: pa.Array | None = None
    failures: dict[int, str] | None = None
    """By position in `values`."""

    def pick(self, keep: Ints) -> Taken:
        """Some of the rows."""
        at = pa.array(keep)
        failures = None
        if self.failures:
            failures = {
                new: self.failures[old] for new, old in enumerate(keep.tolist()) if old in self.failures
            }
        offsets = None if self.offsets is None else self.offsets.take(at)
        return Taken(self.values.take(at), offsets, failures)


class Alike(NamedTuple):
    """Columns of the values of one shape."""

    rows: Ints
    columns: dict[str, Taken]


def alike(
    page: Page, starts: Ints, ends: Ints, take: Callable[[QuickValues], dict[str, Taken]]
) -> Iterator[Alike]:
    """Take values of a page, shape after shape, as long as enough are of one.

    Args:
        page: Their bytes.
        starts: Where each begins, ascending.
        ends: Where each ends.
        take: What to take of the values of a shape; raises `NoShapeError` to leave them.
    """
    for group in grouped(page, starts, ends):
        rows, misses = group.rows, 0
        while len(rows) >= MIN_ALIKE and misses < _MISSES:
            found = _followed(page, starts[rows], ends[rows], take)
            if found is None or len(found.rows) < MIN_ALIKE:
                misses += 1
            if found is None:
                rows = rows[1:]
                continue
            yield found._replace(rows=rows[found.rows])
            rows = np.delete(rows, np.union1d(found.rows, [0]))


def _followed(
    page: Page, starts: Ints, ends: Ints, take: Callable[[QuickValues], dict[str, Taken]]
) -> Alike | None:
    datum = page.raw[int(starts[0]) : int(ends[0])]
    try:
        value = only_value(datum)
        shape = compile_shape(datum, value.node, value.symbols)
        found = shape.match(page, starts, ends)
        quick = QuickValues(page, shape, value.symbols, found)
        quick.sound(shape.root)
        columns = take(quick)
    except (NoShapeError, RefusedIon):
        return None
    keep = np.flatnonzero(quick.good)
    if not len(keep):
        return None
    if len(keep) < quick.count:
        columns = {name: column.pick(keep) for name, column in columns.items()}
    return Alike(found.rows[keep], columns)


class QuickValues(Quick):
    """Takes values of one shape."""

    def members(self) -> dict[str, Item]:
        """The fields of structs; none for a null or another type."""
        root = self.shape.root
        if root.kind != STRUCT or _is_null(root):
            return {}
        if len(root.members) != len(root.children):
            raise NoShapeError
        return root.members

    def cast(self, kind: IonType, item: Item) -> Taken:  # noqa: PLR0911 - one per type
        """A field as a column: `cast_ion` of each."""
        if _is_null(item):
            return Taken(self.nulls(kind.arrow), self.nulls(pa.int16()) if kind.name == "timestamp" else None)
        if kind.name == "json":
            return Taken(self.json(item))
        if item.kind >= LIST or item.slot < 0:
            raise NoShapeError
        body, stop = self.found.body[item.slot], self.found.stop[item.slot]
        if kind.name == "string" and item.kind == STRING:
            return Taken(self._text(body, stop))
        if kind.name == "boolean" and item.kind == BOOL:
            return Taken(pa.array(self.found.tags[item.slot] & 1 == 1))
        if kind.name == "bigint" and item.kind in _INTS:
            return Taken(self._ints(item))
        if kind.name == "binary" and item.kind in (BLOB, CLOB):
            return Taken(self.page.pieces(body, stop))
        if kind.name == "timestamp" and item.kind == TIMESTAMP:
            times = timestamps(self.page, body, stop)
            if times.zulu.all():
                values = pa.array(times.ns // 1000).cast(kind.arrow)
                return Taken(values, pa.array(np.zeros(self.count, np.int16)))
        return self._distinct(kind, item)

    def json(self, item: Item) -> pa.Array:  # noqa: PLR0911 - one per type
        """Values as canonical JSON."""
        if item.annotations:
            raise NoShapeError
        if _is_null(item):
            return self.same("null")
        if item.kind == LIST:
            return self._joined("[", [("", self.json(child)) for child in item.children], "]")
        if item.kind == STRUCT:
            if len(item.members) != len(item.children):
                raise NoShapeError
            members = [
                (f"{_quoted(name)}:", self.json(child)) for name, child in sorted(item.members.items())
            ]
            return self._joined("{", members, "}")
        if item.slot < 0:
            raise NoShapeError
        if item.kind == STRING:
            texts = self._text(self.found.body[item.slot], self.found.stop[item.slot])
            self.good &= ~pc.match_substring_regex(texts, _TO_ESCAPE).to_numpy(zero_copy_only=False)
            return self._joined('"', [("", texts)], '"')
        if item.kind == BOOL:
            return pc.if_else(pa.array(self.found.tags[item.slot] & 1 == 1), "true", "false")
        if item.kind in _INTS:
            return self._ints(item).cast(pa.string())
        return self._distinct(JSON, item).values

    def ion_text(self, item: Item) -> pa.Array:
        """Values as Ion text."""
        if item.annotations:
            raise NoShapeError
        if _is_null(item):
            return self.same(Node(item.kind, IS_NULL, 0, 0, 0).type_name)
        if item.kind in _BRACKETS:
            first, between, last = _BRACKETS[item.kind]
            names = {id(child): f"{symbol_text(name)}:" for name, child in item.members.items()}
            if item.kind == STRUCT and len(names) != len(item.children):
                raise NoShapeError
            parts = [(names.get(id(child), ""), self.ion_text(child)) for child in item.children]
            return self._joined(first, parts, last, between)
        if item.slot < 0:
            raise NoShapeError
        if item.kind == STRING:
            texts = self._text(self.found.body[item.slot], self.found.stop[item.slot])
            self.good &= ~pc.match_substring_regex(texts, _TO_ESCAPE_IN_ION).to_numpy(zero_copy_only=False)
            return self._joined('"', [("", texts)], '"')
        if item.kind == BOOL:
            return pc.if_else(pa.array(self.found.tags[item.slot] & 1 == 1), "true", "false")
        if item.kind in _INTS:
            return self._ints(item).cast(pa.string())
        raw = self.page.pieces(self.found.body[item.slot], self.found.stop[item.slot]).dictionary_encode()
        low = item.low if item.kind == FLOAT else 0
        told = [
            scalar_text(data, Node(item.kind, low, 0, 0, len(data)), self.symbols)
            for data in raw.dictionary.to_pylist()
        ]
        return pa.array(told, pa.string()).take(raw.indices)

    def _joined(
        self, first: str, parts: list[tuple[str, pa.Array]], last: str, between: str = ","
    ) -> pa.Array:
        pieces: list[Any] = []
        before = first
        for name, values in parts:
            pieces += [pa.scalar(before + name), values]
            before = between
        if not parts:
            return self.same(first + last)
        return pc.binary_join_element_wise(*pieces, pa.scalar(last), "")

    def _ints(self, item: Item) -> pa.Array:
        values, fits = self.page.unsigned(self.found.body[item.slot], self.found.stop[item.slot])
        self.good &= fits
        return pa.array(np.where(self.found.tags[item.slot] >> 4 == NEGATIVE_INT, -values, values))

    def _distinct(self, kind: IonType, item: Item) -> Taken:
        """Each distinct value through the scalar reader."""
        raw = self.page.pieces(self.found.body[item.slot], self.found.stop[item.slot]).dictionary_encode()
        type_, low = item.kind, item.low if item.kind == FLOAT else 0
        if type_ in _INTS:
            type_ = INT
            self.good &= self.found.tags[item.slot] >> 4 == INT
        elif type_ == BOOL:
            raise NoShapeError
        values: list[Any] = []
        failed: dict[int, str] = {}
        for at, data in enumerate(raw.dictionary.to_pylist()):
            try:
                values.append(cast_ion(kind, data, Node(type_, low, 0, 0, len(data)), self.symbols))
            except CannotCast as error:
                failed[at] = str(error)
                values.append(None)
        indices = raw.indices
        failures = None
        if failed:
            failures = {row: failed[at] for row, at in enumerate(indices.to_pylist()) if at in failed}
        if kind.name != "timestamp":
            return Taken(pa.array(values, kind.arrow).take(indices), None, failures)
        instants = [one if isinstance(one, Instant) else Instant(0, None) for one in values]
        shown = pa.array(
            [one.us for one in instants], pa.int64(), mask=np.array([one is None for one in values], np.bool_)
        )
        offsets = pa.array([one.offset_minutes for one in instants], pa.int16())
        return Taken(shown.cast(kind.arrow).take(indices), offsets.take(indices), failures)


def _is_null(item: Item) -> bool:
    return item.low == IS_NULL and item.slot < 0


def _quoted(name: str) -> str:
    return encode_basestring(name)
