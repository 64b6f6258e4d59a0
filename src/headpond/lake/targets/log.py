"""Every accepted change of a source table, appended once (the only form for a table without a key).

An entry's identity is its place in the stream: reading Kinesis again adds nothing, a redelivery by the
service adds an entry, since it cannot be distinguished from a second equal row of the same transaction. With
``dedupe = "content"`` entries equal in commit time, transaction, operation and image are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headpond.dsql.config import TableSpec
from headpond.lake.engine.merge import Merge
from headpond.lake.state.insert_once import first_of_each
from headpond.lake.target import Decision, DecodedBatch, Transaction
from headpond.lake.targets.current import RowTable
from headpond.lake.typed import TypedTable

if TYPE_CHECKING:
    from headpond.lake.tables import Lake

LOG_OWN = {
    "ts_ns": ("_ts_ns", pa.int64()),
    "tx_id": ("_tx_id", pa.string()),
    "op": ("_op", pa.string()),
    "before": ("_before", pa.string()),
    "after": ("_after", pa.string()),
    "image_hash": ("_image_hash", pa.binary()),
    "stream": ("_stream", pa.string()),
    "shard_id": ("_shard_id", pa.string()),
    "sequence_number": ("_sequence_number", pa.string()),
    "sub_sequence_number": ("_sub_sequence_number", pa.int64()),
}
"""Own columns of a log: batch column → (Delta column, type)."""

BY_PLACE = ("_stream", "_shard_id", "_sequence_number", "_sub_sequence_number")
BY_CONTENT = ("_ts_ns", "_tx_id", "_op", "_image_hash")


class LogTable(RowTable):
    """The change log of one source table; its Delta table has `LOG_OWN` as its own columns."""

    figures = ("appended", "duplicates")

    def __init__(self, typed: TypedTable, entry: TableSpec) -> None:
        super().__init__(typed, entry)
        self.apart_by = "m:image_hash" if entry.dedupe == "content" else "m:sequence_number"

    @property
    def identity(self) -> Sequence[str]:
        """The Delta columns in which entries are equal that are one."""
        return BY_CONTENT if self.entry.dedupe == "content" else BY_PLACE

    def decision(self, lake: Lake, batch: DecodedBatch) -> Decision:  # noqa: ARG002 - nothing is to be known
        """Accept every entry."""
        changes = batch.tables[self.name]
        return Decision(lambda transaction: self.write(changes, transaction=transaction))

    def write(self, changes: pa.Table, *, transaction: Transaction = None) -> Counter[str]:
        """Append the entries of a typed batch that are not there yet."""
        rows = first_of_each(self.typed.fit(changes.schema).physical(changes), self.identity)
        merge = Merge(rows, [*self.typed.found_by, *self.identity])
        new = self.typed.file.merge(merge, transaction=transaction).inserted
        return Counter(appended=new, duplicates=changes.num_rows - new)

    def newest(self, count: int) -> pa.Table:
        """Read operation and images of at most this many entries, the newest ones."""
        file = self.typed.file
        if not file.exists():
            return pa.table({name: pa.array([], pa.string()) for name in ("_op", "_before", "_after")})
        times = file.read(["_ts_ns"])["_ts_ns"]
        since = pc.min(times.take(pc.top_k_unstable(times, count))).as_py() if len(times) else 0
        return file.read(["_op", "_before", "_after"], f'"_ts_ns" >= {since}')
