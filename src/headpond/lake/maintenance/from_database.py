"""The first load of tables from their database: a snapshot, in parts that survive whatever ends it.

::

    moment ─► transaction ─► page of rows by key ─► apply_batch ─► mark: behind which key to go on
      ▲                                                              │
      └────────── the transaction ended, the load was killed ────────┘

Every row counts as committed at the moment taken before its transaction began, and versions decide: rows that
a later transaction reads go with those of an earlier one. The marks are small files in `_headpond/bootstrap`
and go when all tables that were asked for are loaded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headpond.core.errors import EndpointUnreachable, InvalidData, ServiceFailure, UsageError
from headpond.lake.apply import DecodedBatch, apply_batch
from headpond.lake.maintenance.snapshot import Loaded, SnapshotRows, refuse_before_horizon
from headpond.lake.naming import table_folder
from headpond.lake.state.rows import RowTables
from headpond.lake.state.run_mark import OWN_FOLDER
from headpond.lake.storage import read_document, remove_folder, write_document
from headpond.lake.tables import Lake
from headpond.postgres.catalog import DatabaseTable, tables_of
from headpond.postgres.reading import BYTES_AT_ONCE, ROWS_AT_ONCE, Page, Snapshot, snapshot

if TYPE_CHECKING:
    from headpond.postgres.connection import Database

TRIES = 5
"""So often in a row a transaction may end without a page before the load gives up."""
PAUSE_S = 1.0


@dataclass(slots=True)
class DatabaseRows:
    """Rows of one table of a database as typed rows of the configured one.

    Raises:
        UsageError: the database has no such table, another key, or not the columns that are declared.
    """

    rows: SnapshotRows
    table: DatabaseTable
    columns: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    moments_ns: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        lake: Lake,
        name: str,
        catalog: Mapping[tuple[str, str], DatabaseTable],
        *,
        missing_as_null: bool = False,
    ) -> DatabaseRows:
        """Return that of a configured table, which the catalog must have."""
        rows = SnapshotRows.of(lake, name)
        spec = rows.spec
        table = catalog.get((spec.schema, spec.table))
        if table is None:
            raise UsageError(
                f"The database has no table {spec.schema}.{spec.table}, which {name!r} stands for.",
                next_step="`headpond suggest --from-database` shows the tables that the user may see.",
                table=name,
            )
        key = [spec.rename.get(column, column) for column in table.key]
        if set(key) != set(spec.keys):
            raise UsageError(
                f"The primary key of {spec.schema}.{spec.table} is ({', '.join(table.key)}), and the keys of "
                f"{name!r} are ({', '.join(spec.keys)}).",
                next_step="Write the primary key in keys: deletes name it."
                if table.key
                else "Give the table a primary key, load it from files, or name the tables to load.",
                table=name,
                expected=table.key,
                found=list(spec.keys),
            )
        found = cls(rows, table)
        names = rows.names(
            [each.name for each in table.columns], found.unfit, missing_as_null=missing_as_null
        )
        for column, new in names.items():
            (found.left_out if new in spec.except_columns else found.columns).append(column)
        return found

    def typed(self, page: Page, moment_ns: int) -> tuple[pa.Table, int]:
        """Return a page as typed rows, and how many values were out of range."""

        def unfit(column: str, why: str, row: int | None) -> UsageError | InvalidData:
            return self.unfit(column, why, None if row is None else page.keys[row])

        absent = {name: pa.nulls(page.count, pa.binary()) for name in self.left_out}
        return self.rows.typed(page.tokens | absent, moment_ns, unfit)

    def unfit(self, column: str, why: str, key: Any) -> UsageError | InvalidData:
        """Return the error of a column that does not fit, or of its value in the row of a key."""
        table = f"{self.table.schema}.{self.table.table}"
        if key is None:
            fix = "Correct the table's entry; `headpond suggest --from-database` has its columns."
            return self.rows.unfit(column, f"{table} in the database", why, fix)
        fix = "Correct the type in the pipeline file and run it again: it resumes where it stopped."
        at = f"the row with the key ({', '.join(key)})"
        return self.rows.unfit(column, table, why, fix, at, key=list(key))

    @property
    def called(self) -> list[str]:
        """The columns as the lake calls them."""
        return [self.rows.spec.rename.get(column, column) for column in self.columns]

    def read(
        self, database: Database, *, rows_at_once: int = ROWS_AT_ONCE, lasts_s: float | None = None
    ) -> Iterator[pa.Table]:
        """Yield all rows, typed; `moments_ns` gets the moment of each transaction that it takes."""
        after: Sequence[str] | None = None
        while True:
            with snapshot(database, lasts_s=lasts_s) as taken:
                self.moments_ns.append(taken.moment_ns)
                for page in taken.pages(self.table, self.columns, after, rows_at_once=rows_at_once):
                    yield self.typed(page, taken.moment_ns)[0]
                    after = page.keys[-1]
                    if not taken.has_time:
                        break
                else:
                    return


class DatabaseLoad:
    """A load of configured tables, by their names, from a database; `load` does it.

    Without names it is one of all tables that keep rows, also of those that patterns stand for.
    `rows_at_once` and `bytes_at_once` bound what is written in one commit, and so the memory; `lasts_s` how
    long one transaction is used.
    """

    def __init__(
        self,
        lake: Lake,
        database: Database,
        tables: Sequence[str],
        *,
        missing_as_null: bool = False,
        rows_at_once: int = ROWS_AT_ONCE,
        bytes_at_once: int = BYTES_AT_ONCE,
        lasts_s: float | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.lake, self.database = lake, database
        self.lasts_s, self._sleep = lasts_s, sleep
        self._bounds = {"rows_at_once": rows_at_once, "bytes_at_once": bytes_at_once}
        catalog = tables_of(database)
        if not tables:
            known = RowTables.of(lake).config.entries_of(catalog)
            lake.take_in(entry.name for entries in known.values() for entry in entries)
            tables = [name for name, table in lake.tables.items() if table.keep != "log"]
        if not tables:
            raise UsageError(
                "The pipeline has no table that keeps rows, and no pattern that matches one of the database.",
                next_step="`headpond suggest --from-database` shows the tables that the user may see.",
            )
        self._tables = {
            name: DatabaseRows.of(lake, name, catalog, missing_as_null=missing_as_null) for name in tables
        }
        self.done = {name: Loaded() for name in tables}
        self._pages = 0

    def load(self, *, say: Callable[[str], None] = lambda _: None) -> dict[str, Loaded]:
        """Load every table, in as many transactions as it takes; return what was done for each.

        Raises:
            ServiceFailure, EndpointUnreachable: `TRIES` times in a row no page could be written.
            InvalidData: a value does not fit its declared type; rows before it are written.
        """
        left = list(self._tables)
        failures, pages = 0, -1
        while left:
            try:
                with snapshot(self.database, lasts_s=self.lasts_s) as taken:
                    while left and self._table(left[0], taken, say):
                        left.pop(0)
            except (ServiceFailure, EndpointUnreachable):
                failures = 1 if self._pages > pages else failures + 1
                pages = self._pages
                if failures == TRIES:
                    raise
                self._sleep(PAUSE_S * 2**failures)
        for name in self._tables:
            remove_folder(self._place(name).rpartition("/")[0], self.lake.storage_options)
        return self.done

    def _table(self, name: str, taken: Snapshot, say: Callable[[str], None]) -> bool:
        """Go on with a table; return whether all of it is written."""
        source, done = self._tables[name], self.done[name]
        self.lake.make([name])
        mark = self._mark(name)
        if mark["done"]:
            say(f"{name}: loaded before, {mark['rows']:,} rows")
            return True
        refuse_before_horizon(self.lake, name, taken.moment_ns)
        about = f" of about {source.table.about:,}" if source.table.about else ""
        for page in taken.pages(source.table, source.columns, mark["after"], **self._bounds):
            rows, out_of_range = source.typed(page, taken.moment_ns)
            applied = apply_batch(self.lake, DecodedBatch(tables={name: rows}), shared=True)
            mark |= {"after": list(page.keys[-1]), "rows": mark["rows"] + page.count}
            self._write(name, mark)
            self._pages += 1
            done.rows += page.count
            done.out_of_range += out_of_range
            done.figures.update(applied.tables.get(name, {}))
            if taken.moment_ns not in done.moments_ns:
                done.moments_ns.append(taken.moment_ns)
            say(f"{name}: {mark['rows']:,}{about} rows written")
            if not taken.has_time:
                return False
        self._write(name, mark | {"done": True})
        return True

    def _place(self, name: str) -> str:
        return f"{self.lake.path}/{OWN_FOLDER}/bootstrap/{table_folder(name)}/mark.json"

    def _mark(self, name: str) -> dict[str, Any]:
        """Read where an earlier load stopped; a mark of another table or key counts for nothing."""
        new = {
            "format_version": 1,
            "table_id": str(self.lake.typed[name].file.open().metadata().id),
            "key": self._tables[name].table.key,
            "after": None,
            "rows": 0,
            "done": False,
        }
        content = read_document(self._place(name), self.lake.storage_options)
        mark = new if content is None else json.loads(content)
        same = all(mark.get(part) == new[part] for part in ("format_version", "table_id", "key"))
        return mark if same else new

    def _write(self, name: str, mark: Mapping[str, Any]) -> None:
        content = json.dumps(mark, ensure_ascii=False).encode() + b"\n"
        write_document(self._place(name), content, self.lake.storage_options)
