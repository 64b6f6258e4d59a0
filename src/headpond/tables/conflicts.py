"""Revisions that contradict each other, in `_headpond/conflicts`, until it is clear which one is right.

A document's version that came with two hashes has a row here for each, with the typed row itself: the block
that lists one of them may come later, and then that one has to stand in the table, whichever does now. A
sound ledger has no such rows, and no such table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.documents import DELETE, REDACTED, without_contents
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
        pa.field("block_sequence_no", pa.int64()),  # that it names; null in rows written before it was kept
    ]
)
_PAIR = ("document_id", "version")
IDENTITY = ("table", *_PAIR, "hash", "kind", "block_sequence_no")


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
            "block_sequence_no": rows["m:block_sequence_no"],
        }
        self._widen()
        return self.facts.add(pa.table(columns, schema=CONFLICTS), transaction=transaction)

    def _widen(self) -> None:
        if self.file.exists() and len(self.file.schema()) < len(CONFLICTS):
            self.file.add_columns([CONFLICTS.field("block_sequence_no")])

    def forget(self, table: str, revisions: pa.Table) -> None:
        """Take the contents from the redacted revisions of a table; that they are contested is still known.

        Args:
            table: the table's name.
            revisions: `document_id` and `version`.
        """
        if revisions.num_rows == 0 or not self.file.exists():
            return
        ids = revisions["document_id"]
        self._widen()
        rows = self.facts.read(CONFLICTS.names, among(ids, "document_id"))
        pairs = set(zip(ids.to_pylist(), revisions["version"].to_pylist(), strict=True))
        held = zip(*(rows[name].to_pylist() for name in ("table", *_PAIR, "kind")), strict=True)
        full = rows.filter(
            pa.array(
                [
                    name == table and (document_id, version) in pairs and kind not in (DELETE, REDACTED)
                    for name, document_id, version, kind in held
                ],
                pa.bool_(),
            )
        )
        if full.num_rows == 0:
            return
        # Those without contents first: a stop in between leaves both, and the next time finds the old ones.
        typed = [pa.ipc.open_stream(cell).read_all() for cell in full["row"].to_pylist()]
        self.put(table, pa.concat_tables([_emptied(each) for each in typed], promote_options="default"))
        self.facts.remove(full, IDENTITY)
        self.facts.remove(full.filter(pc.is_null(full["block_sequence_no"])), IDENTITY[:-1])


def _emptied(row: pa.Table) -> pa.Table:
    return without_contents(row, pa.repeat(True, row.num_rows))


def _packed(row: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_table(row)
    content: bytes = sink.getvalue().to_pybytes()
    return content
