"""Records on their way into a join task and results on their way out, as few large rows.

::

    rows of a source ─► pack ─► (label of the task, Arrow IPC stream) ─► join task
    join task ─► (Arrow IPC stream) ─► unpack ─► rows of the result

Spark hands rows to a stateful Python operator one by one, at some 7 µs each; a stream of records in one
binary costs a fraction of a microsecond per record. Both functions run in `mapInArrow`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.errors import DamagedInput
from headpond.formats.header_batch import decode_headers_column, encode_headers_column
from headpond.formats.outer_join_buffer import Side
from headpond.spark.errors import carried
from headpond.spark.join_columns import MICROS, SideColumns
from headpond.spark.settled import settle_worker
from headpond.windows.join_keys import murmur2, task_of
from headpond.windows.rules import MAX_TIMESTAMP_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKED_SCHEMA = pa.schema([("label", pa.int32()), ("blob", pa.binary())])
PACKED_DDL = "label int, blob binary"
MAX_PACKED_ROWS = 200_000
MAX_UNPACKED_ROWS = 32_768
MAX_PACKED_BYTES = 64 << 20
BLOB_BYTES = 192 << 10
"""A blob's size. Objects from half a megabyte on kept the JVM's collector (G1) busy all the time."""
SIDE = b"side"
TIME = "_ts"
"""Column of a packed record: its timestamp in ms."""
_EMPTY_BLOB = b""


@dataclass(frozen=True)
class Packer:
    """Packs one side's rows by join task.

    Args:
        columns: the side's.
        labels: label of each task.
    """

    columns: SideColumns
    labels: tuple[int, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the rows of one partition of Spark's."""
        yield from carried(self._packed)(batches)

    def _packed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        if _first_partition():
            # Every task is called in every batch: it tells its figures, and refuses a state not its own.
            yield _rows(list(self.labels), [_EMPTY_BLOB] * len(self.labels))
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= MAX_PACKED_ROWS or size >= MAX_PACKED_BYTES:
                yield self._blobs(held)
                held, rows, size = [], 0, 0
        if rows:
            yield self._blobs(held)

    def _blobs(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        table = pa.Table.from_batches(batches).combine_chunks()
        records = self.records(table)
        tasks = self._tasks(records)
        order = np.argsort(tasks, kind="stable")
        bounds = np.searchsorted(tasks[order], np.arange(len(self.labels) + 1))
        found, blobs = [], []
        for task, label in enumerate(self.labels):
            chosen = order[bounds[task] : bounds[task + 1]]
            if len(chosen):
                part = records if len(chosen) == len(order) else records.take(pa.array(chosen))
                pieces = [to_blob(piece, self.columns.side) for piece in cut_small(part)]
                found += [label] * len(pieces)
                blobs += pieces
        return _rows(found, blobs)

    def records(self, table: pa.Table) -> pa.RecordBatch:
        """Turn input rows into records with their time."""
        columns = self.columns
        found = {name: _one(table.column(name)) for name in table.column_names}
        micros = found["timestamp"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        self._check_times(micros, found)
        # Times are not negative, so that division that truncates is division that rounds down.
        millis = pc.divide(micros, 1000)
        below = pc.subtract(micros, pc.multiply(millis, 1000)).cast(pa.int16())
        empty = pa.array([b""], pa.binary()).take(pa.array(np.zeros(len(table), np.int64)))
        headers = encode_headers_column(found["headers"]) if columns.has_headers else empty
        keys, values = found["key"].cast(pa.binary()), found["value"].cast(pa.binary())
        further = [found[name].cast(kind) for name, kind in columns.further]
        schema = columns.schema.append(pa.field(TIME, pa.int64()))
        return pa.RecordBatch.from_arrays([keys, headers, values, below, *further, millis], schema=schema)

    def _check_times(self, micros: pa.Array, found: dict[str, pa.Array]) -> None:
        bad = pc.or_kleene(
            pc.is_null(micros), pc.or_(pc.less(micros, 0), pc.greater(micros, MAX_TIMESTAMP_MS))
        )
        row = pc.index(bad, pa.scalar(True)).as_py()  # noqa: FBT003 - the value looked for
        if row < 0:
            return
        place = ", ".join(f"{name} {found[name][row].as_py()}" for name in self._place())
        raise DamagedInput(
            f"The {self.columns.side.name.lower()} record at {place} has the timestamp "
            f"{found['timestamp'][row].as_py()}; a join takes times from 1970 on.",
            next_step="Filter such records out before the join, or give them a time.",
            reason="join_timestamp",
        )

    def _place(self) -> list[str]:
        return [*self.columns.partition_columns, *self.columns.position_columns]

    def _tasks(self, records: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Tasks by key; a record without a key goes where its source partition says."""
        keys = records.column("key")
        tasks = task_of(keys, len(self.labels))
        if keys.null_count:
            missing = np.flatnonzero(np.asarray(keys.is_null()))
            name = self.columns.partition_columns[-1]
            partition = records.column(name).take(pa.array(missing))
            if pa.types.is_integer(partition.type):
                chosen = partition.cast(pa.int64()).to_numpy(zero_copy_only=False) % len(self.labels)
            else:
                hashes = murmur2(partition.cast(pa.string()).cast(pa.binary()))
                chosen = hashes.astype(np.int64) % len(self.labels)
            tasks[missing] = chosen
        return tasks


def cut_small(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into pieces of about BLOB_BYTES."""
    rows = max(1, BLOB_BYTES * batch.num_rows // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def to_blob(records: pa.RecordBatch, side: Side) -> bytes:
    """Write records with their side as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    schema = records.schema.with_metadata({SIDE: side.name})
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(records)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_blob(blob: bytes) -> tuple[Side, pa.Table]:
    """Read such a stream."""
    with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
        table = reader.read_all()
    return Side[table.schema.metadata[SIDE].decode()], table


@dataclass(frozen=True)
class Unpacker:
    """Turns a task's results into rows.

    Args:
        columns: per side its columns.
        schema: of the rows.
    """

    columns: tuple[SideColumns, ...]
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpack the rows of one partition of Spark's."""
        yield from carried(self._unpacked)(batches)

    def _unpacked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        for batch in batches:
            held: list[pa.RecordBatch] = []
            rows = 0
            for blob in batch.column(0):
                if blob.is_valid:
                    with pa.ipc.open_stream(blob.as_buffer()) as reader:
                        held += reader
                    rows += held[-1].num_rows
                if rows >= MAX_UNPACKED_ROWS:
                    yield self._together(held)
                    held, rows = [], 0
            if held:
                yield self._together(held)

    def _together(self, results: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Unpack many small batches at once."""
        if len(results) == 1:
            return self.rows(results[0])
        return self.rows(pa.Table.from_batches(results).combine_chunks().to_batches()[0])

    def rows(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """Turn results into rows."""
        found = [
            results.column("key"),
            _micros(results.column("timestamp"), None),
            decode_headers_column(results.column("headers")),
        ]
        for columns in self.columns:
            name = columns.side.name.lower()
            found.append(_micros(results.column(f"{name}_timestamp"), results.column(f"{name}_{MICROS}")))
            found.append(results.column(f"{name}_value"))
            found += [results.column(f"{name}_{each}") for each, _ in columns.further]
        cast = [column.cast(field.type) for column, field in zip(found, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(cast, schema=self.schema)


def packing(packer: Packer) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Give the function for `mapInArrow`; Spark looks at a function's signature, not at a class's."""

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return packer(batches)

    return pack


def unpacking(unpacker: Unpacker) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Give the function for `mapInArrow`."""

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return unpacker(batches)

    return unpack


def _micros(millis: pa.Array, below: pa.Array | None) -> pa.Array:
    micros = pc.multiply(millis, 1000)
    if below is not None:
        # A record handed over by Kafka Streams has none.
        micros = pc.add(micros, pc.fill_null(below, 0).cast(pa.int64()))
    return micros.cast(pa.timestamp("us", tz="UTC"))


def _rows(found: list[int], blobs: list[bytes]) -> pa.RecordBatch:
    arrays = [pa.array(found, pa.int32()), pa.array(blobs, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, schema=PACKED_SCHEMA)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _first_partition() -> bool:
    from pyspark import TaskContext  # noqa: PLC0415 - in a worker it is there already

    context = TaskContext.get()
    return context is not None and context.partitionId() == 0
