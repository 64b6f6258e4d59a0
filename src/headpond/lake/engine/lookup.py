"""Where the rows of a batch's keys are: file and row number, with the columns that decide.

::

    keys ─► files whose bounds or partition can hold one ─► row groups likewise ─► one column of the key
         ─► rows with such a value ─► the other columns, of these row groups alone ─► rows that match whole

Of large files what is kept of their keys is searched instead, where it may be (`index`).

A function of files and Arrow tables alone: it may run anywhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import distinct, int64_array, ranges
from headpond.core.schemas import whole
from headpond.lake.engine import vectors
from headpond.lake.engine.folder import Folder
from headpond.lake.engine.index import Hits, KeyIndex, numbers_of
from headpond.lake.engine.log import DataFile
from headpond.lake.engine.parquet import Reader, opened
from headpond.lake.storage import of_each_file

Ints = np.ndarray[Any, np.dtype[np.int64]]
Test = Callable[[pa.Table], pa.ChunkedArray]

FILE, ROW = "%file", "%row"
"""Columns that say where a row is; no encoded column name is like them."""

_AT_ONCE = 1 << 20  # rows of a file whose key is read at a time
_SAMPLE, _FEW = 4096, 16  # values that tell how many different ones there are, and where they lie
_LEAST_BITS, _MOST_BITS = 10, 20  # of hashes
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ / golden ratio: spreads consecutive numbers evenly


@dataclass(frozen=True)
class Wanted:
    """What is looked for."""

    rows: pa.Table  # the keys, in any order, under the table's names of their columns
    on: Sequence[str]  # the columns in which a row of the table is equal to one of them; nulls are equal
    reads: Sequence[str] = ()  # more columns to read of what is found
    later: Sequence[str] = ()  # columns to read only of what `needs` says, null elsewhere
    needs: Test | None = None
    since: tuple[str, int] | None = None
    """A column and a number: only rows count that have no value there, or at least this one."""
    least: Mapping[str, int] = field(default_factory=dict)
    """By column of `reads` a number: which lesser one a row has does not matter, and another may be given."""

    @property
    def columns(self) -> list[str]:
        """All columns of what is found."""
        first = [self.since[0]] if self.since else []
        return list(dict.fromkeys([*self.on, *first, *self.reads, *self.later]))

    def is_over(self, greatest: Callable[[str], Any]) -> bool:
        """Return whether no row counts of some whose greatest value of a column is this, if none is null."""
        if self.since is None or (most := greatest(self.since[0])) is None:
            return False
        return bool(most < self.since[1])

    @property
    def is_exact(self) -> bool:
        """Whether what is found of a row is what the table has, and not a null or a bound instead."""
        return not (self.needs or self.least)

    @property
    def is_plain(self) -> bool:
        """Whether what is found holds for any question, and not only for the one that is asked."""
        return not (self.later or self.since or self.least)


class _Range:
    """The values of one column that are wanted: which bounds hold one."""

    def __init__(self, name: str, values: pa.ChunkedArray) -> None:
        self.name, self.values = name, whole(values)
        self.is_text = pa.types.is_string(values.type)
        self._simple = self.is_text or pa.types.is_integer(values.type)
        self._null = values.null_count > 0

    @cached_property
    def count(self) -> int:
        """How many different values there are in a sample."""
        step = max(1, len(self.values) // _SAMPLE)
        return int(pc.count_distinct(self.values[::step], mode="all").as_py())

    @cached_property
    def only(self) -> pa.Scalar | None:
        """The value, where all are one and not null."""
        is_one = self.count == 1 and not self._null and len(self.values.unique()) == 1
        return self.values[0] if is_one else None

    @cached_property
    def _texts(self) -> set[str | None] | None:
        exact = self._simple or pa.types.is_date(self.values.type)
        return set(self.values.unique().cast(pa.string()).to_pylist()) if exact else None

    @cached_property
    def _some(self) -> list[Any]:
        """A few values, the least and the greatest among them."""
        ends, step = pc.min_max(self.values), max(1, len(self.values) // _FEW)
        return [ends["min"].as_py(), ends["max"].as_py(), *self.values[::step].to_pylist()]

    @cached_property
    def _sorted(self) -> pa.Array:
        return self.values.take(pc.sort_indices(self.values))

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
        # Bounds of random keys hold nearly always one of a few values: sorting them all is rarely needed.
        least, most = _comparable(least), _comparable(most)
        if any(least <= _comparable(value) <= most for value in self._some):
            return True
        at = bisect_left(self._sorted, least, key=lambda value: _comparable(value.as_py()))
        return at < len(self._sorted) and bool(_comparable(self._sorted[at].as_py()) <= most)


def _comparable(value: Any) -> Any:
    """Return what compares as the writers of bounds do: texts byte by byte."""
    return value.encode() if isinstance(value, str) else value


def look_up(
    folder: Folder,
    schema: pa.Schema,
    files: Iterable[DataFile],
    wanted: Wanted,
    index: KeyIndex | None = None,
) -> pa.Table:
    """Return a table's rows that are wanted: `FILE` (its number), `ROW`, and the columns, in order of both.

    Without an index the keys of every file are read that may have one of them.
    """
    names = wanted.columns
    shape = pa.schema(
        [pa.field(FILE, pa.int64()), pa.field(ROW, pa.int64()), *(schema.field(name) for name in names)]
    )
    files = list(files)
    if wanted.rows.num_rows == 0 or not files:
        return shape.empty_table()
    keys = wanted.rows.select(list(wanted.on))
    keys = keys.cast(pa.schema([schema.field(name) for name in wanted.on]))
    search = _Search(wanted, keys)

    def within(number: int) -> Iterator[pa.Table]:
        file = files[number]
        hits = search.indexed(folder, file, schema, index) if index is not None else None
        if hits is not None and not len(hits.rows):
            return
        with opened(folder, file, schema) as reader:
            for group, first, at, values in search.groups(reader, hits):
                found = search.rows(reader, group, first, at, values)
                if found.num_rows:
                    where = pa.repeat(pa.scalar(number, pa.int64()), found.num_rows)
                    yield found.add_column(0, FILE, where).cast(shape)

    may = [number for number, file in enumerate(files) if search.may_be_in(file)]
    parts = of_each_file(folder.uri, lambda number: list(within(number)), may)
    if index is not None:
        index.tidy(files)
    return pa.concat_tables([shape.empty_table(), *chain.from_iterable(parts)])


class _Search:
    """What is looked for, made ready once for all files."""

    def __init__(self, wanted: Wanted, keys: pa.Table) -> None:
        self.wanted, self.keys = wanted, keys
        self.ranges = [_Range(name, keys[name]) for name in wanted.on]
        # The column that tells most keys apart leaves the fewest rows to look at.
        best = max(self.ranges, key=lambda each: (each.count, not each.is_text))
        self.by = best.name
        self._one_of = OneOf(best.values)
        numbers = numbers_of(best.values.drop_null())
        self._keys = None if numbers is None else distinct(numbers)
        others = [each for each in self.ranges if each is not best]
        self._only = {each.name: each.only for each in others if each.only is not None}
        self._is_exact = len(self._only) == len(others)  # no pairs of values need be compared

    def may_be_in(self, file: DataFile) -> bool:
        """Return whether a file may have a wanted row, by what the log says of it."""
        return not self.wanted.is_over(file.greatest) and all(each.in_file(file) for each in self.ranges)

    def _read(self, reader: Reader) -> Iterator[tuple[int, int, Ints, pa.ChunkedArray]]:
        held: list[tuple[int, int, pa.ChunkedArray]] = []

        def judged() -> Iterator[tuple[int, int, Ints, pa.ChunkedArray]]:
            # Many groups at once: for texts each look builds a hash table of what is wanted.
            column = pa.chunked_array([c for _, _, part in held for c in part.chunks], reader.kind(self.by))
            at = self._one_of.rows(column)
            ends = np.cumsum([0, *(len(part) for _, _, part in held)])
            cuts = np.searchsorted(at, ends)
            for (group, first, part), begin, start, stop in zip(held, ends, cuts, cuts[1:], strict=False):
                here = at[start:stop] - begin
                if len(here):
                    here = here[~vectors.among(reader.dead, here + first)]
                if len(here):
                    yield group, first, here, part.take(pa.array(here))
            held.clear()

        for group, first, count in reader.groups():
            if self.wanted.is_over(partial(reader.greatest, group)):
                continue
            if all(each.meets(*reader.bounds(group, each.name)) for each in self.ranges):
                held.append((group, first, reader.read(group, [self.by])[self.by]))
                if sum(len(part) for _, _, part in held) + count > _AT_ONCE:
                    yield from judged()
        yield from judged()

    def indexed(self, folder: Folder, file: DataFile, schema: pa.Schema, index: KeyIndex) -> Hits | None:
        """Return the rows of a file that may be wanted by what is kept of it; None where nothing is."""

        def column() -> Iterator[pa.ChunkedArray]:
            with opened(folder, file, schema) as reader:
                for group, _, _ in reader.groups():
                    yield reader.read(group, [self.by])[self.by]

        if self._keys is None:
            return None
        kept = index.keys(file, self.by, column)
        return None if kept is None else kept.find(self._keys)

    def groups(self, reader: Reader, hits: Hits | None) -> Iterator[tuple[int, int, Ints, pa.ChunkedArray]]:
        """Yield number, first row, rows and values of the row groups that may hold what is wanted."""
        return self._read(reader) if hits is None else self._among(reader, hits)

    def _among(self, reader: Reader, hits: Hits) -> Iterator[tuple[int, int, Ints, pa.ChunkedArray]]:
        kind = reader.kind(self.by)
        stays = ~vectors.among(reader.dead, hits.rows)
        rows, keys = hits.rows[stays], hits.keys[stays]
        for group, first, count in reader.groups():
            begin, end = np.searchsorted(rows, (first, first + count))
            if begin == end or self.wanted.is_over(partial(reader.greatest, group)):
                continue
            here = rows[begin:end] - first
            if pa.types.is_integer(kind):
                yield group, first, here, pa.chunked_array([int64_array(keys[begin:end])]).cast(kind)
                continue
            values = reader.read(group, [self.by])[self.by].take(pa.array(here))
            same = self._one_of.rows(values)  # other texts may have the same hash
            if len(same):
                yield group, first, here[same], values.take(pa.array(same))

    def rows(self, reader: Reader, group: int, first: int, at: Ints, values: pa.ChunkedArray) -> pa.Table:
        """Return the wanted rows among some of a row group that may be."""
        wanted = self.wanted
        columns: dict[str, Any] = {self.by: values}
        for name, least in wanted.least.items():
            greatest = reader.greatest(group, name)
            if greatest is not None and greatest < least:
                columns[name] = pa.repeat(pa.scalar(greatest, reader.kind(name)), len(at))
        passed = {*columns, *wanted.later}
        if names := [name for name in wanted.columns if name not in passed]:
            read = reader.read(group, names).take(pa.array(at))
            columns |= zip(names, read.columns, strict=True)
        found = pa.table(columns)
        for name, value in self._only.items():
            same = pc.fill_null(pc.equal(found[name], value), fill_value=False).to_numpy()
            found, at = found.filter(pa.array(same)), at[same]
        if not self._is_exact:
            matched = np.flatnonzero(places(found, self.keys, wanted.on) >= 0)
            found, at = found.take(pa.array(matched)), at[matched]
        if wanted.since is not None:
            name, number = wanted.since
            kept = pc.fill_null(pc.greater_equal(found[name], number), fill_value=True).to_numpy()
            found, at = found.filter(pa.array(kept)), at[kept]
        if wanted.later:
            needed = found.num_rows and (wanted.needs is None or pc.any(wanted.needs(found)).as_py())
            later = {name: pa.nulls(len(at), reader.kind(name)) for name in wanted.later}
            if needed:
                later = dict(
                    zip(later, reader.read(group, list(later)).take(pa.array(at)).columns, strict=True)
                )
            found = pa.table({**dict(zip(found.column_names, found.columns, strict=True)), **later})
        return found.select(wanted.columns).add_column(0, ROW, pa.array(at + first))


class OneOf:
    """Finds those of many values that are wanted.

    Integers in order, as those of a table's keys often are, are searched for what is wanted. Of others most
    are ruled out by one bit of a small table, which takes a tenth of the time of Arrow's hash table.
    """

    def __init__(self, values: pa.Array) -> None:
        self._values = values
        self._is_simple = pa.types.is_integer(values.type) and not values.null_count
        if self._is_simple:
            self._sorted = distinct(_numbers(values))
            width = min(_MOST_BITS, max(_LEAST_BITS, (64 * len(values)).bit_length()))
            self._shift = np.uint64(64 - width)
            self._bits = np.zeros(1 << width, bool)
            self._bits[self._hashes(self._sorted)] = True

    def rows(self, column: pa.ChunkedArray) -> Ints:
        """Return the numbers of the values that are, in order."""
        if not self._is_simple or column.null_count:
            return np.flatnonzero(pc.is_in(column, value_set=self._values).to_numpy())
        starts = np.cumsum([0, *map(len, column.chunks)])
        parts = [(start, _numbers(part)) for start, part in zip(starts, column.chunks, strict=False)]
        found = [start + self._among(numbers) for start, numbers in parts if len(numbers)]
        return np.concatenate([np.empty(0, np.int64), *found])

    def _among(self, numbers: Ints) -> Ints:
        if _rises(numbers[:: max(1, len(numbers) // _SAMPLE)]) and _rises(numbers):
            least, most = np.searchsorted(self._sorted, numbers[[0, -1]])
            wanted = self._sorted[least : most + 1]
            firsts, ends = (np.searchsorted(numbers, wanted, side) for side in ("left", "right"))
            return ranges(firsts, ends - firsts)
        maybe = np.flatnonzero(self._bits.take(self._hashes(numbers)))
        found: Ints = maybe[vectors.among(self._sorted, numbers[maybe])]
        return found

    def _hashes(self, numbers: Ints) -> Ints:
        """Return each number's place in `_bits`."""
        found: Ints = ((numbers.view(np.uint64) * _ODD) >> self._shift).view(np.int64)
        return found


def _numbers(values: pa.Array) -> Ints:
    found: Ints = values.to_numpy().astype(np.int64, copy=False)
    return found


def _rises(numbers: Ints) -> bool:
    return bool((numbers[1:] >= numbers[:-1]).all())


def places(rows: pa.Table, among: pa.Table, on: Sequence[str]) -> Ints:
    """Return per row the number of the row of `among` that is equal in some columns; -1 where none is.

    Nulls are equal. Of several equal ones the last counts.
    """
    if rows.num_rows == 0 or among.num_rows == 0:
        return np.full(rows.num_rows, -1, np.int64)
    codes, different = np.zeros(rows.num_rows + among.num_rows, np.int64), 1
    for name in on:
        both = [*rows[name].chunks, *(among[name].cast(rows[name].type)).chunks]
        numbers, many = _numbered(pa.concat_arrays([pa.array([], rows[name].type), *both]))
        if different > _FEW_CODES:
            codes, different = _encoded(int64_array(codes))
        codes, different = codes * many + numbers, different * many
    if different > _SPARSE * len(codes):
        codes, different = _encoded(int64_array(codes))
    known = np.full(different, -1, np.int64)
    known[codes[rows.num_rows :]] = np.arange(among.num_rows)
    return known[codes[: rows.num_rows]]


_FEW_CODES = 1 << 31  # two of as many can be put together in one number
_SPARSE = 4  # a code for each of so many numbers costs less than a hash of each


def _numbered(values: pa.Array) -> tuple[Ints, int]:
    """Return a number from 0 for each value, equal where values are, and a bound of them."""
    if pa.types.is_integer(values.type) and not values.null_count and len(values):
        ends = pc.min_max(values).as_py()
        if (many := ends["max"] - ends["min"] + 1) <= _FEW_CODES:
            return _numbers(values) - ends["min"], many
    return _encoded(values)


def _encoded(values: pa.Array) -> tuple[Ints, int]:
    encoded = values.dictionary_encode("encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
