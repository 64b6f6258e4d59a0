"""Chunks and manifests as the bytes that a state holds.

::

    chunk      two Arrow IPC streams, one after the other, their buffers compressed with zstd
     first     one row per record, by arrival
      metadata   headpond.join.chunk = version, value_format, rows, first number of each column of differences
      ts, seq    differences to the record before, in the narrowest integers that hold them
      key        dictionary of keys where they repeat, else sizes
      payload    sizes
      …          further columns; 64-bit integers as differences, too
     second    one row: what sizes cut, all of a column in one
      key        binary
      payload    the records' values in the declared format: plain | timestamped | timestamped+headers |
                 plain+headers ([headersSize][headersBytes][value])

    Arrow's own offsets of binary columns grow from row to row and hardly compress: 3 bytes each.
    Version 1 was the first stream alone, with `key` and `payload` as binary columns.

    manifest   JSON: version, fingerprint, clock, and per chunk its number, uid, side, rows, times, bytes,
               and the bitmap of its waiting rows (zlib, base64)

A value goes into an older format as KIP-1300's adapters put it there (timestamp -1, headers lost where there
is no place for them) and comes back as they read it. Decoded chunks are the same whatever format they had.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from headpond.core.arrow import offsets_of
from headpond.core.errors import InvalidData
from headpond.core.hashes import hash_keys
from headpond.kstreams.bytes.headers_arrow import join_prefix, split_prefix
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.bytes.window_values import ValueFormat
from headpond.kstreams.bytes.window_values_arrow import convert_values
from headpond.kstreams.join.chunks import Chunk, HeldChunk, Inputs, Kept, Reached, TaskState, Waits
from headpond.kstreams.join.pairs import Int64, Rows
from headpond.kstreams.join.rules import JoinClock


class Load(Protocol):
    """Reads the records of a chunk, by its side, number and uid; whether it is one of held records."""

    def __call__(self, side: Side, number: int, uid: bytes, /, *, held: bool) -> Rows:
        """Return them."""


CHUNK_VERSION = 2
READABLE = (1, CHUNK_VERSION)
MANIFEST_VERSION = 1
_META = b"headpond.join.chunk"
_OPTIONS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
_REPEATS = 2
"""Keys go into a dictionary if each occurs at least this often, on average."""


def encode_chunk(rows: Rows, value_format: ValueFormat) -> bytes:
    """Write records as a chunk's bytes."""
    records = rows.records
    meta: dict[str, Any] = {
        "version": CHUNK_VERSION,
        "value_format": value_format.value,
        "rows": len(rows),
        "first": {},
    }
    names = ["ts", "seq", "key", "payload"]
    columns = [_differences(rows.ts, "ts", meta), _differences(rows.seq, "seq", meta)]
    keys = records.column("key")
    encoded = keys.dictionary_encode()
    together: dict[str, pa.Array] = {}
    if len(encoded.dictionary) * _REPEATS <= len(keys):
        narrow = pa.int16() if len(encoded.dictionary) < 1 << 15 else pa.int32()
        columns.append(encoded.cast(pa.dictionary(narrow, pa.binary())))
    else:
        columns.append(_sizes(keys, "key", together))
    payload = join_prefix(records.column("headers"), records.column("value"))
    stored = convert_values(payload, ValueFormat.PLAIN_HEADERS, value_format)
    columns.append(_sizes(stored, "payload", together))
    for field in records.schema:
        if field.name in ("key", "headers", "value"):
            continue
        column = records.column(field.name)
        # The prefix keeps a further column that is called like one of ours apart.
        names.append(f"x.{field.name}")
        if pa.types.is_int64(field.type) and not column.null_count:
            columns.append(_differences(column.to_numpy(), names[-1], meta))
        else:
            columns.append(column)
    batch = pa.RecordBatch.from_arrays(columns, names=names)
    batch = batch.replace_schema_metadata({_META: orjson.dumps(meta)})
    sink = pa.BufferOutputStream()
    for part in (batch, pa.RecordBatch.from_pydict(together)):
        with pa.ipc.new_stream(sink, part.schema, options=_OPTIONS) as writer:
            writer.write_batch(part)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_chunk(data: bytes, schema: pa.Schema) -> Rows:
    """Read a chunk's bytes.

    Args:
        data: the bytes.
        schema: the records' columns as the join has them now. A further column that the chunk does not have
            is null; one that only the chunk has is left out.

    Raises:
        InvalidData: the bytes are no chunk of a version known here, or a column has another type than now.
    """
    try:
        source = pa.BufferReader(data)
        [batch] = pa.ipc.open_stream(source)
        meta = orjson.loads((batch.schema.metadata or {})[_META])
        together = {}
        if meta["version"] == CHUNK_VERSION:
            [second] = pa.ipc.open_stream(source)
            together = dict(zip(second.schema.names, second.columns, strict=True))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise _damaged(f"A chunk of the join's state cannot be read: {error}.") from error
    if meta.get("rows") != len(batch) and meta["version"] in READABLE:
        raise _damaged(f"A chunk of a join's state has {len(batch)} rows of {meta.get('rows')}.")
    if meta["version"] not in READABLE:
        raise _too_new("A chunk of a join's state", "join_chunk", meta["version"], READABLE)
    found = dict(zip(batch.schema.names, batch.columns, strict=True))
    found |= {name: _cut(found[name], data) for name, data in together.items()}
    value_format = ValueFormat(meta["value_format"])
    payload = convert_values(found["payload"], value_format, ValueFormat.PLAIN_HEADERS)
    headers, values = split_prefix(payload)
    keys = found["key"]
    keys = keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys
    columns = []
    for field in schema:
        if field.name in ("key", "headers", "value"):
            columns.append({"key": keys, "headers": headers, "value": values}[field.name])
            continue
        name = f"x.{field.name}"
        column = found.get(name)
        if column is None:
            column = pa.nulls(len(keys), field.type)
        elif name in meta["first"]:
            column = pa.array(_summed(column, meta["first"][name]))
        if column.type != field.type:
            raise InvalidData(
                f"Column {field.name} is {column.type} in the join's state and {field.type} in its input.",
                next_step="Cast the column in the query, or start with a new checkpoint.",
                reason="join_column_type",
                column=field.name,
            )
        columns.append(column)
    first = meta["first"]
    return Rows(
        pa.RecordBatch.from_arrays(columns, schema=schema),
        _summed(found["ts"], first["ts"]),
        _summed(found["seq"], first["seq"]),
        hash_keys(keys),
    )


def schema_of_chunk(data: bytes) -> pa.Schema:
    """Return the schema of the records in a chunk, its further columns included."""
    with pa.ipc.open_stream(data) as reader:
        schema = reader.schema
    first = orjson.loads(schema.metadata[_META])["first"]
    further = [
        pa.field(field.name.removeprefix("x."), pa.int64() if field.name in first else field.type)
        for field in schema
        if field.name.startswith("x.")
    ]
    return pa.schema([*(pa.field(name, pa.binary()) for name in ("key", "headers", "value")), *further])


def encode_manifest(state: TaskState, fingerprint: dict[str, Any]) -> bytes:
    """Write everything of a task's state but the chunks' bytes."""
    clock = state.clock
    document = {
        "version": MANIFEST_VERSION,
        "fingerprint": fingerprint,
        "stream_time": clock.stream_time,
        "observed": {side.name.lower(): time for side, time in clock.observed.items()},
        "min_time": clock.min_time,
        "next_emit_ms": clock.next_emit_ms,
        "next_seq": state.next_seq,
        "next_chunk": state.next_chunk,
        "results": state.results,
        "chunks": [
            {
                **_chunk_document(side, chunk),
                **({"waiting": waits.bitmap, "waiting_rows": waits.count} if waits.count else {}),
            }
            for side, each in state.sides.items()
            for chunk, waits in each
        ],
        "inputs": _inputs_document(state),
    }
    return orjson.dumps(document)


def _inputs_document(state: TaskState) -> dict[str, Any]:
    inputs = state.inputs
    return {
        "since_ms": inputs.since_ms,
        "pieces": inputs.pieces,
        "reached": {
            side.name.lower(): [[name, each.head, each.seen_ms] for name, each in known.items()]
            for side, known in inputs.reached.items()
        },
        "held": [
            {
                **_chunk_document(side, each.chunk),
                "partitions": each.partitions,
                "taken": each.taken,
                "from_head": each.from_head,
            }
            for side, each in state.held()
        ],
    }


def _chunk_document(side: Side, chunk: Chunk) -> dict[str, Any]:
    return {
        "number": chunk.number,
        "uid": chunk.uid.hex(),
        "side": side.name.lower(),
        "rows": chunk.rows,
        "min_ts": chunk.min_ts,
        "max_ts": chunk.max_ts,
        "slice": chunk.time_slice,
        "longest": chunk.longest,
        "bytes": chunk.bytes,
    }


def read_manifest(data: bytes) -> dict[str, Any]:
    """Read a manifest as it was written.

    Raises:
        InvalidData: it is none, or of a version not known here.
    """
    try:
        document: dict[str, Any] = orjson.loads(data)
        version = document["version"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        shown = f"The manifest of a join task cannot be read: {data[:60]!r}."
        raise _damaged(shown, "join_manifest") from error
    if version != MANIFEST_VERSION:
        raise _too_new("The manifest of a join task", "join_manifest", version, (MANIFEST_VERSION,))
    return document


def state_of(document: dict[str, Any], sides: tuple[Side, ...], load: Load) -> TaskState:
    """Make a task's state of its manifest; `load(side, number, uid, held)` gives a chunk when asked for."""
    found: dict[Side, list[Kept]] = {side: [] for side in sides}
    for entry in document["chunks"]:
        side, chunk = _chunk_of(entry, load, held=False)
        waits = Waits.read(entry.get("waiting", ""), chunk.rows, entry.get("waiting_rows", 0))
        found[side].append(Kept(chunk, waits))
    clock = JoinClock(
        document["stream_time"],
        {Side[name.upper()]: time for name, time in document["observed"].items()},
        document["min_time"],
        document["next_emit_ms"],
    )
    states = {side: tuple(each) for side, each in found.items()}
    inputs = _inputs_of(document.get("inputs", {}), load)
    results = document.get("results", 0)
    return TaskState(clock, document["next_seq"], document["next_chunk"], states, inputs, results)


def _inputs_of(document: dict[str, Any], load: Load) -> Inputs:
    """Read what a manifest says of the inputs; older ones say nothing."""
    held: dict[Side, tuple[HeldChunk, ...]] = {}
    for entry in document.get("held", ()):
        side, chunk = _chunk_of(entry, load, held=True)
        partitions = tuple(tuple(name) for name in entry["partitions"])
        held[side] = (*held.get(side, ()), HeldChunk(chunk, partitions, entry["taken"], entry["from_head"]))
    reached = {
        Side[side.upper()]: {tuple(name): Reached(head, seen_ms) for name, head, seen_ms in known}
        for side, known in document.get("reached", {}).items()
    }
    return Inputs(reached, held, document.get("since_ms"), document.get("pieces", 0))


def _chunk_of(entry: dict[str, Any], load: Load, *, held: bool) -> tuple[Side, Chunk]:
    side, uid = Side[entry["side"].upper()], bytes.fromhex(entry["uid"])
    rows = partial(load, side, entry["number"], uid, held=held)
    return side, Chunk(
        entry["number"], uid, entry["rows"], entry["min_ts"], entry["max_ts"], entry["slice"],
        entry["longest"], entry["bytes"], rows,
    )  # fmt: skip


def _damaged(message: str, reason: str = "join_chunk") -> InvalidData:
    return InvalidData(message, next_step="Restore the checkpoint, or start with a new one.", reason=reason)


def _too_new(what: str, reason: str, version: object, readable: tuple[int, ...]) -> InvalidData:
    return InvalidData(
        f"{what} has version {version}; this headpond reads {' and '.join(map(str, readable))}.",
        next_step="Run the headpond version that wrote the checkpoint, or a newer one.",
        reason=f"{reason}_version",
    )


def _differences(numbers: Int64, name: str, meta: dict[str, Any]) -> pa.Array:
    """Numbers as differences to the one before, in the narrowest type; the first goes into the metadata."""
    meta["first"][name] = int(numbers[0]) if len(numbers) else 0
    # Arithmetic modulo 2^64 on both ways: any numbers come back.
    steps = np.diff(numbers.view(np.uint64), prepend=numbers.view(np.uint64)[:1]).view(np.int64)
    for kind in (np.int8, np.int16, np.int32):
        info = np.iinfo(kind)
        if not len(steps) or (steps.min() >= info.min and steps.max() <= info.max):
            return pa.array(steps.astype(kind))
    return pa.array(steps)


def _summed(steps: pa.Array, first: int) -> Int64:
    numbers: npt.NDArray[np.int64] = steps.to_numpy().astype(np.int64)
    if not len(numbers):
        return numbers
    unsigned = np.cumsum(numbers.view(np.uint64), dtype=np.uint64)
    unsigned += np.array([first], np.int64).view(np.uint64)
    summed: Int64 = unsigned.view(np.int64)
    return summed


def _sizes(column: pa.Array, name: str, together: dict[str, pa.Array]) -> pa.Array:
    """Sizes of a binary column's values, without nulls; the values go together into one."""
    data, bounds = column.buffers()[2], offsets_of(column)
    first, last = int(bounds[0]), int(bounds[-1])
    content = pa.py_buffer(b"") if data is None else data.slice(first, last - first)
    around = pa.py_buffer(np.array([0, last - first], np.int64))
    together[name] = pa.Array.from_buffers(pa.large_binary(), 1, [None, around, content])
    sizes = np.diff(bounds)
    largest = int(sizes.max()) if len(sizes) else 0
    kind = next(each for each in (np.uint8, np.uint16, np.uint32) if largest <= np.iinfo(each).max)
    return pa.array(sizes.astype(kind))


def _cut(sizes: pa.Array, together: pa.Array) -> pa.Array:
    """Make the binary column that `_sizes` took apart."""
    _, around, content = together.buffers()
    first, last = np.frombuffer(around, np.int64)[together.offset : together.offset + 2].tolist()
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes.to_numpy(), dtype=np.int64, out=bounds[1:])
    if int(bounds[-1]) != last - first:
        raise _damaged(
            f"A chunk of a join's state has {last - first} bytes of values for sizes of {bounds[-1]}."
        )
    data = pa.py_buffer(b"") if content is None else content.slice(first, last - first)
    offsets = pa.py_buffer(bounds.astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, offsets, data])
