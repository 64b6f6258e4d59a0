"""A lake: one folder with a Delta table per configured table, and `_headpond/` with what the pipeline knows.

docs/reference/lake.md says what is where.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import compress
from typing import Any

import pyarrow as pa

from headpond.core.errors import ConfigurationError
from headpond.core.formats import ChangeFormat, TableEntry, quarantined_changes
from headpond.core.schemas import FORMAT_VERSION, QUARANTINE_SCHEMA
from headpond.lake.definition import continued, found_in
from headpond.lake.delta import DeltaFile
from headpond.lake.engine.merge import Alone
from headpond.lake.naming import table_folder, too_long
from headpond.lake.state.insert_once import ORIGIN, FactTable
from headpond.lake.state.inventory import Inventory
from headpond.lake.state.ledger import LedgerTables
from headpond.lake.state.pending import PendingTable
from headpond.lake.state.rows import RowTables
from headpond.lake.state.run_mark import OWN_FOLDER
from headpond.lake.state.tombstones import Deletes, Tombstones
from headpond.lake.storage import of_each, remove_folder
from headpond.lake.target import DecodedBatch, Step, Target, Transaction
from headpond.lake.typed import TypedTable

COLUMN = "format_version"

MADE_SCHEMA = pa.schema([pa.field("name", pa.string()), pa.field(COLUMN, pa.int32())])
"""Rows of `_headpond/pattern_tables`."""


def refuse_later_formats(place: str, files: Iterable[DeltaFile]) -> None:
    """Refuse tables that hold rows of a later format than ours; absent ones are passed over."""
    files = list(files)
    for file, formats in zip(files, of_each(place, lambda file: file.greatest(COLUMN), files), strict=True):
        found = max(formats, default=0)
        if found > FORMAT_VERSION:
            raise ConfigurationError(
                f"{file.uri} holds rows of format {found}, and this headpond knows formats up to "
                f"{FORMAT_VERSION}.",
                next_step="Go on with the headpond that wrote them, or a later one; nothing was changed.",
                table=file.uri,
                found=found,
                known=FORMAT_VERSION,
            )


_SHOWN = 1_000  # characters of a detail


class Lake:
    """The tables of one pipeline, in a folder or at an object-store URL; its options are never printed."""

    def __init__(
        self, path: str, config: ChangeFormat, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self.path = path.rstrip("/")
        self.given = config
        self.before_write: Callable[[str], None] = lambda _: None
        """Called with the name of each write of a batch or a command before it is done; tests stop there."""
        self.storage_options = dict(storage_options or {})
        self._tidies = True
        self.quarantine = FactTable(self._own("quarantine"), QUARANTINE_SCHEMA, (*ORIGIN, "reason"))
        self.pending = PendingTable(self._own("pending"))
        self.tombstones = Tombstones(self._own("tombstones"))
        self.deletes = Deletes(self._own("deletes"))
        self.made = FactTable(self._own("pattern_tables"), MADE_SCHEMA, ("name",))
        self.extras = self._kept()
        """What the format keeps beside, and the steps of a batch there (`lake.apply`)."""
        self._files = {entry.name: self._file(self.place_of(entry.name)) for entry in config.tables}
        self.look()

    @cached_property
    def config(self) -> ChangeFormat:
        """The format with its tables as those that are there continue them (`definition.continued`)."""
        given: Any = self.given
        tables = of_each(self.path, self._continued, given.tables)
        same: ChangeFormat = given if tables == list(given.tables) else replace(given, tables=tuple(tables))
        return same

    @cached_property
    def tables(self) -> dict[str, Target]:
        """Every configured table by its name."""
        return {entry.name: self._target(entry) for entry in self.config.tables}

    def _continued(self, entry: Any) -> Any:
        file = self._files[entry.name]
        return continued(entry, found_in(file, entry)) if file.exists() else entry

    def _target(self, entry: TableEntry) -> Target:
        return self.extras.target(entry, self._files[entry.name])

    def look_again(self) -> None:
        """Have the tables looked at again: they were rebuilt."""
        for name in ("config", "tables"):
            self.__dict__.pop(name, None)

    def _kept(self) -> RowTables | LedgerTables:
        config: Any = self.given  # as `kept_as` says
        kind = LedgerTables if config.kept_as == "documents" else RowTables
        return kind(config, self._own)

    def look(self) -> None:
        """Take in the tables that were made since, whoever made them: by patterns, and logs."""
        self.extras.look()
        if self.given.patterns:
            there = self._inventory().read()[0]
            self.take_in([*self.made.read(["name"])["name"].to_pylist(), *there])

    def take_in(self, names: Iterable[str]) -> None:
        """Have tables that patterns stand for among the others; nothing is made."""
        found = [self.given.entry(name) for name in sorted({*names} - self._files.keys())]
        new = [entry for entry in found if entry is not None]
        if new:
            self.given = self.given.with_tables(new)
            self._files |= {entry.name: self._file(self.place_of(entry.name)) for entry in new}
            known = self.__dict__
            if "config" in known:
                new = of_each(self.path, self._continued, new)
                self.config = self.config.with_tables(new)
            if "tables" in known:  # another one: somebody may be going through it
                self.tables = self.tables | {entry.name: self._target(entry) for entry in new}

    def make(self, names: Collection[str], *, transaction: Transaction = None) -> None:
        """Create tables, or check and widen those that are there; before, list what a pattern stands for."""
        self.take_in(names)
        if self.config.patterns:
            rows = [{"name": name, COLUMN: FORMAT_VERSION} for name in names]
            self.made.add(pa.Table.from_pylist(rows, MADE_SCHEMA), transaction=transaction)
        of_each(self.path, lambda name: self.tables[name].typed.prepare(), names)
        self.list_new()

    def list_new(self) -> None:
        """List tables that were made since the last list, so that one is missed if it goes."""
        new = [file for file in self.places().values() if file.is_new]
        if new:
            self._inventory().write(self._there())
        for file in new:
            file.is_new = False

    def admit(self, batch: DecodedBatch, step: Step) -> pa.Table:
        """Make the tables that a batch has the first changes of; return quarantine rows where none may be."""
        refused = [QUARANTINE_SCHEMA.empty_table()]
        some = [name for name in batch.tables if batch.tables[name].num_rows and name not in self.tables]
        # Logs of tables that are not configured have no entry, and are made by others.
        wanted = {name: entry for name in some if (entry := self.config.entry(name)) is not None}
        if not wanted:
            return refused[0]
        step.before_write("tables that patterns stand for")
        self.look()
        count, most = self.made.count(), self.config.max_unknown_tables
        admitted = [name for name in wanted if name in self.tables]
        for name, entry in wanted.items():
            if name in self.tables:
                continue
            why = too_long(name)
            if why is None and count >= most:
                why = f"patterns made {count} tables already"
            why = why or self._taken(entry)
            if why is None:
                admitted.append(name)
                count += 1
            else:
                detail = f"{'.'.join(entry.place)} matches a pattern, but {why}"
                refused.append(quarantined_changes(batch.tables[name], "unknown_table", detail[:_SHOWN]))
        if admitted:
            self.make(admitted, transaction=step.transaction)
        return pa.concat_tables(refused)

    def _taken(self, entry: TableEntry) -> str | None:
        """Return whose folder a new table would get, where names that differ in case name one folder."""
        file = self._file(self.place_of(entry.name))
        source = found_in(file, entry).source if file.exists() else entry.place
        return None if source == entry.place else f"its folder is that of {'.'.join(source)}"

    def place_of(self, table: str) -> str:
        """Return the folder or URL of a table."""
        return f"{self.path}/{table_folder(table)}"

    def catch_up_folder(self, table: str) -> str:
        """Return the folder of what a catch-up of a table from its stream's start keeps while it lasts."""
        return f"{self.path}/{OWN_FOLDER}/catch_up/{table_folder(table)}"

    def catching_up(self, table: str) -> Lake:
        """Return the same lake with pending chunks of its own, for a second reader of the stream."""
        lake = copy.copy(self)
        lake.pending = PendingTable(DeltaFile(f"{self.catch_up_folder(table)}/pending", self.storage_options))
        return lake

    def end_catch_up(self, table: str, waiting: pa.Table) -> None:
        """Hand what still waits (`PENDING_SCHEMA`) to the pipeline itself; remove what the catch-up kept."""
        self.pending.add(waiting)
        remove_folder(self.catch_up_folder(table), self.storage_options)

    def prepare(self, *, rebuilt: Collection[str] | None = (), source: str | None = None) -> None:
        """Create the tables that are not there, and check the others; arguments and errors as of `check`."""
        inventory = self.check(rebuilt=rebuilt, source=source)
        of_each(self.path, TypedTable.prepare, self.typed.values())
        inventory.write(self._there(), source)

    def check(self, *, rebuilt: Collection[str] | None = (), source: str | None = None) -> Inventory:
        """Check what is there against the configuration; nothing is written.

        `rebuilt` are tables that are not missed where they are gone, since all their changes are read again
        (None: all, of whatever source); `source` is what feeds the lake, in a few words.

        Raises:
            ConfigurationError: a table contradicts the configuration, or is gone, or another source fed it.
            InvalidData: the log of a table is damaged.
        """
        there, own = dict(self.files()), self.own_files()
        of_each(self.path, DeltaFile.check, there.values())
        refuse_later_formats(self.path, [file for file in there.values() if file in own])
        inventory = self._inventory()
        if rebuilt is not None:
            inventory.check(there, self._kept_files().keys() - {*rebuilt})
            if source is not None:
                inventory.check_source(source)
        of_each(self.path, TypedTable.check, [typed for name, typed in self.typed.items() if name in there])
        return inventory

    def _inventory(self) -> Inventory:
        return Inventory(f"{self.path}/{OWN_FOLDER}", self.storage_options)

    def _kept_files(self) -> dict[str, DeltaFile]:
        return self._files | {f"{OWN_FOLDER}/{_folder(file)}": file for file in self.own_files()}

    def _there(self) -> set[str]:
        files = self._kept_files()
        return set(compress(files, of_each(self.path, DeltaFile.exists, files.values())))

    def own_files(self) -> list[DeltaFile]:
        """Return the Delta tables below `_headpond/`, there or not, but for the logs of unknown tables."""
        kept = (self.quarantine, self.pending, self.tombstones, self.deletes, self.made)
        return [*(table.file for table in kept), *self.extras.files]

    def files(self) -> Iterator[tuple[str, DeltaFile]]:
        """Yield every Delta table that is there by its name: the configured ones, then `_headpond/…`."""
        places = self.places()
        yield from compress(places.items(), of_each(self.path, DeltaFile.exists, places.values()))

    def places(self) -> dict[str, DeltaFile]:
        """Return what `files` looks at: every Delta table, there or not."""
        logs = (log.typed.file for log in self.extras.logs.values())
        return self._kept_files() | {f"{OWN_FOLDER}/unknown/{_folder(file)}": file for file in logs}

    def retire_tombstones(self, retention_ms: int, alone: Alone = nullcontext) -> int:
        """Drop tombstones of deletes further behind the newest commit seen than `retention_ms`.

        Those of documents have no commit time, and stay: an id never comes back. `alone`: see `engine.merge`.
        """
        self.look()
        newest = max((table.newest_ns() for table in self.tables.values()), default=0)
        # A commit time to come says nothing of the others' age.
        newest = min(max(newest, self.tombstones.newest_ns()), time.time_ns())
        return self.tombstones.retire(newest - retention_ms * 1_000_000, alone)

    def by_table(self, known: Mapping[str, int]) -> dict[str, int]:
        """Return what is counted by the names under which deletes are remembered by names of tables."""
        names = {table.known_as: name for name, table in self.tables.items()}
        return {names.get(name, name): count for name, count in known.items()}

    @property
    def typed(self) -> dict[str, TypedTable]:
        """Every configured table by its name."""
        return {name: table.typed for name, table in self.tables.items()}

    def leave_tidying(self) -> None:
        """Leave it to somebody beside the batches to tidy tables, those that are made later, too."""
        self._tidies = False
        for file in self.places().values():
            file.tidies = False

    def _own(self, name: str) -> DeltaFile:
        return self._file(f"{self.path}/{OWN_FOLDER}/{name}")

    def _file(self, place: str) -> DeltaFile:
        file = DeltaFile(place, self.storage_options)
        file.tidies = self._tidies
        return file


def _folder(file: DeltaFile) -> str:
    return file.uri.rpartition("/")[2]
