"""Every version of each key (SCD 2): a step from (what is known of them, a batch) to what must be written.

::

    time (ts_ns)       10          20          30          40
    upserts, deletes   U           D           U           U
    rows               [10 ── 20)              [30 ── 40)  [40 ── null)

    a late upsert of 15:  [10 ─ 15)[15 ─ 20)   the row before ends with it, it ends where that one ended
    a late delete of 35:                       [30 ─ 35)

A row is one upsert; it ends where the next version of its key begins, a delete or another upsert, and is open
(null) when there is none. Deletes are no rows, but every one of them is remembered: an upsert that arrives
after it and was made before it ends with it. Of two transactions with one commit time the first one's row is
empty: it ends where it begins.

An end only ever moves to an earlier time, the set of remembered deletes only ever grows, and of two images of
one version the one with the greater hash stays: so what a table ends with does not depend on the order of
changes, on how they are cut into batches, or on a batch coming twice or half applied, when the caller
remembers the deletes before it writes the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.ranks import Bools, Ints, key_codes, ranked, run_ends
from headpond.changes.schemas import DELETED_SCHEMA, whole

HISTORY_COUNTERS = ("upserts", "deletes", "duplicates", "conflicting_duplicates")

HISTORY_STATE_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("version", pa.binary()),
        pa.field("image_hash", pa.binary()),  # null for a delete
        pa.field("live", pa.bool_()),  # false: a remembered delete
        pa.field("ts_ns", pa.int64()),
        pa.field("tx_id", pa.string()),
        pa.field("valid_to_ns", pa.int64()),  # as stored; null for an open row and for a delete
    ]
)
"""What is known of keys before a batch: rows of the history and remembered deletes."""

VALID_TO = "m:valid_to_ns"


@dataclass(frozen=True, slots=True)
class HistoryOutcome:
    """What a batch asks of a history table.

    Attributes:
        inserts: rows of the batch that are new versions, with `m:valid_to_ns`.
        corrections: rows of the batch whose version is there with a lesser image hash, with `m:valid_to_ns`.
        ends: one row per existing row that now ends earlier, with the batch's columns: the key columns,
            `m:version`, `m:ts_ns` and `m:tx_id` say which row, `m:valid_to_ns` its end; no other counts.
        deletes: `key, version, ts_ns, tx_id` of deletes not yet remembered; written first.
        counters: every row of the batch is one of `upserts` (a version inserted, wherever in the history),
            `deletes` (remembered), `duplicates`, `conflicting_duplicates`.
    """

    inserts: pa.Table
    corrections: pa.Table
    ends: pa.Table
    deletes: pa.Table
    counters: dict[str, int]


def history_step(state: pa.Table, batch: pa.Table | pa.RecordBatch) -> HistoryOutcome:
    """Decide what a batch changes.

    Args:
        state: `HISTORY_STATE_SCHEMA` rows of the batch's keys, others are ignored. Rows that ended before the
            batch's earliest commit and deletes before it may be left out: nothing later can touch them.
        batch: a typed batch (`m:key`, `m:version`, `m:ts_ns`, `m:tx_id`, `m:image_hash`, `m:delete` and
            whatever else).
    """
    rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
    line = _TimeLine(state, rows)
    live = ~line.delete
    inserts = live & ~line.known
    corrections = live & line.known & ~line.stored
    ends = live & line.stored & line.followed & (line.stored_open | (line.end_ns < line.stored_end_ns))
    remembered = line.delete & ~line.known
    deletes = rows.take(pa.array(np.sort(line.winner[remembered])))
    names = DELETED_SCHEMA.names
    return HistoryOutcome(
        inserts=line.taken(inserts),
        corrections=line.taken(corrections),
        ends=line.ended(ends),
        deletes=deletes.select([f"m:{name}" for name in names]).rename_columns(names),
        counters={
            "upserts": int(inserts.sum()),
            "deletes": int(remembered.sum()),
            "duplicates": line.copies + int((line.again & line.same_image).sum()),
            "conflicting_duplicates": line.conflicts + int((line.again & ~line.same_image).sum()),
        },
    )


class _TimeLine:
    """The versions of the batch's keys, known and new, by key and version; every array has one entry each.

    Attributes:
        winner: the row with the version's greatest hash: below `count` of the batch, else of the state.
        stored: the winner is a row of the state.
        known: some row of the state has this version.
        again: the batch has this version too, and it is known.
        same_image: what is known has the hash that is the greatest in the batch.
        followed: there is a next version of the key, at `end_ns`.
        stored_open, stored_end_ns: the end in the state, where `stored`.
        copies, conflicts: rows of the batch that repeat another one, with the same image and with another.
    """

    def __init__(self, state: pa.Table, rows: pa.Table) -> None:
        self._rows, self._state, self._count = rows, state, rows.num_rows
        keys, different = key_codes([rows["m:key"], state["key"]])
        versions, _ = ranked([rows["m:version"], state["version"]])
        images, _ = ranked([rows["m:image_hash"], state["image_hash"]])
        delete: Bools = np.concatenate([_bools(rows["m:delete"]), ~_bools(state["live"])])
        images[delete] = 0  # deletes of one version do not differ
        stored = np.arange(len(keys)) >= self._count
        self._first_of_key: Ints = np.full(different, -1, np.int64)
        self._first_of_key[keys[: self._count][::-1]] = np.arange(self._count)[::-1]

        at = np.flatnonzero(self._first_of_key[keys] >= 0)
        # Last of equal rows: the stored one, which needs no writing; else the first of the batch.
        order = at[np.lexsort((-at, stored[at], images[at], versions[at], keys[at]))]
        last = run_ends(keys[order]) | run_ends(versions[order])
        starts = np.flatnonzero(np.concatenate([[True], last[:-1]])[: len(order)])
        self.winner = order[last]
        self.delete, self.stored = delete[self.winner], stored[self.winner]
        self.known: Bools = np.logical_or.reduceat(stored[order], starts)
        new_image = np.maximum.reduceat(np.where(stored, -2, images)[order], starts)
        self.again: Bools = self.known & (new_image > -2)  # noqa: PLR2004 - below every rank
        self.same_image: Bools = np.maximum.reduceat(np.where(stored, images, -2)[order], starts) == new_image

        self.key = keys[self.winner]
        ts_ns: Ints = np.concatenate([_ints(rows["m:ts_ns"]), _ints(state["ts_ns"])])[self.winner]
        self.followed: Bools = ~run_ends(self.key)
        self.end_ns = np.concatenate([ts_ns[1:], ts_ns[:1]])
        stored_end = pa.concat_arrays([pa.nulls(self._count, pa.int64()), whole(state["valid_to_ns"])])
        self.stored_open: Bools = pc.is_null(stored_end).to_numpy(zero_copy_only=False)[self.winner]
        self.stored_end_ns: Ints = pc.fill_null(stored_end, 0).to_numpy()[self.winner]

        mine = order[order < self._count]
        of_version = run_ends(keys[mine]) | run_ends(versions[mine])
        of_image = of_version | run_ends(images[mine])
        self.copies = int(len(mine) - of_image.sum())
        self.conflicts = int(of_image.sum() - of_version.sum())

    def taken(self, which: Bools) -> pa.Table:
        """Rows of the batch with their ends, in the batch's order."""
        chosen = np.flatnonzero(which)
        chosen = chosen[np.argsort(self.winner[chosen])]
        return self._rows.take(pa.array(self.winner[chosen])).append_column(VALID_TO, self._ends(chosen))

    def ended(self, which: Bools) -> pa.Table:
        """Rows that name rows of the state, with their new ends."""
        chosen = np.flatnonzero(which)
        found = self._rows.take(pa.array(self._first_of_key[self.key[chosen]]))
        known = self._state.take(pa.array(self.winner[chosen] - self._count))
        for name in ("version", "ts_ns", "tx_id"):
            field = found.schema.field(f"m:{name}")
            values = known[name].cast(field.type)
            found = found.set_column(found.schema.get_field_index(field.name), field, values)
        return found.append_column(VALID_TO, self._ends(chosen))

    def _ends(self, chosen: Ints) -> pa.Array:
        return pa.array(self.end_ns[chosen], pa.int64(), mask=~self.followed[chosen])


def _ints(column: pa.ChunkedArray) -> Ints:
    values: Ints = whole(column).to_numpy(zero_copy_only=False)
    return values


def _bools(column: pa.ChunkedArray) -> Bools:
    values: Bools = whole(column).to_numpy(zero_copy_only=False)
    return values.astype(bool)
