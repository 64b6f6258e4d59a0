"""Every version of each key with the time it held (SCD 2), and the deletes that ended them.

::

    order_id  price  _ts_ns  _tx_id  _op  _valid_from_ns  _valid_to_ns
        7      1.50      10  a…      c               10            20
        7      1.75      20  b…      u               20          null

A row is found again by its key, `_ts_ns` and `_tx_id`. A merge's comparisons repeat what `lake.newest`
decided, against whatever the table holds by then: an end only moves to an earlier time, an image only gives
way to one of a greater hash.

The deletes lie beside the tables, in `_headpond/deletes` (`state.tombstones`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.schemas import VALUE
from headpond.dsql.versions import encode_versions
from headpond.lake.engine.merge import Merge
from headpond.lake.engine.parquet import ENDS
from headpond.lake.newest import (
    HISTORY_COUNTERS,
    HISTORY_STATE_SCHEMA,
    BatchKeys,
    HistoryOutcome,
    history_step,
)
from headpond.lake.target import Decision, DecodedBatch, Transaction, named
from headpond.lake.targets.current import RowTable
from headpond.lake.typed import rows_of_keys

if TYPE_CHECKING:
    from headpond.lake.tables import Lake

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
_FROM = "m:valid_from_ns"
_MOST_LATE = 4
"""Rows of a batch's keys are read whole while at most so many for each change may have ended since."""


def _corrects(t: pa.Table, s: pa.Table) -> pa.ChunkedArray:
    return pc.and_(s[WHOLE], pc.less(t["_image_hash"], s["_image_hash"]))


def wins(t: pa.Table, s: pa.Table) -> pa.ChunkedArray:
    """Return whether versions have a greater image, or an earlier end, than the table has of them."""
    before, ends = t["_valid_to_ns"], s["_valid_to_ns"]
    earlier = pc.or_kleene(pc.is_null(before), pc.less(ends, before))
    return pc.or_kleene(_corrects(t, s), pc.and_(pc.is_valid(ends), earlier))


def update(t: pa.Table, s: pa.Table) -> pa.Table:
    """Return rows of a history with the greater images and the earlier ends."""
    corrected = _corrects(t, s)
    columns = {name: pc.if_else(corrected, s[name], t[name]) for name in t.column_names}
    # Null counts as later.
    columns["_valid_to_ns"] = pc.min_element_wise(t["_valid_to_ns"], s["_valid_to_ns"])
    return pa.table(columns)


class HistoryTable(RowTable):
    """The history of one source table; its Delta table has `HISTORY_OWN` as its own columns."""

    figures = HISTORY_COUNTERS

    @property
    def identity(self) -> Sequence[str]:
        """The Delta columns in which rows are equal that are of one version."""
        return [*super().identity, "_ts_ns", "_tx_id"]

    def decision(self, lake: Lake, batch: DecodedBatch) -> Decision:
        """Decide which versions are new and which end earlier."""
        changes, keys = batch.tables[self.name], batch.keys(self.name)
        since_ns = pc.min(changes["m:ts_ns"]).as_py()
        dead = lake.deletes.of_keys(self.known_as, keys.texts, since_ns)
        known = [self.versions(changes, keys), dead]
        outcome = history_step(pa.concat_tables(known), changes, keys)
        return Decision(
            lambda transaction: self.write(outcome, transaction=transaction),
            deletes=named(self.known_as, outcome.deletes),
        )

    def versions(self, changes: pa.Table, keys: BatchKeys) -> pa.Table:
        """Read the rows (`HISTORY_STATE_SCHEMA`) of a batch's keys, but for those that ended before it.

        They are read whole where that is about one of each key, for that will be written again with its end.
        """
        if changes.num_rows == 0:
            return HISTORY_STATE_SCHEMA.empty_table()
        since = ENDS, pc.min(changes["m:ts_ns"]).as_py()
        first = {ENDS, *super().identity}
        known = self.typed.file.engine.log.last()
        late = sum(
            file.live or 0
            for file in known.files.values()
            if (last := file.bounds(ENDS)[1]) is not None and last >= since[1]
        )
        is_bounded = late <= _MOST_LATE * changes.num_rows
        names = known.schema.names if is_bounded else ["_ts_ns", "_tx_id", "_image_hash"]
        later = [name for name in names if name not in first]
        rows = rows_of_keys(self.typed, self.keys, changes, keys, since[:1], later=later, since=since)
        columns = {
            "key": rows["m:key"],
            "version": encode_versions(rows["_ts_ns"], rows["_tx_id"], pa.repeat(False, rows.num_rows)),
            "image_hash": rows["_image_hash"],
            "live": pa.repeat(True, rows.num_rows),
            "ts_ns": rows["_ts_ns"],
            "tx_id": rows["_tx_id"],
            "valid_to_ns": rows["_valid_to_ns"],
        }
        return pa.table(columns, schema=HISTORY_STATE_SCHEMA)

    def write(self, outcome: HistoryOutcome, *, transaction: Transaction = None) -> Counter[str]:
        """Write new versions, better images and earlier ends in one commit; deletes are written before."""
        # Columns that no new version brings are added too.
        layout = self.typed.fit(outcome.inserts.schema)
        facts = [f"m:{name}" for name in layout.own if f"m:{name}" != _FROM]
        ends = outcome.ends.select([*(VALUE + key for key in self.keys), "m:key", *facts])
        parts = ((outcome.inserts, True), (outcome.corrections, True), (ends, False))
        marked = [(rows.append_column(_FROM, rows["m:ts_ns"]), mark) for rows, mark in parts]
        rows = layout.marked(WHOLE, marked)
        if rows.num_rows:
            merge = Merge(
                rows, self.identity, ("_image_hash", "_valid_to_ns"), wins, insert=rows[WHOLE], update=update
            )
            self.typed.file.merge(merge, transaction=transaction)
        return Counter(outcome.counters)
