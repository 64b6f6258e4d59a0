"""Documents of a ledger in a Delta table: the current revision of each, or every revision.

::

    current   _document_id │ _version  _redacted …  one row per live document; a delete removes it and leaves
                           │                        a tombstone
    history   _document_id, _version │ _kind …      one row per revision, deletes among them

A merge's conditions repeat what `changes.documents` and `changes.latest` decided, against whatever the table
holds by then: a higher version wins, and a revision of equal version only replaces the very one that it was
found to win against.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.documents import REDACTED, decode_version
from headpond.changes.qldb import REVISION_FIELDS, TIME
from headpond.changes.schemas import OWN, VALUE
from headpond.tables.delta import copied, quoted, same
from headpond.tables.keyed import among

if TYPE_CHECKING:
    from headpond.tables.typed import TypedTable

_SHARED = {
    "document_id": ("_document_id", pa.string()),
    "revision": ("_version", pa.int64()),
    "tx_time": ("_tx_time", TIME),
    "tx_id": ("_tx_id", pa.string()),
    "table_id": ("_table_id", pa.string()),
    "block_sequence_no": ("_block_sequence_no", pa.int64()),
    "hash": ("_hash", pa.binary()),
}
CURRENT_OWN = _SHARED | {"redacted": ("_redacted", pa.bool_())}
"""Own columns of current documents; `_redacted`: the contents of this revision are gone."""
HISTORY_OWN = _SHARED | {"kind": ("_kind", pa.string())}
"""Own columns of a history of documents."""
ION_OWN = {"ion": ("_ion", pa.binary())}
"""The own column that `raw_ion` adds."""
JSON_OWN = {"json": ("_json", pa.string())}
"""The own column that `canonical_json` adds."""

KNOWN = pa.schema(
    [
        pa.field("document_id", pa.string()),
        pa.field("revision", pa.int64()),
        pa.field("hash", pa.binary()),
        pa.field("redacted", pa.bool_()),
        pa.field("block_sequence_no", pa.int64()),
    ]
)
"""What a table knows of documents."""

DELETE, OVER = "%delete", "%over"
"""Marks of a merge's source: a row is a delete; hash of the revision of equal version that it replaces. No
encoded column name is like them."""

_REPLACES = f't."_version" = s."_version" AND t."_hash" = {quoted(OVER, "s")}'
_WINS = f'(t."_version" < s."_version" OR ({_REPLACES}))'


class DocumentTable:
    """The documents of one table of a ledger.

    Args:
        typed: the Delta table, with `CURRENT_OWN` or `HISTORY_OWN` as its own columns.
        past: whether it is a history.
    """

    def __init__(self, typed: TypedTable, *, past: bool) -> None:
        self.typed = typed
        self.past = past

    def known(self, document_ids: pa.ChunkedArray) -> pa.Table:
        """Read what the table holds of some documents, as `KNOWN` rows."""
        if len(document_ids) == 0:
            return KNOWN.empty_table()
        rows = self._read(
            ["_document_id", "_version", "_hash", self._form, "_block_sequence_no"], document_ids
        )
        columns = list(rows.columns)
        if self.past:
            columns[3] = pc.equal(rows[self._form], REDACTED)
        return pa.table(
            [column.cast(kind) for column, kind in zip(columns, KNOWN.types, strict=True)], schema=KNOWN
        )

    def revisions(self, document_ids: pa.ChunkedArray) -> pa.Table:
        """Read whole rows of some documents back as typed revisions."""
        rows = self._read(None, document_ids)
        kinds = rows["_kind"] if self.past else _kinds(rows)
        own = {
            OWN + name: rows[column]
            for name, (column, _) in self.typed.own.items()
            if column in rows.column_names
        }
        own["m:kind"] = kinds
        fields = [own.get(f.name, pa.nulls(rows.num_rows, f.type)).cast(f.type) for f in REVISION_FIELDS]
        found = pa.table(fields, schema=pa.schema(REVISION_FIELDS))
        for original, column in self.typed.originals().items():
            found = found.append_column(VALUE + original, rows[column])
        return found

    def write(
        self,
        upserts: pa.Table,
        deletes: pa.Table,
        known: pa.Table,
        *,
        transaction: tuple[str, int] | None = None,
    ) -> None:
        """Write the winning revisions of a batch and remove the rows that a delete hits, in one commit.

        Args:
            upserts: typed revisions that win; per row of the table at most one.
            deletes: of a current table, typed revisions with the `m:version` of the deletes that win.
            known: `KNOWN` rows that this was decided on.
            transaction: stored with the commit.
        """
        layout = self.typed.fit(upserts.schema)
        if upserts.num_rows + deletes.num_rows == 0:
            return
        gone = deletes.select([name for name in deletes.column_names if not name.startswith(VALUE)])
        at = gone.schema.get_field_index("m:revision")
        versions = [decode_version(version).revision for version in gone["m:version"].to_pylist()]
        gone = gone.set_column(at, "m:revision", pa.array(versions, pa.int64()))
        parts = []
        for rows, deleted in ((upserts, False), (gone, True)):
            marked = rows.append_column("m:redacted", pc.equal(rows["m:kind"], REDACTED))
            laid = layout.physical(marked).append_column(DELETE, pa.repeat(deleted, rows.num_rows))
            parts.append(laid.append_column(OVER, _over(rows, known)))
        self.typed.file.merge(pa.concat_tables(parts), transaction=transaction, **self._clauses())

    def forget(self, revisions: pa.Table, *, transaction: tuple[str, int] | None = None) -> int:
        """Remove the contents of revisions, where the table has them, and say how many those were.

        Args:
            revisions: `document_id` and `version`, each pair once.
            transaction: stored with the commit.
        """
        file = self.typed.file
        if revisions.num_rows == 0 or not file.exists():
            return 0
        own = [column for column, _ in self.typed.own.values()]
        kept = {*own, *self.typed.bucket_columns} - {"_ion", "_json"}
        mark = {'"_kind"': f"'{REDACTED}'"} if self.past else {'"_redacted"': "true"}
        nothing = {quoted(field.name): "NULL" for field in file.schema() if field.name not in kept}
        has = "t.\"_kind\" NOT IN ('delete', 'redacted')" if self.past else 't."_redacted" = false'
        source = pa.table({"_document_id": revisions["document_id"], "_version": revisions["version"]})
        figures = file.merge(
            source,
            match=same(["_document_id", "_version"]),
            update=nothing | mark,
            update_if=has,
            transaction=transaction,
        )
        return int(figures["num_target_rows_updated"])

    @property
    def _form(self) -> str:
        return "_kind" if self.past else "_redacted"

    def _read(self, columns: list[str] | None, document_ids: pa.ChunkedArray) -> pa.Table:
        different = document_ids.unique()
        where = among(pa.chunked_array([different]), "_document_id")
        rows = self.typed.file.read(columns, where)
        return rows.filter(pc.is_in(rows["_document_id"], value_set=different))

    def _clauses(self) -> dict[str, Any]:
        columns = copied(self.typed.columns)
        is_delete = quoted(DELETE, "s")
        clauses: dict[str, Any] = {
            "update": columns,
            "insert": columns,
            "insert_if": f"NOT {is_delete}",
        }
        if self.past:
            match = same([*self.typed.bucket_columns, "_document_id", "_version"])
            return clauses | {"match": match, "update_if": f"NOT {is_delete} AND {_REPLACES}"}
        return clauses | {
            "match": same([*self.typed.bucket_columns, "_document_id"]),
            "update_if": f"NOT {is_delete} AND {_WINS}",
            "delete_if": f"{is_delete} AND {_WINS}",
        }


def _kinds(rows: pa.Table) -> Any:
    """What kind the revisions of current rows are."""
    by_version = pc.if_else(pc.equal(rows["_version"], 0), "insert", "update")
    return pc.if_else(rows["_redacted"], REDACTED, by_version)


def _over(rows: pa.Table, known: pa.Table) -> pa.Array:
    """Hash of the known revision that has the document and version of each row; null where there is none."""
    pairs = zip(known["document_id"].to_pylist(), known["revision"].to_pylist(), strict=True)
    hashes = dict(zip(pairs, known["hash"].to_pylist(), strict=True))
    wanted = zip(rows["m:document_id"].to_pylist(), rows["m:revision"].to_pylist(), strict=True)
    return pa.array([hashes.get(pair) for pair in wanted], pa.binary())
