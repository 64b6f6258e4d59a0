"""What is known of deleted keys: the version of the newest delete of each, per table.

An older change that arrives later loses against its tombstone. Tombstones older than the retention may be
dropped; the newest commit time among those dropped is kept (the row without a key), because an upsert older
than that for a key without state may be one that a dropped tombstone would have stopped: `too_late`.
"""

from __future__ import annotations

from contextlib import nullcontext

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.schemas import DELETED_SCHEMA, FORMAT_VERSION
from headpond.dsql.versions import encode_time
from headpond.lake.delta import DeltaFile, literal
from headpond.lake.engine.lookup import Wanted, places
from headpond.lake.engine.merge import Alone, Merge, always
from headpond.lake.target import KEYS_SCHEMA

TOMBSTONE_SCHEMA = pa.schema(
    [
        pa.field("table", pa.string()),
        *DELETED_SCHEMA,  # `key`: canonical JSON array of its values; "" for the horizon's row
        pa.field("format_version", pa.int32()),
    ]
)
"""Shape of both tables of deleted keys: tombstones, and the deletes that histories remember."""
HORIZON_KEY = ""
"""Key of the row that keeps the horizon; no canonical JSON is empty."""

_IS_KEY = f'"key" <> {literal(HORIZON_KEY)}'
_MATCH = ["table", "key"]


def _overtaken(t: pa.Table, s: pa.Table) -> pa.ChunkedArray:
    return pc.less_equal(t["version"], s["version"])


def _every(rows: pa.Table) -> pa.Array:
    return pa.repeat(True, rows.num_rows)


class Tombstones:
    """The tombstone table of a lake."""

    def __init__(self, file: DeltaFile) -> None:
        self.file = file
        self._horizons: dict[str, int] | None = None

    def of_keys(self, table: str, keys: pa.ChunkedArray) -> pa.Table:
        """Read the newest tombstone of each of a batch's keys as `STATE_SCHEMA`."""
        found = TOMBSTONE_SCHEMA.empty_table().select(["key", "version"])
        if len(keys) and self.file.exists():
            different = keys.unique()
            rows = pa.table({"table": pa.repeat(table, len(different)), "key": different})
            found = self.file.look_up(Wanted(rows, _MATCH, ("version",)))
            found = found.group_by("key").aggregate([("version", "max")]).rename_columns(["key", "version"])
        return pa.table(
            {
                "key": found["key"],
                "version": found["version"],
                "image_hash": pa.nulls(found.num_rows, pa.binary()),
                "live": pa.repeat(False, found.num_rows),
            }
        )

    def version(self) -> int:
        """Return the number of the table's newest commit; -1 when there is no table."""
        return self.file.version() if self.file.exists() else -1

    def put(self, rows: pa.Table, *, transaction: tuple[str, int] | None = None) -> int:
        """Write tombstones, one per key, that are newer than those there; return how many were.

        They are appended: of several of a key the newest counts, and nothing has to be written again.
        """
        if rows.num_rows == 0:
            return 0
        self.file.create(TOMBSTONE_SCHEMA)
        rows = rows.append_column("format_version", pa.repeat(FORMAT_VERSION, rows.num_rows))
        rows = rows.select(TOMBSTONE_SCHEMA.names).cast(TOMBSTONE_SCHEMA)
        known = self.file.look_up(Wanted(rows.select(_MATCH), _MATCH, ("version",)))
        as_new = pc.greater_equal(
            known["version"], rows["version"].take(pa.array(places(known, rows, _MATCH)))
        )
        there = places(rows, known.filter(as_new), _MATCH) >= 0
        new = rows.filter(pa.array(~there))
        if new.num_rows:
            self.file.append(new, transaction=transaction)
        return int(new.num_rows)

    def drop(self, rows: pa.Table) -> None:
        """Drop tombstones (`table`, `key`, greatest `version`) of keys that live again; newer ones stay."""
        if rows.num_rows and self.file.exists():
            rows = rows.select([*_MATCH, "version"])
            self.file.merge(Merge(rows, _MATCH, ("version",), _overtaken, gone=_every(rows)))

    def retire(self, older_than_ts_ns: int, alone: Alone = nullcontext) -> int:
        """Drop tombstones of commits before a time, moving each table's horizon up; return how many.

        With `alone` that is done beside batches, which are held up for the commits (`engine.merge`).
        """
        old = self._read(["table", "key", "ts_ns", "version"], f"ts_ns < {older_than_ts_ns} AND {_IS_KEY}")
        if old.num_rows == 0:
            return 0
        newest = old.group_by("table").aggregate([("ts_ns", "max"), ("version", "max")])
        horizon = pa.table(
            {
                "table": newest["table"],
                "key": pa.repeat(HORIZON_KEY, newest.num_rows),
                "version": newest["version_max"],
                "ts_ns": newest["ts_ns_max"],
                "tx_id": pa.nulls(newest.num_rows, pa.string()),
            }
        )
        # The horizon first: a crash in between leaves tombstones that are merely dropped again.
        with alone():
            self.put(horizon)
        rows = old.group_by(_MATCH).aggregate([])

        def retired(t: pa.Table, _: pa.Table) -> pa.ChunkedArray:
            return pc.less(t["ts_ns"], older_than_ts_ns)

        merge = Merge(rows, _MATCH, ("ts_ns",), retired, gone=_every(rows))
        merged = self.file.merge(merge, alone=alone)
        self.forget_horizons()
        return merged.deleted

    def forget_horizons(self) -> None:
        """Have horizons read again: somebody else may have moved them."""
        self._horizons = None

    def newest_ns(self) -> int:
        """Return the newest commit time among the tombstones, 0 when there is none."""
        rows = self._read(["ts_ns"], _IS_KEY)
        return pc.max(rows["ts_ns"]).as_py() or 0

    def horizon_ns(self, table: str) -> int | None:
        """Return the newest commit time of the table's dropped tombstones; None when none was dropped."""
        if self._horizons is None:
            rows = self._read(["table", "ts_ns"], f"NOT ({_IS_KEY})").to_pylist()
            self._horizons = {}
            for row in rows:
                self._horizons[row["table"]] = max(
                    row["ts_ns"], self._horizons.get(row["table"], row["ts_ns"])
                )
        return self._horizons.get(table)

    def newest_horizon_ns(self) -> int | None:
        """Return the newest horizon of all tables; None when no tombstone was ever dropped."""
        rows = self._read(["ts_ns"], f"NOT ({_IS_KEY})")
        newest: int | None = pc.max(rows["ts_ns"]).as_py()
        return newest

    def all_of(self, table: str) -> pa.Table:
        """Read all tombstones of a table (`DELETED_SCHEMA`), of a key perhaps several."""
        return self._read(DELETED_SCHEMA.names, f'"table" = {literal(table)} AND {_IS_KEY}')

    def set_horizon(self, table: str, ts_ns: int) -> None:
        """Say that tombstones of a table up to a commit time are not known any more."""
        row = {"table": table, "key": HORIZON_KEY, "version": encode_time(ts_ns), "ts_ns": ts_ns}
        self.put(pa.Table.from_pylist([row], KEYS_SCHEMA))
        self.forget_horizons()

    def forget(self, table: str) -> None:
        """Drop all that is known under a name."""
        rows = self._read(["table", "key"], f'"table" = {literal(table)}')
        if rows.num_rows:
            rows = rows.group_by(_MATCH).aggregate([])
            self.file.merge(Merge(rows, _MATCH, (), always, gone=_every(rows)))
        self.forget_horizons()

    def counts(self) -> dict[str, int]:
        """Count the tombstones per table."""
        rows = self._read(["table", "key"], _IS_KEY)
        counted = rows.group_by("table").aggregate([("key", "count_distinct")]).to_pylist()
        return {row["table"]: row["key_count_distinct"] for row in counted}

    def _read(self, columns: list[str] | None, where: str) -> pa.Table:
        if not self.file.exists():
            return TOMBSTONE_SCHEMA.empty_table().select(columns or TOMBSTONE_SCHEMA.names)
        return self.file.read(columns, where)
