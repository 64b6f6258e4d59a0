"""The first load of a table: rows of a dump or export, as changes committed at one given time.

A stream holds changes and no snapshot. Each row of the Parquet files becomes an upsert of version
(time of the snapshot, no transaction, upsert): whatever the stream brings that was committed later wins,
deletes too, before the load, during it or after it; what was committed earlier loses.

All rows are read and checked first, then read again and written, a part at a time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headpond.core.errors import InvalidData, UsageError
from headpond.core.schemas import OWN_FIELDS
from headpond.dsql.pg_types import CastOptions
from headpond.dsql.rows import canonical, columns_named, image_hashes
from headpond.dsql.versions import cast_values, encode_versions, key_column
from headpond.lake.apply import DecodedBatch, apply_batch
from headpond.lake.maintenance.catch_up import configured
from headpond.lake.maintenance.parquet import Unfit, wire_tokens
from headpond.lake.state.rows import RowTables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headpond.dsql.config import RowChanges, TableSpec
    from headpond.lake.lake import Lake
    from headpond.lake.maintenance.parquet import ParquetSource

ROWS_AT_ONCE = 100_000
KEYS_AT_ONCE = 4_000_000
"""Keys compared in one pass: 8 bytes each."""

_SHOWN_KEYS = 5
_FOLLOWED_KEYS = 1_000


@dataclass(slots=True)
class Loaded:
    """What a load did: files, rows, and the table's figures."""

    files: int = 0
    rows: int = 0
    out_of_range: int = 0
    figures: Counter[str] = field(default_factory=Counter)


class Bootstrap:
    """One load of a table, by its configured name, from Parquet files.

    The rows stand for the commit time `ts_ns`; with `missing_as_null` a declared column may be absent from a
    file. `rows_at_once` are written in one commit, `keys_at_once` compared in one pass.
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
        keys_at_once: int = KEYS_AT_ONCE,
    ) -> None:
        self.lake = lake
        self.config = RowTables.of(lake).config
        self.spec = _spec(self.config, table)
        self.source = source
        self.ts_ns = ts_ns
        self.missing_as_null = missing_as_null
        self.rows_at_once = rows_at_once
        self.keys_at_once = keys_at_once

    def load(self, *, say: Callable[[str], None] = lambda _: None) -> Loaded:
        """Check all rows, then write them; nothing is written where one does not fit."""
        horizon = self.lake.tombstones.horizon_ns(self.spec.name)
        if horizon is not None and self.ts_ns < horizon:
            raise UsageError(
                f"Deletes of {self.spec.name!r} up to {horizon} ns are no longer known, so rows of "
                f"{self.ts_ns} ns could bring deleted ones back.",
                next_step="Load a newer snapshot.",
                table=self.spec.name,
                horizon_ns=horizon,
            )
        files = self.source.files()
        done = Loaded(files=len(files))
        self._check(files, say)
        self.lake.typed[self.spec.name].prepare()
        for rows in self._typed(files, done):
            done.rows += rows.num_rows
            batch = DecodedBatch(tables={self.spec.name: rows})
            applied = apply_batch(self.lake, batch, shared=True)
            done.figures.update(applied.tables.get(self.spec.name, {}))
            say(f"{done.rows:,} rows written")
        return done

    def _check(self, files: Sequence[str], say: Callable[[str], None]) -> None:
        """Type every row once, and look for keys that are there twice."""
        total = 0
        for file in files:
            with self.source.open(file) as opened:
                total += opened.metadata.num_rows
        passes = max(1, -(-total // self.keys_at_once))
        twice: set[int] = set()
        for number in range(passes):
            hashes = [np.empty(0, np.int64)]
            checked = 0
            for rows in self._typed(files, Loaded(), keys_only=number > 0):
                found = _hashes(rows)
                hashes.append(found[found % passes == number])
                checked += rows.num_rows
                say(f"{checked:,} of {total:,} rows checked")
            values, counts = np.unique(np.concatenate(hashes), return_counts=True)
            twice.update(values[counts > 1].tolist()[: _FOLLOWED_KEYS - len(twice)])
        if twice:
            self._refuse_twice(files, twice)

    def _refuse_twice(self, files: Sequence[str], twice: set[int]) -> None:
        """Raise for the keys that are there twice; equal hashes alone are not a proof."""
        counted: Counter[str] = Counter()
        for rows in self._typed(files, Loaded(), keys_only=True):
            at = np.flatnonzero(np.isin(_hashes(rows), list(twice)))
            counted.update(rows["m:key"].take(pa.array(at)).to_pylist())
        keys = sorted(key for key, count in counted.items() if count > 1)
        if keys:
            shown = ", ".join(keys[:_SHOWN_KEYS]) + (", …" if len(keys) > _SHOWN_KEYS else "")
            raise InvalidData(
                f"Two rows or more of {self.spec.name!r} have the same key "
                f"({', '.join(self.spec.keys)}): {shown}.",
                next_step="Correct the keys of the table, or load a snapshot of one moment.",
                reason="duplicate_key",
                keys=keys[:_SHOWN_KEYS],
            )

    def _typed(self, files: Sequence[str], done: Loaded, *, keys_only: bool = False) -> Iterator[pa.Table]:
        """Yield typed rows in parts."""
        for file in files:
            with self.source.open(file) as opened:
                names = self._names(file, opened.schema_arrow.names)
            wanted = [name for name, new in names.items() if not keys_only or new in self.spec.keys]
            first = 0
            for batch in self.source.batches(file, self.rows_at_once, wanted):
                yield self._rows(batch, names, file, first, done)
                first += batch.num_rows

    def _names(self, file: str, there: Sequence[str]) -> dict[str, str]:
        """Return column in the file → column in the lake."""
        names = {name: self.spec.rename.get(name, name) for name in there}
        new = Counter(names.values())
        if double := [name for name, count in new.items() if count > 1]:
            raise self._unfit(file, double[0], "is there twice (after renaming)")
        required = self.spec.keys if self.missing_as_null else (*self.spec.keys, *self.spec.columns)
        for name in required:
            if name not in new and name not in self.spec.except_columns:
                raise self._unfit(file, name, "is not there")
        return names

    def _rows(
        self, batch: pa.RecordBatch, names: Mapping[str, str], file: str, first: int, done: Loaded
    ) -> pa.Table:
        """Type one part of a file, that begins after `first` rows."""
        options = CastOptions(infinity=self.config.infinity, special_numeric=self.config.special_numeric)
        tokens: dict[str, pa.Array] = {}
        values = {
            name: pa.nulls(batch.num_rows, self.spec.type_of(name))
            for name in self.spec.columns
            if name not in self.spec.except_columns
        }
        for original, column in zip(batch.schema.names, batch.columns, strict=True):
            name = names[original]
            declared = self.spec.columns.get(name, "any")
            try:
                tokens[original] = wire_tokens(column, declared)
            except Unfit as unfit:
                raise self._unfit(
                    file, original, unfit.why, None if unfit.row is None else first + unfit.row
                ) from None
            if name in self.spec.except_columns:
                continue
            cast = cast_values(self.spec, name, tokens[original], options)
            if cast.failures:
                row, code = next(iter(cast.failures.items()))
                raise self._unfit(
                    file, original, f"holds a value that is not a valid {declared} ({code})", first + row
                )
            is_raw_key = name in self.spec.keys and self.spec.is_raw(name)
            values[name] = (
                canonical(tokens[original]).cast(pa.string())
                if is_raw_key
                else self.spec.values_of(cast.values)
            )
            done.out_of_range += cast.out_of_range
            if name in self.spec.keys and values[name].null_count:
                row = values[name].is_null().index(True).as_py()
                raise self._unfit(file, original, "is a key and null", first + row)
        return self._own(tokens, values, batch.num_rows)

    def _own(self, tokens: Mapping[str, pa.Array], values: Mapping[str, pa.Array], count: int) -> pa.Table:
        delete = pa.array(np.zeros(count, bool))
        ts_ns = pa.repeat(pa.scalar(self.ts_ns, pa.int64()), count)
        tx_id = pa.repeat(pa.scalar("", pa.string()), count)
        own: dict[str, Any] = {
            "m:columns": columns_named(list(tokens), count, self.spec),
            "m:key": key_column(self.spec, values),
            "m:version": encode_versions(ts_ns, tx_id, delete),
            "m:op": pa.repeat(pa.scalar("c"), count),
            "m:delete": delete,
            "m:ts_ns": ts_ns,
            "m:tx_id": tx_id,
            "m:image_hash": image_hashes(tokens, delete),
        }
        schema = pa.schema(
            [*OWN_FIELDS, *(pa.field(f"c:{name}", each.type) for name, each in values.items())]
        )
        arrays = [own.get(each.name, pa.nulls(count, each.type)) for each in OWN_FIELDS]
        return pa.table([*arrays, *values.values()], schema=schema)

    def _unfit(self, file: str, column: str, why: str, row: int | None = None) -> UsageError | InvalidData:
        table = self.spec.name
        if row is None:
            return UsageError(
                f"The column {column!r} of {file} {why}, for the table {table!r}.",
                next_step="Correct the table's entry in the pipeline file, or the export.",
                table=table,
                column=column,
            )
        return InvalidData(
            f"The column {column!r} of {file} {why}, in row {row + 1}, for the table {table!r}.",
            next_step="Correct the type in the pipeline file, or the export; nothing was written.",
            reason="unfit_value",
            table=table,
            column=column,
            row=row + 1,
        )


def _spec(config: RowChanges, table: str) -> TableSpec:
    spec = configured(config, table)
    if spec.keep == "log":
        raise UsageError(
            f"The table {table!r} is a log: its entries are changes, and a snapshot holds none.",
            next_step="Load tables that keep rows by a key.",
            table=table,
        )
    return spec


def _hashes(rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    keys = rows["m:key"].to_pylist()
    return np.fromiter(map(hash, keys), np.int64, len(keys))
