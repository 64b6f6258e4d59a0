"""Chunked records that wait for the rest of their group, kept on disk between batches.

A row is a main record or a fragment; rows that share a chunk id are a group. Only the groups that a batch
touches, or whose time is over, are read into memory, and of those only so many bytes at once as
`memory_bytes` says (a single group that is larger is read alone).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.schemas import ASSEMBLY_SCHEMA, PENDING_SCHEMA
from headpond.tables.delta import copied, literal, quoted, same
from headpond.tables.state import ORIGIN, FactTable, first_of_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from headpond.tables.delta import DeltaFile

CHUNK_IDS = ("chunk_id", "before_chunk_id", "after_chunk_id")
FINISHED = "finished"
TABLE_SCHEMA = ASSEMBLY_SCHEMA.append(pa.field("data_bytes", pa.int64()))
"""What the Delta table has; the size is a column so that planning never reads the data."""
_GONE = "%gone"  # no column is called like it


class PendingTable(FactTable):
    """The pending table of a lake.

    Args:
        file: where it lies.
    """

    def __init__(self, file: DeltaFile) -> None:
        super().__init__(file, TABLE_SCHEMA, ORIGIN)

    def add(self, rows: pa.Table, *, transaction: tuple[str, int] | None = None) -> int:
        """Write records that arrived; their status is `waiting`."""
        waiting = rows.select(PENDING_SCHEMA.names)
        waiting = waiting.append_column("status", pa.repeat("waiting", rows.num_rows))
        return super().add(_sized(waiting), transaction=transaction)

    def groups(
        self, arrived: pa.Table, *, timed_out_before: datetime | None, memory_bytes: int
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Give the groups that a batch touches, or that waited too long, in parts that fit in memory.

        Args:
            arrived: `PENDING_SCHEMA` rows of a batch.
            timed_out_before: groups whose last member arrived before this; null for none.
            memory_bytes: bound on the record bytes of one part.

        Yields:
            What waited (`ASSEMBLY_SCHEMA`), and what arrived, of one part.
        """
        if arrived.num_rows == 0 and timed_out_before is None:
            return
        for ids in _parts(_light(self._outline(), arrived), timed_out_before, memory_bytes):
            yield self._rows(ids), arrived.filter(_any_of(arrived, ids))

    def settle(self, before: pa.Table, after: pa.Table) -> None:
        """Replace the rows of some groups by what is left of them.

        Args:
            before: every row that the groups had, by `ORIGIN`.
            after: the rows they keep, with their status.
        """
        rows = pa.concat_tables(
            [
                _sized(after).append_column(_GONE, pa.repeat(False, after.num_rows)),
                _sized(before).append_column(_GONE, pa.repeat(True, before.num_rows)),
            ]
        )
        if rows.num_rows == 0:
            return
        gone = quoted(_GONE, "s")
        self.file.merge(
            first_of_each(rows, ORIGIN),
            match=same(ORIGIN),
            delete_if=gone,
            update=copied(["status"]),
            update_if=f"""NOT {gone} AND t."status" <> s."status\"""",
            insert=copied(TABLE_SCHEMA.names),
            insert_if=f"NOT {gone}",
        )

    def count(self) -> int:
        """Count the records that wait, those of finished groups left out."""
        statuses = self.read(["status"])["status"]
        return len(statuses) - (pc.sum(pc.equal(statuses, FINISHED)).as_py() or 0)

    def _outline(self) -> pa.Table:
        return self.read([*CHUNK_IDS, "approximate_arrival_timestamp", "data_bytes"])

    def _rows(self, ids: Iterable[str]) -> pa.Table:
        listed = ", ".join(map(literal, sorted(ids)))
        rows = self.read(None, " OR ".join(f"{quoted(column)} IN ({listed})" for column in CHUNK_IDS))
        return rows.select(ASSEMBLY_SCHEMA.names).cast(ASSEMBLY_SCHEMA)


def _sized(rows: pa.Table) -> pa.Table:
    return rows.append_column("data_bytes", pc.binary_length(rows["data"]).cast(pa.int64()))


def _light(waiting: pa.Table, arrived: pa.Table) -> pa.Table:
    new = _sized(arrived).select(waiting.column_names)
    marks = [pa.repeat(False, waiting.num_rows), pa.repeat(True, new.num_rows)]
    rows = pa.concat_tables([waiting, new])
    return rows.append_column("new", pa.chunked_array(marks, pa.bool_()))


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


def _parts(light: pa.Table, timed_out_before: datetime | None, memory_bytes: int) -> list[set[str]]:
    """Group rows, choose the groups to look at, and pack their chunk ids into parts that fit in memory."""
    rows, groups = light.to_pylist(), _Groups()
    for row in rows:
        groups.of(row)
    sizes: Counter[str] = Counter()
    last: dict[str, datetime] = {}
    touched: set[str] = set()
    for row in rows:
        group, arrival = groups.of(row), row["approximate_arrival_timestamp"]
        sizes[group] += row["data_bytes"]
        if arrival is not None:
            last[group] = max(arrival, last.get(group, arrival))
        if row["new"]:
            touched.add(group)
    if timed_out_before is not None:
        touched |= {group for group, arrival in last.items() if arrival < timed_out_before}
    members = groups.members()
    parts: list[set[str]] = []
    room = 0
    for group, size in sizes.items():
        if group not in touched:
            continue
        if not parts or size > room:
            parts.append(set())
            room = memory_bytes
        parts[-1] |= members[group]
        room -= size
    return parts


def _any_of(rows: pa.Table, ids: set[str]) -> pa.ChunkedArray:
    wanted = pa.array(sorted(ids), pa.string())
    first, *others = (pc.is_in(rows[column], value_set=wanted) for column in CHUNK_IDS)
    for other in others:
        first = pc.or_(first, other)
    return first
