"""The first load of a table: rows of Parquet files, as changes committed at one given time.

Each row of the files becomes an upsert of version (time of the snapshot, no transaction, upsert): whatever
the stream brings that was committed later wins, deletes too, before the load, during it or after it; what was
committed earlier loses. All rows are read and checked first, then read again and written, a part at a time.

Columns become the tokens that a change record would carry, so that they go through the same casts and have
the same image hash::

    Parquet             token                declared as
    int32 7             7                    smallint, integer, bigint, oid; double precision where exact
    decimal 1.50        "1.50"               numeric; integers where exact
    timestamp           1783600000000000     timestamp (without a zone), timestamptz (with one)
    string ab           "ab"                 text, varchar, …, uuid, json, numeric

A value is never rounded, cut or wrapped; a column of a kind that could mean something else is refused.
"""

from __future__ import annotations

import base64
import glob
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from headpond.core.errors import InvalidData, UsageError
from headpond.core.schemas import json_texts, quote
from headpond.dsql.pg_types import TEXT_TYPES, PgType, parse_type
from headpond.lake.apply import DecodedBatch, apply_batch
from headpond.lake.maintenance.snapshot import (
    Loaded,
    Parts,
    SnapshotRows,
    refuse_before_horizon,
    refuse_twice,
)
from headpond.lake.object_store import is_remote
from headpond.lake.storage import file_system, storage_errors
from headpond.lake.tables import Lake

ROWS_AT_ONCE = 100_000


class Bootstrap:
    """One load of a table, by its configured name, from Parquet files.

    The rows stand for the commit time `ts_ns`; with `missing_as_null` a declared column may be absent from a
    file. `rows_at_once` are written in one commit.
    """

    def __init__(
        self,
        lake: Lake,
        table: str,
        source: ParquetSource,
        ts_ns: int,
        *,
        missing_as_null: bool = False,
        rows_at_once: int = ROWS_AT_ONCE,
    ) -> None:
        self.lake = lake
        self.rows = SnapshotRows.of(lake, table)
        self.spec = self.rows.spec
        self.source = source
        self.ts_ns = ts_ns
        self.missing_as_null = missing_as_null
        self.rows_at_once = rows_at_once

    def load(self, *, say: Callable[[str], None] = lambda _: None) -> Loaded:
        """Check all rows, then write them; nothing is written where one does not fit."""
        refuse_before_horizon(self.lake, self.spec.name, self.ts_ns)
        files = self.source.files()
        done = Loaded(files=len(files))
        self._check(files, say)
        self.lake.make([self.spec.name])
        for rows in self.typed(files, done):
            done.rows += rows.num_rows
            batch = DecodedBatch(tables={self.spec.name: rows})
            applied = apply_batch(self.lake, batch, shared=True)
            done.figures.update(applied.tables.get(self.spec.name, {}))
            say(f"{done.rows:,} rows written")
        return done

    def columns(self) -> list[str]:
        """Return the columns that every file has, as the lake calls them."""
        files = self.source.files()
        found = [set(self._names(file, self.source.columns(file)).values()) for file in files]
        return sorted(set.intersection(*found))

    def _names(self, file: str, there: Sequence[str]) -> dict[str, str]:
        return self.rows.names(there, partial(self._unfit, file), missing_as_null=self.missing_as_null)

    def _check(self, files: Sequence[str], say: Callable[[str], None]) -> None:
        """Type every row once, and look for keys that are there twice."""
        checked = 0
        with TemporaryDirectory(prefix="headpond-keys-") as folder:
            keys = Parts(folder, "keys")
            for rows in self.typed(files, Loaded()):
                keys.add(rows.select(["m:key"]).rename_columns(["key"]))
                checked += rows.num_rows
                say(f"{checked:,} rows checked")
            for part in keys:
                refuse_twice(self.spec, part["key"])

    def typed(self, files: Sequence[str], done: Loaded) -> Iterator[pa.Table]:
        """Yield the files' rows, typed, in parts."""
        for file in files:
            names = self._names(file, self.source.columns(file))
            first = 0
            for batch in self.source.batches(file, self.rows_at_once):
                yield self._rows(batch, names, file, first, done)
                first += batch.num_rows

    def _rows(
        self, batch: pa.RecordBatch, names: Mapping[str, str], file: str, first: int, done: Loaded
    ) -> pa.Table:
        """Type one part of a file, that begins after `first` rows."""

        def unfit(column: str, why: str, row: int | None) -> UsageError | InvalidData:
            return self._unfit(file, column, why, None if row is None else first + row)

        tokens: dict[str, pa.Array] = {}
        for original, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                tokens[original] = wire_tokens(column, self.spec.columns.get(names[original], "any"))
            except Unfit as found:
                raise unfit(original, found.why, found.row) from None
        rows, out_of_range = self.rows.typed(tokens, self.ts_ns, unfit)
        done.out_of_range += out_of_range
        return rows

    def _unfit(self, file: str, column: str, why: str, row: int | None = None) -> UsageError | InvalidData:
        if row is None:
            fix = "Correct the table's entry in the pipeline file, or the export."
            return self.rows.unfit(column, file, why, fix)
        fix = "Correct the type in the pipeline file, or the export; nothing was written."
        return self.rows.unfit(column, file, why, fix, f"row {row + 1}", row=row + 1)


_INDEX = re.compile(r"__index_level_\d+__")
"""What pandas calls the index of a frame when it writes it beside the columns."""


@dataclass(frozen=True, slots=True)
class ParquetSource:
    """Parquet files by paths, URLs and patterns of them; the options give access to an object store."""

    places: Sequence[str]
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def files(self) -> list[str]:
        """Return every file, each once, in order; a place that matches none is an error."""
        found: dict[str, None] = {}
        for place in self.places:
            matched = self._remote(place) if is_remote(place) else sorted(glob.glob(place, recursive=True))  # noqa: PTH207 - a pattern may be absolute
            if not matched:
                raise UsageError(
                    f"No file matches {place}.",
                    next_step="Give Parquet files, or a pattern of them.",
                    place=place,
                )
            found.update(dict.fromkeys(matched))
        return list(found)

    def _remote(self, place: str) -> list[str]:
        scheme = place.partition("://")[0]
        folder, _, name = place.rpartition("/")
        files, root = file_system(folder, self.options)
        with storage_errors(place, self.options):
            infos = files.get_file_info(pafs.FileSelector(root, allow_not_found=True))
        return sorted(
            f"{scheme}://{info.path}"
            for info in infos
            if info.type == pafs.FileType.File and fnmatchcase(info.base_name, name)
        )

    def open(self, place: str) -> pq.ParquetFile:
        """Open one file."""
        files, path = file_system(place, self.options)
        with storage_errors(place, self.options):
            try:
                return pq.ParquetFile(files.open_input_file(path))
            except pa.ArrowInvalid as error:
                raise UsageError(
                    f"{place} is not a Parquet file.", next_step="Give Parquet files.", place=place
                ) from error

    def columns(self, place: str) -> list[str]:
        """Return the columns of one file, without pandas' index."""
        with self.open(place) as opened:
            return [name for name in opened.schema_arrow.names if not _INDEX.fullmatch(name)]

    def batches(self, place: str, rows: int) -> Iterator[pa.RecordBatch]:
        """Read these in parts."""
        with self.open(place) as opened, storage_errors(place, self.options):
            for batch in opened.iter_batches(rows):
                yield batch.drop_columns(list(filter(_INDEX.fullmatch, batch.schema.names)))


_INTEGERS = ("smallint", "integer", "bigint", "oid")
_FLOATS = ("real", "double precision")
_ALL = frozenset(
    {"integer", "decimal", "float", "boolean", "text", "uuid", "binary", "date", "time", "timestamp",
     "timestamptz", "duration", "null"}
)  # fmt: skip

FITS: dict[str, frozenset[str]] = {
    **dict.fromkeys(_INTEGERS, frozenset({"integer", "decimal"})),
    **dict.fromkeys(_FLOATS, frozenset({"float", "integer"})),
    **dict.fromkeys(TEXT_TYPES, frozenset({"text"})),
    "numeric": frozenset({"decimal", "integer", "text"}),
    "boolean": frozenset({"boolean"}),
    "uuid": frozenset({"text", "uuid"}),
    "bytea": frozenset({"binary"}),
    "date": frozenset({"date"}),
    "time": frozenset({"time"}),
    "timestamp": frozenset({"timestamp"}),
    "timestamptz": frozenset({"timestamptz"}),
    "interval": frozenset({"duration"}),
    "any": _ALL,
}
"""PostgreSQL type → kinds of Parquet columns that hold its values beyond doubt."""

_UUID_BYTES = 16


class Unfit(Exception):
    """A column, or a row of it, does not fit; `row` is None where it is the whole column."""

    def __init__(self, why: str, row: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.row = row


def wire_tokens(column: pa.Array, declared: str) -> pa.Array:
    """Return a column as JSON tokens (binary; null stays null), by its declared PostgreSQL type."""
    pg_type = parse_type(declared)
    if isinstance(column.type, pa.BaseExtensionType) and column.type.extension_name == "arrow.uuid":
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = next((name for name, test in _TESTS if test(column.type)), None)
    if kind == "null":
        return pa.nulls(len(column), pa.binary())
    if kind is None or (kind not in FITS.get(pg_type.name, frozenset()) and not _is_uuid(column, pg_type)):
        raise Unfit(f"holds {column.type}, which does not say what {declared} it means")
    try:
        if _is_uuid(column, pg_type):
            return _each(column, lambda value: quote(str(uuid.UUID(bytes=value))))
        return _WRITERS[kind](column, pg_type)
    except pa.ArrowInvalid as error:
        raise Unfit(f"holds a value that cannot be represented exactly as {declared}: {error}") from error


def _is_uuid(column: pa.Array, pg_type: PgType) -> bool:
    fixed = pa.types.is_fixed_size_binary(column.type) and column.type.byte_width == _UUID_BYTES
    return pg_type.name == "uuid" and fixed


_TESTS: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
    ("integer", pa.types.is_integer),
    ("decimal", pa.types.is_decimal),
    ("float", pa.types.is_floating),
    ("boolean", pa.types.is_boolean),
    *(("text", test) for test in (pa.types.is_string, pa.types.is_large_string)),
    *(("binary", getattr(pa.types, f"is_{size}binary")) for size in ("", "large_", "fixed_size_")),
    ("date", pa.types.is_date),
    ("time", pa.types.is_time),
    ("timestamp", lambda kind: pa.types.is_timestamp(kind) and kind.tz is None),
    ("timestamptz", pa.types.is_timestamp),
    ("duration", pa.types.is_duration),
    ("null", pa.types.is_null),
)


def _digits(values: pa.Array) -> pa.Array:
    return values.cast(pa.string()).cast(pa.binary())


def _integers(column: pa.Array, pg_type: PgType) -> pa.Array:
    if pg_type.name in _FLOATS:
        target = np.float32 if pg_type.name == "real" else np.float64
        values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
        # Compared as Python's integers: a float of 2⁶³ is not the integer below it.
        same = [int(target(value)) == int(value) for value in values]
        _all(same, f"is not exactly a {pg_type.name}")
    texts = column.cast(pa.string())
    return (_quoted(texts) if pg_type.name == "numeric" else texts).cast(pa.binary())


def _decimals(column: pa.Array, pg_type: PgType) -> pa.Array:
    texts = column.cast(pa.string())
    if pc.any(pc.match_substring(texts, "E")).as_py():
        texts = pa.array([None if v is None else format(v, "f") for v in column.to_pylist()], pa.string())
    if pg_type.name in _INTEGERS or pg_type.is_decimal:
        # 1.500 and 1.5 are one number; a scale that is declared says how it is kept.
        fraction = pc.match_substring(texts, ".")
        short = pc.replace_substring_regex(texts, r"\.?0+$", "")
        texts = pc.if_else(fraction, short, texts)
    return (texts if pg_type.name in _INTEGERS else _quoted(texts)).cast(pa.binary())


def _floats(column: pa.Array, pg_type: PgType) -> pa.Array:
    wide = column.cast(pa.float32()) if pa.types.is_float16(column.type) else column
    values = pc.fill_null(wide, 0.0).to_numpy(zero_copy_only=False)
    if pg_type.name == "real" and values.dtype == np.float64:
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32).astype(np.float64)
        _all((narrow == values) | np.isnan(values), "is not exactly a real")
    texts = wide.cast(pa.string())
    for found, name in (("nan", "NaN"), ("-nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        texts = pc.if_else(pc.equal(texts, found), f'"{name}"', texts)
    return texts.cast(pa.binary())


def _texts(column: pa.Array, _: PgType) -> pa.Array:
    # Parquet readers do not look whether texts are UTF-8; this cast does.
    return json_texts(column.cast(pa.binary()).cast(pa.string())).cast(pa.binary())


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _each(column: pa.Array, write: Callable[[Any], str]) -> pa.Array:
    return pa.array(
        [None if value is None else write(value).encode() for value in column.to_pylist()], pa.binary()
    )


def _timestamps(column: pa.Array, _: PgType) -> pa.Array:
    return _digits(column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()))


def _all(fine: Any, why: str) -> None:
    wrong = np.flatnonzero(~np.asarray(fine, bool))
    if len(wrong):
        raise Unfit(why, int(wrong[0]))


_WRITERS: dict[str, Callable[[pa.Array, PgType], pa.Array]] = {
    "integer": _integers,
    "decimal": _decimals,
    "float": _floats,
    "boolean": lambda column, _: _digits(column),
    "text": _texts,
    "binary": lambda column, _: _each(column, lambda value: quote(base64.b64encode(value).decode())),
    "date": lambda column, _: _digits(column.cast(pa.date32()).cast(pa.int32())),
    "time": lambda column, _: _digits(column.cast(pa.time64("us")).cast(pa.int64())),
    "timestamp": _timestamps,
    "timestamptz": _timestamps,
    "duration": lambda column, _: _digits(column.cast(pa.duration("us")).cast(pa.int64())),
}
