"""Which version of a key wins: steps from (what is known of the keys, a batch) to what must be written.

The newest version alone (`latest_step`)::

    known of a key          batch                          outcome
    ┌──────────────┐   ┌────────────────┐   greatest    upsert wins ──► upserts (+ tombstones_drop)
    │ live row   v │   │ upsert v, hash │   version  ┌──────────────────────────────────────────
    │ tombstone  v │ + │ delete v       │ ─────────► delete wins ──► tombstones_put, deletes
    └──────────────┘   └────────────────┘            └─ what was known wins ──► nothing, or what a
                                                        crash left undone (deletes, tombstones_drop)

Versions are bytes compared byte by byte. Two upserts of one version are one change: the greater image hash
stays. The caller writes in this order: tombstones_put, then upserts and deletes, then tombstones_drop.

Every version (SCD 2, `history_step`)::

    time (ts_ns)       10          20          30          40
    upserts, deletes   U           D           U           U
    rows               [10 ── 20)              [30 ── 40)  [40 ── null)

    a late upsert of 15:  [10 ─ 15)[15 ─ 20)   the row before ends with it, it ends where that one ended
    a late delete of 35:                       [30 ─ 35)

A row is one upsert; it ends where the next version of its key begins, a delete or another upsert, and is open
(null) when there is none. Deletes are not rows, but every one of them is remembered, before the rows are
written: an upsert that arrives after it and was made before it ends with it. Of two transactions with one
commit time the first one's row is empty. An end only ever moves to an earlier time, and of two images of one
version the one with the greater hash stays.

What a table ends with does not depend on the order of changes, on cuts, or on a batch coming twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import taken
from headpond.core.formats import quarantined_changes
from headpond.core.schemas import DELETED_SCHEMA, QUARANTINE_SCHEMA, VALUE, whole
from headpond.dsql.versions import decode_versions, encode_time

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


def ranked(keys: Ints, values: pa.Array) -> Ints:
    """Return numbers from 0 that order binary values by key, then byte by byte; equal ones have one number.

    Nearly all values of a key differ in their first 8 bytes, a version's time: only the others are sorted
    as what they are.
    """
    heads = pc.binary_join_element_wise(pc.fill_null(values, b""), pa.scalar(bytes(_HEAD)), pa.scalar(b""))
    numbers = np.frombuffer(pc.binary_slice(heads, 0, _HEAD).buffers()[2] or b"", ">u8", len(values))
    groups = _numbered(keys, numbers)
    ranks = tied(groups, values)
    return _numbered(groups, ranks) if ranks.any() else groups


def tied(groups: Ints, values: pa.Array) -> Ints:
    """Return the rank of each binary value, from 1, where several are in its group; 0 for null and else.

    Args:
        groups: numbers from 0, none left out.
        values: one for each.
    """
    asked = np.bincount(groups)[groups] > 1
    encoded = values.filter(pa.array(asked)).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.zeros(len(order) + 1, np.int64)  # null has the last code
    rank[order.to_numpy()] = np.arange(1, len(order) + 1)
    ranks = np.zeros(len(values), np.int64)
    ranks[asked] = rank[pc.fill_null(encoded.indices, len(order)).to_numpy()]
    return ranks


def _numbered(first: Any, second: Any) -> Ints:
    """Return a number from 0 for each different pair, in their order."""
    order = np.lexsort((second, first))
    ends = run_ends(first[order]) | run_ends(second[order])
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(ends) - ends
    return numbers


class BatchKeys:
    """The different keys of some changes: a text is compared with others once, and is a number from then on.

    Attributes:
        texts: each key, in the order of the first changes that have them.
        of: per change, which of these it has.
    """

    def __init__(self, column: pa.ChunkedArray) -> None:
        encoded = whole(column).dictionary_encode()
        self.texts: pa.Array = encoded.dictionary
        self.of: Ints = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    @property
    def first(self) -> Ints:
        """Per key, the first change that has it."""
        found = np.empty(len(self.texts), np.int64)
        found[self.of[::-1]] = np.arange(len(self.of))[::-1]
        return found

    def among(self, texts: pa.ChunkedArray) -> Ints:
        """Return which key each of some texts is; -1 for any other."""
        found = pc.fill_null(pc.index_in(whole(texts), value_set=self.texts), -1)
        numbers: Ints = found.to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers


def _known(state: pa.Table, of_rows: BatchKeys) -> tuple[pa.Table, Ints]:
    """Return what is known of the keys of a batch, and which key each row of it has."""
    numbers = of_rows.among(state["key"])
    if (mine := numbers >= 0).all():
        return state, numbers
    return state.filter(pa.array(mine)), numbers[mine]


def joined(of_rows: pa.ChunkedArray, known: pa.ChunkedArray) -> pa.Array:
    """Return binary values of a batch, and behind them those of what is known."""
    return pa.concat_arrays([whole(column).cast(pa.binary()) for column in (of_rows, known)])


def run_ends(groups: Any) -> Bools:
    """Return True at the last of each run of equal values."""
    ends = np.ones(len(groups), bool)
    ends[:-1] = groups[:-1] != groups[1:]
    return ends


_HEAD = 8

COUNTERS = ("upserts", "deletes", "duplicates", "conflicting_duplicates", "stale", "superseded")
"""Those that won, repeats, older than what was known, older than another row of the same batch."""


@dataclass(frozen=True, slots=True)
class LatestOutcome:
    """What a batch asks of a table.

    `deletes` has one row per key whose live row must go: the columns of the key, and facts; `m:version`
    (and `m:ts_ns`, `m:tx_id`) is that of the delete that wins. Every row of the batch is one of `COUNTERS`.
    """

    upserts: pa.Table  # rows of the batch to write, at most one per key
    deletes: pa.Table
    tombstones_put: pa.Table  # `key, version, ts_ns, tx_id` of deletes that win; written first
    tombstones_drop: pa.Table  # `key` of tombstones that a live row has overtaken; dropped last
    counters: dict[str, int]


def latest_step(
    state: pa.Table, rows: pa.Table, keyed_by: Sequence[str] = (), keys_of_rows: BatchKeys | None = None
) -> LatestOutcome:
    """Decide what a typed batch changes.

    `state` has `STATE_SCHEMA` rows of the batch's keys (others are ignored): per key at most one live row and
    one tombstone. `keyed_by` are the columns of the key, named as at the source; `keys_of_rows` are given
    where they are known.
    """
    ranks = _Ranks(state, rows, keys_of_rows or BatchKeys(rows["m:key"]))
    count = rows.num_rows
    keys = ranks.keys
    tomb, live, live_hash = ranks.known()
    order = np.lexsort((-np.arange(count), ranks.image, ranks.version))  # versions of a key lie together
    # The last row of each key in this order has the key's greatest version, and of that the greatest hash.
    best = order[run_ends(keys[order])]
    of = keys[best]
    version, image, is_delete = ranks.version[best], ranks.image[best], ranks.delete[best]
    beats = version > np.maximum(tomb, live)[of]
    corrects = ~beats & (version == live[of]) & (live[of] > tomb[of]) & (image > live_hash[of])
    upserts = best[(beats & ~is_delete) | corrects]
    puts = best[beats & is_delete]
    wins = np.where(beats & ~is_delete, version, -1)
    final_live = np.maximum(live[of], wins)
    final_tomb = np.maximum(tomb[of], np.where(beats & is_delete, version, -1))
    gone = (live[of] >= 0) & (final_tomb > final_live)
    overtaken = (tomb[of] >= 0) & (final_live > final_tomb)
    return LatestOutcome(
        upserts=taken(rows, np.sort(upserts)),
        deletes=_deletes(rows, keyed_by, best[gone], ranks.versions_of(final_tomb[gone])),
        tombstones_put=taken(_tombstones(rows), np.sort(puts)),
        tombstones_drop=pa.table({"key": rows["m:key"].take(pa.array(best[overtaken]))}),
        counters=_counters(ranks, order, tomb, live, live_hash),
    )


def too_late(state: pa.Table, rows: pa.Table, horizon_ns: int) -> tuple[pa.Table, pa.Table]:
    """Split off the upserts that a tombstone dropped long ago may have stopped, as quarantine rows.

    An upsert committed before the horizon, of a key that nothing is known of, is too late, unless something
    newer of that key is known from a late delete or from the batch itself. A tombstone from before the
    horizon came late itself, and does not show whether a newer one was dropped; a live row does.
    """
    old = pc.and_(pc.less(rows["m:ts_ns"], horizon_ns), pc.invert(rows["m:delete"]))
    known = pc.or_(state["live"], pc.greater_equal(state["version"], encode_time(horizon_ns)))
    unknown = pc.invert(pc.is_in(rows["m:key"], value_set=whole(state["key"].filter(known))))
    candidate: Bools = pc.and_(old, unknown).to_numpy()
    if not candidate.any():
        return rows, QUARANTINE_SCHEMA.empty_table()
    ranks = _Ranks(state, rows, BatchKeys(rows["m:key"]))
    newest, _, _ = ranks.known()
    np.maximum.at(newest, ranks.keys[~candidate], ranks.version[~candidate])
    late = candidate & (ranks.version > newest[ranks.keys])
    refused = rows.filter(pa.array(late))
    detail = f"committed before {horizon_ns} ns, and what was deleted then is not known any more"
    return rows.filter(pa.array(~late)), quarantined_changes(refused, "too_late", detail)


class _Ranks:
    """Keys, versions and hashes of a batch and what is known, as integers that compare alike within a key."""

    def __init__(self, state: pa.Table, rows: pa.Table, of_rows: BatchKeys) -> None:
        split, self.count = rows.num_rows, len(of_rows.texts)
        state, known = _known(state, of_rows)
        keys = np.concatenate([of_rows.of, known])
        self._versions = joined(rows["m:version"], state["version"])
        versions = ranked(keys, self._versions)
        images = tied(versions, joined(rows["m:image_hash"], state["image_hash"]))
        self.keys, self._known_keys = keys[:split], keys[split:]
        self.version, self._known_version = versions[:split], versions[split:]
        self.image, self._known_image = images[:split], images[split:]
        self.delete: Bools = rows["m:delete"].to_numpy().astype(bool)
        self._live: Bools = state["live"].to_numpy().astype(bool)

    def known(self) -> tuple[Ints, Ints, Ints]:
        """Return per key the rank of its tombstone, of its live row, of the live row's hash; -1 for none."""
        tomb, live, image = (np.full(self.count, -1, np.int64) for _ in range(3))
        dead = ~self._live
        np.maximum.at(tomb, self._known_keys[dead], self._known_version[dead])
        live[self._known_keys[self._live]] = self._known_version[self._live]
        image[self._known_keys[self._live]] = self._known_image[self._live]
        return tomb, live, image

    def versions_of(self, ranks: Ints) -> pa.Array:
        """Return the versions that have these ranks."""
        every = np.concatenate([self.version, self._known_version])
        having = np.zeros(len(every), np.int64)  # ranks are numbers from 0, none of them left out
        having[every] = np.arange(len(every))
        return self._versions.take(pa.array(having[ranks]))


def _counters(ranks: _Ranks, order: Ints, tomb: Ints, live: Ints, live_hash: Ints) -> dict[str, int]:
    key, version, image = ranks.keys[order], ranks.version[order], ranks.image[order]
    delete = ranks.delete[order]
    last_of_version = run_ends(key) | run_ends(version)
    last_of_image = last_of_version | run_ends(image)
    # One row per different change is judged; the others of its version are copies of it.
    conflicting = int(last_of_image.sum() - last_of_version.sum())
    copies = int(len(order) - last_of_image.sum())
    k, v, h, d = (column[last_of_version] for column in (key, version, image, delete))
    newest = run_ends(k)
    same_live, same_tomb = v == live[k], v == tomb[k]
    differs = same_live & (h != live_hash[k])
    stale = ~same_live & ~same_tomb & (v < np.maximum(live, tomb)[k])
    new = v > np.maximum(live, tomb)[k]
    return {
        "upserts": int((new & newest & ~d).sum()),
        "deletes": int((new & newest & d).sum()),
        "duplicates": copies + int(((same_live & ~differs) | same_tomb).sum()),
        "conflicting_duplicates": conflicting + int(differs.sum()),
        "stale": int(stale.sum()),
        "superseded": int((new & ~newest).sum()),
    }


def _deletes(rows: pa.Table, keyed_by: Sequence[str], at: Ints, versions: pa.Array) -> pa.Table:
    named = {VALUE + key for key in keyed_by}
    kept = [name for name in rows.column_names if not name.startswith(VALUE) or name in named]
    found = rows.select(kept).take(pa.array(at))
    columns: dict[str, pa.Array] = {
        "m:version": versions.cast(pa.binary()),
        "m:delete": pa.repeat(pa.scalar(value=True), found.num_rows),
    }
    if "m:ts_ns" in rows.schema.names:  # versions that are made of these; those of documents are not
        columns["m:ts_ns"], columns["m:tx_id"], _ = decode_versions(versions)
    for name, values in columns.items():
        if name in found.schema.names:
            found = found.set_column(found.schema.get_field_index(name), name, values)
    return found


def _tombstones(rows: pa.Table) -> pa.Table:
    names = [name for name in DELETED_SCHEMA.names if f"m:{name}" in rows.schema.names]
    return rows.select([f"m:{name}" for name in names]).rename_columns(names)


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
_ABSENT = -2  # below every rank


@dataclass(frozen=True, slots=True)
class HistoryOutcome:
    """What a batch asks of a history table.

    `ends` has one row per existing row that now ends earlier: the key columns, `m:version`, `m:ts_ns` and
    `m:tx_id` say which row, `m:valid_to_ns` its end; no other column counts. Every row of the batch is one of
    `HISTORY_COUNTERS`.
    """

    inserts: pa.Table  # rows of the batch that are new versions, with `m:valid_to_ns`
    corrections: pa.Table  # of the batch, whose version is there with a lesser image hash, likewise
    ends: pa.Table
    deletes: pa.Table  # `key, version, ts_ns, tx_id` of deletes not yet remembered; written first
    counters: dict[str, int]


def history_step(state: pa.Table, rows: pa.Table, keys_of_rows: BatchKeys | None = None) -> HistoryOutcome:
    """Decide what a typed batch changes; `keys_of_rows` are given where they are known.

    `state` has `HISTORY_STATE_SCHEMA` rows of the batch's keys (others are ignored). Rows that ended before
    the batch's earliest commit and deletes before it may be left out: nothing later can touch them.
    """
    line = _TimeLine(state, rows, keys_of_rows or BatchKeys(rows["m:key"]))
    live = ~line.delete
    inserts = live & ~line.known
    corrections = live & line.known & ~line.stored
    ends = live & line.stored & line.followed & (line.stored_open | (line.end_ns < line.stored_end_ns))
    remembered = line.delete & ~line.known
    return HistoryOutcome(
        inserts=line.taken(inserts),
        corrections=line.taken(corrections),
        ends=line.ended(ends),
        deletes=taken(_tombstones(rows), np.sort(line.winner[remembered])),
        counters={
            "upserts": int(inserts.sum()),
            "deletes": int(remembered.sum()),
            "duplicates": line.copies + int((line.again & line.same_image).sum()),
            "conflicting_duplicates": line.conflicts + int((line.again & ~line.same_image).sum()),
        },
    )


class _TimeLine:
    """The versions of the batch's keys, known and new, by key and version; every array has one entry each.

    A version's `winner` is the row with its greatest hash: below `count` of the batch, else of the state (it
    is `stored`). It is `known` where some row of the state has it, `again` where the batch has it too, then
    perhaps with the `same_image`; it is `followed` where the key has a next one, at `end_ns`. `copies` and
    `conflicts` count rows of the batch that repeat another one, with the same image and with another.
    """

    def __init__(self, state: pa.Table, rows: pa.Table, of_rows: BatchKeys) -> None:
        state, known = _known(state, of_rows)
        self._rows, self._state, self._count = rows, state, rows.num_rows
        keys = np.concatenate([of_rows.of, known])
        versions = ranked(keys, joined(rows["m:version"], state["version"]))
        images = tied(versions, joined(rows["m:image_hash"], state["image_hash"]))
        delete: Bools = np.concatenate([_bools(rows["m:delete"]), ~_bools(state["live"])])
        images[delete] = 0  # deletes of one version do not differ
        stored = np.arange(len(keys)) >= self._count
        self._first_of_key = of_rows.first

        # Last of equal rows: the stored one, which needs no writing; else the first of the batch.
        order = np.lexsort((-np.arange(len(keys)), stored, images, versions))
        last = run_ends(keys[order]) | run_ends(versions[order])
        starts = np.flatnonzero(np.concatenate([[True], last[:-1]])[: len(order)])
        self.winner = order[last]
        self.delete, self.stored = delete[self.winner], stored[self.winner]
        self.known: Bools = np.logical_or.reduceat(stored[order], starts)
        new_image = np.maximum.reduceat(np.where(stored, _ABSENT, images)[order], starts)
        self.again: Bools = self.known & (new_image > _ABSENT)
        self.same_image: Bools = (
            np.maximum.reduceat(np.where(stored, images, _ABSENT)[order], starts) == new_image
        )

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
        """Return rows of the batch with their ends, in the batch's order."""
        chosen = np.flatnonzero(which)
        chosen = chosen[np.argsort(self.winner[chosen])]
        return self._rows.take(pa.array(self.winner[chosen])).append_column(VALID_TO, self._ends(chosen))

    def ended(self, which: Bools) -> pa.Table:
        """Return rows that name rows of the state, with their new ends."""
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
