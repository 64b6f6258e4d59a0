"""One row per live key: the newest version, written by a merge that compares versions (SCD 1).

A merge's comparisons repeat what `lake.newest` decided, against whatever the table holds by then: a batch
applied twice, or two batches in either order, leave the same rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.schemas import QUARANTINE_SCHEMA, VALUE
from headpond.dsql.config import TableSpec
from headpond.dsql.versions import decode_versions, encode_versions, key_column
from headpond.lake.engine.merge import Merge
from headpond.lake.newest import COUNTERS, BatchKeys, LatestOutcome, latest_step, too_late
from headpond.lake.target import Decision, DecodedBatch, Target, Transaction, named, overtaken
from headpond.lake.typed import rows_of_keys

if TYPE_CHECKING:
    from headpond.lake.tables import Lake

CURRENT_OWN = {
    "ts_ns": ("_ts_ns", pa.int64()),
    "tx_id": ("_tx_id", pa.string()),
    "image_hash": ("_image_hash", pa.binary()),
}
"""Own columns of a current table of DSQL changes: the version a row has, and its image's hash."""

_DECIDES = ("m:key", "m:version", "m:delete", *(f"m:{name}" for name in CURRENT_OWN))
DELETE = "%delete"
"""The mark of a merge's source that says which rows are deletes; no encoded column name is like it."""


def wins(t: pa.Table, s: pa.Table) -> pa.ChunkedArray:
    """Return whether changes win against the rows that the table has of their keys.

    A delete loses against an upsert of the same transaction; an upsert of equal version wins by its image.
    What is null in the table was not needed: its time differs.
    """
    same_transaction = pc.equal(t["_tx_id"], s["_tx_id"])
    better = pc.and_kleene(same_transaction, pc.less(t["_image_hash"], s["_image_hash"]))
    better = pc.and_kleene(better, pc.invert(s[DELETE]))
    later = pc.or_kleene(pc.less(t["_tx_id"], s["_tx_id"]), better)
    same_time = pc.equal(t["_ts_ns"], s["_ts_ns"])
    return pc.or_kleene(pc.less(t["_ts_ns"], s["_ts_ns"]), pc.and_kleene(same_time, later))


class RowTable(Target):
    """A table whose changes are those of rows: what its forms have in common."""

    entry: TableSpec

    def decide(self, lake: Lake, batch: DecodedBatch) -> Decision | None:
        """Decide on the changes of a batch, as `Target.decide` says."""
        return self.decision(lake, batch) if batch.tables.get(self.name) else None

    @abstractmethod
    def decision(self, lake: Lake, batch: DecodedBatch) -> Decision:
        """Decide which of its changes win, of which the batch has some."""

    @property
    def identity(self) -> Sequence[str]:
        """The Delta columns in which rows are equal that are of one key."""
        return [*self.typed.found_by, *map(self.typed.column, self.keys)]

    def key_texts(self, rows: pa.Table) -> pa.Array:
        """Return the canonical keys, as a batch has them, of rows with the Delta table's columns."""
        columns = {name: rows[self.typed.column(name)].combine_chunks() for name in self.keys}
        return key_column(self.entry, columns)

    def newest_ns(self) -> int:
        """Return the newest commit time of its rows, as `Target.newest_ns` says."""
        return max(self.typed.file.greatest("_ts_ns"), default=0)


class CurrentTable(RowTable):
    """The current rows of one source table; its Delta table has `CURRENT_OWN` as its own columns."""

    figures = COUNTERS

    def decision(self, lake: Lake, batch: DecodedBatch) -> Decision:
        """Decide which change of each key wins; what may be older than a dropped tombstone is too late."""
        changes, keys = batch.tables[self.name], batch.keys(self.name)
        dead = lake.tombstones.of_keys(self.known_as, keys.texts)
        state = pa.concat_tables([self.versions(changes, keys, dead), dead])
        late = QUARANTINE_SCHEMA.empty_table()
        if (horizon := lake.tombstones.horizons_ns().get(self.known_as)) is not None:
            changes, late = too_late(state, changes, horizon)
            keys = BatchKeys(changes["m:key"]) if late else keys
        # Facts that the table does not keep stay behind.
        kept = [name for name in changes.column_names if name in _DECIDES or name.startswith(VALUE)]
        outcome = latest_step(state, changes.select(kept), self.keys, keys)
        return Decision(
            lambda transaction: self.write(outcome, transaction=transaction),
            refused=late,
            tombstones=named(self.known_as, outcome.tombstones_put),
            overtaken=overtaken(self.known_as, dead, outcome.tombstones_drop["key"]),
        )

    def versions(self, changes: pa.Table, keys: BatchKeys, dead: pa.Table) -> pa.Table:
        """Read the live rows of a batch's keys, as `STATE_SCHEMA`; `dead` are the keys' tombstones.

        Transaction and image only decide between equal times: where there are none they are not read. Nor are
        times where all are older than the batch.
        """
        of_dead, _, _ = decode_versions(dead["version"])
        times = pa.concat_arrays([*changes["m:ts_ns"].chunks, of_dead]).unique()
        rows = rows_of_keys(
            self.typed,
            self.keys,
            changes,
            keys,
            ("_ts_ns",),
            later=("_tx_id", "_image_hash"),
            needs=lambda found: pc.is_in(found["_ts_ns"], value_set=times),
            least={"_ts_ns": pc.min(times).as_py()},
        )
        tx_ids = pc.fill_null(rows["_tx_id"], "")
        return pa.table(
            {
                "key": rows["m:key"],
                "version": encode_versions(rows["_ts_ns"], tx_ids, pa.repeat(False, rows.num_rows)),
                "image_hash": rows["_image_hash"],
                "live": pa.repeat(True, rows.num_rows),
            }
        )

    def write(self, outcome: LatestOutcome, *, transaction: Transaction = None) -> Counter[str]:
        """Write the rows that win and remove those that a newer delete hits, in one commit."""
        # Columns that only changes without effect bring are added too.
        layout = self.typed.fit(outcome.upserts.schema)
        if outcome.upserts.num_rows + outcome.deletes.num_rows:
            rows = layout.marked(DELETE, [(outcome.upserts, False), (outcome.deletes, True)])
            merge = Merge(rows, self.identity, ("_ts_ns", "_tx_id", "_image_hash"), wins, gone=rows[DELETE])
            self.typed.file.merge(merge, transaction=transaction)
        return Counter(outcome.counters)
