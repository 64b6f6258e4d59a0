"""The first load of a table: rows of a dump or export, as changes committed at one given time.

A stream holds changes and no snapshot. Each row of the Parquet files becomes an upsert of version
(time of the snapshot, no transaction, upsert): whatever the stream brings that was committed later wins,
deletes too, before the load, during it or after it; what was committed earlier loses.

All rows are read and checked first, then read again and written, a part at a time.
"""

from __future__ import annotations

from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from headpond.core.errors import InvalidData, UsageError
from headpond.lake.apply import DecodedBatch, apply_batch
from headpond.lake.maintenance.parquet import Unfit, wire_tokens
from headpond.lake.maintenance.snapshot import (
    Loaded,
    Parts,
    SnapshotRows,
    refuse_before_horizon,
    refuse_twice,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from headpond.lake.lake import Lake
    from headpond.lake.maintenance.parquet import ParquetSource

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
        found: list[set[str]] = []
        for file in self.source.files():
            with self.source.open(file) as opened:
                found.append(set(self._names(file, opened.schema_arrow.names).values()))
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
            with self.source.open(file) as opened:
                names = self._names(file, opened.schema_arrow.names)
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
