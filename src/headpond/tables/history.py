"""Every version of each key with the time it held (SCD 2), and the deletes that ended them.

::

    order_id  price  _ts_ns  _tx_id  _op  _valid_from_ns  _valid_to_ns
        7      1.50      10  a…      c               10            20
        7      1.75      20  b…      u               20          null

A row is found again by its key, `_ts_ns` and `_tx_id`. A merge's conditions repeat what `changes.history`
decided, against whatever the table holds by then: an end only moves to an earlier time, an image only gives
way to one of a greater hash.

The deletes lie beside the tables, in `_headpond/deletes`, and are never dropped: any of them may still have
to end a version that arrives late, however many newer ones there are. They are part of the history, which
grows with every change anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.history import HISTORY_STATE_SCHEMA
from headpond.changes.model import encode_versions
from headpond.changes.schemas import FORMAT_VERSION
from headpond.tables.delta import copied, literal, quoted, same
from headpond.tables.keyed import among, rows_of_keys
from headpond.tables.state import FactTable
from headpond.tables.tombstones import TOMBSTONE_SCHEMA
from headpond.tables.typed import VALUE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headpond.changes.history import HistoryOutcome
    from headpond.tables.delta import DeltaFile
    from headpond.tables.typed import Layout, TypedTable

HISTORY_OWN = {
    "ts_ns": ("_ts_ns", pa.int64()),
    "tx_id": ("_tx_id", pa.string()),
    "image_hash": ("_image_hash", pa.binary()),
    "op": ("_op", pa.string()),
    "valid_from_ns": ("_valid_from_ns", pa.int64()),
    "valid_to_ns": ("_valid_to_ns", pa.int64()),
}
"""Own columns of a history of DSQL changes; `_valid_from_ns` equals `_ts_ns`."""

WHOLE = "%full"
"""Mark of a merge's source that says which rows are more than an end; no encoded column name is like it."""
_FROM, _TO = "m:valid_from_ns", "m:valid_to_ns"
_IS_WHOLE = quoted(WHOLE, "s")
_CORRECTS = f'({_IS_WHOLE} AND t."_image_hash" < s."_image_hash")'
_ENDS_EARLIER = (
    '(s."_valid_to_ns" IS NOT NULL AND (t."_valid_to_ns" IS NULL OR s."_valid_to_ns" < t."_valid_to_ns"))'
)


class HistoryTable:
    """The history of one source table.

    Args:
        typed: the Delta table, with `HISTORY_OWN` as its own columns.
        keys: the key columns, as named at the source (after renaming).
    """

    def __init__(self, typed: TypedTable, keys: Sequence[str]) -> None:
        self.typed = typed
        self.keys = tuple(keys)

    def versions(self, changes: pa.Table) -> pa.Table:
        """Read what the table holds for the keys of a batch, but for rows that ended before it.

        Args:
            changes: a typed batch of this table.

        Returns:
            `HISTORY_STATE_SCHEMA` rows, all of them live.
        """
        if changes.num_rows == 0:
            return HISTORY_STATE_SCHEMA.empty_table()
        earliest = pc.min(changes["m:ts_ns"]).as_py()
        rows = rows_of_keys(
            self.typed,
            self.keys,
            changes,
            ("_ts_ns", "_tx_id", "_image_hash", "_valid_to_ns"),
            f'"_valid_to_ns" IS NULL OR "_valid_to_ns" >= {earliest}',
        )
        columns = {
            "key": rows["m:key"],
            "version": encode_versions(rows["_ts_ns"], rows["_tx_id"], pa.repeat(False, rows.num_rows)),
            "image_hash": rows["_image_hash"],
            "live": pa.repeat(True, rows.num_rows),
            "ts_ns": rows["_ts_ns"],
            "tx_id": rows["_tx_id"],
            "valid_to_ns": rows["_valid_to_ns"],
        }
        return pa.table([columns[name] for name in HISTORY_STATE_SCHEMA.names], schema=HISTORY_STATE_SCHEMA)

    def write(self, outcome: HistoryOutcome, *, transaction: tuple[str, int] | None = None) -> None:
        """Write new versions, better images and earlier ends in one commit; the deletes are written before.

        Args:
            outcome: what a step decided.
            transaction: stored with the commit.
        """
        # Columns that no new version brings are added too.
        layout = self.typed.fit(outcome.inserts.schema)
        rows = merge_rows(layout, self.keys, outcome)
        if rows.num_rows:
            self.typed.file.merge(rows, transaction=transaction, **self.clauses())

    def clauses(self) -> dict[str, Any]:
        """Give the conditions and assignments under which `merge_rows` are merged."""
        columns = copied(self.typed.columns)
        corrected = {
            column: f"CASE WHEN {_CORRECTS} THEN {value} ELSE t.{column} END"
            for column, value in columns.items()
        }
        earlier = {
            quoted("_valid_to_ns"): 'least(t."_valid_to_ns", s."_valid_to_ns")'
        }  # nulls count as later
        return {
            "match": same(
                [*self.typed.bucket_columns, *map(self.typed.column, self.keys), "_ts_ns", "_tx_id"]
            ),
            "update": corrected | earlier,
            "update_if": f"{_CORRECTS} OR {_ENDS_EARLIER}",
            "insert": columns,
            "insert_if": _IS_WHOLE,
        }


def merge_rows(layout: Layout, keys: Sequence[str], outcome: HistoryOutcome) -> pa.Table:
    """Write the source of a merge: the Delta table's columns and a mark, `WHOLE`.

    Args:
        layout: how rows lie in the table.
        keys: its key columns, as named at the source.
        outcome: what a step decided.
    """
    facts = [f"m:{name}" for name in layout.own if f"m:{name}" != _FROM]
    ends = outcome.ends.select([*(VALUE + key for key in keys), "m:key", *facts])
    parts = ((outcome.inserts, True), (outcome.corrections, True), (ends, False))
    return pa.concat_tables(
        [
            layout.physical(_with_start(rows)).append_column(WHOLE, pa.repeat(whole, rows.num_rows))
            for rows, whole in parts
        ]
    )


class Deletes:
    """All deletes of the keys of history tables.

    Args:
        file: where they lie.
    """

    def __init__(self, file: DeltaFile) -> None:
        self.facts = FactTable(file, TOMBSTONE_SCHEMA, ("table", "key", "version"))

    def of_keys(self, table: str, changes: pa.Table) -> pa.Table:
        """Read the deletes of a batch's keys, but for those before its earliest commit.

        Args:
            table: the table's name.
            changes: a typed batch of that table.

        Returns:
            `HISTORY_STATE_SCHEMA` rows, none of them live.
        """
        if changes.num_rows == 0:
            return HISTORY_STATE_SCHEMA.empty_table()
        earliest = pc.min(changes["m:ts_ns"]).as_py()
        where = f'"table" = {literal(table)} AND "ts_ns" >= {earliest} AND {among(changes["m:key"], "key")}'
        found = self.facts.read(["key", "version", "ts_ns", "tx_id"], where)
        found = found.filter(pc.is_in(found["key"], value_set=changes["m:key"].unique()))
        count = found.num_rows
        columns = {name: found[name] for name in found.column_names} | {"live": pa.repeat(False, count)}
        return pa.table(
            [columns.get(field.name, pa.nulls(count, field.type)) for field in HISTORY_STATE_SCHEMA],
            schema=HISTORY_STATE_SCHEMA,
        )

    def put(self, rows: pa.Table, *, transaction: tuple[str, int] | None = None) -> int:
        """Remember deletes and say how many were new.

        Args:
            rows: `table`, `key`, `version`, `ts_ns`, `tx_id`.
            transaction: stored with the commit.
        """
        if rows.num_rows == 0:
            return 0
        rows = rows.append_column("format_version", pa.repeat(FORMAT_VERSION, rows.num_rows))
        return self.facts.add(rows, transaction=transaction)

    def counts(self) -> Mapping[str, int]:
        """Count the deletes per table."""
        return self.facts.counts_by("table")


def _with_start(rows: pa.Table) -> pa.Table:
    return rows.append_column(_FROM, rows["m:ts_ns"])
