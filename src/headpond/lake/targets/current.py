"""One row per live key: the newest version, written by MERGE that compares versions (SCD 1).

A merge's conditions repeat what `lake.newest` decided, against whatever the table holds by then: a batch
applied twice, or two batches in either order, leave the same rows.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headpond.core.schemas import QUARANTINE_SCHEMA, VALUE
from headpond.dsql.versions import encode_versions, key_column
from headpond.lake.delta import copied, quoted, same
from headpond.lake.newest import COUNTERS, latest_step, too_late
from headpond.lake.target import Decision, Target, named, overtaken
from headpond.lake.typed import rows_of_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headpond.dsql.config import TableSpec
    from headpond.lake.lake import Lake
    from headpond.lake.newest import LatestOutcome
    from headpond.lake.target import DecodedBatch, Transaction
    from headpond.lake.typed import Layout

CURRENT_OWN = {
    "ts_ns": ("_ts_ns", pa.int64()),
    "tx_id": ("_tx_id", pa.string()),
    "image_hash": ("_image_hash", pa.binary()),
}
"""Own columns of a current table of DSQL changes: the version a row has, and its image's hash."""

DELETE = "%delete"
"""The mark of a merge's source that says which rows are deletes; no encoded column name is like it."""


def _newer(than: str) -> str:
    return f'(t."_ts_ns" < s."_ts_ns" OR (t."_ts_ns" = s."_ts_ns" AND {than}))'


# A delete loses against an upsert of the same transaction; an upsert of equal version wins by its image.
UPSERT_WINS = _newer(
    '(t."_tx_id" < s."_tx_id" OR (t."_tx_id" = s."_tx_id" AND t."_image_hash" < s."_image_hash"))'
)
DELETE_WINS = _newer('t."_tx_id" < s."_tx_id"')


class RowTable(Target):
    """A table whose changes are those of rows: what its forms have in common."""

    entry: TableSpec

    def key_texts(self, rows: pa.Table) -> pa.Array:
        """Return the canonical keys, as a batch has them, of rows with the Delta table's columns."""
        columns = {name: rows[self.typed.column(name)].combine_chunks() for name in self.keys}
        return key_column(self.entry, columns)


class CurrentTable(RowTable):
    """The current rows of one source table; its Delta table has `CURRENT_OWN` as its own columns."""

    figures = COUNTERS

    def decide(self, lake: Lake, batch: DecodedBatch) -> Decision | None:
        """Decide which change of each key wins; what may be older than a dropped tombstone is too late."""
        changes = batch.tables.get(self.name)
        if not changes:
            return None
        dead = lake.tombstones.of_keys(self.name, changes["m:key"])
        state = pa.concat_tables([self.versions(changes), dead])
        late = QUARANTINE_SCHEMA.empty_table()
        if (horizon := lake.tombstones.horizon_ns(self.name)) is not None:
            changes, late = too_late(state, changes, horizon)
        outcome = latest_step(state, changes)
        return Decision(
            lambda transaction: self.write(outcome, transaction=transaction),
            refused=late,
            tombstones=named(self.name, outcome.tombstones_put),
            overtaken=overtaken(self.name, dead, outcome.tombstones_drop["key"]),
        )

    def newest_ns(self) -> int:
        """Return the newest commit time of its rows; 0 where there is none."""
        return self.typed.newest("_ts_ns")

    def versions(self, changes: pa.Table) -> pa.Table:
        """Read the live rows of a batch's keys, as `STATE_SCHEMA`."""
        rows = rows_of_keys(self.typed, self.keys, changes, ("_ts_ns", "_tx_id", "_image_hash"))
        return pa.table(
            {
                "key": rows["m:key"],
                "version": encode_versions(rows["_ts_ns"], rows["_tx_id"], pa.repeat(False, rows.num_rows)),
                "image_hash": rows["_image_hash"],
                "live": pa.repeat(True, rows.num_rows),
            }
        )

    def write(self, outcome: LatestOutcome, *, transaction: Transaction = None) -> Counter[str]:
        """Write the rows that win and remove those that a newer delete hits, in one commit."""
        # Columns that only changes without effect bring are added too.
        layout = self.typed.fit(outcome.upserts.schema)
        if outcome.upserts.num_rows + outcome.deletes.num_rows:
            rows = merge_rows(layout, self.keys, outcome.upserts, outcome.deletes)
            self.typed.file.merge(rows, transaction=transaction, **self.clauses())
        return Counter(outcome.counters)

    def clauses(self) -> dict[str, Any]:
        """Return the conditions and assignments under which `merge_rows` are merged."""
        columns = copied(self.typed.columns)
        is_delete = quoted(DELETE, "s")
        return {
            "match": same([*self.typed.bucket_columns, *map(self.typed.column, self.keys)]),
            "delete_if": f"{is_delete} AND {DELETE_WINS}",
            "update": columns,
            "update_if": f"NOT {is_delete} AND {UPSERT_WINS}",
            "insert": columns,
            "insert_if": f"NOT {is_delete}",
        }


def merge_rows(layout: Layout, keys: Sequence[str], upserts: pa.Table, deletes: pa.Table) -> pa.Table:
    """Return the source of a merge: the Delta table's columns and a mark, `DELETE`."""
    gone = deletes.select([*(VALUE + key for key in keys), "m:key", *(f"m:{name}" for name in layout.own)])
    parts = ((upserts, False), (gone, True))
    return pa.concat_tables(
        [
            layout.physical(rows).append_column(DELETE, pa.repeat(deleted, rows.num_rows))
            for rows, deleted in parts
        ]
    )
