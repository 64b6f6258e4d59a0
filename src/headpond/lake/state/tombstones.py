"""What is known of deleted keys: their tombstones, and every delete of the tables that keep a history.

A tombstone is the version of the newest delete of a key: an older change that arrives later loses against it.
Tombstones older than the retention may be dropped; the newest commit time among those dropped is kept (the
row without a key), because an upsert older than that for a key without state may be one that a dropped
tombstone would have stopped: `too_late`.

The deletes of histories are never dropped: any of them may still have to end a version that arrives late,
however many newer ones there are. They are part of the history, which grows with every change anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.schemas import DELETED_SCHEMA, FORMAT_VERSION, filled
from headpond.dsql.versions import encode_time
from headpond.lake.delta import DeltaFile, literal
from headpond.lake.engine.lookup import Wanted, places
from headpond.lake.engine.merge import Alone, Merge
from headpond.lake.newest import HISTORY_STATE_SCHEMA
from headpond.lake.state.insert_once import FactTable
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


class DeletedKeys(FactTable, ABC):
    """Deletes of the keys of tables, by the names under which these are known (`TableEntry.known_as`)."""

    _found: pa.Table | None = None

    @contextmanager
    def looked_up(self, keys: Mapping[str, pa.Array], since_ns: int | None = None) -> Iterator[None]:
        """Look up together what is asked of some tables, as `of_keys` does: meanwhile that reads nothing."""
        self._found = self._look_up(keys, since_ns)
        try:
            yield
        finally:
            self._found = None

    @abstractmethod
    def of_keys(self, table: str, keys: pa.Array) -> pa.Table:
        """Read what is known of some keys of a table, each named once."""

    @property
    @abstractmethod
    def _reads(self) -> Sequence[str]:
        """The columns that tell it."""

    def _look_up(self, keys: Mapping[str, pa.Array], since_ns: int | None) -> pa.Table:
        """Read what is known of the keys of some tables; with a time, of commits from then on."""
        parts = [pa.table([pa.repeat(table, len(each)), each], names=_MATCH) for table, each in keys.items()]
        asked = pa.concat_tables([TOMBSTONE_SCHEMA.empty_table().select(_MATCH), *parts])
        names = [*_MATCH, *self._reads]
        if not asked.num_rows or not self.file.exists():
            return TOMBSTONE_SCHEMA.empty_table().select(names)
        since = None if since_ns is None else ("ts_ns", since_ns)
        return self.file.look_up(Wanted(asked, _MATCH, self._reads, since=since)).select(names)

    def _known(self, table: str, keys: pa.Array, since_ns: int | None = None) -> pa.Table:
        found = self._look_up({table: keys}, since_ns) if self._found is None else self._found
        return found.filter(pc.equal(found["table"], table)).drop_columns("table")

    def all_of(self, table: str) -> pa.Table:
        """Read all that is known of the keys of a table (`DELETED_SCHEMA`), of a key perhaps several."""
        return self.read(DELETED_SCHEMA.names, f'"table" = {literal(table)} AND {_IS_KEY}')

    def forget(self, table: str) -> None:
        """Drop all that is known under a name."""
        self.remove(self.read(self.identity, f'"table" = {literal(table)}'), self.identity)


def _stored(rows: pa.Table) -> pa.Table:
    rows = rows.append_column("format_version", pa.repeat(FORMAT_VERSION, rows.num_rows))
    return rows.select(TOMBSTONE_SCHEMA.names).cast(TOMBSTONE_SCHEMA)


class Deletes(DeletedKeys):
    """All deletes of the keys of history tables."""

    _reads = ("version", "ts_ns", "tx_id")

    def __init__(self, file: DeltaFile) -> None:
        super().__init__(file, TOMBSTONE_SCHEMA, (*_MATCH, "version"))

    def of_keys(self, table: str, keys: pa.Array, since_ns: int | None = None) -> pa.Table:
        """Read the deletes (`HISTORY_STATE_SCHEMA`) of some keys, of commits from a time on."""
        found = self._known(table, keys, since_ns)
        columns = {name: found[name] for name in found.column_names}
        columns["live"] = pa.repeat(False, found.num_rows)
        return filled(columns, HISTORY_STATE_SCHEMA, found.num_rows)

    def put(self, rows: pa.Table, *, transaction: tuple[str, int] | None = None) -> int:
        """Remember deletes (`KEYS_SCHEMA`); return how many were new."""
        return self.add(_stored(rows), transaction=transaction)

    def counts(self) -> Mapping[str, int]:
        """Count the deletes per table."""
        return self.counts_by("table")


class Tombstones(DeletedKeys):
    """The tombstone table of a lake."""

    _reads = ("version",)

    def __init__(self, file: DeltaFile) -> None:
        super().__init__(file, TOMBSTONE_SCHEMA, _MATCH)
        self._horizons: dict[str, int] | None = None

    def of_keys(self, table: str, keys: pa.Array) -> pa.Table:
        """Read the newest tombstone of each of some keys as `STATE_SCHEMA`."""
        found = self._known(table, keys)
        return pa.table(
            {
                "key": found["key"],
                "version": found["version"],
                "image_hash": pa.nulls(found.num_rows, pa.binary()),
                "live": pa.repeat(False, found.num_rows),
            }
        )

    def _look_up(self, keys: Mapping[str, pa.Array], since_ns: int | None) -> pa.Table:
        newest = super()._look_up(keys, since_ns).group_by(_MATCH).aggregate([("version", "max")])
        return newest.rename_columns([*_MATCH, "version"])

    def version(self) -> int:
        """Return the number of the table's newest commit; -1 when there is no table."""
        return self.file.engine.log.newest().version if self.file.exists() else -1

    def put(self, rows: pa.Table, *, transaction: tuple[str, int] | None = None) -> int:
        """Write tombstones, one per key, that are newer than those there; return how many were.

        They are appended: of several of a key the newest counts, and nothing has to be written again.
        """
        if rows.num_rows == 0:
            return 0
        self.file.create(TOMBSTONE_SCHEMA)
        rows = _stored(rows)
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

            def older(t: pa.Table, s: pa.Table) -> pa.ChunkedArray:
                return pc.less_equal(t["version"], s["version"])

            every = pa.repeat(True, rows.num_rows)
            self.file.merge(Merge(rows, _MATCH, ("version",), older, gone=every))

    def retire(self, older_than_ts_ns: int, alone: Alone = nullcontext) -> int:
        """Drop tombstones of commits before a time, moving each table's horizon up; return how many.

        With `alone` that is done beside batches, which are held up for the commits (`engine.merge`).
        """
        old = self.read(["table", "key", "ts_ns", "version"], f"ts_ns < {older_than_ts_ns} AND {_IS_KEY}")
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

        merge = Merge(rows, _MATCH, ("ts_ns",), retired, gone=pa.repeat(True, rows.num_rows))
        merged = self.file.merge(merge, alone=alone)
        self.forget_horizons()
        return merged.deleted

    def forget_horizons(self) -> None:
        """Have horizons read again: somebody else may have moved them."""
        self._horizons = None

    def newest_ns(self) -> int:
        """Return the newest commit time among the tombstones, 0 when there is none."""
        rows = self.read(["ts_ns"], _IS_KEY)
        return pc.max(rows["ts_ns"]).as_py() or 0

    def horizons_ns(self) -> Mapping[str, int]:
        """Return the newest commit time of the dropped tombstones of each table of which some were."""
        if self._horizons is None:
            rows = self.read(["table", "ts_ns"], f"NOT ({_IS_KEY})")
            newest = rows.group_by("table").aggregate([("ts_ns", "max")]).to_pylist()
            self._horizons = {row["table"]: row["ts_ns_max"] for row in newest}
        return self._horizons

    def set_horizon(self, table: str, ts_ns: int) -> None:
        """Say that tombstones of a table up to a commit time are not known any more."""
        row = {"table": table, "key": HORIZON_KEY, "version": encode_time(ts_ns), "ts_ns": ts_ns}
        self.put(pa.Table.from_pylist([row], KEYS_SCHEMA))
        self.forget_horizons()

    def forget(self, table: str) -> None:
        """Drop all that is known under a name, the horizon too."""
        super().forget(table)
        self.forget_horizons()

    def counts(self) -> dict[str, int]:
        """Count the tombstones per table."""
        rows = self.read(["table", "key"], _IS_KEY)
        counted = rows.group_by("table").aggregate([("key", "count_distinct")]).to_pylist()
        return {row["table"]: row["key_count_distinct"] for row in counted}
