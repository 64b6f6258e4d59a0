"""One row per key, deleted or not: what `deletes = "soft"` makes of a table of current rows.

::

    order_id  price  _ts_ns  _tx_id  _deleted  _deleted_ns  _deleted_tx_id
        7      1.50      10  a…      true               20  b…
        8      2.00      15  c…      false            null  null

A row is the newest image of its key, and the newest delete where that is newer. Both only ever grow, each by
itself: an image that arrives after a newer delete is the row's from then on, and the row stays deleted. So
what a table ends with is a function of the set of changes, and the row itself is the tombstone. Of a key of
which nothing but deletes is known, the row has the key alone, and no `_ts_ns`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.schemas import STATE_SCHEMA, VALUE, whole
from headpond.dsql.versions import encode_versions
from headpond.lake.engine.merge import Merge
from headpond.lake.newest import COUNTERS, BatchKeys, latest_step, ranked, run_ends, tied
from headpond.lake.target import Decision, DecodedBatch, Transaction
from headpond.lake.targets.current import CURRENT_OWN, RowTable
from headpond.lake.typed import rows_of_keys

if TYPE_CHECKING:
    from headpond.lake.tables import Lake

SOFT_OWN = CURRENT_OWN | {
    "deleted": ("_deleted", pa.bool_()),
    "deleted_ns": ("_deleted_ns", pa.int64()),
    "deleted_tx_id": ("_deleted_tx_id", pa.string()),
}
"""Own columns of such a table; the first three are of the image, null where none is known."""

_IMAGE = ("_ts_ns", "_tx_id", "_image_hash")
_DELETE = ("_deleted_ns", "_deleted_tx_id")
_TIMES = (_IMAGE[0], _DELETE[0])

Columns = Any
"""A column of a table: `pyarrow.ChunkedArray`, or `Array`."""


class SoftTable(RowTable):
    """The rows of one source table, deleted ones too; its Delta table has `SOFT_OWN` as its own columns."""

    figures = COUNTERS

    def newest_ns(self) -> int:
        """Return the newest commit time of its rows and of their deletes."""
        return max(super().newest_ns(), max(self.typed.file.greatest("_deleted_ns"), default=0))

    def decision(self, lake: Lake, batch: DecodedBatch) -> Decision:  # noqa: ARG002 - rows are tombstones
        """Decide nothing but the figures: the merge itself takes the newest of both."""
        changes, keys = batch.tables[self.name], batch.keys(self.name)
        facts = ("m:key", "m:version", "m:delete", *(f"m:{name}" for name in CURRENT_OWN))
        known, figures = self.versions(changes, keys), changes.select(facts)
        counted = Counter(latest_step(known, figures, keys_of_rows=keys).counters)
        return Decision(lambda transaction: self.write(changes, keys, counted, transaction=transaction))

    def versions(self, changes: pa.Table, keys: BatchKeys) -> pa.Table:
        """Read what is known of a batch's keys, as `STATE_SCHEMA`: images, and deletes as tombstones.

        As for current rows only times are read where those are not equal, and none where all are older.
        """
        times = whole(changes["m:ts_ns"]).unique()
        rows = rows_of_keys(
            self.typed,
            self.keys,
            changes,
            keys,
            _TIMES,
            later=("_tx_id", "_image_hash", "_deleted_tx_id"),
            needs=lambda found: pc.or_(*(pc.is_in(found[name], value_set=times) for name in _TIMES)),
            least={"_ts_ns": pc.min(times).as_py()},
        )

        def known(times: str, tx_ids: str, *, live: bool) -> pa.Table:
            found = rows.filter(pc.is_valid(rows[times]))
            delete = pa.repeat(not live, found.num_rows)
            hashes = found["_image_hash"] if live else pa.nulls(found.num_rows, pa.binary())
            ids = pc.fill_null(found[tx_ids], "")
            columns = {
                "key": found["m:key"],
                "version": encode_versions(found[times], ids, delete),
                "image_hash": hashes,
                "live": pa.repeat(live, found.num_rows),
            }
            return pa.table(columns, schema=STATE_SCHEMA)

        return pa.concat_tables([known(*_IMAGE[:2], live=True), known(*_DELETE, live=False)])

    def write(
        self, changes: pa.Table, keys: BatchKeys, figures: Counter[str], *, transaction: Transaction = None
    ) -> Counter[str]:
        """Write the newest image and delete of each key, in one commit."""
        layout = self.typed.fit(changes.schema)
        rows = layout.physical(newest_of_keys(changes, self.keys, keys))
        merge = Merge(rows, self.identity, (*_IMAGE, *_DELETE), wins, update=update, whole=needs_whole)
        self.typed.file.merge(merge, transaction=transaction)
        return figures


def newest_of_keys(changes: pa.Table, keyed_by: Sequence[str], keys: BatchKeys) -> pa.Table:
    """Return a row per key with its newest image and, where that is newer, its newest delete."""
    codes, count = keys.of, len(keys.texts)
    versions = ranked(codes, whole(changes["m:version"]))
    images = tied(versions, whole(changes["m:image_hash"]))
    delete = changes["m:delete"].to_numpy().astype(bool)
    order = np.lexsort((-np.arange(len(codes)), images, versions))  # versions of a key lie together

    def best(which: np.ndarray[Any, np.dtype[np.bool_]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        mine = order[which[order]]
        found = np.full(count, -1, np.int64)
        last = mine[run_ends(codes[mine])]
        found[codes[last]] = last
        return found

    image, gone = best(~delete), best(delete)
    has_image = image >= 0
    at = np.where(has_image, image, gone)
    is_gone = (gone >= 0) & (~has_image | (versions[gone] > versions[image]))
    rows = changes.take(pa.array(at))
    there = pa.array(has_image)
    columns = {}
    for name in rows.column_names:
        is_key = name == "m:key" or (name.startswith(VALUE) and name[len(VALUE) :] in keyed_by)
        nothing = pa.scalar(None, rows[name].type)
        columns[name] = rows[name] if is_key else pc.if_else(there, whole(rows[name]), nothing)
    by = changes.select(["m:ts_ns", "m:tx_id"]).take(pa.array(np.where(is_gone, gone, 0)))
    columns["m:deleted"] = pa.array(is_gone)
    columns["m:deleted_ns"] = pc.if_else(pa.array(is_gone), whole(by["m:ts_ns"]), None)
    columns["m:deleted_tx_id"] = pc.if_else(pa.array(is_gone), whole(by["m:tx_id"]), None)
    return pa.table(columns)


def _later(ts_ns: Columns, tx_id: Columns, than_ns: Columns, than_tx_id: Columns) -> Columns:
    """Return whether one commit is later than another; any is later than none (null)."""
    same = pc.equal(ts_ns, than_ns)
    later = pc.or_kleene(pc.greater(ts_ns, than_ns), pc.and_kleene(same, pc.greater(tx_id, than_tx_id)))
    later = pc.fill_null(pc.or_kleene(pc.is_null(than_ns), later), fill_value=False)
    return pc.and_(pc.is_valid(ts_ns), later)


def _brings_image(t: pa.Table, s: pa.Table) -> Columns:
    """Return where the batch has the newer image, or another one of the same commit that wins."""
    same = pc.and_kleene(pc.equal(t["_ts_ns"], s["_ts_ns"]), pc.equal(t["_tx_id"], s["_tx_id"]))
    better = pc.and_kleene(same, pc.less(t["_image_hash"], s["_image_hash"]))
    later = _later(s["_ts_ns"], s["_tx_id"], t["_ts_ns"], t["_tx_id"])
    return pc.fill_null(pc.or_kleene(later, better), fill_value=False)


def _together(t: pa.Table, s: pa.Table) -> dict[str, Columns]:
    """Return the image's version and the delete that rows of the table have with those of the batch."""
    newer = _brings_image(t, s)
    found = {name: pc.if_else(newer, s[name], t[name]) for name in _IMAGE}
    newer = _later(*(s[name] for name in _DELETE), *(t[name] for name in _DELETE))
    delete = [pc.if_else(newer, s[name], t[name]) for name in _DELETE]
    # A delete loses against an upsert of the same transaction.
    is_gone = _later(delete[0], delete[1], found["_ts_ns"], found["_tx_id"])
    found |= {name: pc.if_else(is_gone, each, None) for name, each in zip(_DELETE, delete, strict=True)}
    return found | {"_deleted": is_gone}


def wins(t: pa.Table, s: pa.Table) -> Columns:
    """Return whether a batch changes rows: their image, or whether they are deleted and by what."""
    made, changed = _together(t, s), _brings_image(t, s)
    for name in _DELETE:
        other = pc.fill_null(pc.not_equal(made[name], t[name]), fill_value=False)
        changed = pc.or_(changed, pc.or_(other, pc.xor(pc.is_null(made[name]), pc.is_null(t[name]))))
    return changed


def needs_whole(t: pa.Table, s: pa.Table) -> Columns:
    """Return for which rows `update` needs more than was read: those whose image or delete stays."""
    return pc.or_(pc.invert(_brings_image(t, s)), pc.is_valid(t["_deleted_ns"]))


def update(t: pa.Table, s: pa.Table) -> pa.Table:
    """Return rows of the table with the newer of both images, and of both deletes."""
    newer, read = _brings_image(t, s), {*t.column_names}
    columns = {
        name: pc.if_else(newer, s[name], t[name]) if name in read else s[name] for name in s.column_names
    }
    return pa.table(columns | _together(t, s))
