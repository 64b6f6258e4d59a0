"""Chunked records that wait for the rest of their group, kept on disk between batches.

A row is a main record or a fragment; rows that share a chunk id are a group. What waits is looked at by its
outline (ids, arrivals, sizes); records are read only of groups that a batch touches, or whose time is over,
and so many bytes of them at once as a caller asks for.

Rows are appended a record to a row group, without statistics of the data, so that reading one record reads
that record. Of two writers that append one record at once both may succeed: a copy is a copy (`assemble`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, WriterProperties

from headpond.changes.schemas import ASSEMBLY_SCHEMA, PENDING_SCHEMA
from headpond.tables.delta import literal, quoted
from headpond.tables.keyed import among
from headpond.tables.state import ORIGIN, FactTable, first_of_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from headpond.tables.delta import DeltaFile

CHUNK_IDS = ("chunk_id", "before_chunk_id", "after_chunk_id")
FINISHED = "finished"
TABLE_SCHEMA = ASSEMBLY_SCHEMA.append(pa.field("data_bytes", pa.int64()))
"""What the Delta table has; the size is a column so that planning never reads the data."""
OUTLINE = tuple(name for name in TABLE_SCHEMA.names if name != "data")
_GROUP_BYTES = 1 << 20
"""Rows of more bytes than this are a row group each, of smaller ones as many as this makes."""
_LISTED = 500  # records that one statement names


@dataclass(frozen=True, slots=True)
class Group:
    """What is known of a group without its data: the outlines of its rows, waiting ones and new ones."""

    ids: frozenset[str]
    rows: list[dict[str, Any]]
    new: bool  # whether the batch brought a member

    @property
    def size_bytes(self) -> int:
        """Bytes of its records."""
        return sum(row["data_bytes"] for row in self.rows)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of its records that wait, those of finished changes left out."""
        return sum(row["data_bytes"] for row in self.rows if row["status"] != FINISHED)

    @property
    def last_arrival(self) -> datetime | None:
        """When its last member arrived."""
        times = [row["approximate_arrival_timestamp"] for row in self.rows]
        return max((time for time in times if time is not None), default=None)


def is_open(statuses: Iterable[str | None]) -> bool:
    """Say whether a group with these statuses of its rows waits; null for a row that goes."""
    return {status for status in statuses if status is not None} == {"waiting"}


class PendingTable(FactTable):
    """The pending table of a lake.

    Args:
        file: where it lies.
    """

    def __init__(self, file: DeltaFile) -> None:
        super().__init__(file, TABLE_SCHEMA, ORIGIN)

    def add(self, rows: pa.Table, *, transaction: tuple[str, int] | None = None) -> int:
        """Write records that arrived and are not there yet; their status is `waiting`."""
        if rows.num_rows == 0:
            return 0
        self.file.create(self.schema)
        waiting = rows.select(PENDING_SCHEMA.names)
        waiting = sized(waiting.append_column("status", pa.repeat("waiting", rows.num_rows)))
        waiting = first_of_each(waiting.select(self.schema.names).cast(self.schema), ORIGIN)
        there = set(_places(self.file.read(ORIGIN, among(waiting["sequence_number"], "sequence_number"))))
        new = waiting.filter(pa.array([place not in there for place in _places(waiting)], pa.bool_()))
        if new.num_rows:
            self.file.append(new, writer=_writer(new), transaction=transaction)
        return int(new.num_rows)

    def outline(self, arrived: pa.Table) -> list[Group]:
        """Give every group there is, with the members that a batch brings.

        Args:
            arrived: `PENDING_SCHEMA` rows of the batch.
        """
        waiting = self.read(OUTLINE)
        new = sized(arrived).append_column("status", pa.nulls(arrived.num_rows, pa.string()))
        known = set(_places(waiting))
        rows = [row | {"new": False} for row in waiting.to_pylist()]
        joined = _Groups()
        groups: dict[str, list[dict[str, Any]]] = {}
        touched: set[str] = set()
        for row in new.select(OUTLINE).to_pylist():
            touched.update(row[name] for name in CHUNK_IDS if row[name] is not None)
            if tuple(row[name] for name in ORIGIN) not in known:
                rows.append(row | {"new": True})
        for row in rows:
            joined.of(row)
        for row in rows:
            groups.setdefault(joined.of(row), []).append(row)
        members = joined.members()
        return [
            Group(frozenset(members[name]), found, bool(touched & members[name]))
            for name, found in groups.items()
        ]

    def open_groups(self) -> int:
        """Count the groups that wait."""
        groups = self.outline(PENDING_SCHEMA.empty_table())
        return sum(is_open(row["status"] for row in group.rows) for group in groups)

    def records(self, ids: Iterable[str]) -> pa.Table:
        """Read what waits of some groups, data and all (`ASSEMBLY_SCHEMA`)."""
        listed = ", ".join(map(literal, sorted(ids)))
        rows = self.read(None, " OR ".join(f"{quoted(column)} IN ({listed})" for column in CHUNK_IDS))
        return rows.select(ASSEMBLY_SCHEMA.names).cast(ASSEMBLY_SCHEMA)

    def data_of(self, rows: Sequence[dict[str, Any]], memory_bytes: int) -> DataReader:
        """Give a reader of the records of some rows, which reads on as they are asked for in order."""
        return DataReader(self, rows, memory_bytes)

    def let_go(self, rows: pa.Table) -> None:
        """Delete the rows that have one of these origins."""
        if self.file.exists():
            for where in _named(rows):
                self.file.delete(where)

    def mark(self, rows: pa.Table) -> None:
        """Set the `status` of the rows that have one of these origins, where it is another one."""
        if not self.file.exists():
            return
        for status in pc.unique(rows["status"]).to_pylist():
            for named in _named(rows.filter(pc.equal(rows["status"], status))):
                self.file.update(
                    {quoted("status"): literal(status)}, f"({named}) AND status <> {literal(status)}"
                )

    def count(self) -> int:
        """Count the records that wait, those of finished groups left out."""
        statuses = self.read(["status"])["status"]
        return len(statuses) - (pc.sum(pc.equal(statuses, FINISHED)).as_py() or 0)


class DataReader:
    """Reads records by their origins, so many bytes ahead.

    Args:
        table: where they are.
        rows: outlines, in the order in which their records will be asked for.
        memory_bytes: bound on what is read at once; a larger record is read alone.
    """

    def __init__(self, table: PendingTable, rows: Sequence[dict[str, Any]], memory_bytes: int) -> None:
        self._table = table
        self._rows = rows
        self._bound = memory_bytes
        self._at = {_place(row): number for number, row in enumerate(rows)}
        self._held: dict[tuple[Any, ...], bytes] = {}

    def __call__(self, row: dict[str, Any]) -> bytes:
        """Give the record of a row."""
        place = _place(row)
        if place not in self._held:
            self._read_from(self._at[place])
        return self._held.pop(place)

    def _read_from(self, start: int) -> None:
        size = 0
        wanted: list[dict[str, Any]] = []
        for row in self._rows[start : start + _LISTED]:
            size += row["data_bytes"]
            if wanted and size > self._bound:
                break
            wanted.append(row)
        self._held = {}
        origins = pa.Table.from_pylist(
            [{name: row[name] for name in ORIGIN} for row in wanted], _ORIGIN_SCHEMA
        )
        for where in _named(origins):
            found = self._table.file.read([*ORIGIN, "data"], where)
            self._held |= dict(zip(_places(found), found["data"].to_pylist(), strict=True))


_ORIGIN_SCHEMA = pa.schema([TABLE_SCHEMA.field(name) for name in ORIGIN])


def sized(rows: pa.Table) -> pa.Table:
    """Rows with the size of their data beside it."""
    return rows.append_column("data_bytes", pc.binary_length(rows["data"]).cast(pa.int64()))


def _writer(rows: pa.Table) -> WriterProperties:
    mean = max(1, (pc.sum(rows["data_bytes"]).as_py() or 0) // rows.num_rows)
    plain = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
    return WriterProperties(
        max_row_group_size=max(1, _GROUP_BYTES // mean),
        # A bound that is cut to this many bytes; whole ones would be as large as the data.
        statistics_truncate_length=64,
        column_properties={"data": plain},
    )


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ORIGIN)


def _places(rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in ORIGIN), strict=True))


def _named(rows: pa.Table) -> Iterator[str]:
    """SQL that names rows by their origins, so many at a time."""
    places = list(dict.fromkeys(_places(rows)))
    for start in range(0, len(places), _LISTED):
        by_shard: dict[tuple[Any, ...], list[str]] = {}
        for stream, shard, number, sub in places[start : start + _LISTED]:
            by_shard.setdefault((stream, shard, sub), []).append(literal(number))
        yield " OR ".join(
            f"(sequence_number IN ({', '.join(numbers)}) AND sub_sequence_number = {literal(sub)} "
            f"AND shard_id = {literal(shard)} AND stream = {literal(stream)})"
            for (stream, shard, sub), numbers in by_shard.items()
        )


class _Groups:
    """Chunk ids that belong together, because a main record has two images."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def of(self, row: dict[str, Any]) -> str:
        """Give the group of a row, joining the groups of all its chunk ids."""
        first, *others = (self._root(row[name]) for name in CHUNK_IDS if row[name] is not None)
        for other in others:
            self._parent[other] = first
        return first

    def members(self) -> dict[str, set[str]]:
        """Give each group's chunk ids."""
        found: dict[str, set[str]] = {}
        for chunk_id in list(self._parent):
            found.setdefault(self._root(chunk_id), set()).add(chunk_id)
        return found

    def _root(self, chunk_id: str) -> str:
        while self._parent.setdefault(chunk_id, chunk_id) != chunk_id:
            chunk_id = self._parent[chunk_id]
        return chunk_id
