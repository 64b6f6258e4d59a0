"""A join task inside Spark's stateful operator: state in, one batch, state out.

::

    ValueState `manifest`   JSON: times, numbers, and for each chunk where it is and which rows wait
    MapState   `chunk`      number → the chunk's bytes, in the declared value format

    manifest read ──► each chunk, when it is asked for, from memory, a file of this machine, or the MapState

What an attempt writes becomes visible only when Spark commits its store version; what lies in memory or files
is named by the random uids of its chunks and is used only when a manifest names it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessor

from headpond.core.arrow import int64_array
from headpond.core.errors import UsageError
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.bytes.window_values import ValueFormat
from headpond.kstreams.join.alignment import MAX_HELD_BYTES, Alignment, held_schema
from headpond.kstreams.join.by_batch import BatchJoin, initial_state
from headpond.kstreams.join.chunk_codec import (
    decode_chunk,
    encode_chunk,
    encode_manifest,
    read_manifest,
    state_of,
)
from headpond.kstreams.join.chunks import TaskState
from headpond.kstreams.join.pairs import MAX_CANDIDATES, Rows
from headpond.kstreams.join.results import Results
from headpond.kstreams.join.rules import JoinCounters, JoinRules
from headpond.spark.errors import carried
from headpond.spark.join.at_hand import MAX_AT_HAND_BYTES, FileCache, MemoryCache
from headpond.spark.join.columns import PLACE, SideColumns
from headpond.spark.join.pack import cut_small
from headpond.spark.join.places import delivered, dropped_in
from headpond.spark.session.workers import freeze_worker_heap
from headpond.spark.sources.cells import pack

OUT_DDL = (
    "blob binary, tasks bigint, records bigint, out_of_order bigint, late bigint, dropped_null_key bigint, "
    "dropped_null_value bigint, dropped_late bigint, buffered bigint, joined bigint, unmatched bigint, "
    "emitted bigint, state_rows bigint, state_bytes bigint, state_waiting bigint, chunks_from_memory bigint, "
    "chunks_from_file bigint, chunks_from_state bigint, held bigint, held_bytes bigint, "
    "dropped_bad_time bigint"
)
FIGURES = [part.split()[0] for part in OUT_DDL.split(", ")[1:]]
FINGERPRINT_VERSION = 1

_MEMORY = MemoryCache()


@dataclass(frozen=True)
class JoinPlan:
    """What every task of a join needs to know."""

    rules: JoinRules
    columns: tuple[SideColumns, ...]
    labels: tuple[int, ...]
    state_format: ValueFormat
    cache: str
    max_idle_ms: int = 0
    max_held_bytes: int = MAX_HELD_BYTES
    max_candidates: int = MAX_CANDIDATES
    max_at_hand_bytes: int = MAX_AT_HAND_BYTES

    def fingerprint(self, task: int) -> dict[str, Any]:
        """Return what a task's state depends on; another one's must not be continued."""
        return {
            "version": FINGERPRINT_VERSION,
            "rules": self.rules.fingerprint,
            "tasks": len(self.labels),
            "task": task,
            "partitioner": "murmur2",
        }


def check_fingerprint(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse the state of another join.

    Raises:
        UsageError: It has other windows, another type or emission, or another number of tasks.
    """
    if found == wanted:
        return
    if found["rules"] != wanted["rules"]:
        raise UsageError(
            f"The checkpoint holds the state of the join {found['rules']}; this query is the join "
            f"{wanted['rules']}.",
            next_step="Start it with the type, windows and emission of the checkpoint, or with a new one.",
            checkpoint=found["rules"],
            query=wanted["rules"],
        )
    if found["tasks"] != wanted["tasks"]:
        raise UsageError(
            f"The checkpoint's join has {found['tasks']} tasks, and this query asks for {wanted['tasks']}: a "
            "task's stream time and state belong to its keys.",
            next_step=f"Start it with tasks={found['tasks']}, or rewrite the checkpoint with "
            f"`headpond join rescale --tasks {wanted['tasks']}`.",
            checkpoint=found["tasks"],
            query=wanted["tasks"],
        )
    raise UsageError(
        f"The checkpoint's join task is {found}, and this one is {wanted}.",
        next_step="Run the headpond version that wrote the checkpoint, or start with a new one.",
    )


class _Stateful(StatefulProcessor):  # type: ignore[misc]
    """What the join and its seeder share: the state variables, and how given ones are stored."""

    def init(self, handle: Any) -> None:
        """Name the state variables."""
        self._manifest = handle.getValueState("manifest", "data binary")
        self._chunks = handle.getMapState("chunk", "number bigint", "data binary")

    def store(self, rows: pd.DataFrame) -> None:
        """Store rows of one task: number and bytes of a chunk, or -1 and the manifest."""
        for number, data in zip(rows["number"], rows["data"], strict=True):
            if number < 0:
                self._manifest.update((bytes(data),))
            else:
                self._chunks.updateValue((int(number),), (bytes(data),))

    def close(self) -> None:
        """Do nothing: caches outlive the call on purpose."""


class JoinProcessor(_Stateful):
    """The join's stateful processor: called once per task and micro-batch."""

    def __init__(self, plan: JoinPlan) -> None:
        self._plan = plan

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        """Process one task's records of a micro-batch."""
        del timerValues
        yield from carried(self._handled)(int(key[0]), rows)

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        """Store what `initial_state` names, before the first batch."""
        del key, timerValues
        self.store(initialState)

    def _handled(self, label: int, frames: Any) -> Iterator[pd.DataFrame]:
        freeze_worker_heap()
        plan = self._plan
        _MEMORY.max_bytes = plan.max_at_hand_bytes
        task = plan.labels.index(label)
        received, now_ms = _received(frames)
        name = f"{plan.cache}/{task}"
        work = _Work(plan, task, name, self._manifest, self._chunks)
        state = work.read()
        join = BatchJoin(
            plan.rules,
            {each.side: each.schema for each in plan.columns},
            keeps_headers=plan.state_format.has_headers,
            max_candidates=plan.max_candidates,
        )
        counters = JoinCounters()
        waiting = Alignment(state.inputs, join.schemas, now_ms, plan.max_idle_ms, plan.max_held_bytes)
        waiting.take(delivered(received, plan.columns))
        # All tasks learn what was dropped; one of them counts it.
        dropped = dropped_in(received) if task == 0 else 0
        del received  # as large as the batch
        for part in waiting.released():
            for step in join.steps(state, part.arrivals, now_ms, part.time):
                for blobs in _blobs(step.results, task, state.results):
                    yield pd.DataFrame({"blob": blobs, **dict.fromkeys(FIGURES, 0)})
                counters.add(step.counters)
                state = step.state
        state = waiting.kept(state)
        work.write(state)
        figures = {**counters.as_dict(), **work.figures(state), "tasks": 1, "dropped_bad_time": dropped}
        # Columns in the order of OUT_DDL as they stand: to name it again takes pandas a millisecond.
        yield pd.DataFrame({"blob": [None], **{name: figures[name] for name in FIGURES}})


class JoinSeeder(_Stateful):
    """Leaves given manifests and chunks as state, under the join's names."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        """Store the rows of one task."""
        del timerValues
        for frame in rows:
            self.store(frame)
        yield pd.DataFrame({"label": [int(key[0])]})


class _Work:
    """One task's state during one call."""

    def __init__(self, plan: JoinPlan, task: int, name: str, manifest: Any, chunks: Any) -> None:
        self._plan = plan
        self._name = name
        self._manifest = manifest
        self._chunks = chunks
        self._schemas = {each.side: each.schema for each in plan.columns}
        self._fingerprint = plan.fingerprint(task)
        self._files = FileCache(_local_folder() / name)
        self._stored: set[int] = set()
        self.loads = {"memory": 0, "file": 0, "state": 0}

    def read(self) -> TaskState:
        """Read the manifest; the chunks come when they are needed."""
        row = self._manifest.get()
        if row is None:
            return initial_state(self._plan.rules)
        data = bytes(row[0])
        document = read_manifest(data)
        check_fingerprint(document["fingerprint"], self._fingerprint)
        named = [*document["chunks"], *document.get("inputs", {}).get("held", ())]
        self._stored = {entry["number"] for entry in named}
        uids = {bytes.fromhex(entry["uid"]) for entry in named}
        self._files.keep_only(uids)
        self.loads["memory"] = _MEMORY.keep_only(self._name, uids)
        return state_of(document, tuple(self._schemas), self._load)

    def _load(self, side: Side, number: int, uid: bytes, *, held: bool) -> Rows:
        rows = _MEMORY.get(self._name, uid)
        if rows is not None:
            return rows
        schema = held_schema(self._schemas[side]) if held else self._schemas[side]
        rows = self._files.get(uid, schema)
        if rows is not None:
            self.loads["file"] += 1
            _MEMORY.put(self._name, uid, rows)
            return rows
        row = self._chunks.getValue((number,))
        if row is None:
            raise UsageError(
                f"Chunk {number} of {self._name} is named by its manifest and is not in the state.",
                next_step="Restore the checkpoint: its parts are not of one moment.",
            )
        self.loads["state"] += 1
        rows = decode_chunk(bytes(row[0]), schema)
        self._put(uid, rows)
        return rows

    def _put(self, uid: bytes, rows: Rows) -> None:
        self._files.put(uid, rows)
        _MEMORY.put(self._name, uid, rows)

    def write(self, state: TaskState) -> None:
        """Write what is new, and remove what is gone."""
        numbers = set()
        # What has not been processed yet keeps its headers, whatever the format of the stores is.
        each = [(chunk, self._plan.state_format) for _, chunk in state.chunks()]
        each += [(held.chunk, ValueFormat.PLAIN_HEADERS) for _, held in state.held()]
        for chunk, value_format in each:
            numbers.add(chunk.number)
            if chunk.number not in self._stored:
                data = encode_chunk(chunk.data, value_format)
                self._chunks.updateValue((chunk.number,), (data,))
                chunk.bytes = len(data)
                self._put(chunk.uid, chunk.data)
        for number in self._stored - numbers:
            self._chunks.removeKey((number,))
        self._manifest.update((encode_manifest(state, self._fingerprint),))

    def figures(self, state: TaskState) -> dict[str, int]:
        """Return what the task holds after the batch, and where it found it."""
        return {
            "state_rows": sum(chunk.rows for _, chunk in state.chunks()),
            "state_bytes": sum(chunk.bytes for _, chunk in state.chunks()),
            "state_waiting": sum(waits.count for each in state.sides.values() for _, waits in each),
            **{f"chunks_from_{place}": count for place, count in self.loads.items()},
            "held": sum(each.rows for _, each in state.held()),
            "held_bytes": sum(each.bytes for _, each in state.held()),
        }


def _received(frames: Any) -> tuple[list[bytes], int]:
    """Return the packed records of a call, and the batch's time."""
    blobs: list[bytes] = []
    now_ms = 0
    for frame in frames:
        blobs += [bytes(blob) for blob in frame["blob"] if len(blob)]
        now_ms = int(frame["now_ms"].iloc[0])
    return blobs, now_ms


def _blobs(results: Results, task: int, first: int) -> Iterator[list[bytes]]:
    """Write results, numbered from `first` on, as small Arrow IPC streams, some megabytes at a time."""
    for batch in results.batches():
        partition = pa.array(np.full(batch.num_rows, task, np.int32))
        offset = int64_array(np.arange(first, first + batch.num_rows))
        placed = batch.append_column(PLACE[0], partition).append_column(PLACE[1], offset)
        first += batch.num_rows
        yield [pack(piece) for piece in cut_small(placed)]


def _local_folder() -> Path:
    """Where this worker may leave files: Spark's local folder, which Spark deletes with the application."""
    spark = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return Path(spark or tempfile.gettempdir()) / "headpond-join"
