"""Chunked records that wait for the rest of their group, in a table; and a batch put together with them.

::

    outline of what waits + what arrived ─► groups
      touched, or too old      ─► read, some groups at a time ─► assemble_step ─► whole changes, what waits
      beyond the bounds        ─► quarantine, a part at a time
      others                   ─► stay, nothing of them is read

`put_together` writes nothing: the order of writes is that of `lake.apply`. A large record is a row group of
its own, so that reading one record reads that record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.formats import add_newest
from headpond.core.schemas import ASSEMBLY_SCHEMA, PENDING_SCHEMA, QUARANTINE_SCHEMA
from headpond.dsql.chunks import (
    FAILED,
    FINISHED,
    TOO_LARGE,
    WAITING,
    Chunks,
    Place,
    Row,
    assemble_step,
    grouped,
    place_of,
    quarantine_row,
)
from headpond.lake.delta import DeltaFile, literal
from headpond.lake.state.insert_once import ORIGIN, FactTable
from headpond.lake.target import OPEN, DecodedBatch, in_parts, together

TABLE_SCHEMA = ASSEMBLY_SCHEMA.append(pa.field("data_bytes", pa.int64()))
"""What the Delta table has; the size is a column so that planning never reads the data."""
OUTLINE = tuple(name for name in TABLE_SCHEMA.names if name != "data")
GROUP_BYTES = 1 << 20
"""Rows of more bytes than this are a row group each, of smaller ones as many as this makes."""
BYTES_AT_ONCE = 16 << 20
"""Records that are put together at once, about: it takes some ten times their size."""
_PLACES = pa.schema([TABLE_SCHEMA.field(name) for name in ORIGIN])
_LISTED = 500  # records that one statement names


class PendingTable(FactTable):
    """The pending table of a lake."""

    def __init__(self, file: DeltaFile) -> None:
        super().__init__(file, TABLE_SCHEMA, ORIGIN)
        file.engine.group_bytes = GROUP_BYTES

    def add(self, rows: pa.Table, *, transaction: tuple[str, int] | None = None) -> int:
        """Write records that arrived and are not there yet; their status is `waiting`."""
        waiting = rows.select(PENDING_SCHEMA.names)
        return super().add(
            _sized(waiting.append_column("status", pa.repeat(WAITING, rows.num_rows))),
            transaction=transaction,
        )

    def outline(self, arrived: pa.Table | None = None) -> list[list[Row]]:
        """Return the members of every group, without data; `arrived` (`PENDING_SCHEMA`) ones are `new`."""
        rows = {place_of(row): row | {"new": False, "stored": True} for row in self.read(OUTLINE).to_pylist()}
        if arrived is not None:
            new = _sized(arrived).append_column("status", pa.nulls(arrived.num_rows, pa.string()))
            for row in new.select(OUTLINE).to_pylist():
                rows.setdefault(place_of(row), row | {"stored": False})["new"] = True
        return grouped(rows.values())

    def open_groups(self) -> int:
        """Return how many groups wait."""
        return sum(_is_open(row["status"] for row in group) for group in self.outline())

    def records(self, rows: Iterable[Row]) -> pa.Table:
        """Read the records of some outlines, data and all (`ASSEMBLY_SCHEMA`)."""
        parts = [self.read(None, where) for where in _named(map(place_of, rows))]
        return pa.concat_tables(
            [ASSEMBLY_SCHEMA.empty_table()]
            + [part.select(ASSEMBLY_SCHEMA.names).cast(ASSEMBLY_SCHEMA) for part in parts]
        )

    def let_go(self, places: Iterable[Place]) -> None:
        """Delete the rows at some places."""
        self.remove(_located(dict.fromkeys(places)), ORIGIN)

    def mark(self, statuses: dict[Place, str]) -> None:
        """Set the `status` of the rows at some places, where it is another one."""
        if not statuses:
            return
        rows = _located(statuses).append_column("status", pa.array(list(statuses.values()), pa.string()))
        self.replace(rows, ["status"])

    def count(self) -> int:
        """Return how many records wait: none of finished groups, and none that is in quarantine, too."""
        statuses = self.read(["status"])["status"]
        return len(statuses) - (pc.sum(pc.is_in(statuses, pa.array([FINISHED, FAILED]))).as_py() or 0)


@dataclass(slots=True)
class Whole:
    """A batch with the changes that became whole, and what is left to do with what waited."""

    batch: DecodedBatch
    pending: PendingTable
    arrived: pa.Table
    groups: list[list[Row]] | None = None
    finished: list[list[Row]] = field(default_factory=list)
    given_up: list[tuple[list[Row], str, str]] = field(default_factory=list)  # with reason and detail
    before: dict[Place, str] = field(default_factory=dict)  # statuses of the rows that were looked at
    after: dict[Place, str] = field(default_factory=dict)  # of those that stay
    stored: set[Place] = field(default_factory=set)  # of the rows that were looked at

    def conclude(self, refused: pa.Table) -> pa.Table:
        """Quarantine the records of whole changes that a table refuses; return refused rows without chunks.

        They are failed from then on, like those of any change that is quarantined: a change is not gone
        before it stands somewhere, and its main record alone is not the change. Then count what waits.
        """
        groups = {place_of(members[0]): members for members in self.finished}
        mine = pa.array([place in groups for place in _places(refused)], pa.bool_())
        for main in refused.filter(mine).to_pylist():
            rows = groups[place_of(main)]
            self.given_up.append((rows, main["reason"], main["detail"]))
            self.after.update(dict.fromkeys(map(place_of, rows), FAILED))
        if refused_changes := pc.sum(mine).as_py():
            self.batch.counters["chunk_groups_completed"] -= refused_changes
        if self.groups is not None:
            self.batch.counters[OPEN] = sum(_is_open(map(self._status, group)) for group in self.groups)
        return refused.filter(pc.invert(mine))

    def refused_parts(self, max_bytes: int = BYTES_AT_ONCE) -> Iterator[pa.Table]:
        """Yield quarantine rows of groups that are given up whole, some bytes at a time."""
        here = dict(zip(_places(self.arrived), range(self.arrived.num_rows), strict=True))
        for rows, reason, detail in self.given_up:
            for part in in_parts(rows, lambda row: row["data_bytes"], max_bytes):
                held = [here[place_of(row)] for row in part if place_of(row) in here]
                stored = self.pending.records(row for row in part if place_of(row) not in here)
                found = self.arrived.take(pa.array(held, pa.int64()))
                members = [*stored.to_pylist(), *found.to_pylist()]
                refused = [quarantine_row(row, reason, detail) for row in members]
                yield pa.Table.from_pylist(refused, QUARANTINE_SCHEMA)

    def to_keep(self) -> pa.Table:
        """Return the records that arrived and have to wait, or to be known: those that go are not written."""
        kept = [place in self.after or place not in self.before for place in _places(self.arrived)]
        return self.arrived.filter(pa.array(kept, pa.bool_()))

    def mark(self) -> None:
        """Write the statuses that are others now."""
        changed = {at: status for at, status in self.after.items() if self.before.get(at) != status}
        self.pending.mark(changed)

    def let_go(self) -> None:
        """Remove the rows that are no longer needed."""
        self.pending.let_go(self.stored - self.after.keys())

    def _status(self, row: Row) -> str | None:
        """Return a row's status after the steps; None for one that goes."""
        place = place_of(row)
        return self.after.get(place) if place in self.before else row["status"] or WAITING


def put_together(pending: PendingTable, batch: DecodedBatch, chunks: Chunks | None) -> Whole:
    """Put together what the pending table and a batch make whole; without rules everything stays pending."""
    arrived = batch.pending
    whole = Whole(batch, pending, arrived)
    if chunks is None or (arrived.num_rows == 0 and chunks.now is None):
        return whole
    whole.groups = pending.outline(arrived)
    looked_at: list[list[Row]] = []
    for group in whole.groups:
        if not any(row["new"] for row in group) and not chunks.is_over(group):
            continue
        whole.before.update((place_of(row), row["status"] or WAITING) for row in group)
        whole.stored.update(place_of(row) for row in group if row["stored"])
        if why := chunks.excess(group):
            finished = {place_of(row): FINISHED for row in group if row["status"] == FINISHED}
            whole.after.update(finished)
            rest = [row for row in group if row["status"] not in {FAILED, FINISHED}]
            whole.given_up.append((rest, TOO_LARGE, why))
        else:
            looked_at.append(group)
    tables = {name: [rows] for name, rows in batch.tables.items()}
    refused = [batch.quarantine]
    counters, newest = Counter(batch.counters), dict(batch.newest)
    for part in in_parts(looked_at, lambda group: sum(row["data_bytes"] for row in group), BYTES_AT_ONCE):
        rows = [row for group in part for row in group]
        new = {place_of(row) for row in rows if row["new"]}
        mine = arrived.filter(pa.array([place in new for place in _places(arrived)], pa.bool_()))
        step = assemble_step(pending.records(row for row in rows if row["stored"]), mine, chunks)
        for name, found in step.decoded.tables.items():
            tables.setdefault(name, []).append(pa.Table.from_batches([found]))
        refused.append(pa.Table.from_batches([step.decoded.quarantine]))
        counters.update(step.decoded.counters)
        add_newest(newest, step.decoded.newest)
        without_data = {place_of(row): row for row in rows}
        whole.finished += [[without_data[place_of(row)] for row in group] for group in step.finished]
        whole.after.update(zip(_places(step.state), step.state["status"].to_pylist(), strict=True))
    whole.batch = replace(
        batch, tables=together(tables), quarantine=pa.concat_tables(refused), counters=counters, newest=newest
    )
    return whole


def _is_open(statuses: Iterable[str | None]) -> bool:
    """Return whether a group with these statuses of its rows waits; None for a row that goes."""
    return set(statuses) - {None} == {WAITING}


def _sized(rows: pa.Table) -> pa.Table:
    return rows.append_column("data_bytes", pc.binary_length(rows["data"]).cast(pa.int64()))


def _located(places: Iterable[Place]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(ORIGIN, place, strict=True)) for place in places], _PLACES)


def _places(rows: pa.Table) -> list[Place]:
    return list(zip(*(rows[name].to_pylist() for name in ORIGIN), strict=True))


def _named(places: Iterable[Place]) -> Iterator[str]:
    """Yield SQL that names rows by their places, this many at a time."""
    known = list(dict.fromkeys(places))
    for start in range(0, len(known), _LISTED):
        by_shard: dict[Place, list[str]] = {}
        for stream, shard, number, sub in known[start : start + _LISTED]:
            by_shard.setdefault((stream, shard, sub), []).append(literal(number))
        yield " OR ".join(
            f"(sequence_number IN ({', '.join(numbers)}) AND sub_sequence_number = {literal(sub)} "
            f"AND shard_id = {literal(shard)} AND stream = {literal(stream)})"
            for (stream, shard, sub), numbers in by_shard.items()
        )
