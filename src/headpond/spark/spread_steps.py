"""What executors do of a batch: one bucket of keys, from (what is known, changes) to rows of a merge.

The same steps that the driver runs on whole batches (`changes.latest`, `changes.history`) run here on the
changes of so many keys, beside what the tables know of those keys. What comes out is one kind of row::

    part        content             c0 c1 … mark
    row                             a row for the merge
    figures     counters as JSON
    tombstones  an Arrow stream     what the driver writes to the tables of _headpond/
    overtaken   an Arrow stream
    deletes     an Arrow stream
    late        an Arrow stream

Columns of changes travel under numbers: a source's own names may differ only in case, which Spark does not
tell apart.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.history import HISTORY_STATE_SCHEMA, history_step
from headpond.changes.latest import latest_step, too_late
from headpond.changes.model import encode_versions
from headpond.changes.schemas import STATE_SCHEMA
from headpond.spark.cells import pack, unpack
from headpond.tables import current, history
from headpond.tables.state import first_of_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headpond.tables.typed import Layout

ROW, FIGURES, TOMBSTONES, OVERTAKEN, DELETES, LATE = (
    "row",
    "figures",
    "tombstones",
    "overtaken",
    "deletes",
    "late",
)
PART, CONTENT, MARK = "part", "content", "mark"
ROWS = "rows"
"""Figure: how many rows a bucket gives to the merge."""


def numbered(count: int) -> list[str]:
    """Names under which so many columns travel."""
    return [f"c{number}" for number in range(count)]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table's changes, as they travel.

    Attributes:
        schema: the columns of the typed batch.
    """

    schema: pa.Schema

    @property
    def travelling(self) -> pa.Schema:
        """The same columns under numbers."""
        return pa.schema(
            [
                pa.field(name, kind.type)
                for name, kind in zip(numbered(len(self.schema)), self.schema, strict=True)
            ]
        )

    def number_of(self, name: str) -> str:
        """Give the number under which a column travels."""
        return f"c{self.schema.get_field_index(name)}"

    def opened(self, cells: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpack cells with typed rows of one table; a column that a part lacks is null."""
        for batch in cells:
            for cell in batch.column(CONTENT):
                rows = unpack(cell.as_buffer())
                count = rows.num_rows
                arrays = [
                    rows[each.name].cast(each.type)
                    if each.name in rows.column_names
                    else pa.nulls(count, each.type)
                    for each in self.schema
                ]
                yield from pa.table(arrays, schema=self.travelling).to_batches()

    def back(self, rows: pa.Table) -> pa.Table:
        """Give travelled columns their names back."""
        return pa.table(
            [
                rows[name].cast(kind.type)
                for name, kind in zip(numbered(len(self.schema)), self.schema, strict=True)
            ],
            schema=self.schema,
        )


@dataclass(frozen=True, slots=True)
class Bucket:
    """One kind of work on the changes of some keys of one table.

    Attributes:
        columns: those of the changes.
        layout: how rows lie in the Delta table.
        keys: key columns, as named at the source.
        horizon_ns: for current tables, see `changes.latest.too_late`.
        identity: for logs, the Delta columns that make two entries one.
    """

    columns: Columns
    layout: Layout
    keys: Sequence[str]
    horizon_ns: int | None = None
    identity: Sequence[str] = field(default_factory=tuple)

    @property
    def result(self) -> pa.Schema:
        """The shape of what comes out."""
        fields = [pa.field(PART, pa.string()), pa.field(CONTENT, pa.binary())]
        names = numbered(len(self.layout.fields))
        fields += [pa.field(name, kind.type) for name, kind in zip(names, self.layout.fields, strict=True)]
        return pa.schema([*fields, pa.field(MARK, pa.bool_())])

    def current(self, changes: pa.Table, known: pa.Table) -> pa.Table:
        """Find the newest version of each key."""
        rows, state = self.columns.back(changes), _state(known, STATE_SCHEMA)
        told: dict[str, pa.Table] = {}
        if self.horizon_ns is not None:
            rows, told[LATE] = too_late(state, rows, self.horizon_ns)
        outcome = latest_step(state, rows)
        dead = state.filter(pc.invert(state["live"])).select(["key", "version"])
        told[TOMBSTONES] = outcome.tombstones_put
        told[OVERTAKEN] = dead.filter(
            pc.is_in(dead["key"], value_set=outcome.tombstones_drop["key"].unique())
        )
        merged = current.merge_rows(self.layout, self.keys, outcome.upserts, outcome.deletes)
        return self._result(merged, outcome.counters, told)

    def history(self, changes: pa.Table, known: pa.Table) -> pa.Table:
        """Find new versions and earlier ends."""
        outcome = history_step(_state(known, HISTORY_STATE_SCHEMA), self.columns.back(changes))
        merged = history.merge_rows(self.layout, self.keys, outcome)
        return self._result(merged, outcome.counters, {DELETES: outcome.deletes})

    def log(self, changes: pa.Table) -> pa.Table:
        """Keep one of each entry."""
        rows = self.columns.back(changes)
        places = [f"m:{name}" for name in ("stream", "shard_id", "sequence_number", "sub_sequence_number")]
        rows = rows.sort_by([(name, "ascending") for name in places])
        entries = first_of_each(self.layout.physical(rows), self.identity)
        marked = entries.append_column(MARK, pa.repeat(False, entries.num_rows))
        return self._result(marked, {"changes": rows.num_rows}, {})

    def _result(self, merged: pa.Table, counters: dict[str, int], told: dict[str, pa.Table]) -> pa.Table:
        parts = [(FIGURES, json.dumps(counters | {ROWS: merged.num_rows}).encode())]
        parts += [(name, pack(rows)) for name, rows in told.items() if rows.num_rows]
        count, schema = merged.num_rows, self.result
        rows = pa.table(
            [pa.repeat(ROW, count), pa.nulls(count, pa.binary()), *merged.columns],
            schema=schema,
        )
        small: dict[str, Any] = {
            PART: [name for name, _ in parts],
            CONTENT: [content for _, content in parts],
        }
        arrays = [
            pa.array(small[each.name], each.type) if each.name in small else pa.nulls(len(parts), each.type)
            for each in schema
        ]
        return pa.concat_tables([rows, pa.table(arrays, schema=schema)])


def _state(known: pa.Table, schema: pa.Schema) -> pa.Table:
    """What is known, as a step wants it; rows of the table get the version that their own columns say."""
    live = known["live"]
    upserts = encode_versions(known["ts_ns"], known["tx_id"], pa.repeat(False, known.num_rows))
    version = pc.if_else(live, upserts, known["version"].cast(pa.binary()))
    arrays = {name: known[name] for name in schema.names} | {"version": version}
    return pa.table([arrays[each.name].cast(each.type) for each in schema], schema=schema)
