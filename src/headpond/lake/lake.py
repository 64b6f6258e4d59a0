"""A lake: one folder with a Delta table per configured table, and `_headpond/` with what the pipeline knows.

::

    lake/
      public.orders/            a table, named as configured
      _headpond/
        quarantine/             what was refused: reason, detail, origin, the untouched bytes
        pending/                chunked records and fragments that wait for the rest
        tombstones/             versions of deleted keys
        deletes/                every delete of the tables that keep their history of rows
        …/                      what the format keeps beside: `state.rows`, `state.ledger`
        catch_up/               what a catch-up from the start of a stream keeps while it lasts
        checkpoint/             Spark's (not a table)
"""

from __future__ import annotations

import copy
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.errors import ConfigurationError
from headpond.core.schemas import FORMAT_VERSION, QUARANTINE_SCHEMA
from headpond.lake.delta import DeltaFile
from headpond.lake.naming import table_folder
from headpond.lake.state.insert_once import ORIGIN, FactTable
from headpond.lake.state.inventory import Inventory
from headpond.lake.state.ledger import LedgerTables
from headpond.lake.state.pending import PendingTable
from headpond.lake.state.rows import RowTables
from headpond.lake.state.tombstones import Tombstones
from headpond.lake.storage import remove_folder
from headpond.lake.targets.history import Deletes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from headpond.core.formats import ChangeFormat
    from headpond.lake.engine.merge import Alone
    from headpond.lake.target import Extras, Target
    from headpond.lake.typed import TypedTable

COLUMN = "format_version"


def refuse_later_formats(files: Iterable[DeltaFile], known: int = FORMAT_VERSION) -> None:
    """Refuse tables that hold rows of a later format than `known`; absent ones are passed over."""
    for file in files:
        found = newest_format(file) if file.exists() else 0
        if found > known:
            raise ConfigurationError(
                f"{file.uri} holds rows of format {found}, and this headpond knows formats up to {known}.",
                next_step="Go on with the headpond that wrote them, or a later one; nothing was changed.",
                table=file.uri,
                found=found,
                known=known,
            )


def newest_format(file: DeltaFile) -> int:
    """Return the greatest `format_version` of a table's rows; 0 where there is none."""
    actions: Any = pa.table(file.open().get_add_actions(flatten=True))
    name = f"max.{COLUMN}"
    if name not in actions.column_names:  # no file yet, or none with statistics
        return 0
    return int(pc.max(actions[name]).as_py() or 0)


OWN_FOLDER = "_headpond"


class Lake:
    """The tables of one pipeline, in a folder or at an object-store URL; its options are never printed."""

    def __init__(
        self,
        path: str,
        config: ChangeFormat,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path.rstrip("/")
        self.config = config
        self.before_write: Callable[[str], None] = lambda _: None
        """Called with the name of each write of a batch or a command before it is done; tests stop there."""
        self.storage_options = dict(storage_options or {})
        self._tidies = True
        self.quarantine = FactTable(self._own("quarantine"), QUARANTINE_SCHEMA, (*ORIGIN, "reason"))
        self.pending = PendingTable(self._own("pending"))
        self.tombstones = Tombstones(self._own("tombstones"))
        self.deletes = Deletes(self._own("deletes"))
        self.extras = self._kept()
        self.tables: dict[str, Target] = {
            entry.name: self.extras.target(entry, self._file(self.place_of(entry.name)))
            for entry in config.tables
        }

    def _kept(self) -> Extras:
        config: Any = self.config  # as `kept_as` says
        if config.kept_as == "documents":
            return LedgerTables(config, self._own)
        return RowTables(config, self._own)

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
        for typed in self.typed.values():
            typed.prepare()
        inventory.write(self._there(), source)

    def check(self, *, rebuilt: Collection[str] | None = (), source: str | None = None) -> Inventory:
        """Check what is there against the configuration; nothing is written.

        Args:
            rebuilt: tables that are not missed where they are gone, since all their changes are read again;
                None: all tables, of whatever source.
            source: what feeds the lake, in a few words, where that is known.

        Raises:
            ConfigurationError: a table contradicts the configuration, or was there before and is gone; or
                another source fed the lake.
            InvalidData: the log of a table is damaged.
        """
        for _, file in self.files():
            file.check()
        refuse_later_formats(self.own_files())
        inventory = Inventory(f"{self.path}/{OWN_FOLDER}", self.storage_options)
        if rebuilt is not None:
            inventory.check(self._there(), self._names().difference(rebuilt))
            if source is not None:
                inventory.check_source(source)
        for typed in self.typed.values():
            if typed.file.exists():
                typed.check()
        return inventory

    def _names(self) -> set[str]:
        return {*self.typed, *(f"{OWN_FOLDER}/{_folder(file)}" for file in self.own_files())}

    def _there(self) -> set[str]:
        return self._names().intersection(name for name, _ in self.files())

    def own_files(self) -> list[DeltaFile]:
        """Return the Delta tables below `_headpond/`, there or not, but for the logs of unknown tables."""
        kept = (self.quarantine, self.pending, self.tombstones, self.deletes.facts)
        return [*(table.file for table in kept), *self.extras.files]

    def files(self) -> Iterator[tuple[str, DeltaFile]]:
        """Yield every Delta table that is there by its name: the configured ones, then `_headpond/…`."""
        yield from ((name, file) for name, file in self.places().items() if file.exists())

    def places(self) -> dict[str, DeltaFile]:
        """Return what `files` looks at: every Delta table, there or not."""
        found = {name: typed.file for name, typed in self.typed.items()}
        found |= {f"{OWN_FOLDER}/{_folder(file)}": file for file in self.own_files()}
        logs = (log.typed.file for log in self.extras.logs.values())
        return found | {f"{OWN_FOLDER}/unknown/{_folder(file)}": file for file in logs}

    def retire_tombstones(self, retention_ms: int, alone: Alone = nullcontext) -> int:
        """Drop tombstones of deletes further behind the newest commit seen than `retention_ms`.

        `alone` is as of `Tombstones.retire`.
        Those of documents have no commit time: an id never comes back, so that they are few and stay.
        """
        newest = max((table.newest_ns() for table in self.tables.values()), default=0)
        # A commit time to come says nothing of the others' age.
        newest = min(max(newest, self.tombstones.newest_ns()), time.time_ns())
        return self.tombstones.retire(newest - retention_ms * 1_000_000, alone)

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
