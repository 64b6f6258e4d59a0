"""The data files of a Delta table: rows of them by number, and new ones with what the log says of them.

Readers that follow a table (Delta's change data feed) go by files of the rows that a commit changes; one that
only adds rows has none::

    _change_data/part-….parquet      all columns, and _change_type: what was and what is of a row that was
                                     updated, what was of one that was deleted, what is of a new one
"""

from __future__ import annotations

import datetime as dt
import math
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headpond.core.schemas import whole
from headpond.lake.engine import vectors
from headpond.lake.engine.folder import Folder
from headpond.lake.engine.log import DataFile, milliseconds
from headpond.lake.object_store import is_remote
from headpond.lake.storage import of_each_file

Values = tuple[str | None, ...]
Again = Sequence[tuple[DataFile, vectors.Positions]]
"""Files that are written again, with the numbers of the rows that go."""

GROUP_ROWS = 1 << 18
GROUP_BYTES = 64 << 20
"""A row group has at most this many rows, and about this many bytes."""
ENDS = "_valid_to_ns"
"""The column of a history that says when a row ended; null of a row that still holds."""
FILE_BYTES = 100 << 20
"""How large files become where the table does not say."""
_INDEXED = 32  # columns of which the log has statistics, with headpond's own
LONGEST_BOUND = 64  # bytes of a text
EXACT_DIGITS = 15  # of a decimal, in a double
_NULL = "__HIVE_DEFAULT_PARTITION__"
_SAMPLE_ROWS = 4096  # by which it is decided whether a dictionary pays, and compression
_SAMPLE_BYTES = 1 << 20  # which these have at most
_WORTH = 0.9  # of a column's bytes, what compression must leave at most


@dataclass(frozen=True)
class Shape:
    """How a table's files are written: its columns, those by which files are dealt out, size and folders.

    `packed` has integers written by their differences (`DELTA_BINARY_PACKED`): of 10 million keys a lookup
    takes 0.02 s of CPU instead of 0.1 to read them, for they are not compressed besides. Readers that know
    deletion vectors know them.
    """

    schema: pa.Schema
    partition_columns: Sequence[str] = ()
    file_bytes: int = FILE_BYTES
    group_bytes: int = GROUP_BYTES
    packed: bool = False
    inside: tuple[str, ...] = ()

    @property
    def stored(self) -> pa.Schema:
        """The columns that are in the files."""
        return pa.schema([each for each in self.schema if each.name not in self.partition_columns])

    def sorted_out(self, rows: pa.Table) -> list[pa.Table]:
        """Return the rows of a history that hold, and those that ended; of another table all in one."""
        if ENDS not in self.schema.names:
            return [rows]
        holds = pc.is_null(rows[ENDS])
        return [rows.filter(holds), rows.filter(pc.invert(holds))]

    def split(self, rows: pa.Table) -> Iterator[tuple[Values, pa.Table]]:
        """Yield the rows of each partition, without the partition's columns."""
        if not self.partition_columns:
            yield (), rows.select(self.stored.names)
            return
        texts = pa.table({name: rows[name].cast(pa.string()) for name in self.partition_columns})
        numbers: dict[Values, list[int]] = {}
        for row, values in enumerate(zip(*(column.to_pylist() for column in texts.columns), strict=True)):
            numbers.setdefault(values, []).append(row)
        stored = rows.select(self.stored.names)
        for values in sorted(numbers, key=str):
            yield values, stored.take(pa.array(numbers[values]))


class Reader:
    """One data file, opened."""

    def __init__(self, file: pq.ParquetFile, data: DataFile, folder: Folder, schema: pa.Schema) -> None:
        self._file, self._data, self._folder, self._schema = file, data, folder, schema
        self._there = set(file.schema_arrow.names)
        self.counts = [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)]
        self._dead: vectors.Positions | None = None

    def kind(self, column: str) -> pa.DataType:
        """Return the type of one of the table's columns."""
        return self._schema.field(column).type

    @property
    def dead(self) -> vectors.Positions:
        """The numbers of the rows that are gone."""
        if self._dead is None:
            self._dead = vectors.read(self._folder, self._data.vector)
        return self._dead

    def groups(self) -> Iterator[tuple[int, int, int]]:
        """Yield number, first row and rows of each row group."""
        first = 0
        for number, count in enumerate(self.counts):
            yield number, first, count
            first += count

    def bounds(self, group: int, column: str) -> tuple[Any, Any]:
        """Return the least and the greatest value of a column in a row group; None where not known."""
        known = self._statistics(group, column)
        return (known.min, known.max) if known is not None and known.has_min_max else (None, None)

    def greatest(self, group: int, column: str) -> Any:
        """Return the greatest value of a column in a row group; None where not known, or one is null."""
        known = self._statistics(group, column)
        return None if known is None or known.null_count != 0 else self.bounds(group, column)[1]

    def _statistics(self, group: int, column: str) -> Any:
        if column not in self._there:
            return None
        whole = self._file.metadata.row_group(group)
        for at in range(whole.num_columns):
            found = whole.column(at)
            if found.path_in_schema == column:
                return found.statistics if found.is_stats_set else None
        return None

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Read columns of a row group, as the table has them."""
        stored = [name for name in columns if name in self._there and name not in self._data.values]
        with _as_written(self._folder, self._data):
            rows = self._file.read_row_group(group, columns=stored) if stored else None
        count = self.counts[group]
        arrays = []
        for name in columns:
            kind = self.kind(name)
            if name in self._data.values:
                value = pa.array([self._data.values[name]], pa.string()).cast(kind)[0]
                arrays.append(pa.chunked_array([pa.repeat(value, count)], kind))
            elif rows is None or name not in self._there:
                arrays.append(pa.chunked_array([pa.nulls(count, kind)], kind))
            else:
                arrays.append(rows[name] if rows[name].type == kind else rows[name].cast(kind))
        return pa.table(arrays, schema=pa.schema([self._schema.field(name) for name in columns]))

    def live(
        self, columns: Sequence[str], gone: vectors.Positions = vectors.NONE
    ) -> Iterator[tuple[pa.Table, vectors.Positions]]:
        """Yield columns of the rows that are there, but for some that go, by groups, and their numbers."""
        dead = vectors.union(self.dead, gone)
        for group, first, count in self.groups():
            stays = np.ones(count, bool)
            stays[dead[slice(*np.searchsorted(dead, (first, first + count)))] - first] = False
            if stays.any():
                part = self.read(group, columns)
                yield (part if stays.all() else part.filter(pa.array(stays))), first + np.flatnonzero(stays)


_AT_ONCE_BYTES = 1 << 20
"""Files of an object store up to this size are read whole: a request for each part of one takes longer."""


@contextmanager
def opened(folder: Folder, data: DataFile, schema: pa.Schema) -> Iterator[Reader]:
    """Open a data file of a table with these columns."""
    remote, place = is_remote(folder.uri), folder.place(data.path)
    at_once = remote and data.size <= _AT_ONCE_BYTES
    with ExitStack() as stack:
        with _as_written(folder, data):
            open_it = folder.files.open_input_stream if at_once else folder.files.open_input_file
            source = stack.enter_context(open_it(place))
            content = stack.enter_context(pa.BufferReader(source.read())) if at_once else source
            file = pq.ParquetFile(content, pre_buffer=remote, coerce_int96_timestamp_unit="us")
            stack.enter_context(file)
        yield Reader(file, data, folder, schema)


@contextmanager
def _as_written(folder: Folder, data: DataFile) -> Iterator[None]:
    """Raise InvalidData where a data file is gone, or has other bytes than were written.

    A batch's records are not to blame for it (`lake.sparing`), nor is the store.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise folder.damaged(data.path, "is gone") from error
    except (ValueError, OSError) as error:
        # What a system or a store refuses has a number, or comes from afar.
        if isinstance(error, OSError) and (error.errno is not None or is_remote(folder.uri)):
            raise
        raise folder.damaged(data.path, f"cannot be read ({str(error).rstrip('.')})") from error


class Writer:
    """Writes rows of one partition into files of about the size wanted.

    Attributes:
        added: the actions that add the files that are finished.
        paths: every file that was begun.
    """

    def __init__(self, folder: Folder, shape: Shape, values: Values, *, data_change: bool) -> None:
        self._folder, self._shape, self._values, self._data_change = folder, shape, values, data_change
        self.added: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self._held: list[pa.Table] = []
        self._held_rows = self._held_bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table) -> None:
        """Write rows; small parts wait for the next."""
        if rows.num_rows == 0:
            return
        self._held.append(rows)
        self._held_rows += rows.num_rows
        self._held_bytes += rows.nbytes
        if self._held_rows >= GROUP_ROWS or self._held_bytes >= self._shape.group_bytes:
            self._flush()

    def close(self) -> None:
        """Write what waits and finish the file."""
        self._flush()
        self._finish()

    def abandon(self) -> None:
        """Let go of an unfinished file."""
        if self._writer is not None:
            self._writer.is_open = False  # or it would write its footer when it is collected
            self._writer = None
            with suppress(OSError):
                self._sink.close()

    def _flush(self) -> None:
        if not self._held:
            return
        rows = pa.concat_tables(self._held).cast(self._shape.stored)
        mean = max(1, self._held_bytes // self._held_rows)
        at_once = max(1, min(GROUP_ROWS, self._shape.group_bytes // mean))
        self._held, self._held_rows, self._held_bytes = [], 0, 0
        for start in range(0, rows.num_rows, at_once):
            if self._writer is None:
                self._begin(rows)
            assert self._writer is not None
            self._writer.write_table(rows.slice(start, at_once), row_group_size=at_once)
            if self._sink.tell() >= self._shape.file_bytes:
                self._finish()

    def _begin(self, rows: pa.Table) -> None:
        folders = zip(self._shape.partition_columns, self._values, strict=True)
        parts = [
            f"{quote(name, safe='')}={_NULL if value is None else quote(value, safe='')}"
            for name, value in folders
        ]
        path = "/".join([*self._shape.inside, *parts, f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"])
        self.paths.append(path)
        schema = self._shape.stored
        repeated = [name for name in schema.names if _repeats(_sample(rows[name]))]
        packed = [
            each.name
            for each in schema
            if self._shape.packed and pa.types.is_integer(each.type) and each.name not in repeated
        ]
        self._sink = self._folder.create(path)
        self._written: list[Any] = []
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=_compression(rows),
            use_dictionary=repeated,
            column_encoding=dict.fromkeys(packed, "DELTA_BINARY_PACKED") or None,
            store_schema=False,
            metadata_collector=self._written,
        )

    def _finish(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        size = self._sink.tell()
        self._sink.close()
        action = {
            "path": quote(self.paths[-1], safe="/=-_.~"),
            "partitionValues": dict(zip(self._shape.partition_columns, self._values, strict=True)),
            "size": size,
            "modificationTime": milliseconds(),
            "dataChange": self._data_change,
            "stats": orjson.dumps(statistics(self._written[0], self._shape.stored)).decode(),
        }
        self.added.append({"add": action})


def _compression(rows: pa.Table) -> str | dict[str, str]:
    """Return how columns are compressed: those that get smaller by it, which hashes do not."""
    if any(pa.types.is_nested(each.type) for each in rows.schema):
        return "snappy"  # by column it would have to be said of each leaf
    return {name: "snappy" if _shrinks(rows[name]) else "none" for name in rows.column_names}


def _sample(values: pa.ChunkedArray) -> pa.ChunkedArray:
    mean = values.nbytes // max(len(values), 1) + 1
    return values.slice(0, min(_SAMPLE_ROWS, max(_SAMPLE_BYTES // mean, 1)))


def _shrinks(values: pa.ChunkedArray) -> bool:
    sample = pa.record_batch([whole(_sample(values))], [""]).serialize()
    return len(pa.compress(sample, "snappy")) < _WORTH * len(sample)


def _repeats(values: pa.ChunkedArray) -> bool:
    """Return whether values are equal often enough for a dictionary."""
    if pa.types.is_nested(values.type):
        return False
    return bool(2 * pc.count_distinct(values).as_py() <= len(values))


def statistics(written: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Return what the log says of a file: rows, and per column nulls, the least and the greatest value.

    Values that JSON would not hold exactly are left out: decimals of many digits become doubles on the way,
    and whoever goes by these misses rows.
    """
    found: dict[str, Any] = {
        "numRecords": written.num_rows,
        "minValues": {},
        "maxValues": {},
        "nullCount": {},
    }
    simple = {
        each.name: each.type
        for number, each in enumerate(schema)
        if (number < _INDEXED or each.name.startswith("_")) and not pa.types.is_nested(each.type)
    }
    if written.num_row_groups == 0:
        return found
    for at in range(written.num_columns):
        columns = [written.row_group(group).column(at) for group in range(written.num_row_groups)]
        name = columns[0].path_in_schema
        known = [column.statistics for column in columns if column.is_stats_set]
        if name not in simple or len(known) < len(columns):
            continue
        if all(each.has_null_count for each in known):
            found["nullCount"][name] = sum(each.null_count for each in known)
        # A row group of nulls alone has no least value, and one whose values are too long has none either.
        valued = [each for each in known if each.num_values or not each.has_null_count]
        if valued and all(each.has_min_max for each in valued):
            least = _shown(min(each.min for each in valued), simple[name], greatest=False)
            most = _shown(max(each.max for each in valued), simple[name], greatest=True)
            if least is not None and most is not None:
                found["minValues"][name], found["maxValues"][name] = least, most
    return found


def _shown(value: Any, kind: pa.DataType, *, greatest: bool) -> Any:
    """Return a bound as JSON has it; None where it cannot say it."""
    if pa.types.is_string(kind):
        return _cut(value, greatest=greatest)
    if pa.types.is_decimal(kind):
        return float(value) if kind.precision <= EXACT_DIGITS and isinstance(value, Decimal) else None
    if pa.types.is_floating(kind):
        return value if math.isfinite(value) else None
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(sep="T" if kind.tz else " ")
        return f"{text}Z" if kind.tz else text
    if isinstance(value, dt.date):
        return value.isoformat()
    return value if isinstance(value, (bool, int)) else None


_SURROGATES = 0xD800
"""The first code point that no text has; those that one may have begin again behind 0xDFFF."""


def _cut(text: str, *, greatest: bool) -> str | None:
    """Return the beginning of a text; of the greatest, the least one that is greater than all with it."""
    whole = text.encode()
    if len(whole) <= LONGEST_BOUND:
        return text
    start = whole[:LONGEST_BOUND].decode(errors="ignore")
    if not greatest:
        return start
    for at in range(len(start) - 1, -1, -1):
        after = ord(start[at]) + 1
        after = 0xE000 if after == _SURROGATES else after
        if after <= sys.maxunicode:
            return start[:at] + chr(after)
    return None


def write_files(
    folder: Folder,
    shape: Shape,
    parts: Iterable[tuple[Values, Iterable[pa.Table]]],
    *,
    data_change: bool = True,
    apart: bool = False,
) -> list[dict[str, Any]]:
    """Write the rows of some partitions, each a stream of parts; return the actions that add the files.

    With `apart` rows of a history that ended come to files of their own, which later batches need not read.
    Nothing is left behind where that fails.
    """
    begun: list[str] = []

    def write(part: tuple[Values, Iterable[pa.Table]]) -> list[dict[str, Any]]:
        values, tables = part
        writers = [Writer(folder, shape, values, data_change=data_change) for _ in range(1 + apart)]
        try:
            for rows in tables:
                sorts = shape.sorted_out(rows) if apart else [rows]
                for writer, sort in zip(writers, sorts, strict=False):
                    writer.write(sort)
            for writer in writers:
                writer.close()
            return [action for writer in writers for action in writer.added]
        finally:
            for writer in writers:
                begun.extend(writer.paths)
                writer.abandon()

    try:
        return list(chain.from_iterable(of_each_file(folder.uri, write, parts)))
    except BaseException:
        folder.remove(begun)
        raise


@dataclass(frozen=True)
class Writing:
    """How the files of one commit are written; it may travel to another process."""

    folder: Folder
    shape: Shape
    data_change: bool

    def __call__(self, again: Again, new: pa.Table | None = None) -> list[dict[str, Any]]:
        """Write what stays of files, those whose rows go with these, and new rows; return the actions.

        The few rows of a batch are one file: it is written again soon.
        """
        apart = bool(again) or (new is not None and new.num_rows >= GROUP_ROWS)
        streams = self._streams(again, new)
        added = write_files(self.folder, self.shape, streams, data_change=self.data_change, apart=apart)
        self.folder.make_durable(paths_of(added))
        return added

    def _streams(self, again: Again, new: pa.Table | None) -> Iterator[tuple[Values, Iterator[pa.Table]]]:
        """Yield per partition what is to be written: what stays of its files, then the new rows."""
        kept: dict[Values, list[tuple[DataFile, vectors.Positions]]] = {}
        for file, rows in again:
            values = tuple(file.values.get(name) for name in self.shape.partition_columns)
            kept.setdefault(values, []).append((file, rows))
        fresh = dict(self.shape.split(new)) if new else {}

        def stream(values: Values) -> Iterator[pa.Table]:
            for file, rows in kept.get(values, ()):
                with opened(self.folder, file, self.shape.schema) as reader:
                    for part, _ in reader.live(self.shape.stored.names, rows):
                        yield part
            if values in fresh:
                yield fresh[values]

        for values in dict.fromkeys([*kept, *fresh]):
            yield values, stream(values)


def paths_of(added: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the files that actions add, or that have what they change."""
    return [unquote(each["path"]) for action in added for each in action.values()]


CHANGES_FOLDER = "_change_data"
CHANGE_TYPE = pa.field("_change_type", pa.string())


def changed_rows(before: pa.Table, after: pa.Table, removed: pa.Table, inserted: pa.Table) -> pa.Table:
    """Return rows of a table as its feed has them."""
    parts = {"update_preimage": before, "update_postimage": after, "delete": removed, "insert": inserted}
    return pa.concat_tables(
        [rows.append_column(CHANGE_TYPE, pa.repeat(kind, rows.num_rows)) for kind, rows in parts.items()]
    )


def write_changes(folder: Folder, shape: Shape, changes: pa.Table | None) -> list[dict[str, Any]]:
    """Write rows of the feed, where there is one; return the actions that say where they are."""
    if changes is None:
        return []
    shape = replace(shape, schema=shape.schema.append(CHANGE_TYPE), inside=(CHANGES_FOLDER,))
    parts = ((values, [rows]) for values, rows in shape.split(changes))
    added = write_files(folder, shape, parts, data_change=False)
    folder.make_durable([unquote(action["add"]["path"]) for action in added])
    kept = ("path", "partitionValues", "size", "dataChange")
    return [{"cdc": {name: action["add"][name] for name in kept}} for action in added]
