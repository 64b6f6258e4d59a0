"""Every accepted change of a source table, appended once (the only form for a table without a key).

An entry's identity is its place in the stream: reading Kinesis again adds nothing, a redelivery by the
service adds an entry, since it cannot be told from a second equal row of the same transaction. With
``dedupe = "content"`` entries equal in commit time, transaction, operation and image are one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.tables.delta import copied, same
from headpond.tables.state import first_of_each

if TYPE_CHECKING:
    from headpond.tables.typed import TypedTable

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


class LogTable:
    """The change log of one source table.

    Args:
        typed: the Delta table, with `LOG_OWN` as its own columns.
        by_content: `dedupe = "content"`.
    """

    def __init__(self, typed: TypedTable, *, by_content: bool = False) -> None:
        self.typed = typed
        self.identity = BY_CONTENT if by_content else BY_PLACE

    def write(self, changes: pa.Table, *, transaction: tuple[str, int] | None = None) -> int:
        """Append the entries that are not there yet and say how many those were.

        Args:
            changes: a typed batch of this table.
            transaction: stored with the commit.
        """
        if changes.num_rows == 0:
            return 0
        rows = first_of_each(self.typed.physical(changes), self.identity)
        figures = self.typed.file.merge(rows, transaction=transaction, **self.clauses())
        return int(figures["num_target_rows_inserted"])

    def clauses(self) -> dict[str, Any]:
        """Give the condition and assignments under which entries are merged."""
        return {
            "match": same([*self.typed.bucket_columns, *self.identity]),
            "insert": copied(self.typed.columns),
        }

    def newest(self, count: int) -> pa.Table:
        """Read operation and images of at most so many entries, the newest ones."""
        file = self.typed.file
        if not file.exists():
            return pa.table({name: pa.array([], pa.string()) for name in ("_op", "_before", "_after")})
        times = file.read(["_ts_ns"])["_ts_ns"]
        since = pc.min(times.take(pc.top_k_unstable(times, count))).as_py() if len(times) else 0
        return file.read(["_op", "_before", "_after"], f'"_ts_ns" >= {since}')
