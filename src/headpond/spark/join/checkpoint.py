"""A join's state in a checkpoint: read, and rewritten for another number of tasks.

::

    checkpoint ──(Spark's state reader)──► manifests, chunks of each task ──► figures
                                                  │ dealt out again
                                                  ▼
    a query of one batch whose state is theirs ──► its state folder, under the checkpoint's last version,
                                                   in a copy of the checkpoint

The copy keeps offsets, commits and batch numbers, so that sinks that know batches by their number go on. The
first checkpoint is never changed. Chunks are cut by new task where they are read, and each new task's state
is made by a task of Spark: the driver sees manifests only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import distinct
from headpond.core.errors import UsageError
from headpond.core.hashes import task_of
from headpond.kstreams.bytes.headers import decode_headers
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.bytes.window_values import ValueFormat
from headpond.kstreams.join.alignment import TIME
from headpond.kstreams.join.chunk_codec import (
    decode_chunk,
    encode_chunk,
    encode_manifest,
    read_manifest,
    schema_of_chunk,
    state_of,
)
from headpond.kstreams.join.chunks import Chunk, Kept, TaskState, Waits
from headpond.kstreams.join.pairs import Rows
from headpond.kstreams.join.rules import MAX_TIMESTAMP_MS, JoinRules, JoinWindows
from headpond.kstreams.join.state import rescaled
from headpond.spark.errors import carried
from headpond.spark.join.folder import Folder
from headpond.spark.join.pack import labels

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED_DDL = "label int, number bigint, data binary"
SEED_SCHEMA = pa.schema(
    [("label", pa.int32()), ("number", pa.int64()), ("data", pa.binary()), ("records", pa.int64())]
)
PIECE_DDL = "new int, old int, number bigint, rows binary, data binary"
PIECE_SCHEMA = pa.schema(
    [("new", pa.int32()), ("old", pa.int32()), ("number", pa.int64()), ("rows", pa.binary()),
     ("data", pa.binary())]
)  # fmt: skip
FOUND_DDL = "number bigint, row bigint, time bigint, value binary, headers binary"
FOUND_NAMES = ["number", "row", "time", "value", "headers"]
_MANIFEST = -1
_OPERATOR = "transformWithStateInPandasExec"


@dataclass(frozen=True)
class JoinStanding:
    """A join's state in a checkpoint.

    Attributes:
        operator: number of the stateful operator.
        batch: the last batch that is done.
        documents: manifest of each task that has a state.
    """

    operator: int
    batch: int
    documents: dict[int, dict[str, Any]]

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        first = next(iter(self.documents.values()))
        return int(first["fingerprint"]["tasks"])


def read_join(spark: SparkSession, checkpoint: str) -> JoinStanding:
    """Read the manifests of a join's tasks.

    Raises:
        UsageError: There is no checkpoint with a finished batch, or no join in it.
    """
    folder = Folder(spark, checkpoint)
    batch = max((int(each) for each in folder.names("commits") if each.isdecimal()), default=None)
    operator = _operator(folder)
    if batch is None or operator is None:
        raise UsageError(
            f"{checkpoint} holds no windowed join"
            + (" that has finished a batch." if operator is not None else "."),
            next_step="Give the checkpointLocation of a query that joins with headpond.spark.windowed_join.",
            checkpoint=checkpoint,
        )
    rows = _variable(spark, checkpoint, operator, "manifest").select("value.data").collect()
    documents = [read_manifest(bytes(row[0])) for row in rows]
    by_task = {each["fingerprint"]["task"]: each for each in documents}
    return JoinStanding(operator, batch, dict(sorted(by_task.items())))


def figures(document: dict[str, Any]) -> dict[str, Any]:
    """Return what one task holds."""
    slices: dict[tuple[str, int], dict[str, Any]] = {}
    for entry in document["chunks"]:
        key = entry["side"], entry["slice"]
        found = slices.setdefault(
            key,
            {"side": key[0], "from_ms": entry["min_ts"], "to_ms": entry["max_ts"], "chunks": 0, "records": 0,
             "bytes": 0, "unmatched": 0},
        )  # fmt: skip
        found["from_ms"] = min(found["from_ms"], entry["min_ts"])
        found["to_ms"] = max(found["to_ms"], entry["max_ts"])
        found["chunks"] += 1
        found["records"] += entry["rows"]
        found["bytes"] += entry["bytes"]
        found["unmatched"] += entry.get("waiting_rows", 0)
    parts = [slices[key] for key in sorted(slices)]
    return {
        "task": document["fingerprint"]["task"],
        "stream_time": document["stream_time"],
        "observed": document["observed"],
        "records": sum(each["records"] for each in parts),
        "bytes": sum(each["bytes"] for each in parts),
        "unmatched": sum(each["unmatched"] for each in parts),
        "held": sum(each["rows"] - each["taken"] for each in document.get("inputs", {}).get("held", ())),
        "inputs": {
            f"{side} {'/'.join(map(str, name))}": head
            for side, known in document.get("inputs", {}).get("reached", {}).items()
            for name, head, _ in known
        },
        "oldest_ms": min((each["from_ms"] for each in parts), default=None),
        "slices": parts,
    }


@dataclass(frozen=True)
class KeptRecord:
    """A record that a join keeps.

    Attributes:
        side: Which input it is from.
        timestamp: Its time, ms.
        value: Its value.
        headers: Its headers.
        waiting: Whether it waits unmatched.
        held: Whether it has not been joined yet, because another input is behind.
    """

    side: Side
    timestamp: int
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    waiting: bool
    held: bool


def kept_records(
    spark: SparkSession, checkpoint: str, key: bytes, time_from: int | None = None, time_to: int | None = None
) -> Iterator[KeptRecord]:
    """Yield what a join keeps of a key, by chunk and in each by arrival; both times are included.

    Raises:
        UsageError: There is no checkpoint with a finished batch, or no join in it.
    """
    standing = read_join(spark, checkpoint)
    task = int(task_of(pa.array([key], pa.binary()), standing.tasks)[0])
    document = standing.documents.get(task)
    if document is None:
        return
    first = -1 if time_from is None else time_from
    last = MAX_TIMESTAMP_MS if time_to is None else time_to
    held = {entry["number"]: entry for entry in document.get("inputs", {}).get("held", ())}
    within = {
        entry["number"]: entry
        for entry in document["chunks"]
        if entry["max_ts"] >= first and entry["min_ts"] <= last
    }
    entries = {**within, **held}

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number, data in zip(batch["number"].to_pylist(), batch["data"].to_pylist(), strict=True):
                rows = decode_chunk(data, schema_of_chunk(data))
                times = rows.records.column(TIME).to_numpy() if number in held else rows.ts
                same = np.asarray(pc.fill_null(pc.equal(rows.records.column("key"), key), fill_value=False))
                mine = np.flatnonzero(same & (times >= first) & (times <= last))
                found = rows.records.select(["value", "headers"]).take(pa.array(mine))
                columns = [pa.array(np.full(len(mine), number)), pa.array(mine), pa.array(times[mine])]
                yield pa.RecordBatch.from_arrays([*columns, *found.columns], names=FOUND_NAMES)

    stored = _variable(spark, checkpoint, standing.operator, "chunk").where(
        f"key.label = {labels(standing.tasks)[task]}"
    )
    chunks = stored.selectExpr("user_map_key.number AS number", "user_map_value.data AS data")
    rows = chunks.where(chunks.number.isin(list(entries))).mapInArrow(carried(find), FOUND_DDL).collect()
    places = {number: place for place, number in enumerate(entries)}
    for number, row, time, value, headers in sorted(rows, key=lambda each: (places[each[0]], each[1])):
        entry = entries[number]
        if row >= entry.get("taken", 0):
            waits = Waits.read(entry.get("waiting", ""), entry["rows"], entry.get("waiting_rows", 0))
            yield KeptRecord(
                Side[entry["side"].upper()],
                time,
                None if value is None else bytes(value),
                decode_headers(bytes(headers)),
                bool(waits.flags[row]),
                number in held,
            )


def rescale(spark: SparkSession, checkpoint: str, tasks: int, out: str) -> dict[str, Any]:
    """Write a copy of a checkpoint whose join has another number of tasks.

    Args:
        spark: a session that can reach both.
        checkpoint: a folder, by its path or URL; its query must not be running.
        tasks: the new number.
        out: the copy, in the same file system; must not exist.

    Returns:
        Number of old and new tasks, and of records.

    Raises:
        UsageError: `out` exists, or there is no join in the checkpoint.
    """
    old, new = Folder(spark, checkpoint), Folder(spark, out)
    if new.exists():
        raise UsageError(f"{out} exists already.", next_step="Name a new folder with --out.", out=out)
    standing = read_join(spark, checkpoint)
    missing = set(range(standing.tasks)) - set(standing.documents)
    if missing:
        raise UsageError(
            f"Tasks {sorted(missing)} of {standing.tasks} have no state in {checkpoint}.",
            next_step="Let the query finish a batch first.",
        )
    passing, seed = (Folder(spark, f"{out}.{part}") for part in ("passing", "seed"))
    for each in (passing, seed):
        each.remove()  # what a run that was killed left
    try:
        records = _seeded(spark, checkpoint, standing, tasks, f"{out}.seed", _partitions(old, standing.batch))
        _copied(old, passing, new, standing, seed)
        passing.rename(new)
    finally:
        seed.remove()
    return {"from_tasks": standing.tasks, "to_tasks": tasks, "records": records}


def _operator(checkpoint: Folder) -> int | None:
    for operator in checkpoint.names("state"):
        for name in checkpoint.names(f"state/{operator}/_metadata/v2"):
            if name.startswith("."):
                continue
            document = orjson.loads(
                checkpoint.read(f"state/{operator}/_metadata/v2/{name}").partition("\n")[2]
            )
            variables = document.get("operatorPropertiesJson") or ""
            if document["operatorInfo"]["operatorName"] == _OPERATOR and '"chunk"' in variables:
                return int(document["operatorInfo"]["operatorId"])
    return None


def _variable(spark: SparkSession, checkpoint: str, operator: int, name: str) -> Any:
    _ = spark.streams  # Spark 4.2.0 starts the coordinator of state stores with its manager of queries
    reader = spark.read.format("statestore").option("operatorId", operator).option("stateVarName", name)
    if name == "chunk":
        reader = reader.option("flattenCollectionTypes", "true")
    return reader.load(checkpoint)


@dataclass(frozen=True)
class _Dealer:
    """Distributes the states of old tasks: chunks are cut by new task, then put together for each of them."""

    documents: dict[int, dict[str, Any]]
    tasks: int

    def cut(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Cut chunks (old task's label, number, bytes) into pieces, one for each new task with records."""
        old = {label: task for task, label in enumerate(labels(len(self.documents)))}
        for batch in batches:
            for row in batch.to_pylist():
                task, number, data = old[row["label"]], row["number"], row["data"]
                inputs = self.documents[task].get("inputs", {})
                if any(entry["number"] == number for entry in inputs.get("held", ())):
                    # A task picks its own of what is held; there is little of it.
                    pieces: list[tuple[int, Any, bytes]] = [(new, None, data) for new in range(self.tasks)]
                else:
                    rows = decode_chunk(data, schema_of_chunk(data))
                    where = task_of(rows.records.column("key"), self.tasks)
                    chosen = [(int(new), np.flatnonzero(where == new)) for new in distinct(where)]
                    pieces = [
                        (new, mine.tobytes(), encode_chunk(rows.take(mine), ValueFormat.PLAIN_HEADERS))
                        for new, mine in chosen
                    ]
                for new, mine, part in pieces:
                    piece = {"new": new, "old": task, "number": number, "rows": mine, "data": part}
                    yield pa.RecordBatch.from_pylist([piece], PIECE_SCHEMA)

    def together(self, new: int, pieces: pa.Table) -> pa.Table:
        """Return the rows that seed a new task, of its pieces."""
        at_hand = {(row["old"], row["number"]): (row["rows"], row["data"]) for row in pieces.to_pylist()}
        states = [self._share(task, at_hand) for task in sorted(self.documents)]
        described = orjson.loads(self.documents[0]["fingerprint"]["rules"])
        windows = JoinWindows(described["before_ms"], described["after_ms"], described["grace_ms"])
        rules = JoinRules(described["type"], windows, emit=described["emit"])
        fingerprint = {**self.documents[0]["fingerprint"], "tasks": self.tasks, "task": new}
        state = rescaled(states, self.tasks, rules)[new]
        return _rows_of_task(labels(self.tasks)[new], state, fingerprint)

    def _share(self, task: int, pieces: dict[tuple[int, int], Any]) -> TaskState:
        """Return an old task's state with only those of its records that are among the pieces."""

        def load(_side: Side, number: int, _uid: bytes, *, held: bool) -> Rows:
            del held
            data = pieces[task, number][1]
            return decode_chunk(data, schema_of_chunk(data))

        document = self.documents[task]
        sides = (Side.LEFT,) if '"self"' in document["fingerprint"]["rules"] else (Side.LEFT, Side.RIGHT)
        state = state_of(document, sides, load)
        found = {}
        for side, each in state.sides.items():
            parts = []
            for chunk, waits in each:
                if (task, chunk.number) in pieces:
                    mine = np.frombuffer(pieces[task, chunk.number][0], np.int64)
                    part = Chunk.of(chunk.number, chunk.data, chunk.time_slice)
                    parts.append(Kept(part, Waits.of(waits.flags[mine])))
            found[side] = tuple(parts)
        return replace(state, sides=found)


def seed_rows(states: list[TaskState], fingerprint: Callable[[int], dict[str, Any]]) -> pa.Table:
    """Return the rows that seed tasks: label, number and bytes of a chunk, or -1 and the manifest."""
    each = zip(labels(len(states)), states, strict=True)
    return pa.concat_tables(
        _rows_of_task(label, state, fingerprint(task)) for task, (label, state) in enumerate(each)
    ).select(SEED_SCHEMA.names[:3])


def _rows_of_task(label: int, state: TaskState, fingerprint: dict[str, Any]) -> pa.Table:
    rows = []
    for chunk in [chunk for _, chunk in state.chunks()] + [held.chunk for _, held in state.held()]:
        data = encode_chunk(chunk.data, ValueFormat.PLAIN_HEADERS)
        chunk.bytes = len(data)
        rows.append({"label": label, "number": chunk.number, "data": data})
    rows.append({"label": label, "number": _MANIFEST, "data": encode_manifest(state, fingerprint)})
    rows[-1]["records"] = sum(chunk.rows for _, chunk in state.chunks())
    return pa.Table.from_pylist(rows, SEED_SCHEMA)


def _seeded(
    spark: SparkSession, checkpoint: str, standing: JoinStanding, tasks: int, seed: str, partitions: str
) -> int:
    """Leave the states of the new tasks in the checkpoint `<seed>/checkpoint`; return how many records."""
    from headpond.spark.join.task import JoinSeeder

    dealer = _Dealer(standing.documents, tasks)

    def together(key: tuple[pa.Scalar, ...], pieces: pa.Table) -> pa.Table:
        return dealer.together(key[0].as_py(), pieces)

    chunks = _variable(spark, checkpoint, standing.operator, "chunk").selectExpr(
        "key.label AS label", "user_map_key.number AS number", "user_map_value.data AS data"
    )
    # One row for each new task, so that one without records has a manifest, too.
    every = spark.range(tasks).selectExpr(
        "CAST(id AS INT) AS new", "-1 AS old", "-1L AS number", "CAST(NULL AS BINARY) AS rows",
        "CAST(NULL AS BINARY) AS data",
    )  # fmt: skip
    pieces = chunks.mapInArrow(carried(dealer.cut), PIECE_DDL).unionAll(every)
    pieces.groupBy("new").applyInArrow(together, f"{SEED_DDL}, records bigint").write.parquet(f"{seed}/rows")
    settings = {
        "spark.sql.shuffle.partitions": partitions,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        query = (
            spark.readStream.schema(SEED_DDL)
            .parquet(f"{seed}/rows")
            .groupBy("label")
            .transformWithStateInPandas(JoinSeeder(), "label int", outputMode="Append", timeMode="None")
            .writeStream.format("noop")
            .option("checkpointLocation", f"{seed}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        for name, earlier in before.items():
            spark.conf.unset(name) if earlier is None else spark.conf.set(name, earlier)
    return int(spark.read.parquet(f"{seed}/rows").selectExpr("SUM(records)").collect()[0][0])


def _partitions(checkpoint: Folder, batch: int) -> str:
    meta = orjson.loads(checkpoint.read(f"offsets/{batch}").splitlines()[1])
    return str(meta["conf"]["spark.sql.shuffle.partitions"])


def _copied(old: Folder, passing: Folder, new: Folder, standing: JoinStanding, seed: Folder) -> None:
    """Copy the checkpoint, the join's state replaced by another one under the same version."""
    mine = f"state/{standing.operator}/"
    for name in old.walk():
        if name.endswith(".crc") or (name.startswith(mine) and name.split("/")[2].isdecimal()):
            continue
        if "/_metadata/v2/" in name:
            # The operator's description names the files of its schema by their full path.
            passing.write(name, old.read(name).replace(f"{old.text}/", f"{new.text}/"))
        else:
            old.copy(name, passing, name)
    version = str(standing.batch + 1)
    for name in seed.walk("checkpoint/state/0"):
        folder, _, last = name.removeprefix("checkpoint/state/0/").rpartition("/")
        if folder.split("/")[0].isdecimal() and not last.endswith(".crc"):
            last = re.sub(r"^1(?=\.(zip|changelog)$)", version, last)
            seed.copy(name, passing, f"{mine}{folder}/{last}")
