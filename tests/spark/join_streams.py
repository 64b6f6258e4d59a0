"""Streams for the tests of the join on Spark: files a query reads batch by batch, and what must come out."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from headpond.core.hashes import task_of
from headpond.kstreams.bytes.headers_arrow import HEADERS_TYPE
from headpond.kstreams.bytes.join_buffer import BufferFormat, Side
from headpond.kstreams.join.by_record import JoinRecord, StreamJoin
from headpond.kstreams.join.rules import JoinCounters, JoinType, StreamTime
from headpond.kstreams.join.stores import JoinStores

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from headpond.kstreams.join.rules import JoinRules

START_MS = 1_700_000_000_000
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", HEADERS_TYPE),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("tags", pa.map_(pa.string(), pa.decimal128(10, 2))),
    ]
)
DDL = (
    "key binary, value binary, timestamp timestamp, headers array<struct<key:string,value:binary>>, "
    "topic string, partition int, offset bigint, tags map<string,decimal(10,2)>"
)


@dataclass(frozen=True)
class Event:
    """A record and its place in the source."""

    side: Side
    key: bytes | None
    value: bytes | None
    micros: int
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int
    offset: int

    def record(self) -> JoinRecord:
        """As the reference engine takes it, recognisable by its value."""
        return JoinRecord(self.side, self.key, self.value, self.micros // 1000, self.headers)


def random_batches(
    seed: int, *, batches: int = 4, size: int = 150, keys: int = 6, spread_ms: int = 40, partitions: int = 2
) -> list[list[Event]]:
    """Micro-batches of records of both sides, out of order, with null keys and values."""
    chance = random.Random(seed)
    offsets: Counter[tuple[Side, int]] = Counter()
    now, number = START_MS, 0
    found = []
    for _ in range(batches):
        batch = []
        for _ in range(size):
            now += chance.choice([0, 0, 1, 1, 2, 5])
            side, partition = chance.choice(list(Side)), chance.randrange(partitions)
            at = max(0, now - chance.choice([0, 0, 0, 3, 9, spread_ms]))
            key = None if chance.random() < 0.05 else b"key-%d" % chance.randrange(keys)
            value = None if chance.random() < 0.05 else b"v%d" % number
            headers = tuple(
                (chance.choice(["n", "trace"]), chance.choice([None, b"%d" % number]))
                for _ in range(chance.choice([0, 1, 2]))
            )
            offset = offsets[side, partition]
            offsets[side, partition] += 1
            micros = at * 1000 + chance.randrange(1000)
            batch.append(Event(side, key, value, micros, headers, partition, offset))
            number += 1
        found.append(batch)
    return found


def write(folder: Path, batches: list[list[Event]], first: int = 0) -> None:
    """Write each batch as one file a side, in the order in which Spark is to take them."""
    for number, batch in enumerate(batches, first):
        for side in Side:
            events = [event for event in batch if event.side is side]
            random.Random(number).shuffle(events)  # rows of a file are in no order
            place = folder / side.name
            place.mkdir(parents=True, exist_ok=True)
            rows = [
                {
                    "key": event.key,
                    "value": event.value,
                    "timestamp": event.micros,
                    "headers": [{"key": k, "value": v} for k, v in event.headers],
                    "topic": side.name,
                    "partition": event.partition,
                    "offset": event.offset,
                    "tags": [(f"p{event.partition}", event.offset)],
                }
                for event in events
            ]
            path = place / f"{number:05}.parquet"
            table = pa.Table.from_pylist(rows, SCHEMA)
            pq.write_table(table, path.with_suffix(".passing"))
            os.utime(path.with_suffix(".passing"), (1e9 + number, 1e9 + number))
            path.with_suffix(".passing").rename(path)


def source(spark: SparkSession, folder: Path, side: Side) -> DataFrame:
    """One file a micro-batch."""
    reader = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder / side.name))


def drained(frame: DataFrame, folder: Path, checkpoint: str | None = None) -> StreamingQuery:
    """Run a query to the end of its input; its rows are in `folder/out`."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", checkpoint or str(folder / "checkpoint"))
        .option("path", str(folder / "out"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


Row = tuple[Any, ...]


def rows_of(spark: SparkSession, folder: Path) -> Counter[Row]:
    """The rows that came out, as they are compared."""
    frame = spark.read.parquet(str(folder / "out"))
    return Counter(
        (
            row["key"] and bytes(row["key"]),
            *(row[name] and bytes(row[name]) for name in ("left_value", "right_value")),
            row["timestamp"],
            tuple((h["key"], h["value"] and bytes(h["value"])) for h in row["headers"]),
        )
        for row in frame.selectExpr(
            "key", "left_value", "right_value", "unix_millis(timestamp) AS timestamp", "headers"
        ).collect()
    )


def in_order(events: list[Event]) -> list[tuple[int, Event]]:
    """The order of arrival, said the plain way, and with each record its partition's greatest time so far."""
    heads: dict[tuple[Side, int], int] = {}
    keyed = []
    for event in sorted(events, key=lambda e: (e.side is Side.RIGHT, e.partition, e.offset)):
        source_partition = event.side, event.partition
        heads[source_partition] = max(heads.get(source_partition, 0), event.micros // 1000)
        keyed.append((heads[source_partition], event))
    return sorted(keyed, key=lambda pair: pair[0])


def task(event: Event, tasks: int) -> int:
    """The join task of a record."""
    if event.key is None:
        return event.partition % tasks
    return int(task_of(pa.array([event.key], pa.binary()), tasks)[0])


def wanted(
    rules: JoinRules,
    batches: list[list[Event]],
    tasks: int,
    times: Sequence[int] | None = None,
    by_share: int = 0,
) -> tuple[Counter[Row], JoinCounters]:
    """What the reference engine gives, one engine a task; `times`: the wall clock of each batch, ms.

    A batch is what may be put in order: all up to where every input pauses. Of the first `by_share` batches
    each task has put its own records in order, as states of earlier versions were made.
    """
    engines = [
        StreamJoin(rules, JoinStores.build(rules, buffer_format=BufferFormat.HEADERS, join="j"))
        for _ in range(tasks)
    ]
    out: Counter[Row] = Counter()
    by_query = rules.stream_time is StreamTime.QUERY
    for number, (batch, now_ms) in enumerate(zip(batches, times or [0] * len(batches), strict=True)):
        taken = [e for e in batch if rules.type is not JoinType.SELF or e.side is Side.LEFT]
        shares = [[e for e in taken if task(e, tasks) == each] for each in range(tasks)]
        parts = shares if number < by_share else [taken]
        for head, event in (pair for part in parts for pair in in_order(part)):
            for engine in engines if by_query else ():
                out.update(tuple(result) for result in engine.advance(head))
            out.update(tuple(r) for r in engines[task(event, tasks)].process(event.record(), now_ms))
    counters = JoinCounters()
    for engine in engines:
        counters.add(engine.counters)
        engine.close()
    return out, counters


def without_headers(rows: Counter[Row]) -> Counter[Row]:
    """Rows with their headers left out."""
    found: Counter[Row] = Counter()
    for row, count in rows.items():
        found[row[:4]] += count
    return found


__all__ = ["Event", "drained", "random_batches", "replace", "rows_of", "source", "wanted", "write"]
