"""What a lake of changes of rows keeps beside its tables.

Those are schema changes, and the logs of tables that are not configured, with an index of them. The index is
written before a log's first entry, so no log is there that the index does not name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headpond.core.errors import UsageError
from headpond.core.formats import quarantined_changes
from headpond.core.schemas import QUARANTINE_SCHEMA
from headpond.dsql.config import UNKNOWN, RowChanges, TableSpec, schema_and_table, unknown_name, unknown_spec
from headpond.lake.delta import DeltaFile
from headpond.lake.naming import log_folder
from headpond.lake.state.insert_once import FactTable
from headpond.lake.state.schema_changes import SchemaChanges
from headpond.lake.target import OPEN, Decision, DecodedBatch, Step
from headpond.lake.targets.current import CURRENT_OWN, CurrentTable, RowTable
from headpond.lake.targets.history import HISTORY_OWN, HistoryTable
from headpond.lake.targets.log import LOG_OWN, LogTable
from headpond.lake.targets.soft import SOFT_OWN, SoftTable
from headpond.lake.typed import TypedTable

if TYPE_CHECKING:
    from headpond.lake.apply import Applied
    from headpond.lake.tables import Lake

_KEPT: dict[str, tuple[type[RowTable], Mapping[str, tuple[str, pa.DataType]]]] = {
    "current": (CurrentTable, CURRENT_OWN),
    "history": (HistoryTable, HISTORY_OWN),
    "log": (LogTable, LOG_OWN),
    "soft": (SoftTable, SOFT_OWN),
}


class RowTables:
    """The logs of tables that are not configured, and what was seen of columns."""

    counters: ClassVar[tuple[str, ...]] = (
        *("records", "data_bytes", "changes", "unknown_op", "out_of_range"),
        *("chunk_copies", "chunk_groups_completed", OPEN),
    )

    def __init__(self, config: RowChanges, own: Callable[[str], DeltaFile]) -> None:
        self.config = config
        self.schema_changes = SchemaChanges(own("schema_changes"))
        self.entries: dict[str, TableSpec] = {}
        self.unknown = UnknownTables(own, config.max_unknown_tables)

    @classmethod
    def of(cls, lake: Lake) -> RowTables:
        """Return a lake's, for what is only done to tables of rows: loading and catching up."""
        if not isinstance(lake.extras, cls):
            raise UsageError(
                f"The lake at {lake.path} holds QLDB documents: revisions carry their versions, and no table "
                "needs a first load.",
                next_step="Records that came before the table had an entry are in quarantine: run `headpond "
                "requeue FILE --reason unknown_table`. A journal export or an older archive goes into the "
                "same lake with a pipeline file of its own: the same path, another source.archive and "
                "checkpoint.",
                key="source.format",
            )
        return lake.extras

    @staticmethod
    def config_of(lake: Lake) -> RowChanges:
        """Return the tables and rules of a lake of rows, as the tables that are there continue them."""
        config: Any = lake.config
        found: RowChanges = config
        return found

    @property
    def files(self) -> list[DeltaFile]:
        """Its Delta tables, there or not, but for the logs."""
        return [self.schema_changes.file, self.unknown.index.file]

    @property
    def logs(self) -> Mapping[str, LogTable]:
        """The logs of tables that are not configured, by their names in decoded batches."""
        return self.unknown.logs

    def target(self, entry: Any, file: DeltaFile) -> RowTable:
        """Return the table of an entry."""
        self.entries[entry.name] = entry
        self.schema_changes.declare(entry)
        form, own = _KEPT[entry.form]
        return form(TypedTable(file, own, entry), entry)

    def begin(self, batch: DecodedBatch, counters: Counter[str], step: Step) -> pa.Table:  # noqa: ARG002
        """Make the logs that a batch needs; return quarantine rows of changes for which there is no room."""
        step.before_write("logs of unknown tables")
        return self.unknown.admit(batch.tables, transaction=step.transaction)

    def decided(self, decisions: Mapping[str, Decision], step: Step) -> None:
        """Write nothing: what wins is in the rows themselves."""

    def end(self, batch: DecodedBatch, counters: Counter[str], step: Step) -> None:  # noqa: ARG002
        """Note which columns had values."""
        step.before_write("schema changes")
        known = {name: rows for name, rows in batch.tables.items() if name in self.entries}
        self.schema_changes.record(known, transaction=step.transaction)

    def look(self) -> None:
        """Take in the logs that were made since."""
        self.unknown.look()

    def close(self, *, ended: bool) -> None:
        """Do nothing: a stream of rows has no end."""

    def summary(self, applied: Applied | None) -> dict[str, Any]:
        """Return the tables that are not configured and have a log."""
        found: dict[str, Any] = {}
        configured = self.config.entries_of(log.entry.place for log in self.logs.values())
        for name, log in self.logs.items():
            entries = configured[log.entry.place]
            found[name.removeprefix(UNKNOWN)] = {
                "schema": log.entry.schema,
                "table": log.entry.table,
                "rows": log.typed.file.count(),
                "path": log.typed.file.uri,
                "configured_as": entries[0].name if entries else None,
                **({} if applied is None else applied.figures(name, log.figures)),
            }
        return {"unknown_tables": found}


UNKNOWN_SCHEMA = pa.schema(
    [
        pa.field("schema", pa.string()),
        pa.field("table", pa.string()),
        pa.field("folder", pa.string()),  # below _headpond/unknown
        pa.field("format_version", pa.int32()),
    ]
)


class UnknownTables:
    """The logs of tables that are not configured, at most `limit` of them."""

    def __init__(self, own: Callable[[str], DeltaFile], limit: int) -> None:
        self.index = FactTable(own("unknown_tables"), UNKNOWN_SCHEMA, ("schema", "table"))
        self.limit = limit
        self._own = own
        self._logs: dict[str, LogTable] | None = None
        self._ready: set[str] = set()  # whose files this process has opened

    @property
    def logs(self) -> Mapping[str, LogTable]:
        """Every log that was made, by its name in decoded batches (`config.unknown_name`)."""
        if self._logs is None:
            rows = self.index.read().to_pylist()
            self._logs = {}
            for row in sorted(rows, key=lambda row: (row["schema"], row["table"])):
                self._remember(row["schema"], row["table"], row["folder"])
        return self._logs

    def look(self) -> None:
        """Have the index read again: another writer may have made some."""
        self._logs = None
        self._ready.clear()

    def find(self, schema: str, table: str) -> LogTable | None:
        """Return the log of a table; None when none was made."""
        return self.logs.get(unknown_name(schema, table))

    def admit(self, batch: Mapping[str, pa.Table], *, transaction: tuple[str, int] | None = None) -> pa.Table:
        """Make the logs that a batch needs; return quarantine rows of changes for which none may be made."""
        wanted = sorted(name for name in batch if name.startswith(UNKNOWN) and batch[name].num_rows)
        if not set(wanted) - self._ready:
            return QUARANTINE_SCHEMA.empty_table()
        if not set(wanted) <= set(self.logs):
            self.look()
        new = [name for name in wanted if name not in self.logs]
        room = max(0, self.limit - len(self.logs))
        made, beyond = new[:room], new[room:]
        rows = [
            {"schema": schema, "table": table, "folder": log_folder(schema, table), "format_version": 1}
            for schema, table in map(schema_and_table, made)
        ]
        self.index.add(pa.Table.from_pylist(rows, UNKNOWN_SCHEMA), transaction=transaction)
        for row in rows:
            self._remember(str(row["schema"]), str(row["table"]), str(row["folder"]))
        for name in set(wanted) & set(self.logs) - self._ready:
            # Also where the index names a log: a crash may have come before the log itself was made.
            self.logs[name].typed.prepare()
            self._ready.add(name)
        refused = [self._refused(batch[name], name) for name in beyond]
        return pa.concat_tables([QUARANTINE_SCHEMA.empty_table(), *refused])

    def _remember(self, schema: str, table: str, folder: str) -> None:
        name = unknown_name(schema, table)
        assert self._logs is not None
        spec = unknown_spec(schema, table)
        typed = TypedTable(self._own(f"unknown/{folder}"), LOG_OWN, spec, configured=False)
        self._logs[name] = LogTable(typed, spec)

    def _refused(self, rows: pa.Table, name: str) -> pa.Table:
        schema, table = schema_and_table(name)
        detail = f"{schema}.{table} is not configured, and there are {self.limit} logs of such tables already"
        return quarantined_changes(rows, "unknown_table", detail)
