"""What was seen of the tables' columns, in `_headpond/schema_changes`.

A row is one table's column with values of one JSON type. A merge keeps the earlier first commit and the later
last minute of what it finds and what it brings: repeated batches and a second writer change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.schema_changes import IDENTITY, NONE, SCHEMA_CHANGES_SCHEMA, schema_step
from headpond.tables.delta import copied, literal, quoted, same

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headpond.changes.config import TableSpec
    from headpond.tables.delta import DeltaFile

_DROP = "%drop"
_DROPS = quoted(_DROP, "s")
_IS_GONE = f's."value_type" = {literal(NONE)}'
_EARLIER = (
    '(s."first_ts_ns" < t."first_ts_ns" OR (s."first_ts_ns" = t."first_ts_ns" AND s."tx_id" < t."tx_id"))'
)
# The row of a column that disappeared holds the last minute in both times: there the later one stays.
_MOVES = f'(CASE WHEN {_IS_GONE} THEN s."first_ts_ns" > t."first_ts_ns" ELSE {_EARLIER} END)'


class SchemaChanges:
    """The schema changes of a lake.

    Args:
        file: where they lie.
        specs: the configured tables; any other table's columns hold raw JSON text.
    """

    def __init__(self, file: DeltaFile, specs: Iterable[TableSpec]) -> None:
        self.file = file
        self._declared = {spec.name: spec.columns for spec in specs}
        self._known = SCHEMA_CHANGES_SCHEMA.empty_table()

    def record(self, batches: Mapping[str, pa.Table], *, transaction: tuple[str, int] | None = None) -> int:
        """Add what the batches of some tables show and say how many rows were written.

        Args:
            batches: typed batches by table.
            transaction: stored with the commit.
        """
        batches = {name: rows for name, rows in batches.items() if rows.num_rows}
        if not batches or not schema_step(self._known, batches, self._declared).changed:
            return 0  # what this process read or wrote last says it all; others only add to it
        outcome = schema_step(self.read(batches), batches, self._declared)
        if written := outcome.changed:
            self.file.create(SCHEMA_CHANGES_SCHEMA)
            self._merge(outcome.put, outcome.drop, transaction)
        others = pc.invert(pc.is_in(self._known["table"], value_set=pa.array(list(batches), pa.string())))
        self._known = pa.concat_tables([self._known.filter(others), outcome.state])
        return written

    def read(self, tables: Iterable[str] | None = None) -> pa.Table:
        """Read the rows of some tables, or of all; none where nothing was written yet."""
        if not self.file.exists():
            return SCHEMA_CHANGES_SCHEMA.empty_table()
        where = None if tables is None else f'"table" IN ({", ".join(map(literal, tables))})'
        return self.file.read(SCHEMA_CHANGES_SCHEMA.names, where)

    def _merge(self, put: pa.Table, drop: pa.Table, transaction: tuple[str, int] | None) -> None:
        rows = pa.concat_tables(
            [
                put.append_column(_DROP, pa.repeat(False, put.num_rows)),
                drop.append_column(_DROP, pa.repeat(True, drop.num_rows)),
            ],
            promote_options="default",
        )
        columns = copied(SCHEMA_CHANGES_SCHEMA.names)
        moved = {
            quoted(name): f"CASE WHEN {_MOVES} THEN {quoted(name, 's')} ELSE {quoted(name, 't')} END"
            for name in ("first_ts_ns", "tx_id")
        }
        last = {quoted("last_seen_ns"): 'greatest(t."last_seen_ns", s."last_seen_ns")'}
        self.file.merge(
            rows,
            match=same(IDENTITY),
            delete_if=_DROPS,
            update=columns | moved | last,
            update_if=f"NOT {_DROPS}",
            insert=columns,
            insert_if=f"NOT {_DROPS}",
            transaction=transaction,
        )
