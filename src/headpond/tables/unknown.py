"""Raw logs of tables that are not configured, made when their first change comes.

::

    _headpond/
      unknown_tables/           an index: schema, table, folder
      unknown/public.orders/    every change of public.orders, images as they came

The index is written before a log's first entry, so no log is there that the index does not name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headpond.changes.schemas import QUARANTINE_SCHEMA, format_versions
from headpond.changes.unknown import is_unknown, schema_and_table, unknown_name
from headpond.tables.log import LOG_OWN, LogTable
from headpond.tables.naming import log_folder
from headpond.tables.state import FactTable
from headpond.tables.typed import TypedTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headpond.tables.delta import DeltaFile

MAX_TABLES = 1_000
"""Logs that are made at most, unless told otherwise; as many tables as a database of the service may have."""

UNKNOWN_SCHEMA = pa.schema(
    [
        pa.field("schema", pa.string()),
        pa.field("table", pa.string()),
        pa.field("folder", pa.string()),  # below _headpond/unknown
        pa.field("format_version", pa.int32()),
    ]
)


@dataclass(frozen=True, slots=True)
class UnknownTable:
    """One table that is not configured: its names, and its log."""

    schema: str
    table: str
    log: LogTable


class UnknownTables:
    """The logs of tables that are not configured.

    Args:
        index: where the index lies.
        file_of: gives the file of a log by its folder's name.
        limit: how many logs are made at most.
    """

    def __init__(
        self, index: DeltaFile, file_of: Callable[[str], DeltaFile], limit: int = MAX_TABLES
    ) -> None:
        self.index = FactTable(index, UNKNOWN_SCHEMA, ("schema", "table"))
        self.limit = limit
        self._file_of = file_of
        self._tables: dict[str, UnknownTable] | None = None
        self._ready: set[str] = set()  # whose files this process has opened

    def all(self) -> Mapping[str, UnknownTable]:
        """Give every log that was made, by its name in decoded batches (`changes.unknown`)."""
        if self._tables is None:
            rows = self.index.read().to_pylist()
            self._tables = {}
            for row in sorted(rows, key=lambda row: (row["schema"], row["table"])):
                self._remember(row["schema"], row["table"], row["folder"])
        return self._tables

    @property
    def logs(self) -> dict[str, LogTable]:
        """The logs by their names in decoded batches."""
        return {name: table.log for name, table in self.all().items()}

    def find(self, schema: str, table: str) -> UnknownTable | None:
        """Give the log of a table; null when none was made."""
        return self.all().get(unknown_name(schema, table))

    def admit(self, batch: Mapping[str, pa.Table], *, transaction: tuple[str, int] | None = None) -> pa.Table:
        """Make the logs that a batch needs.

        Args:
            batch: typed rows by table.
            transaction: stored with the commit.

        Returns:
            Quarantine rows (`unknown_table`) of the changes for which no log may be made any more.
        """
        wanted = sorted(name for name in batch if is_unknown(name) and batch[name].num_rows)
        if not set(wanted) - self._ready:
            return QUARANTINE_SCHEMA.empty_table()
        if not set(wanted) <= set(self.all()):
            self._tables = None  # another writer may have made some
            self._ready.clear()
        new = [name for name in wanted if name not in self.all()]
        room = max(0, self.limit - len(self.all()))
        made, beyond = new[:room], new[room:]
        rows = [
            {"schema": schema, "table": table, "folder": log_folder(schema, table), "format_version": 1}
            for schema, table in map(schema_and_table, made)
        ]
        self.index.add(pa.Table.from_pylist(rows, UNKNOWN_SCHEMA), transaction=transaction)
        for row in rows:
            self._remember(str(row["schema"]), str(row["table"]), str(row["folder"]))
        for name in set(wanted) & set(self.all()) - self._ready:
            # Also where the index names a log: a crash may have come before the log itself was made.
            self.all()[name].log.typed.prepare()
            self._ready.add(name)
        refused = [self._refused(batch[name], name) for name in beyond]
        return pa.concat_tables([QUARANTINE_SCHEMA.empty_table(), *refused])

    def _remember(self, schema: str, table: str, folder: str) -> None:
        name = unknown_name(schema, table)
        assert self._tables is not None
        typed = TypedTable(name, self._file_of(folder), {}, LOG_OWN)
        self._tables[name] = UnknownTable(schema, table, LogTable(typed))

    def _refused(self, rows: pa.Table, name: str) -> pa.Table:
        schema, table = schema_and_table(name)
        detail = f"{schema}.{table} is not configured, and there are {self.limit} logs of such tables already"
        columns = {"reason": "unknown_table", "detail": detail}
        arrays = [
            pa.repeat(columns[each.name], rows.num_rows)
            if each.name in columns
            else format_versions(rows.num_rows)
            if each.name == "format_version"
            else rows[f"m:{each.name}"]
            for each in QUARANTINE_SCHEMA
        ]
        return pa.table(arrays, schema=QUARANTINE_SCHEMA)
