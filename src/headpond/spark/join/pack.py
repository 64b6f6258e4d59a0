"""Records on their way into a join task and results on their way out, as few large rows.

::

    rows of a source ─► pack ─► (label of the task, Arrow IPC stream) ─► order of arrival ─► join task
    join task ─► (Arrow IPC stream) ─► unpack ─► rows of the result

Spark hands rows to a stateful Python operator one by one, at some 7 µs each; a stream of records in one
binary costs a fraction of a microsecond per record.

**Labels.** Spark puts a grouping key into the partition pmod(murmur3(key, seed 42), partitions). Keys 0 and 1
both fall into the second of two partitions, and one core would do all the work. Murmur3 of one 32-bit word
can be inverted step by step: the label of task b is **the word whose hash is b**, so task b goes to partition
b mod partitions (Spark's `Murmur3_x86_32.hashInt`; a test compares with Spark's own `hash`).

Each task also gets the progress of all source partitions (`places`), whether it has records of them or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.errors import InvalidData
from headpond.core.hashes import murmur2, task_of
from headpond.kstreams.bytes.headers_arrow import decode_headers_column, encode_headers_column
from headpond.kstreams.join.rules import MAX_TIMESTAMP_MS
from headpond.spark.errors import carried
from headpond.spark.join.columns import MICROS, PLACE, SideColumns
from headpond.spark.join.places import TIME, in_place, to_blob
from headpond.spark.session.workers import freeze_worker_heap

_WORD = 1 << 32
_SEED = 42
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_FINAL1, _FINAL2 = 0x85EBCA6B, 0xC2B2AE35
_STEP = 0xE6546B64


def label_of(task: int) -> int:
    """Return the signed 32-bit integer whose hash in Spark is `task`."""
    hashed = task
    hashed ^= hashed >> 16
    hashed = hashed * pow(_FINAL2, -1, _WORD) % _WORD
    hashed ^= hashed >> 13 ^ hashed >> 26
    hashed = hashed * pow(_FINAL1, -1, _WORD) % _WORD
    hashed ^= hashed >> 16
    hashed ^= 4  # the length of the word in bytes
    hashed = (hashed - _STEP) * pow(5, -1, _WORD) % _WORD
    word = _rotated(hashed, 32 - 13) ^ _SEED
    word = word * pow(_C2, -1, _WORD) % _WORD
    word = _rotated(word, 32 - 15)
    word = word * pow(_C1, -1, _WORD) % _WORD
    return word - _WORD if word >= _WORD // 2 else word


def labels(tasks: int) -> list[int]:
    """Return the labels of tasks 0 to `tasks` - 1."""
    return [label_of(task) for task in range(tasks)]


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) % _WORD


PACKED_SCHEMA = pa.schema([("label", pa.int32()), ("blob", pa.binary())])
PACKED_DDL = "label int, blob binary"
MAX_PACKED_ROWS = 200_000
MAX_UNPACKED_ROWS = 32_768
MAX_PACKED_BYTES = 64 << 20
BLOB_BYTES = 192 << 10
"""A blob's size. Objects from half a megabyte on kept the JVM's collector (G1) busy all the time."""


@dataclass(frozen=True)
class Packer:
    """Packs one side's rows by join task."""

    columns: SideColumns
    labels: tuple[int, ...]
    drops_bad_times: bool = False

    @carried
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the rows of one partition of Spark's."""
        freeze_worker_heap()
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            if rows + batch.num_rows > MAX_PACKED_ROWS or size + batch.nbytes > MAX_PACKED_BYTES:
                if rows:
                    yield self._blobs(held)
                held, rows, size = [], 0, 0
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if rows:
            yield self._blobs(held)

    def _blobs(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        table = pa.Table.from_batches(batches).combine_chunks()
        dropped = 0
        if self.drops_bad_times:
            bad = _bad_times(_micros_of(table))
            dropped = pc.sum(bad).as_py() or 0
            table = table.filter(pc.invert(bad)).combine_chunks() if dropped else table
        placed = in_place(self.records(table), self.columns, dropped)
        tasks = self._tasks(placed.records)
        order = np.argsort(tasks, kind="stable")
        bounds = np.searchsorted(tasks[order], np.arange(len(self.labels) + 1))
        # Every task learns how far the source partitions are, also one that gets none of these records.
        found, blobs = list(self.labels), [placed.progress(self.columns.side)] * len(self.labels)
        for task, label in enumerate(self.labels):
            chosen = order[bounds[task] : bounds[task + 1]]
            if len(chosen):
                whole = len(chosen) == len(order)
                part = placed.records if whole else placed.records.take(pa.array(chosen))
                pieces = [
                    to_blob(piece, self.columns.side, placed.name, number)
                    for number, piece in enumerate(cut_small(part))
                ]
                found += [label] * len(pieces)
                blobs += pieces
        return _rows(found, blobs)

    def records(self, table: pa.Table) -> pa.RecordBatch:
        """Turn input rows into records with their time."""
        columns = self.columns
        found = {name: _one(table.column(name)) for name in table.column_names}
        micros = _micros_of(table)
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
        row = pc.index(_bad_times(micros), pa.scalar(value=True)).as_py()
        if row < 0:
            return
        names = [*self.columns.partition_columns, *self.columns.position_columns]
        place = ", ".join(f"{name} {found[name][row].as_py()}" for name in names)
        raise InvalidData(
            f"The {self.columns.side.name.lower()} record at {place} has the timestamp "
            f"{found['timestamp'][row].as_py()}; a join takes times from 1970 on.",
            next_step="Drop and count such records with on_bad_time='drop', or give them a time.",
            reason="join_timestamp",
        )

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


@dataclass(frozen=True)
class Unpacker:
    """Turns a task's results into rows."""

    columns: tuple[SideColumns, ...]
    schema: pa.Schema

    @carried
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpack the rows of one partition of Spark's."""
        freeze_worker_heap()
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
            *(results.column(name) for name in PLACE),
        ]
        for columns in self.columns:
            name = columns.side.name.lower()
            found.append(_micros(results.column(f"{name}_timestamp"), results.column(f"{name}_{MICROS}")))
            found.append(results.column(f"{name}_value"))
            found += [results.column(f"{name}_{each}") for each, _ in columns.further]
        cast = [column.cast(field.type) for column, field in zip(found, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(cast, schema=self.schema)


def as_function(
    mapping: Packer | Unpacker,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow`: Spark looks at a function's signature, not at a class's."""

    def call(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return mapping(batches)

    return call


def _micros(millis: pa.Array, below: pa.Array | None) -> pa.Array:
    micros = pc.multiply(millis, 1000)
    if below is not None:
        # A record handed over by Kafka Streams has none.
        micros = pc.add(micros, pc.fill_null(below, 0).cast(pa.int64()))
    return micros.cast(pa.timestamp("us", tz="UTC"))


def _micros_of(table: pa.Table) -> pa.Array:
    return _one(table.column("timestamp")).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())


def _bad_times(micros: pa.Array) -> pa.Array:
    impossible = pc.or_(pc.less(micros, 0), pc.greater(micros, MAX_TIMESTAMP_MS))
    return pc.or_kleene(pc.is_null(micros), impossible)


def _rows(found: list[int], blobs: list[bytes]) -> pa.RecordBatch:
    arrays = [pa.array(found, pa.int32()), pa.array(blobs, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, schema=PACKED_SCHEMA)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
