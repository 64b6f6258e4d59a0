"""A lake: one folder with a Delta table per source table, and `_headpond/` with what the pipeline knows.

::

    lake/
      public.orders/            a table, named as configured
      _headpond/
        quarantine/             what was refused: reason, detail, origin, the untouched bytes
        pending/                chunked records and fragments that wait for the rest
        tombstones/             versions of deleted keys
        deletes/                every delete of the tables that keep their history
        schema_changes/         when each column first and last had a value
        unknown_tables/         which tables that are not configured have a log,
        unknown/public.x/       and their logs
        catch_up/               what a catch-up from the start of a stream keeps while it lasts
        checkpoint/             Spark's (not a table)
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from headpond.changes.schemas import QUARANTINE_SCHEMA
from headpond.tables.current import CURRENT_OWN, CurrentTable
from headpond.tables.delta import DeltaFile
from headpond.tables.history import HISTORY_OWN, Deletes, HistoryTable
from headpond.tables.log import LOG_OWN, LogTable
from headpond.tables.naming import table_folder
from headpond.tables.own_formats import refuse_later_formats
from headpond.tables.pending import PendingTable
from headpond.tables.remote import remove_folder
from headpond.tables.schema_changes import SchemaChanges
from headpond.tables.state import ORIGIN, FactTable
from headpond.tables.tombstones import Tombstones
from headpond.tables.typed import TypedTable
from headpond.tables.unknown import MAX_TABLES, UnknownTables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

    from headpond.changes.config import TableSpec

    FileMaker = Callable[[str, Mapping[str, str]], DeltaFile]

OWN_FOLDER = "_headpond"


class Lake:
    """The tables of one pipeline.

    Args:
        path: a folder, or an object-store URL.
        specs: the tables to keep.
        storage_options: for `deltalake`; never printed.
        files: makes the file of each source table, which does its merges; those of `_headpond/` are small
            and stay with `DeltaFile`.
        max_unknown_tables: how many tables that are not configured get a log.
    """

    def __init__(
        self,
        path: str,
        specs: Iterable[TableSpec],
        storage_options: Mapping[str, str] | None = None,
        *,
        files: FileMaker = DeltaFile,
        max_unknown_tables: int = MAX_TABLES,
    ) -> None:
        self.path = path.rstrip("/")
        self._options = dict(storage_options or {})
        self.quarantine = FactTable(self._own("quarantine"), QUARANTINE_SCHEMA, (*ORIGIN, "reason"))
        self.pending = PendingTable(self._own("pending"))
        self.tombstones = Tombstones(self._own("tombstones"))
        self.deletes = Deletes(self._own("deletes"))
        specs = self.specs = tuple(specs)
        self.schema_changes = SchemaChanges(self._own("schema_changes"), specs)
        self.unknown = UnknownTables(
            self._own("unknown_tables"),
            lambda folder: files(f"{self.path}/{OWN_FOLDER}/unknown/{folder}", self._options),
            max_unknown_tables,
        )
        self.current: dict[str, CurrentTable] = {}
        self.histories: dict[str, HistoryTable] = {}
        self.logs: dict[str, LogTable] = {}
        for spec in specs:
            declared = {column: spec.type_of(column) for column in spec.columns}
            file = files(self.place_of(spec.name), self._options)
            if spec.keep == "log":
                typed = TypedTable(spec.name, file, declared, LOG_OWN, spec)
                self.logs[spec.name] = LogTable(typed, by_content=spec.dedupe == "content")
            elif spec.keep == "history":
                typed = TypedTable(spec.name, file, declared, HISTORY_OWN, spec)
                self.histories[spec.name] = HistoryTable(typed, spec.keys)
            else:
                typed = TypedTable(spec.name, file, declared, CURRENT_OWN, spec)
                self.current[spec.name] = CurrentTable(typed, spec.keys)

    def place_of(self, table: str) -> str:
        """Give the folder or URL of a table."""
        return f"{self.path}/{table_folder(table)}"

    def catch_up_folder(self, table: str) -> str:
        """Give the folder of what a catch-up of a table from the start of its stream keeps while it lasts."""
        return f"{self.path}/{OWN_FOLDER}/catch_up/{table_folder(table)}"

    def catching_up(self, table: str) -> Lake:
        """Give the same lake with pending chunks of its own, for a second reader of the stream."""
        lake = copy.copy(self)
        lake.pending = PendingTable(DeltaFile(f"{self.catch_up_folder(table)}/pending", self._options))
        return lake

    def end_catch_up(self, table: str, waiting: pa.Table) -> None:
        """Give what still waits to the pipeline itself, and remove what the catch-up kept.

        Args:
            table: the table's name.
            waiting: `PENDING_SCHEMA` rows.
        """
        self.pending.add(waiting)
        remove_folder(self.catch_up_folder(table), self._options)

    def prepare(self) -> None:
        """Create the tables that are not there, and check those that are against the configuration.

        Raises:
            ConfigurationError: a table's columns contradict the configuration, or a later headpond has
                written here.
        """
        refuse_later_formats(self.own_files())
        for typed in self.typed.values():
            typed.prepare()

    def own_files(self) -> list[DeltaFile]:
        """The Delta tables below `_headpond/`, but for the logs of tables that are not configured."""
        facts = (self.quarantine, self.pending, self.deletes.facts, self.unknown.index)
        return [*(fact.file for fact in facts), self.tombstones.file, self.schema_changes.file]

    def retire_tombstones(self, retention_ms: int) -> int:
        """Drop the tombstones of deletes that lie further behind the newest commit seen than `retention_ms`.

        Returns:
            How many were dropped.
        """
        newest = max((t.typed.newest("_ts_ns") for t in self.current.values()), default=0)
        newest = max(newest, self.tombstones.newest_ns())
        return self.tombstones.retire(newest - retention_ms * 1_000_000)

    @property
    def typed(self) -> dict[str, TypedTable]:
        """Every table by its name."""
        rooms = (self.current, self.histories, self.logs)
        return {name: table.typed for room in rooms for name, table in room.items()}

    def _own(self, name: str) -> DeltaFile:
        return DeltaFile(f"{self.path}/{OWN_FOLDER}/{name}", self._options)
