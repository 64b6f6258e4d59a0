"""Tables of facts that only grow: each fact once, whatever is written again.

Quarantine, pending records and change logs are such tables. A row has an identity (some of its columns);
writing a row whose identity is there already changes nothing, so a micro-batch may be applied twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.lake.delta import DeltaFile
from headpond.lake.engine.lookup import Wanted
from headpond.lake.engine.merge import Merge, Pairs, always, with_columns

ORIGIN = ("stream", "shard_id", "sequence_number", "sub_sequence_number")
"""Identity of a user record."""
_GONE = "%gone"


def first_of_each(rows: pa.Table, identity: Sequence[str]) -> pa.Table:
    """Keep the first row of each identity, in their order."""
    if rows.num_rows <= 1:
        return rows
    numbered = rows.select(list(identity)).append_column("row", pa.array(np.arange(rows.num_rows)))
    kept = numbered.group_by(list(identity)).aggregate([("row", "min")])["row_min"]
    if len(kept) == rows.num_rows:
        return rows
    return rows.take(kept.take(pc.sort_indices(kept)))


class FactTable:
    """A Delta table of rows with an identity (columns that are never null), each of them written once."""

    def __init__(self, file: DeltaFile, schema: pa.Schema, identity: Sequence[str]) -> None:
        self.file = file
        self.schema = schema
        self.identity = tuple(identity)

    def add(self, rows: pa.Table, *, transaction: tuple[str, int] | None = None) -> int:
        """Write the rows that are not there yet; return how many those were."""
        if rows.num_rows == 0:
            return 0
        self.file.create(self.schema)
        rows = first_of_each(rows.select(self.schema.names).cast(self.schema), self.identity)
        return self.file.merge(Merge(rows, self.identity), transaction=transaction).inserted

    def remove(self, rows: pa.Table, columns: Sequence[str]) -> int:
        """Delete the rows that equal one of `rows` in `columns`; return how many those were."""
        if rows.num_rows == 0 or not self.file.exists():
            return 0
        gone = first_of_each(rows.select(list(columns)), columns)
        every = pa.repeat(True, gone.num_rows)
        return self.file.merge(Merge(gone, columns, wins=always, gone=every)).deleted

    def replace(self, rows: pa.Table, columns: Sequence[str]) -> None:
        """Set some columns of the rows that have the identity of one of `rows`."""
        self.file.merge(
            Merge(
                rows,
                self.identity,
                wins=always,
                insert=pa.repeat(False, rows.num_rows),
                update=lambda t, s: with_columns(t, s, columns),
            )
        )

    def exchange(
        self,
        put: pa.Table,
        drop: pa.Table,
        *,
        update: Pairs | None = None,
        transaction: tuple[str, int] | None = None,
    ) -> None:
        """Write rows and delete those of some identities, in one commit; `update` is as `Merge` has it."""
        self.file.create(self.schema)
        parts = ((put, False), (drop, True))
        rows = pa.concat_tables(
            [rows.append_column(_GONE, pa.repeat(gone, rows.num_rows)) for rows, gone in parts],
            promote_options="default",
        )
        merge = Merge(rows, self.identity, wins=always, gone=rows[_GONE], update=update)
        self.file.merge(merge, transaction=transaction)

    def read(self, columns: Sequence[str] | None = None, where: str | None = None) -> pa.Table:
        """Read rows; none where the table does not exist yet."""
        if not self.file.exists():
            names = list(columns) if columns is not None else self.schema.names
            return self.schema.empty_table().select(names)
        return self.file.read(columns, where)

    def find(self, column: str, values: pa.Array | pa.ChunkedArray, columns: Sequence[str]) -> pa.Table:
        """Read columns of the rows that have one of some values in another; it costs what these cost."""
        if len(values) == 0 or not self.file.exists():
            return self.schema.empty_table().select(columns)
        found = self.file.look_up(Wanted(pa.table({column: values}), [column], columns))
        return found.select(columns)

    def counts_by(self, column: str) -> Mapping[str, int]:
        """Count the rows by the values of one column, in the values' order."""
        values = self.read([column])[column].combine_chunks()
        counted = sorted(
            (str(row["values"]), int(row["counts"])) for row in pc.value_counts(values).to_pylist()
        )
        return dict(counted)

    def count(self) -> int:
        """Count all rows."""
        return self.file.count()
