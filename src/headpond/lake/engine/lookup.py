"""Where the rows of a batch's keys are: file and row number, with the columns that decide.

::

    keys ─► files whose bounds or partition can hold one ─► row groups likewise ─► one column of the key
         ─► rows with such a value ─► the other columns, of these row groups alone ─► rows that match whole

A function of files and Arrow tables alone: it may run anywhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import int64_array
from headpond.lake.engine.folder import Folder
from headpond.lake.engine.log import DataFile
from headpond.lake.engine.parquet import Reader, opened

Ints = np.ndarray[Any, np.dtype[np.int64]]
Test = Callable[[pa.Table], pa.ChunkedArray]

FILE, ROW = "%file", "%row"
"""Columns that say where a row is; no encoded column name is like them."""


@dataclass(frozen=True)
class Wanted:
    """What is looked for."""

    rows: pa.Table  # the keys, each once, under the table's names of their columns
    on: Sequence[str]  # the columns in which a row of the table is equal to one of them; nulls are equal
    reads: Sequence[str] = ()  # more columns to read of what is found
    later: Sequence[str] = ()  # columns to read only of what `needs` says, null elsewhere
    needs: Test | None = None
    keep: Test | None = None  # which of the rows found count

    @property
    def columns(self) -> list[str]:
        """All columns of what is found."""
        return list(dict.fromkeys([*self.on, *self.reads, *self.later]))


class _Range:
    """The values of one column that are wanted, in order: which bounds hold one."""

    def __init__(self, name: str, values: pa.ChunkedArray) -> None:
        self.name = name
        self.is_text = pa.types.is_string(values.type)
        self._simple = self.is_text or pa.types.is_integer(values.type)
        self.values = values.unique()
        self.count, self._null = len(self.values), self.values.null_count > 0
        known = self.values.drop_null() if self._simple else pa.array([], values.type)
        self._sorted: pa.Array = known.take(pc.sort_indices(known))

    @cached_property
    def _texts(self) -> set[str | None] | None:
        exact = self._simple or pa.types.is_date(self.values.type)
        return set(self.values.cast(pa.string()).to_pylist()) if exact else None

    def in_file(self, file: DataFile) -> bool:
        """Return whether a value may be in a file."""
        if self.name in file.values:
            return self._texts is None or file.values[self.name] in self._texts
        return self.meets(*file.bounds(self.name))

    def meets(self, least: Any, most: Any) -> bool:
        """Return whether a value may lie within bounds; True where these are not known."""
        kind = str if self.is_text else int
        if not self._simple or self._null or not isinstance(least, kind) or not isinstance(most, kind):
            return True
        at = bisect_left(self._sorted, _comparable(least), key=lambda value: _comparable(value.as_py()))
        return at < len(self._sorted) and bool(_comparable(self._sorted[at].as_py()) <= _comparable(most))


def _comparable(value: Any) -> Any:
    """Return what compares as the writers of bounds do: texts byte by byte."""
    return value.encode() if isinstance(value, str) else value


def look_up(
    folder: Folder, schema: pa.Schema, files: Iterable[tuple[int, DataFile]], wanted: Wanted
) -> pa.Table:
    """Return the rows that are wanted: `FILE` (its number), `ROW`, and the columns, in order of both."""
    names = wanted.columns
    shape = pa.schema(
        [pa.field(FILE, pa.int64()), pa.field(ROW, pa.int64()), *(schema.field(name) for name in names)]
    )
    files = list(files)
    if wanted.rows.num_rows == 0 or not files:
        return shape.empty_table()
    keys = wanted.rows.select(list(wanted.on))
    keys = keys.cast(pa.schema([schema.field(name) for name in wanted.on]))
    ranges = [_Range(name, keys[name]) for name in wanted.on]
    # The column that tells most keys apart leaves the fewest rows to look at.
    best = max(ranges, key=lambda each: (each.count, not each.is_text))
    by, values = best.name, best.values
    parts = [shape.empty_table()]
    for number, file in files:
        if not all(each.in_file(file) for each in ranges):
            continue
        with opened(folder, file, schema) as reader:
            for group, first, _ in reader.groups():
                if all(each.meets(*reader.bounds(group, each.name)) for each in ranges):
                    found = _in_group(reader, group, first, wanted, by, values, keys)
                    if found is not None:
                        where = pa.repeat(pa.scalar(number, pa.int64()), found.num_rows)
                        parts.append(found.add_column(0, FILE, where).cast(shape))
    return pa.concat_tables(parts)


def _in_group(
    reader: Reader, group: int, first: int, wanted: Wanted, by: str, values: pa.Array, keys: pa.Table
) -> pa.Table | None:
    """Return the rows of one row group that are wanted; None for none."""
    column = reader.read(group, [by])
    at: Ints = np.flatnonzero(pc.is_in(column[by], value_set=values).to_numpy())
    if len(at) and len(reader.dead):
        at = at[~np.isin(at + first, reader.dead)]
    if not len(at):
        return None
    others = [name for name in dict.fromkeys([*wanted.on, *wanted.reads]) if name != by]
    rows = pa.array(at)
    found = column.take(rows)
    if others:
        read = reader.read(group, others)
        for name in others:
            found = found.append_column(name, read[name].take(rows))
    if len(wanted.on) > 1:
        matched = np.flatnonzero(places(found, keys, wanted.on) >= 0)
        found, at = found.take(pa.array(matched)), at[matched]
    if wanted.keep is not None:
        kept = wanted.keep(found).to_numpy(zero_copy_only=False) if found.num_rows else np.empty(0, bool)
        found, at = found.filter(pa.array(kept)), at[kept]
    if not found.num_rows:
        return None
    if wanted.later:
        needed = wanted.needs is None or bool(pc.any(wanted.needs(found)).as_py())
        read = reader.read(group, list(wanted.later)) if needed else None
        for name in wanted.later:
            kind = reader.kind(name)
            new = pa.nulls(len(at), kind) if read is None else read[name].take(pa.array(at))
            found = found.append_column(name, new)
    return found.select(wanted.columns).add_column(0, ROW, pa.array(at + first))


def places(rows: pa.Table, among: pa.Table, on: Sequence[str]) -> Ints:
    """Return per row the number of the row of `among` that is equal in some columns; -1 where none is.

    Nulls are equal. Of several equal ones the last counts.
    """
    if rows.num_rows == 0 or among.num_rows == 0:
        return np.full(rows.num_rows, -1, np.int64)
    codes, different = np.zeros(rows.num_rows + among.num_rows, np.int64), 1
    for name in on:
        both = [*rows[name].chunks, *(among[name].cast(rows[name].type)).chunks]
        encoded = pa.concat_arrays([pa.array([], rows[name].type), *both]).dictionary_encode("encode")
        if different > 1:
            pairs = codes.astype(np.int64) * len(encoded.dictionary) + encoded.indices.to_numpy()
            encoded = int64_array(pairs).dictionary_encode()
        codes, different = encoded.indices.to_numpy(), len(encoded.dictionary)
    known = np.full(different, -1, np.int64)
    known[codes[rows.num_rows :]] = np.arange(among.num_rows)
    return known[codes[: rows.num_rows]]
