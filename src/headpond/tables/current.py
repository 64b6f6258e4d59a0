"""One row per live key: the newest version, written by MERGE that compares versions (SCD 1).

A merge's conditions repeat what `changes.latest` decided, against whatever the table holds by then: a batch
applied twice, or two batches in either order, leave the same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headpond.changes.model import encode_versions
from headpond.tables.delta import copied, quoted, same
from headpond.tables.keyed import rows_of_keys
from headpond.tables.typed import VALUE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headpond.tables.typed import Layout, TypedTable

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


class CurrentTable:
    """The current rows of one source table.

    Args:
        typed: the Delta table, with `CURRENT_OWN` as its own columns.
        keys: the key columns, as named at the source (after renaming).
    """

    def __init__(self, typed: TypedTable, keys: Sequence[str]) -> None:
        self.typed = typed
        self.keys = tuple(keys)

    def versions(self, changes: pa.Table) -> pa.Table:
        """Read what the table holds for the keys of a batch.

        Args:
            changes: a typed batch of this table.

        Returns:
            One row per key that is live: `key` (canonical JSON, as in the batch), `version`, `image_hash`,
            `live` (true).
        """
        rows = rows_of_keys(self.typed, self.keys, changes, ("_ts_ns", "_tx_id", "_image_hash"))
        return pa.table(
            {
                "key": rows["m:key"],
                "version": encode_versions(rows["_ts_ns"], rows["_tx_id"], pa.repeat(False, rows.num_rows)),
                "image_hash": rows["_image_hash"],
                "live": pa.repeat(True, rows.num_rows),
            }
        )

    def write(
        self, upserts: pa.Table, deletes: pa.Table, *, transaction: tuple[str, int] | None = None
    ) -> None:
        """Write the winning rows of a batch and remove the rows that a newer delete hits, in one commit.

        Args:
            upserts: typed rows, one per key.
            deletes: typed rows of deletes, one per key, none of them among the upserts.
            transaction: stored with the commit.
        """
        layout = self.typed.fit(
            upserts.schema
        )  # columns that only changes without effect bring are added too
        if upserts.num_rows + deletes.num_rows == 0:
            return
        rows = merge_rows(layout, self.keys, upserts, deletes)
        self.typed.file.merge(rows, transaction=transaction, **self.clauses())

    def clauses(self) -> dict[str, Any]:
        """Give the conditions and assignments under which `merge_rows` are merged."""
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
    """Write the source of a merge: the Delta table's columns and a mark, `DELETE`.

    Args:
        layout: how rows lie in the table.
        keys: its key columns, as named at the source.
        upserts: typed rows.
        deletes: typed rows of which only keys and own columns count.
    """
    gone = deletes.select([*(VALUE + key for key in keys), "m:key", *(f"m:{name}" for name in layout.own)])
    parts = ((upserts, False), (gone, True))
    return pa.concat_tables(
        [
            layout.physical(rows).append_column(DELETE, pa.repeat(deleted, rows.num_rows))
            for rows, deleted in parts
        ]
    )
