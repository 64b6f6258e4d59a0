"""Revisions that contradict each other, in `_headpond/conflicts`, until it is clear which one is right.

A document's version that came with two hashes has a row here for each, with the typed row itself: the block
that lists one of them may come later, and then that one has to stand in the table, whichever does now. A
sound ledger has no such rows, and no such table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.schemas import format_versions
from headpond.tables.keyed import among
from headpond.tables.state import FactTable

if TYPE_CHECKING:
    from headpond.tables.delta import DeltaFile

CONFLICTS = pa.schema(
    [
        pa.field("table", pa.string()),
        pa.field("document_id", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("hash", pa.binary()),
        pa.field("kind", pa.string()),
        pa.field("row", pa.binary()),  # the typed revision: an Arrow stream of one row
        pa.field("format_version", pa.int32()),
    ]
)
IDENTITY = ("table", "document_id", "version", "hash", "kind")


class Conflicts:
    """The contested revisions of a lake.

    Args:
        file: where they lie.
    """

    def __init__(self, file: DeltaFile) -> None:
        self.file = file
        self.facts = FactTable(file, CONFLICTS, IDENTITY)

    def of(self, table: str, document_ids: pa.Array | pa.ChunkedArray) -> pa.Table | None:
        """Read the contested revisions of some documents as typed rows; null where there are none."""
        if len(document_ids) == 0 or not self.file.exists():
            return None
        ids = pa.chunked_array([pc.unique(document_ids)], pa.string())
        rows = self.facts.read(["table", "document_id", "row"], among(ids, "document_id"))
        mine = pc.and_(pc.equal(rows["table"], table), pc.is_in(rows["document_id"], value_set=ids))
        cells = rows.filter(mine)["row"].to_pylist()
        if not cells:
            return None
        parts = [pa.ipc.open_stream(cell).read_all() for cell in cells]
        return pa.concat_tables(parts, promote_options="default")

    def put(self, table: str, rows: pa.Table, *, transaction: tuple[str, int] | None = None) -> int:
        """Keep typed revisions of a table and say how many were new."""
        if rows.num_rows == 0:
            return 0
        cells = [_packed(rows.slice(at, 1)) for at in range(rows.num_rows)]
        columns = {
            "table": pa.repeat(table, rows.num_rows),
            "document_id": rows["m:document_id"],
            "version": rows["m:revision"],
            "hash": rows["m:hash"],
            "kind": rows["m:kind"],
            "row": pa.array(cells, pa.binary()),
            "format_version": format_versions(rows.num_rows),
        }
        return self.facts.add(pa.table(columns, schema=CONFLICTS), transaction=transaction)

    def forget(self, table: str, revisions: pa.Table) -> None:
        """Drop the rows with contents of redacted revisions of a table.

        Args:
            table: the table's name.
            revisions: `document_id` and `version`.
        """
        if revisions.num_rows and self.file.exists():
            rows = revisions.select(["document_id", "version"]).append_column(
                "table", pa.repeat(table, revisions.num_rows)
            )
            self.facts.remove(rows, ("table", "document_id", "version"))


def _packed(row: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_table(row)
    content: bytes = sink.getvalue().to_pybytes()
    return content
