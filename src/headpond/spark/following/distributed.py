"""Apply a large batch without its rows passing through the driver.

::

    decoded cells ─► changes of a table ─┐
    (executors)      rows of their keys  ├─ by hash of key ─► newest per key ─► MERGE
                     tombstones, deletes ┘                         │
                                                                   └─► figures, tombstones: driver

Each table's changes are divided among the executors by a hash of their keys; each executor runs the steps of
`lake.newest` that the driver runs for smaller batches, from (what is known, changes) of one bucket to::

    part        content             c0 c1 … mark
    row                             a row for the merge
    figures     counters as JSON
    tombstones  an Arrow stream     what the driver writes to the tables of _headpond/
    overtaken   an Arrow stream
    deletes     an Arrow stream
    late        an Arrow stream

Columns of changes travel under numbers: a source's own names may differ only in case, which Spark ignores.
The writes are those of `lake.apply`, of decisions that are made here; what came to the driver (pending
chunks, changes of tables that are not configured) is applied last, as a batch of its own.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from headpond.core.schemas import DELETED_SCHEMA, QUARANTINE_SCHEMA, STATE_SCHEMA, VALUE
from headpond.dsql.versions import encode_versions
from headpond.lake.apply import Applied, DecodedBatch, apply_batch
from headpond.lake.newest import HISTORY_STATE_SCHEMA, history_step, latest_step, too_late
from headpond.lake.state.insert_once import first_of_each
from headpond.lake.target import Decision, named
from headpond.lake.targets import current, history
from headpond.lake.targets.log import LogTable
from headpond.spark.following.delta_file import clauses_of
from headpond.spark.following.delta_file import name as quoted
from headpond.spark.sources.cells import pack, unpack
from headpond.spark.sources.decoded import FACTS, SHAPE, TABLE, gather, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame

    from headpond.lake.apply import Chunks
    from headpond.lake.delta import DeltaFile
    from headpond.lake.lake import Lake
    from headpond.lake.target import Target
    from headpond.lake.typed import Layout
    from headpond.spark.following.delta_file import SparkDeltaFile
    from headpond.spark.sources.decoded import BatchSummary, TableSummary

ROW, FIGURES, LATE = "row", "figures", "late"
TOMBSTONES, OVERTAKEN, DELETES = "tombstones", "overtaken", "deletes"
PART, CONTENT, MARK = "part", "content", "mark"
ROWS = "rows"
"""Figure: how many rows a bucket gives to the merge."""


def numbered(count: int) -> list[str]:
    """Names under which so many columns travel."""
    return [f"c{number}" for number in range(count)]


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a table's changes, as they travel.

    Attributes:
        schema: the columns of the typed batch.
    """

    schema: pa.Schema

    @property
    def travelling(self) -> pa.Schema:
        """Return the same columns under numbers."""
        return pa.schema(
            [
                pa.field(name, kind.type)
                for name, kind in zip(numbered(len(self.schema)), self.schema, strict=True)
            ]
        )

    def number_of(self, name: str) -> str:
        """Return the number under which a column travels."""
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
        """Restore the names of travelled columns."""
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
        horizon_ns: for current tables, see `lake.newest.too_late`.
        identity: for logs, the Delta columns that make two entries one.
    """

    columns: Columns
    layout: Layout
    keys: Sequence[str]
    horizon_ns: int | None = None
    identity: Sequence[str] = field(default_factory=tuple)

    @property
    def result(self) -> pa.Schema:
        """Return the schema of what comes out."""
        fields = [pa.field(PART, pa.string()), pa.field(CONTENT, pa.binary())]
        names = numbered(len(self.layout.fields))
        fields += [pa.field(name, kind.type) for name, kind in zip(names, self.layout.fields, strict=True)]
        return pa.schema([*fields, pa.field(MARK, pa.bool_())])

    def current(self, changes: pa.Table, known: pa.Table) -> pa.Table:
        """Find the newest version of each key."""
        rows, state = self.columns.back(changes), _state(known, STATE_SCHEMA)
        state_rows: dict[str, pa.Table] = {}
        if self.horizon_ns is not None:
            rows, state_rows[LATE] = too_late(state, rows, self.horizon_ns)
        outcome = latest_step(state, rows)
        dead = state.filter(pc.invert(state["live"])).select(["key", "version"])
        state_rows[TOMBSTONES] = outcome.tombstones_put
        state_rows[OVERTAKEN] = dead.filter(
            pc.is_in(dead["key"], value_set=outcome.tombstones_drop["key"].unique())
        )
        merged = current.merge_rows(self.layout, self.keys, outcome.upserts, outcome.deletes)
        return self._result(merged, outcome.counters, state_rows)

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

    def _result(
        self, merged: pa.Table, counters: dict[str, int], state_rows: dict[str, pa.Table]
    ) -> pa.Table:
        parts = [(FIGURES, json.dumps(counters | {ROWS: merged.num_rows}).encode())]
        parts += [(name, pack(rows)) for name, rows in state_rows.items() if rows.num_rows]
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


DISTRIBUTE_ABOVE_BYTES = 16 << 20
"""Decoded changes of a batch up to so many bytes are decided on in the driver: that is faster."""
BUCKET_BYTES = 32 << 20
"""About as many bytes of changes are decided on at once by one worker."""

_BUCKET = "bucket"
_MARKS = {"current": current.DELETE, "history": history.WHOLE}
_UNUSED = frozenset({"m:columns"})
_IMAGES = frozenset({"m:before", "m:after"})
_DATA = frozenset({"m:data"})


def apply_frame(
    lake: Lake,
    frame: DataFrame,
    *,
    chunks: Callable[[DecodedBatch], Chunks | None] | None = None,
    transaction: tuple[str, int] | None = None,
    above_bytes: int | None = None,
) -> Applied:
    """Apply a batch of decoded cells.

    Returns:
        Figures of this batch.
    """
    frame = frame.persist()
    try:
        summaries = F.col("kind").isin(SHAPE, FACTS)
        summary = summary_of(frame.filter(summaries).toArrow())
        large = summary.bytes > (DISTRIBUTE_ABOVE_BYTES if above_bytes is None else above_bytes)
        distributed = [name for name in summary.tables if large and name in lake.tables]
        stays = (F.col("kind") == TABLE) & F.col("name").isin(distributed)
        rest = gather(frame.filter(~summaries & ~stays).toArrow())
        applied = Applied()
        if distributed:
            applied.add(_DistributedApply(frame, summary).apply(lake, distributed, transaction))
        chunked = chunks(rest) if chunks is not None else None
        applied.add(apply_batch(lake, rest, chunks=chunked, transaction=transaction))
        return applied
    finally:
        frame.unpersist()


class _DistributedApply:
    """The tables of one batch whose changes stay with the executors."""

    def __init__(self, frame: DataFrame, summary: BatchSummary) -> None:
        self.frame, self.summary = frame, summary
        self._persisted: list[DataFrame] = []

    def apply(self, lake: Lake, names: Iterable[str], transaction: tuple[str, int] | None) -> Applied:
        """Apply the changes of some tables; the figures are those of a batch that goes on with the rest."""
        self.lake = lake
        # What is known of columns stands for the rows themselves.
        facts = {name: self.summary.facts.get(name, pa.table({})) for name in names}
        decide = lambda _, batch: {name: self._decide(name) for name in batch.tables}  # noqa: E731
        try:
            batch = DecodedBatch(tables=facts)
            applied = apply_batch(lake, batch, transaction=transaction, decide=decide)
        finally:
            for frame in self._persisted:
                frame.unpersist()
        applied.batches = 0
        return applied

    def _decide(self, name: str) -> Decision:
        """Run one table's steps on the executors, and fetch all of it but the rows."""
        table = self.lake.tables[name]
        typed, keys = table.typed, table.keys
        table_summary = self.summary.tables[name]
        horizon_ns = self.lake.tombstones.horizon_ns(name) if table.keep == "current" else None
        unused = _UNUSED | (frozenset() if table.keep == "log" else _IMAGES)
        unused |= frozenset() if horizon_ns is not None else _DATA
        columns = Columns(pa.schema([each for each in table_summary.schema if each.name not in unused]))
        layout = typed.fit(columns.schema)
        if isinstance(table, LogTable):
            bucket = Bucket(columns, layout, (), identity=table.identity)
            places = {column: batch_column for batch_column, (column, _) in typed.own.items()}
            by = [F.col(columns.number_of(f"m:{places[column]}")) for column in table.identity]
            changes = self._in_buckets(self._changes(name, columns), table_summary, by)
            # Spark counts a function's arguments, and a method has one more.
            once = lambda entries: bucket.log(entries)  # noqa: E731, PLW0108
            result = changes.applyInArrow(once, _spark(bucket.result))
        else:
            bucket = Bucket(columns, layout, keys, horizon_ns)
            rows = self._changes(name, columns)
            known = self._known(name, keys, columns, rows)
            run = bucket.history if table.keep == "history" else bucket.current
            step = lambda changes, known: run(changes, known)  # noqa: E731, PLW0108
            by_key = self._in_buckets(rows, table_summary, [F.col(columns.number_of("m:key"))])
            both = by_key.cogroup(self._in_buckets(known, table_summary, [F.col("key")]))
            result = both.applyInArrow(step, _spark(bucket.result))
        result = result.persist()
        self._persisted.append(result)
        figures, parts = _fetched(result)
        rows = figures.pop(ROWS, 0)

        def write(transaction: tuple[str, int] | None) -> Counter[str]:
            merged = self._merge(table, result, transaction) if rows else {}
            if table.keep != "log":
                return figures
            new = merged.get("num_target_rows_inserted", 0)
            return Counter(appended=new, duplicates=figures["changes"] - new)

        return Decision(
            write,
            refused=_together(parts[LATE], QUARANTINE_SCHEMA),
            tombstones=named(name, _together(parts[TOMBSTONES], DELETED_SCHEMA)),
            deletes=named(name, _together(parts[DELETES], DELETED_SCHEMA)),
            overtaken=named(name, _together(parts[OVERTAKEN], DELETED_SCHEMA)),
        )

    def _changes(self, name: str, columns: Columns) -> DataFrame:
        """Return the typed rows of one table, their columns numbered."""
        cells = self.frame.filter((F.col("kind") == TABLE) & (F.col("name") == name)).select(CONTENT)
        return cells.mapInArrow(columns.opened, _spark(columns.travelling))

    def _in_buckets(self, rows: DataFrame, table_summary: TableSummary, by: list[Column]) -> Any:
        partitions = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        count = max(partitions, table_summary.bytes // BUCKET_BYTES + 1)
        return rows.withColumn(_BUCKET, F.pmod(F.xxhash64(*by), F.lit(count))).groupBy(_BUCKET)

    def _known(self, name: str, keys: Iterable[str], columns: Columns, rows: DataFrame) -> DataFrame:
        """What the lake knows of the keys of some changes, with the columns of `HISTORY_STATE_SCHEMA`."""
        typed, table_summary = self.lake.typed[name], self.summary.tables[name]
        key = columns.number_of("m:key")
        own = {columns.number_of(VALUE + each): typed.column(each) for each in keys}
        wanted = F.broadcast(rows.select(F.col(key).alias("key"), *own).distinct())
        table = _read(typed.file, rows)
        matched = [table[quoted(delta)] == wanted[number] for number, delta in own.items()]
        past = self.lake.tables[name].keep == "history"
        there = table
        if past:
            there = table.filter(
                F.expr(f"_valid_to_ns IS NULL OR _valid_to_ns >= {table_summary.earliest_ns}")
            )
        live = there.join(wanted, matched, "inner").select(
            wanted["key"],
            F.lit(None).cast("binary").alias("version"),
            F.col("_image_hash").alias("image_hash"),
            F.expr("true").alias("live"),
            F.col("_ts_ns").alias("ts_ns"),
            F.col("_tx_id").alias("tx_id"),
            (F.col("_valid_to_ns") if past else F.lit(None).cast("long")).alias("valid_to_ns"),
        )
        store = self.lake.deletes.facts.file if past else self.lake.tombstones.file
        if not store.exists():
            return live
        gone = _read(store, rows).filter(F.col("table") == name)
        if past:
            gone = gone.filter(F.col("ts_ns") >= table_summary.earliest_ns)
        gone = gone.join(F.broadcast(wanted.select("key").distinct()), "key", "left_semi").select(
            "key",
            "version",
            F.lit(None).cast("binary").alias("image_hash"),
            F.expr("false").alias("live"),
            "ts_ns",
            "tx_id",
            F.lit(None).cast("long").alias("valid_to_ns"),
        )
        return live.select(*HISTORY_STATE_SCHEMA.names).unionByName(gone)

    @staticmethod
    def _merge(table: Target, result: DataFrame, transaction: tuple[str, int] | None) -> dict[str, Any]:
        names = table.typed.columns
        source = result.filter(F.col(PART) == ROW).select(
            *(
                F.col(number).alias(column)
                for number, column in zip(numbered(len(names)), names, strict=True)
            ),
            *([F.col(MARK).alias(_MARKS[table.keep])] if table.keep in _MARKS else []),
        )
        file = cast("SparkDeltaFile", table.typed.file)
        return file.merge_frame(source, transaction=transaction, **clauses_of(table))


def _fetched(result: DataFrame) -> tuple[Counter[str], dict[str, list[pa.Table]]]:
    """Fetch all of a table's steps but the rows: figures, and what goes to the tables of `_headpond/`."""
    figures: Counter[str] = Counter()
    parts: dict[str, list[pa.Table]] = defaultdict(list)
    for row in result.filter(F.col(PART) != ROW).select(PART, CONTENT).collect():
        if row[PART] == FIGURES:
            figures.update(json.loads(bytes(row[CONTENT])))
        else:
            parts[row[PART]].append(unpack(pa.py_buffer(bytes(row[CONTENT]))))
    return figures, parts


def _together(parts: list[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _read(file: DeltaFile, of_session: DataFrame) -> DataFrame:
    """Read a Delta table as it is now, in the session of another frame."""
    return of_session.sparkSession.read.format("delta").load(file.uri)


def _spark(schema: pa.Schema) -> Any:
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)
