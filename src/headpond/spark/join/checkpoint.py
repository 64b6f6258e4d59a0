"""A join's state in a checkpoint: looked into, and rewritten for another number of tasks.

::

    checkpoint ──(Spark's state reader)──► manifests, chunks of each task ──► figures
                                                  │ dealt out again
                                                  ▼
    a query of one batch whose state is theirs ──► its state folder, under the checkpoint's last version,
                                                   in a copy of the checkpoint

The copy keeps offsets, commits and batch numbers, so that sinks that know batches by their number go on. The
first checkpoint is never changed.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headpond.core.errors import UsageError
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
from headpond.kstreams.join.keys import task_of
from headpond.kstreams.join.rules import MAX_TIMESTAMP_MS, JoinRules, JoinWindows
from headpond.kstreams.join.state import rescaled
from headpond.spark.following.checkpoint import batches_done
from headpond.spark.join.pack import labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from headpond.kstreams.join.chunks import Chunk, HeldChunk, TaskState
    from headpond.kstreams.join.pairs import Rows

SEED_DDL = "label int, number bigint, data binary"
SEED_SCHEMA = pa.schema([("label", pa.int32()), ("number", pa.int64()), ("data", pa.binary())])
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
    batch = batches_done(checkpoint)
    operator = _operator(Path(checkpoint))
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


CHUNKS_AT_ONCE = 32
"""Chunks that one query of Spark reads: each reads the whole state."""


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
    stored = _variable(spark, checkpoint, standing.operator, "chunk").where(
        f"key.label = {labels(standing.tasks)[task]}"
    )

    order: list[int] = []  # numbers of chunks, as they are looked at
    at_hand: dict[int, bytes] = {}

    def load(_side: Side, number: int, _uid: bytes, *, held: bool) -> Rows:
        del held
        if number not in at_hand:
            at = order.index(number)
            some = ", ".join(map(str, order[at : at + CHUNKS_AT_ONCE]))
            found = stored.where(f"user_map_key.number IN ({some})")
            at_hand.clear()
            for row in found.selectExpr("user_map_key.number", "user_map_value.data").collect():
                at_hand[row[0]] = bytes(row[1])
        data = at_hand.pop(number)
        return decode_chunk(data, schema_of_chunk(data))

    rules = orjson.loads(document["fingerprint"]["rules"])
    sides = (Side.LEFT,) if rules["type"] == "self" else (Side.LEFT, Side.RIGHT)
    state = state_of(document, sides, load)
    chunks: list[tuple[Side, Chunk, Any, HeldChunk | None]] = [
        (side, chunk, waiting, None)
        for side, each in state.sides.items()
        for chunk, waiting in zip(each.chunks, each.waiting, strict=True)
        if chunk.max_ts >= first and chunk.min_ts <= last
    ]
    none = np.empty(0, np.int64)
    chunks += [(side, held.chunk, none, held) for side, held in state.held()]
    order += [chunk.number for _, chunk, _, _ in chunks]
    for side, chunk, waiting, held in chunks:
        records = chunk.records
        times = chunk.data.ts if held is None else records.column(TIME).to_numpy()
        same = np.asarray(pc.fill_null(pc.equal(records.column("key"), key), fill_value=False))
        rows = np.flatnonzero(same & (times >= first) & (times <= last))
        for row in rows[rows >= (0 if held is None else held.taken)].tolist():
            yield KeptRecord(
                side,
                int(times[row]),
                records.column("value")[row].as_py(),
                decode_headers(records.column("headers")[row].as_py()),
                bool(np.isin(row, waiting)),
                held is not None,
            )


def rescale(spark: SparkSession, checkpoint: str, tasks: int, out: str) -> dict[str, Any]:
    """Write a copy of a checkpoint whose join has another number of tasks.

    Args:
        spark: a session of this machine.
        checkpoint: a folder; its query must not be running.
        tasks: the new number.
        out: the copy; must not exist.

    Returns:
        Number of old and new tasks, and of records.

    Raises:
        UsageError: `out` exists, or there is no join in the checkpoint.
    """
    if Path(out).exists():
        raise UsageError(f"{out} exists already.", next_step="Name a new folder with --out.", out=out)
    standing = read_join(spark, checkpoint)
    missing = set(range(standing.tasks)) - set(standing.documents)
    if missing:
        raise UsageError(
            f"Tasks {sorted(missing)} of {standing.tasks} have no state in {checkpoint}.",
            next_step="Let the query finish a batch first.",
        )
    chunks = _chunks(spark, checkpoint, standing)
    states, rules = _states(standing, chunks)
    after = rescaled(states, tasks, rules)
    first = next(iter(standing.documents.values()))["fingerprint"]
    with tempfile.TemporaryDirectory(prefix="headpond-rescale-") as folder:
        seeded = _seeded(spark, Path(folder), after, first, _partitions(Path(checkpoint), standing.batch))
        _copied(Path(checkpoint), Path(out), standing, seeded)
    return {
        "from_tasks": standing.tasks,
        "to_tasks": tasks,
        "records": sum(chunk.rows for state in after for _, chunk in state.chunks()),
    }


def _operator(checkpoint: Path) -> int | None:
    for path in sorted(checkpoint.glob("state/*/_metadata/v2/*")):
        if path.name.startswith("."):
            continue
        document = orjson.loads(path.read_text().partition("\n")[2])
        variables = document.get("operatorPropertiesJson") or ""
        if document["operatorInfo"]["operatorName"] == _OPERATOR and '"chunk"' in variables:
            return int(document["operatorInfo"]["operatorId"])
    return None


def _variable(spark: SparkSession, checkpoint: str, operator: int, name: str) -> Any:
    reader = spark.read.format("statestore").option("operatorId", operator).option("stateVarName", name)
    if name == "chunk":
        reader = reader.option("flattenCollectionTypes", "true")
    return reader.load(checkpoint)


def _chunks(spark: SparkSession, checkpoint: str, standing: JoinStanding) -> dict[tuple[int, int], bytes]:
    task_of_label = {label: task for task, label in enumerate(labels(standing.tasks))}
    rows = _variable(spark, checkpoint, standing.operator, "chunk")
    columns = rows.selectExpr("key.label", "user_map_key.number", "user_map_value.data").collect()
    return {(task_of_label[row[0]], row[1]): bytes(row[2]) for row in columns}


def _states(
    standing: JoinStanding, chunks: dict[tuple[int, int], bytes]
) -> tuple[list[TaskState], JoinRules]:
    described = orjson.loads(next(iter(standing.documents.values()))["fingerprint"]["rules"])
    windows = JoinWindows(described["before_ms"], described["after_ms"], described["grace_ms"])
    rules = JoinRules(described["type"], windows, emit=described["emit"])
    sides = (Side.LEFT,) if described["type"] == "self" else (Side.LEFT, Side.RIGHT)

    def loader(task: int) -> Any:
        def load(_side: Side, number: int, _uid: bytes, *, held: bool) -> Rows:
            del held
            data = chunks[task, number]
            return decode_chunk(data, schema_of_chunk(data))

        return load

    return [state_of(document, sides, loader(task)) for task, document in standing.documents.items()], rules


def seed_rows(states: list[TaskState], fingerprint: Callable[[int], dict[str, Any]]) -> pa.Table:
    """Return the rows that seed tasks: label, number and bytes of a chunk, or -1 and the manifest."""
    rows = []
    for task, (label, state) in enumerate(zip(labels(len(states)), states, strict=True)):
        every = [chunk for _, chunk in state.chunks()] + [held.chunk for _, held in state.held()]
        for chunk in every:
            data = encode_chunk(chunk.data, ValueFormat.PLAIN_HEADERS)
            chunk.stored_bytes = len(data)
            rows.append({"label": label, "number": chunk.number, "data": data})
        rows.append({"label": label, "number": _MANIFEST, "data": encode_manifest(state, fingerprint(task))})
    return pa.Table.from_pylist(rows, SEED_SCHEMA)


def _seeded(
    spark: SparkSession, folder: Path, states: list[TaskState], fingerprint: dict[str, Any], partitions: str
) -> Path:
    """Run a query of one batch that leaves these states; return its state folder."""
    from headpond.spark.join.task import JoinSeeder

    rows = seed_rows(states, lambda task: {**fingerprint, "tasks": len(states), "task": task})
    (folder / "rows").mkdir()
    pq.write_table(rows, folder / "rows" / "rows.parquet")
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
            .parquet(str(folder / "rows"))
            .groupBy("label")
            .transformWithStateInPandas(JoinSeeder(), "label int", outputMode="Append", timeMode="None")
            .writeStream.format("noop")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        for name, earlier in before.items():
            spark.conf.unset(name) if earlier is None else spark.conf.set(name, earlier)
    return folder / "checkpoint" / "state" / "0"


def _partitions(checkpoint: Path, batch: int) -> str:
    meta = orjson.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[1])
    return str(meta["conf"]["spark.sql.shuffle.partitions"])


def _copied(old: Path, new: Path, standing: JoinStanding, seeded: Path) -> None:
    """Copy the checkpoint, the join's state replaced by another one under the same version."""
    mine = old / "state" / str(standing.operator)

    def left_out(folder: str, names: list[str]) -> list[str]:
        if Path(folder) == mine:
            return [name for name in names if name.isdecimal()]
        return [name for name in names if name.endswith(".crc")]

    passing = new.with_name(f".{new.name}.passing")
    shutil.copytree(old, passing, ignore=left_out)
    version = str(standing.batch + 1)
    for partition in seeded.iterdir():
        if not partition.name.isdecimal():
            continue
        place = passing / "state" / str(standing.operator) / partition.name
        place.mkdir()
        for each in partition.rglob("*"):
            if each.is_file() and not each.name.endswith(".crc"):
                name = re.sub(r"^1(?=\.(zip|changelog)$)", version, each.name)
                target = place / each.relative_to(partition).with_name(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(each, target)
    # The operator's description names the files of its schema by their full path.
    for path in (passing / "state").glob("*/_metadata/v2/*"):
        text = path.read_text()
        path.write_text(text.replace(f"{old.resolve().as_uri()[7:]}/", f"{new.resolve().as_uri()[7:]}/"))
    passing.rename(new)
