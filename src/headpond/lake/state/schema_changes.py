"""Columns that appear, disappear or change type: a step from (what was seen, batches) to what to write.

A stream has no DDL records, and its records come in any order. What can be known is which columns an image
names. Per table and column, and per JSON type of the value (null among them), two facts are kept: the first
commit, and the minute of the last one. First and last are a minimum and a maximum, so the facts depend on the
set of changes alone; what changed is read off the facts::

    the table     ├─────────────────────────────────────────┤   table          its first and last commit
    id            ├─────────────────────────────────────────┤   initial        in the table's first commit
    qty           ├──────────────────┤                          disappeared    not named in the minutes since
    quantity                          ├─────────────────────┤   added          after the table's first commit
    price         ├─ number ──┤
                                ├─ string ──────────────────┤   type_changed   another type came first
    note          ├─ null ──────────────────────────────────┤   initial        there, and null
                                         ├─ number ─────────┤   first_value    only null came before

A column that is named and null is there; one that is left out is not. Rows of which the names are not known
(`m:columns` is null) only show their values. A rename is a column that disappears and another that is added.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.schemas import FORMAT_VERSION, VALUE, whole
from headpond.dsql.columns import first_bytes
from headpond.dsql.config import TableSpec
from headpond.lake.delta import DeltaFile, literal
from headpond.lake.newest import Bools
from headpond.lake.state.insert_once import FactTable

SCHEMA_CHANGES_SCHEMA = pa.schema(
    [
        pa.field("table", pa.string()),
        pa.field("column", pa.string()),  # "" in the table's own row
        # table | initial | added | type_changed | first_value | first_null | disappeared
        pa.field("change", pa.string()),
        pa.field("value_type", pa.string()),  # number, string, boolean, object, array, null; else see below
        pa.field("first_ts_ns", pa.int64()),  # when it happened
        pa.field("tx_id", pa.string()),  # in which transaction; null for disappeared
        pa.field("last_seen_ns", pa.int64()),  # start of the minute of the last commit
        pa.field("format_version", pa.int32()),
    ]
)
IDENTITY = ("table", "column", "value_type")

TABLE = "table"
"""`value_type` of a table's own row."""
NULL = "null"
"""`value_type` of a column that an image names and that holds null."""
NONE = "none"
"""`value_type` of a row that says that a column has disappeared."""

MINUTE_NS = 60 * 10**9
"""How exactly the last commit is kept: rows are written once a minute of commit time, not with each batch."""

_BY_FIRST_BYTE = {b'"': "string", b"{": "object", b"[": "array", b"tf": "boolean", b"-0123456789": "number"}


class _Seen(NamedTuple):
    """First commit, and start of the minute of the last one."""

    first_ts_ns: int
    tx_id: str
    last_seen_ns: int

    def also(self, other: _Seen) -> _Seen:
        return _Seen(*min(self[:2], other[:2]), max(self.last_seen_ns, other.last_seen_ns))


Facts = dict[tuple[str, str], _Seen]
"""Of one table: (column, value type) → when it was seen."""


@dataclass(frozen=True, slots=True)
class SchemaOutcome:
    """All rows of the batches' tables as they are now (`state`), and those that are new or changed (`put`).

    `drop` has the `IDENTITY` of rows that no longer hold: a column thought to be gone was seen later.
    """

    state: pa.Table
    put: pa.Table
    drop: pa.Table

    @property
    def changed(self) -> int:
        """How many rows must be written or dropped."""
        return int(self.put.num_rows + self.drop.num_rows)


def schema_step(
    state: pa.Table, batches: Mapping[str, pa.Table], declared: Mapping[str, Mapping[str, str]]
) -> SchemaOutcome:
    """Add what batches show (typed ones, or rows of other steps) to what was seen of their tables before.

    `declared` has table → column → PostgreSQL type, as configured; other columns hold raw JSON text.
    """
    before = {tuple(row[n] for n in IDENTITY): row for row in state.to_pylist() if row["table"] in batches}
    now: dict[tuple[Any, ...], dict[str, Any]] = {}
    for table, batch in batches.items():
        facts = dict(_stored(row for row in before.values() if row["table"] == table))
        is_stored = batch.schema.equals(SCHEMA_CHANGES_SCHEMA)
        shown = _stored(batch.to_pylist()) if is_stored else _sightings(batch, declared.get(table, {}))
        for place, seen in shown:
            facts[place] = facts[place].also(seen) if place in facts else seen
        for row in _changes(table, facts):
            now[tuple(row[name] for name in IDENTITY)] = row
    put = [row for place, row in now.items() if before.get(place) != row]
    drop = [row for place, row in before.items() if place not in now]
    return SchemaOutcome(
        state=pa.Table.from_pylist(list(now.values()), SCHEMA_CHANGES_SCHEMA),
        put=pa.Table.from_pylist(put, SCHEMA_CHANGES_SCHEMA),
        drop=pa.Table.from_pylist(drop, SCHEMA_CHANGES_SCHEMA).select(list(IDENTITY)),
    )


def _stored(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str], _Seen]]:
    """Yield what rows of one table say was seen."""
    for row in rows:
        if row["value_type"] != NONE:
            seen = _Seen(row["first_ts_ns"], row["tx_id"], row["last_seen_ns"])
            yield (row["column"], row["value_type"]), seen


def _sightings(batch: pa.Table, declared: Mapping[str, str]) -> Iterator[tuple[tuple[str, str], _Seen]]:
    """Yield what one batch shows; deletes name only keys and show nothing."""
    live = _mask(pc.invert(batch["m:delete"]))
    if not live.any():
        return
    ts_ns, tx_id = whole(batch["m:ts_ns"]).to_numpy(), batch["m:tx_id"]

    def seen(there: Bools) -> _Seen:
        at = np.flatnonzero(there)
        times = ts_ns[at]
        first = times.min()
        tx_ids = tx_id.take(pa.array(at[times == first]))
        return _Seen(int(first), pc.min(tx_ids).as_py(), int(times.max()) // MINUTE_NS * MINUTE_NS)

    whole_table, rows = seen(live), np.count_nonzero(live)
    yield ("", TABLE), whole_table
    named = _Named(batch)
    for name in batch.column_names:
        if name.startswith(VALUE):
            column = name[len(VALUE) :]
            raw = declared.get(column, "any") == "any"
            for kind, of_kind in _kinds(batch[name], raw=raw):
                there = of_kind & live
                if count := np.count_nonzero(there):
                    # As a rule every row has a value.
                    yield (column, kind), whole_table if count == rows else seen(there)
            if batch[name].null_count:
                null = named.in_row(column) & _mask(batch[name].is_null()) & live
                if null.any():
                    yield (column, NULL), seen(null)


def _mask(values: pa.ChunkedArray) -> Bools:
    found: Bools = values.to_numpy(zero_copy_only=False)
    return found


class _Named:
    """Which rows name which columns."""

    def __init__(self, rows: pa.Table) -> None:
        self._count = rows.num_rows
        self._codes = np.full(self._count, -1, np.int64)
        self._shapes: list[frozenset[str]] = []
        if "m:columns" in rows.column_names:
            encoded = whole(rows["m:columns"])
            self._codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
            self._shapes = [frozenset(json.loads(text)) for text in encoded.dictionary.to_pylist()]

    def in_row(self, column: str) -> Bools:
        """Return whether each row names a column; False where the names are not known."""
        # One more entry, for code -1.
        has = np.array([*(column in shape for shape in self._shapes), False], bool)
        return has[self._codes]


def _kinds(values: pa.ChunkedArray, *, raw: bool) -> Iterator[tuple[str, Bools]]:
    """Yield JSON types and the rows whose value arrives as one."""
    if raw:
        first = first_bytes(whole(values).cast(pa.binary()))
        for starts, kind in _BY_FIRST_BYTE.items():
            yield kind, np.isin(first, np.frombuffer(starts, np.uint8))
    else:
        yield _wire_type(values.type), _mask(pc.is_valid(values))


def _wire_type(kind: pa.DataType) -> str:
    """Return how values of a declared type arrive (spec: Aurora DSQL, types)."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_list(kind):
        return "array"
    text = pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind)
    return "string" if text else "number"


def _changes(table: str, facts: Facts) -> Iterator[dict[str, Any]]:
    """Yield rows for what the facts of one table amount to."""
    if not facts:
        return
    whole_table = facts["", TABLE]
    columns: dict[str, list[tuple[_Seen, str]]] = {}
    for (column, kind), seen in facts.items():
        if kind == TABLE:
            yield _row(table, column, "table", kind, seen)
        else:
            columns.setdefault(column, []).append((seen, kind))
    for column, spans in columns.items():
        spans.sort(key=lambda span: (span[0][:2], span[1] == NULL, span[1]))
        first = "initial" if spans[0][0][:2] == whole_table[:2] else "added"
        for number, (seen, kind) in enumerate(spans):
            later = "first_null" if kind == NULL else "type_changed"
            if kind != NULL and [before for _, before in spans[:number]] == [NULL]:
                later = "first_value"
            yield _row(table, column, later if number else first, kind, seen)
        last_ns = max(seen.last_seen_ns for seen, _ in spans)
        if last_ns < whole_table.last_seen_ns:
            yield _row(table, column, "disappeared", NONE, _Seen(last_ns, "", last_ns)) | {"tx_id": None}


def _row(table: str, column: str, change: str, value_type: str, seen: _Seen) -> dict[str, Any]:
    return {
        "table": table,
        "column": column,
        "change": change,
        "value_type": value_type,
        **seen._asdict(),
        "format_version": FORMAT_VERSION,
    }


def _updated(t: pa.Table, s: pa.Table) -> pa.Table:
    """Return rows with the earlier first commit and the later last minute.

    The row of a column that disappeared holds the last minute in both times: there the later one stays.
    """
    same_time = pc.equal(s["first_ts_ns"], t["first_ts_ns"])
    earlier = pc.or_(
        pc.less(s["first_ts_ns"], t["first_ts_ns"]),
        pc.fill_null(pc.and_kleene(same_time, pc.less(s["tx_id"], t["tx_id"])), fill_value=False),
    )
    gone = pc.equal(s["value_type"], NONE)
    moves = pc.if_else(gone, pc.greater(s["first_ts_ns"], t["first_ts_ns"]), earlier)
    columns = {name: s[name] for name in SCHEMA_CHANGES_SCHEMA.names}
    for name in ("first_ts_ns", "tx_id"):
        columns[name] = pc.if_else(moves, s[name], t[name])
    columns["last_seen_ns"] = pc.max_element_wise(t["last_seen_ns"], s["last_seen_ns"])
    return pa.table(columns)


class SchemaChanges(FactTable):
    """The schema changes of a lake; columns that no entry declares hold raw JSON text."""

    def __init__(self, file: DeltaFile) -> None:
        super().__init__(file, SCHEMA_CHANGES_SCHEMA, IDENTITY)
        self._declared: dict[str, Mapping[str, str]] = {}
        self._known = SCHEMA_CHANGES_SCHEMA.empty_table()

    def declare(self, spec: TableSpec) -> None:
        """Take the types of a table as it continues."""
        self._declared[spec.name] = spec.columns

    def record(self, batches: Mapping[str, pa.Table], *, transaction: tuple[str, int] | None = None) -> int:
        """Add what the typed batches of some tables show; return how many rows were written."""
        batches = {name: rows for name, rows in batches.items() if rows.num_rows}
        if not batches or not schema_step(self._known, batches, self._declared).changed:
            return 0  # what this process read or wrote last says it all; others only add to it
        outcome = schema_step(self.of_tables(batches), batches, self._declared)
        if written := outcome.changed:
            self.exchange(outcome.put, outcome.drop, update=_updated, transaction=transaction)
        others = pc.invert(pc.is_in(self._known["table"], value_set=pa.array(list(batches), pa.string())))
        self._known = pa.concat_tables([self._known.filter(others), outcome.state])
        return written

    def of_tables(self, tables: Iterable[str]) -> pa.Table:
        """Read the rows of some tables; none where nothing was written yet."""
        return self.read(SCHEMA_CHANGES_SCHEMA.names, f'"table" IN ({", ".join(map(literal, tables))})')
