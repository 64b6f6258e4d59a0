"""The first load of a table: rows of a dump or export, as changes committed at one given time.

A stream holds changes and no snapshot. Each row of the Parquet files becomes an upsert of version
(time of the snapshot, no transaction, upsert): whatever the stream brings that was committed later wins,
deletes too, before the load, during it or after it; what was committed earlier loses.

All rows are read and checked first, then read again and written, a part at a time.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headpond.core.errors import InvalidData, UsageError
from headpond.lake.apply import DecodedBatch, apply_batch
from headpond.lake.maintenance.parquet import Unfit, wire_tokens
from headpond.lake.maintenance.snapshot import Loaded, SnapshotRows, refuse_before_horizon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headpond.lake.lake import Lake
    from headpond.lake.maintenance.parquet import ParquetSource

ROWS_AT_ONCE = 100_000
KEYS_AT_ONCE = 4_000_000
"""Keys compared in one pass: 8 bytes each."""

_SHOWN_KEYS = 5
_FOLLOWED_KEYS = 1_000


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
        self.rows = SnapshotRows.of(lake, table)
        self.spec = self.rows.spec
        self.source = source
        self.ts_ns = ts_ns
        self.missing_as_null = missing_as_null
        self.rows_at_once = rows_at_once
        self.keys_at_once = keys_at_once

    def load(self, *, say: Callable[[str], None] = lambda _: None) -> Loaded:
        """Check all rows, then write them; nothing is written where one does not fit."""
        refuse_before_horizon(self.lake, self.spec.name, self.ts_ns)
        files = self.source.files()
        done = Loaded(files=len(files))
        self._check(files, say)
        self.lake.typed[self.spec.name].prepare()
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
        total = 0
        for file in files:
            with self.source.open(file) as opened:
                total += opened.metadata.num_rows
        passes = max(1, -(-total // self.keys_at_once))
        twice: set[int] = set()
        for number in range(passes):
            hashes = [np.empty(0, np.int64)]
            checked = 0
            for rows in self.typed(files, Loaded(), keys_only=number > 0):
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
        for rows in self.typed(files, Loaded(), keys_only=True):
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

    def typed(self, files: Sequence[str], done: Loaded, *, keys_only: bool = False) -> Iterator[pa.Table]:
        """Yield the files' rows, typed, in parts."""
        for file in files:
            with self.source.open(file) as opened:
                names = self._names(file, opened.schema_arrow.names)
            wanted = [name for name, new in names.items() if not keys_only or new in self.spec.keys]
            first = 0
            for batch in self.source.batches(file, self.rows_at_once, wanted):
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


def _hashes(rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    keys = rows["m:key"].to_pylist()
    return np.fromiter(map(hash, keys), np.int64, len(keys))
