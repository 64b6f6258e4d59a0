"""Chunked changes of one micro-batch put together, within bounds of memory and disk.

::

    outline of what waits + what arrived ─► groups
      fits the memory        ─► with others, read whole ────────────────► assemble_step
      larger, not complete   ─► stays as it is, nothing of it is read
      larger, complete       ─► read record by record, texts in a file ─► assemble_step
    more waits than the disk bound ─► the groups that wait longest are given up

Nothing is written here. Rows that go to quarantine out of a large group come without their data, which is
still in the pending table then and is filled in a part at a time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.assemble import assemble_step
from headpond.changes.chunk_groups import in_order
from headpond.changes.schemas import ASSEMBLY_SCHEMA, QUARANTINE_SCHEMA
from headpond.formats.dsql import Chunked, parse
from headpond.tables.batch import OPEN
from headpond.tables.pending import CHUNK_IDS, FINISHED, is_open
from headpond.tables.spill import SpilledTexts
from headpond.tables.state import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headpond.changes.assemble import Assembled
    from headpond.changes.chunk_groups import Place
    from headpond.tables.batch import Chunks, DecodedBatch
    from headpond.tables.lake import Lake
    from headpond.tables.pending import Group, PendingTable

_ORIGIN_SCHEMA = pa.schema([ASSEMBLY_SCHEMA.field(name) for name in ORIGIN])
_MARK_SCHEMA = _ORIGIN_SCHEMA.append(ASSEMBLY_SCHEMA.field("status"))
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class Whole:
    """A batch with the changes that became whole, and what is left to do with what waited.

    Attributes:
        batch: the batch.
        refused: more quarantine rows, without their data.
    """

    batch: DecodedBatch
    refused: pa.Table
    _work: _Work

    def settle(self, refused: pa.Table) -> pa.Table:
        """Let the records of whole changes that a table refuses go to quarantine with them.

        They are failed from then on, like those of any change that is refused: a change is not gone before it
        stands somewhere, and its main record alone is not the change. Then count the groups that wait.

        Args:
            refused: quarantine rows of changes that a table refuses.

        Returns:
            Those that never were in chunks.
        """
        groups = {places[0]: places for step in self._work.steps for places in step.finished}
        mine = pa.array([bool(groups) and place in groups for place in _places(refused)], pa.bool_())
        rows = [
            {**self._work.before[place], **{name: main[name] for name in ("reason", "detail")}, "data": None}
            for main in refused.filter(mine).to_pylist()
            for place in groups[_place(main)]
        ]
        self._work.after |= {_place(row): "failed" for row in rows}
        self.refused = pa.concat_tables([self.refused, pa.Table.from_pylist(rows, QUARANTINE_SCHEMA)])
        self.batch.counters["chunk_groups_completed"] -= pc.sum(mine).as_py() or 0
        if (waiting := self._work.open_groups()) is not None:
            self.batch.counters[OPEN] = waiting
        return refused.filter(pc.invert(mine))

    def refused_parts(self) -> Iterator[pa.Table]:
        """Give the rows of `refused` with their data, a part at a time."""
        return self._work.with_data(self.refused)

    def gone(self) -> pa.Table:
        """Origins of pending rows that are no longer needed."""
        return self._work.gone()

    def marked(self) -> pa.Table:
        """Origins of pending rows that have another `status` now."""
        return self._work.marked()


def reassemble(lake: Lake, batch: DecodedBatch, chunks: Chunks) -> Whole:
    """Put together what the pending table and a batch make whole.

    Args:
        lake: the lake, before anything of the batch is written.
        batch: the decoded batch.
        chunks: rules and bounds.
    """
    work = _Work(lake.pending, batch.pending, chunks)
    if batch.pending.num_rows or chunks.now is not None:
        work.go(lake.pending.outline(batch.pending))
    tables = {name: [rows] for name, rows in batch.tables.items()}
    refused = [batch.quarantine]
    without_data = [QUARANTINE_SCHEMA.empty_table()]
    counters = Counter(batch.counters)
    for step in work.steps:
        for name, rows in step.decoded.tables.items():
            tables.setdefault(name, []).append(pa.Table.from_batches([rows]))
        rows = pa.Table.from_batches([step.decoded.quarantine])
        refused.append(rows.filter(pc.is_valid(rows["data"])))
        without_data.append(rows.filter(pc.is_null(rows["data"])))
        counters.update(step.decoded.counters)
    merged = {name: pa.concat_tables(parts, promote_options="default") for name, parts in tables.items()}
    decoded = replace(batch, tables=merged, quarantine=pa.concat_tables(refused), counters=counters)
    return Whole(decoded, pa.concat_tables(without_data), work)


@dataclass(slots=True)
class _Work:
    """Reassembly of one batch."""

    pending: PendingTable
    arrived: pa.Table
    chunks: Chunks
    steps: list[Assembled] = field(default_factory=list)
    groups: list[Group] | None = None  # all there are
    before: dict[Place, dict[str, Any]] = field(default_factory=dict)  # outlines of the rows looked at
    after: dict[Place, str] = field(default_factory=dict)  # status of those that stay

    def go(self, groups: list[Group]) -> None:
        """Look at the groups that the batch touches, or whose time is over."""
        self.groups = groups
        now, rules = self.chunks.now, self.chunks.rules
        limit = None if now is None else now - timedelta(milliseconds=rules.timeout_ms)
        part: list[Group] = []
        room = self.chunks.memory_bytes
        for group in groups:
            over = limit is not None and (group.last_arrival or limit) < limit
            if not group.new and not over:
                continue
            if group.size_bytes > self.chunks.memory_bytes:
                self.large(group, over=over)
                continue
            if part and group.size_bytes > room:
                self.small(part)
                part, room = [], self.chunks.memory_bytes
            part.append(group)
            room -= group.size_bytes
        if part:
            self.small(part)
        self.give_up(groups)

    def small(self, groups: list[Group]) -> None:
        """Put groups together that fit in memory."""
        ids = frozenset().union(*(group.ids for group in groups))
        chunks = self.chunks
        waiting, arrived = self.pending.records(ids), self.arrived.filter(_any_of(self.arrived, ids))
        step = assemble_step(waiting, arrived, chunks.config, now=chunks.now, rules=chunks.rules)
        self.keep(step, groups)

    def large(self, group: Group, *, over: bool) -> None:
        """Put one group together that does not fit, if it is complete or its time is over."""
        if over or self.may_be_complete(group):
            self.step_through(group)

    def step_through(self, group: Group, no_room: str = "") -> None:
        """Look at a group record by record, with its texts in a file."""
        rows = [{**row, "data": None} for row in sorted(group.rows, key=in_order)]
        state = pa.Table.from_pylist([row for row in rows if not row["new"]], ASSEMBLY_SCHEMA)
        new = pa.Table.from_pylist([row for row in rows if row["new"]], self.arrived.schema)
        chunks = self.chunks
        with SpilledTexts() as texts:
            step = assemble_step(
                state,
                new,
                chunks.config,
                now=chunks.now,
                rules=chunks.rules,
                texts=texts,
                data_of=self.reader(rows),
                no_room=no_room,
            )
        self.keep(step, [group])

    def may_be_complete(self, group: Group) -> bool:
        """Say whether a main record of the group has all its fragments; reads main records alone."""
        here = {(row["chunk_id"], row["fragment_index"]) for row in group.rows if row["chunk_id"] is not None}
        mains = [row for row in group.rows if row["chunk_id"] is None]
        data_of = self.reader(mains)
        for main in mains:
            record = parse(data_of(main), max_depth=self.chunks.config.max_depth)
            if main["status"] == FINISHED or not isinstance(record, Chunked):
                return True
            refs = [ref for ref in (record.before_chunk, record.after_chunk) if ref is not None]
            if all(
                sum(chunk_id == ref.chunk_id and index < ref.total_fragments for chunk_id, index in here)
                == ref.total_fragments
                for ref in refs
            ):
                return True
        return False

    def give_up(self, groups: list[Group]) -> None:
        """Let go of the groups that wait longest where more waits than there is room for."""
        bound = self.chunks.disk_bytes
        left = {id(group): self.waiting_bytes(group) for group in groups}
        total = sum(left.values())
        if total <= bound:
            return
        words = f"{total} bytes of chunks wait, more than chunk_disk allows ({bound})"
        for group in sorted(groups, key=lambda group: group.last_arrival or _LONG_AGO):
            if total <= bound:
                return
            if left[id(group)] == 0:
                continue
            total -= left[id(group)]
            rows = [row for row in group.rows if self.stays(row)]
            for row in rows:
                self.after.pop(_place(row), None)
            self.step_through(replace(group, rows=rows), words)

    def waiting_bytes(self, group: Group) -> int:
        """Bytes of a group that wait after the steps so far."""
        return sum(row["data_bytes"] for row in group.rows if self.stays(row))

    def stays(self, row: dict[str, Any]) -> bool:
        """Say whether a row still waits for others, or for a better fragment."""
        return self.status(row) not in (None, FINISHED)

    def status(self, row: dict[str, Any]) -> str | None:
        """Give a row's status after the steps so far; null for one that goes."""
        return self.after.get(_place(row)) if _place(row) in self.before else row["status"] or "waiting"

    def open_groups(self) -> int | None:
        """Count the groups of which nothing is settled; null where they were not looked at."""
        if self.groups is None:
            return None
        return sum(is_open(map(self.status, group.rows)) for group in self.groups)

    def keep(self, step: Assembled, groups: list[Group]) -> None:
        """Remember what a step made of its groups."""
        self.steps.append(step)
        self.before |= {_place(row): row for group in groups for row in group.rows}
        self.after |= {
            _place(row): row["status"] for row in step.state.select(_MARK_SCHEMA.names).to_pylist()
        }

    def reader(self, rows: list[dict[str, Any]]) -> Callable[[dict[str, Any]], bytes]:
        """Give what reads the records of rows: from the batch, or from the pending table in order."""
        here = {place: number for number, place in enumerate(_places(self.arrived))}
        data = self.arrived["data"]
        elsewhere = self.pending.data_of(
            [row for row in rows if _place(row) not in here], self.chunks.memory_bytes
        )

        def read(row: dict[str, Any]) -> bytes:
            number = here.get(_place(row))
            return elsewhere(row) if number is None else data[number].as_py()

        return read

    def gone(self) -> pa.Table:
        """Origins of rows that are no longer needed."""
        return _origins([place for place in self.before if place not in self.after])

    def marked(self) -> pa.Table:
        """Origins and status of rows whose status is another one now."""
        changed = [
            dict(zip(ORIGIN, place, strict=True), status=status)
            for place, status in self.after.items()
            if status != (self.before.get(place, {}).get("status") or "waiting")
        ]
        return pa.Table.from_pylist(changed, _MARK_SCHEMA)

    def with_data(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Quarantine rows with their data, so many bytes at a time."""
        outlines = [row | {"data_bytes": self.before[_place(row)]["data_bytes"]} for row in rows.to_pylist()]
        outlines = list({_place(row): row for row in outlines}.values())
        read = self.reader(outlines)
        part: list[dict[str, Any]] = []
        size = 0
        for row in outlines:
            data = read(row)
            if part and size + len(data) > self.chunks.memory_bytes:
                yield pa.Table.from_pylist(part, QUARANTINE_SCHEMA)
                part, size = [], 0
            part.append({name: row[name] for name in QUARANTINE_SCHEMA.names} | {"data": data})
            size += len(data)
        if part:
            yield pa.Table.from_pylist(part, QUARANTINE_SCHEMA)


def _place(row: dict[str, Any]) -> Place:
    return tuple(row[name] for name in ORIGIN)


def _places(rows: pa.Table) -> Iterator[Place]:
    return zip(*(rows[name].to_pylist() for name in ORIGIN), strict=True)


def _origins(places: list[Place]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(ORIGIN, place, strict=True)) for place in places], _ORIGIN_SCHEMA)


def _any_of(rows: pa.Table, ids: frozenset[str]) -> pa.ChunkedArray:
    wanted = pa.array(sorted(ids), pa.string())
    first, *others = (pc.is_in(rows[column], value_set=wanted) for column in CHUNK_IDS)
    for other in others:
        first = pc.or_(first, other)
    return first
