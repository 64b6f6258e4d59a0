"""Apply a large batch without its rows passing through the driver.

::

    decoded cells ─► changes of a table ─┐
    (executors)      rows of their keys  ├─ by hash of key ─► newest per key ─► MERGE
                     tombstones, deletes ┘                         │
                                                                   └─► figures, tombstones: driver

Each table's changes are spread over the executors by a hash of their keys; each of them runs the steps that
the driver runs for smaller batches (`spread_steps`). To the driver come figures, what the small tables of
`_headpond/` are to hold, changes that wait for their chunks, and changes of tables that are not configured.

The order of the writes is that of `tables.apply`; what came to the driver is applied last, as a batch of its
own.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema

from headpond.changes.history import HISTORY_STATE_SCHEMA
from headpond.changes.schemas import DELETED_SCHEMA, QUARANTINE_SCHEMA
from headpond.spark.cells import unpack
from headpond.spark.decoded import TABLE, gather
from headpond.spark.outline import FACTS, SHAPE, outline_of
from headpond.spark.spread_steps import (
    CONTENT,
    DELETES,
    FIGURES,
    LATE,
    MARK,
    OVERTAKEN,
    PART,
    ROW,
    ROWS,
    TOMBSTONES,
    Bucket,
    Columns,
    numbered,
)
from headpond.tables import current, history
from headpond.tables.apply import Applied, apply_batch
from headpond.tables.typed import VALUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import Column, DataFrame

    from headpond.spark.delta_file import SparkDeltaFile
    from headpond.spark.outline import Outline, Shape
    from headpond.tables.apply import Chunks, DecodedBatch
    from headpond.tables.delta import DeltaFile
    from headpond.tables.lake import Lake

SPREAD_ABOVE_BYTES = 16 << 20
"""Decoded changes of a batch up to so many bytes are decided on in the driver: that is faster."""
BUCKET_BYTES = 32 << 20
"""About as many bytes of changes are decided on at once by one worker."""

_BUCKET = "bucket"
_UNUSED = frozenset({"m:columns"})
_IMAGES = frozenset({"m:before", "m:after"})
_DATA = frozenset({"m:data"})


def apply_frame(
    lake: Lake,
    frame: DataFrame,
    *,
    chunks: Callable[[DecodedBatch], Chunks] | None = None,
    transaction: tuple[str, int] | None = None,
    between: Callable[[str], None] = lambda _: None,
    above_bytes: int | None = None,
) -> Applied:
    """Apply a batch of decoded cells.

    Args:
        lake: a prepared lake whose target tables are `SparkDeltaFile`.
        frame: cells (`cells.FRAME_SCHEMA`), outlines among them.
        chunks: how chunked changes are put together, given what came to the driver.
        transaction: query id and batch number, kept with each commit.
        between: called with the name of each write before it is done.
        above_bytes: a batch with more bytes of decoded changes stays with the executors; null for
            `SPREAD_ABOVE_BYTES`.

    Returns:
        Figures of this batch.
    """
    frame = frame.persist()
    try:
        outlines = F.col("kind").isin(SHAPE, FACTS)
        outline = outline_of(frame.filter(outlines).toArrow())
        large = outline.bytes > (SPREAD_ABOVE_BYTES if above_bytes is None else above_bytes)
        spread = [name for name in outline.shapes if large and name in lake.typed]
        stays = (F.col("kind") == TABLE) & F.col("name").isin(spread)
        rest = gather(frame.filter(~outlines & ~stays).toArrow())
        applied = Applied()
        if spread:
            applied.add(_Spread(lake, frame, outline, transaction, between).apply(spread))
        chunked = chunks(rest) if chunks is not None else None
        applied.add(apply_batch(lake, rest, chunks=chunked, transaction=transaction, between=between))
        return applied
    finally:
        frame.unpersist()


@dataclass(slots=True)
class _Decided:
    """What is to be done to one table: rows on the executors, the rest here."""

    frame: DataFrame
    rows: int = 0  # for the merge
    figures: Counter[str] = field(default_factory=Counter)
    told: dict[str, list[pa.Table]] = field(default_factory=dict)

    def of(self, part: str) -> list[pa.Table]:
        return self.told.get(part, [])


class _Spread:
    """The tables of one batch."""

    def __init__(
        self,
        lake: Lake,
        frame: DataFrame,
        outline: Outline,
        transaction: tuple[str, int] | None,
        between: Callable[[str], None],
    ) -> None:
        self.lake, self.frame, self.outline = lake, frame, outline
        self.transaction, self.between = transaction, between
        self._persisted: list[DataFrame] = []

    def apply(self, names: Iterable[str]) -> Applied:
        try:
            return self._apply(list(names))
        finally:
            for frame in self._persisted:
                frame.unpersist()

    def _apply(self, names: list[str]) -> Applied:
        lake, transaction, between = self.lake, self.transaction, self.between
        seen = max(lake.tombstones.version(), 0)
        decided = {name: self._decide(name) for name in names}
        applied = Applied()

        between("quarantine")
        late = pa.concat_tables(
            [QUARANTINE_SCHEMA.empty_table(), *(rows for each in decided.values() for rows in each.of(LATE))]
        )
        lake.quarantine.add(late, transaction=transaction)
        applied.quarantined.update(late["reason"].to_pylist())

        between("tombstones")
        put = lake.tombstones.put(_told(decided, TOMBSTONES), transaction=transaction)
        between("deletes")
        lake.deletes.put(_told(decided, DELETES), transaction=transaction)

        for name, each in decided.items():
            between(f"table {name}")
            figures = self._merge(name, each)
            if name in lake.logs:
                new = figures["num_target_rows_inserted"] if figures else 0
                applied.tables[name] = Counter(appended=new, duplicates=each.figures["changes"] - new)
            else:
                applied.tables[name] = each.figures

        if lake.tombstones.version() > seen + bool(put):
            between("second look")
            # Another writer changed them since they were read: a delete that is new there must hit here.
            for name in decided:
                if name in lake.current:
                    self._merge(name, self._decide(name))

        between("schema changes")
        facts = {name: self.outline.facts[name] for name in names if name in self.outline.facts}
        lake.schema_changes.record(facts, transaction=transaction)

        between("tombstones of keys that live again")
        lake.tombstones.drop(_told(decided, OVERTAKEN))
        return applied

    def _decide(self, name: str) -> _Decided:
        """Run one table's steps on the executors, and fetch all of it but the rows."""
        typed = self.lake.typed[name]
        shape = self.outline.shapes[name]
        horizon_ns = self.lake.tombstones.horizon_ns(name) if name in self.lake.current else None
        unused = _UNUSED | (frozenset() if name in self.lake.logs else _IMAGES)
        unused |= frozenset() if horizon_ns is not None else _DATA
        columns = Columns(pa.schema([each for each in shape.schema if each.name not in unused]))
        layout = typed.fit(columns.schema)
        if name in self.lake.logs:
            log = self.lake.logs[name]
            bucket = Bucket(columns, layout, (), identity=log.identity)
            places = {column: batch_column for batch_column, (column, _) in typed.own.items()}
            by = [F.col(columns.number_of(f"m:{places[column]}")) for column in log.identity]
            changes = self._in_buckets(self._changes(name, columns), shape, by)
            # Spark counts a function's arguments, and a method has one more.
            once = lambda entries: bucket.log(entries)  # noqa: E731, PLW0108
            result = changes.applyInArrow(once, _spark(bucket.result))
        else:
            past = name in self.lake.histories
            keys = (self.lake.histories if past else self.lake.current)[name].keys
            bucket = Bucket(columns, layout, keys, horizon_ns)
            rows = self._changes(name, columns)
            known = self._known(name, keys, columns, rows)
            run = bucket.history if past else bucket.current
            step = lambda changes, known: run(changes, known)  # noqa: E731, PLW0108
            by_key = self._in_buckets(rows, shape, [F.col(columns.number_of("m:key"))])
            both = by_key.cogroup(self._in_buckets(known, shape, [F.col("key")]))
            result = both.applyInArrow(step, _spark(bucket.result))
        result = result.persist()
        self._persisted.append(result)
        return _fetched(result)

    def _changes(self, name: str, columns: Columns) -> DataFrame:
        """The typed rows of one table, their columns numbered."""
        cells = self.frame.filter((F.col("kind") == TABLE) & (F.col("name") == name)).select(CONTENT)
        return cells.mapInArrow(columns.opened, _spark(columns.travelling))

    def _in_buckets(self, rows: DataFrame, shape: Shape, by: list[Column]) -> Any:
        partitions = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        count = max(partitions, shape.bytes // BUCKET_BYTES + 1)
        return rows.withColumn(_BUCKET, F.pmod(F.xxhash64(*by), F.lit(count))).groupBy(_BUCKET)

    def _known(self, name: str, keys: Iterable[str], columns: Columns, rows: DataFrame) -> DataFrame:
        """What the lake knows of the keys of some changes, with the columns of `HISTORY_STATE_SCHEMA`."""
        typed, shape = self.lake.typed[name], self.outline.shapes[name]
        key = columns.number_of("m:key")
        own = {columns.number_of(VALUE + each): typed.column(each) for each in keys}
        wanted = F.broadcast(rows.select(F.col(key).alias("key"), *own).distinct())
        table = _read(typed.file, rows)
        matched = [table[_quoted(delta)] == wanted[number] for number, delta in own.items()]
        past = name in self.lake.histories
        there = table
        if past:
            there = table.filter(F.expr(f"_valid_to_ns IS NULL OR _valid_to_ns >= {shape.earliest_ns}"))
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
            gone = gone.filter(F.col("ts_ns") >= shape.earliest_ns)
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

    def _merge(self, name: str, decided: _Decided) -> dict[str, Any] | None:
        """Merge the rows of one table; null when there are none."""
        if not decided.rows:
            return None
        table: Any = self.lake.current.get(name) or self.lake.histories.get(name) or self.lake.logs[name]
        mark = dict.fromkeys(self.lake.current, current.DELETE)
        mark |= dict.fromkeys(self.lake.histories, history.WHOLE)
        names = table.typed.columns
        source = decided.frame.filter(F.col(PART) == ROW).select(
            *(
                F.col(number).alias(column)
                for number, column in zip(numbered(len(names)), names, strict=True)
            ),
            *([F.col(MARK).alias(mark[name])] if name in mark else []),
        )
        file: SparkDeltaFile = table.typed.file
        return file.merge_frame(source, transaction=self.transaction, **table.clauses())


def _fetched(result: DataFrame) -> _Decided:
    decided = _Decided(result)
    for row in result.filter(F.col(PART) != ROW).select(PART, CONTENT).collect():
        if row[PART] == FIGURES:
            decided.figures.update(json.loads(bytes(row[CONTENT])))
        else:
            decided.told.setdefault(row[PART], []).append(unpack(pa.py_buffer(bytes(row[CONTENT]))))
    decided.rows = decided.figures.pop(ROWS, 0)
    return decided


def _told(decided: dict[str, _Decided], part: str) -> pa.Table:
    """One part of all tables, with their names."""
    found = [
        rows.append_column("table", pa.repeat(name, rows.num_rows))
        for name, each in decided.items()
        for rows in each.of(part)
    ]
    empty = DELETED_SCHEMA.append(pa.field("table", pa.string())).empty_table()
    return pa.concat_tables(found) if found else empty


def _read(file: DeltaFile, beside: DataFrame) -> DataFrame:
    """A Delta table as it is now, in the session of another frame."""
    return beside.sparkSession.read.format("delta").load(file.uri)


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _spark(schema: pa.Schema) -> Any:
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)
