"""The newest version of each key: a step from (what is known of the keys, a batch) to what must be written.

::

    known of a key          batch                          outcome
    ┌──────────────┐   ┌────────────────┐   greatest    upsert wins ──► upserts (+ tombstones_drop)
    │ live row   v │   │ upsert v, hash │   version  ┌──────────────────────────────────────────
    │ tombstone  v │ + │ delete v       │ ─────────► delete wins ──► tombstones_put, deletes
    └──────────────┘   └────────────────┘            └─ what was known wins ──► nothing, or what a
                                                        crash left undone (deletes, tombstones_drop)

Versions are bytes compared byte by byte. Two upserts of one version are one change: the greater image hash
stays. What a table ends with does not depend on the order of changes, on how they are cut into batches, or on
a batch coming twice or half applied, when the caller writes in this order: tombstones_put, then upserts and
deletes, then tombstones_drop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.model import decode_version, encode_time
from headpond.changes.ranks import Bools, Ints, key_codes, ranked, run_ends
from headpond.changes.schemas import (
    DELETED_SCHEMA,
    ORIGIN_COLUMNS,
    QUARANTINE_SCHEMA,
    format_versions,
    whole,
)

COUNTERS = ("upserts", "deletes", "duplicates", "conflicting_duplicates", "stale", "superseded")


@dataclass(frozen=True, slots=True)
class LatestOutcome:
    """What a batch asks of a table.

    Attributes:
        upserts: rows of the batch to write, at most one per key.
        deletes: one row per key whose live row must go, with the batch's columns; `m:version` (and `m:ts_ns`,
            `m:tx_id`) are those of the delete that wins, the key columns hold the key.
        tombstones_put: `key, version, ts_ns, tx_id` of deletes that win; written first.
        tombstones_drop: `key` of tombstones that a live row has overtaken; dropped last.
        counters: every row of the batch is one of `upserts`, `deletes` (they won), `duplicates`,
            `conflicting_duplicates`, `stale` (older than what was known), `superseded` (older than another
            row of the same batch).
    """

    upserts: pa.Table
    deletes: pa.Table
    tombstones_put: pa.Table
    tombstones_drop: pa.Table
    counters: dict[str, int]


def latest_step(state: pa.Table, batch: pa.Table | pa.RecordBatch) -> LatestOutcome:
    """Decide what a batch changes.

    Args:
        state: `schemas.STATE_SCHEMA` rows of the batch's keys, others are ignored; per key at most one live
            row and one tombstone.
        batch: a typed batch (`m:key`, `m:version`, `m:image_hash`, `m:delete` and whatever else).
    """
    rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
    ranks = _Ranks(state, rows)
    count = rows.num_rows
    keys = ranks.keys
    tomb, live, live_hash = ranks.known()
    order = np.lexsort((-np.arange(count), ranks.image, ranks.version, keys))
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
        upserts=rows.take(pa.array(np.sort(upserts))),
        deletes=_deletes(rows, best[gone], ranks.versions_of(final_tomb[gone])),
        tombstones_put=_tombstones(rows.take(pa.array(np.sort(puts)))),
        tombstones_drop=pa.table({"key": rows["m:key"].take(pa.array(best[overtaken]))}),
        counters=_counters(ranks, order, tomb, live, live_hash),
    )


def too_late(state: pa.Table, batch: pa.Table | pa.RecordBatch, horizon_ns: int) -> tuple[pa.Table, pa.Table]:
    """Take out the upserts that a tombstone dropped long ago may have stopped.

    An upsert committed before the horizon, of a key that nothing is known of, is too late, unless something
    newer of that key is known from a late delete or from the batch itself. A tombstone from before the
    horizon was put by a delete that came late itself: it does not tell whether a newer one was dropped. A
    live row does: it would be gone.

    Args:
        state: as for `latest_step`.
        batch: a typed batch with `m:ts_ns` and the origin columns.
        horizon_ns: greatest commit time for which tombstones may be gone.

    Returns:
        The rest of the batch, and quarantine rows (`too_late`).
    """
    rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
    old = pc.and_(pc.less(rows["m:ts_ns"], horizon_ns), pc.invert(rows["m:delete"]))
    told = pc.or_(state["live"], pc.greater_equal(state["version"], encode_time(horizon_ns)))
    unknown = pc.invert(pc.is_in(rows["m:key"], value_set=whole(state["key"].filter(told))))
    candidate: Bools = pc.and_(old, unknown).to_numpy()
    if not candidate.any():
        return rows, QUARANTINE_SCHEMA.empty_table()
    ranks = _Ranks(state, rows)
    newest, _, _ = ranks.known()
    np.maximum.at(newest, ranks.keys[~candidate], ranks.version[~candidate])
    late = candidate & (ranks.version > newest[ranks.keys])
    refused = rows.filter(pa.array(late))
    detail = f"committed before {horizon_ns} ns, and what was deleted then is not known any more"
    quarantine = pa.table(
        [
            pa.repeat(pa.scalar("too_late"), refused.num_rows),
            pa.repeat(pa.scalar(detail), refused.num_rows),
            *(refused[f"m:{name}"] for name in (*ORIGIN_COLUMNS, "data")),
            format_versions(refused.num_rows),
        ],
        schema=QUARANTINE_SCHEMA,
    )
    return rows.filter(pa.array(~late)), quarantine


class _Ranks:
    """Keys, versions and hashes of a batch and what is known, as integers that compare alike."""

    def __init__(self, state: pa.Table, rows: pa.Table) -> None:
        known = state.num_rows
        codes, self.count = key_codes([rows["m:key"], state["key"]])
        versions, self._sorted = ranked([rows["m:version"], state["version"]])
        hashes, _ = ranked([rows["m:image_hash"], state["image_hash"]])
        split = len(codes) - known
        self.keys, self._known_keys = codes[:split], codes[split:]
        self.version, self._known_version = versions[:split], versions[split:]
        self.image, self._known_image = hashes[:split], hashes[split:]
        self.delete: Bools = rows["m:delete"].to_numpy().astype(bool)
        self._live: Bools = state["live"].to_numpy().astype(bool)

    def known(self) -> tuple[Ints, Ints, Ints]:
        """Per key: rank of its tombstone, of its live row, of the live row's hash; -1 for none."""
        tomb, live, image = (np.full(self.count, -1, np.int64) for _ in range(3))
        dead = ~self._live
        np.maximum.at(tomb, self._known_keys[dead], self._known_version[dead])
        live[self._known_keys[self._live]] = self._known_version[self._live]
        image[self._known_keys[self._live]] = self._known_image[self._live]
        return tomb, live, image

    def versions_of(self, ranks: Ints) -> pa.Array:
        """The versions that have these ranks."""
        return self._sorted.take(pa.array(ranks))


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


def _deletes(rows: pa.Table, at: Ints, versions: pa.Array) -> pa.Table:
    """The given rows as deletes of the given versions."""
    found = rows.take(pa.array(at))
    columns: dict[str, pa.Array] = {
        "m:version": versions.cast(pa.binary()),
        "m:delete": pa.repeat(pa.scalar(value=True), found.num_rows),
    }
    if "m:ts_ns" in rows.schema.names:  # versions that are made of these; those of documents are not
        decoded = [decode_version(version) for version in versions.to_pylist()]
        columns["m:ts_ns"] = pa.array([ts_ns for ts_ns, _, _ in decoded], pa.int64())
        columns["m:tx_id"] = pa.array([tx_id for _, tx_id, _ in decoded], pa.string())
    for name, values in columns.items():
        if name in found.schema.names:
            found = found.set_column(found.schema.get_field_index(name), name, values)
    return found


def _tombstones(rows: pa.Table) -> pa.Table:
    names = [name for name in DELETED_SCHEMA.names if f"m:{name}" in rows.schema.names]
    return rows.select([f"m:{name}" for name in names]).rename_columns(names)
