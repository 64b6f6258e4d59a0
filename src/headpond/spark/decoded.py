"""How decoded changes travel from executors to the driver: Arrow streams inside a small frame.

The typed rows of one table have columns of their own, so they cannot share a frame with another table's.
Each decoded part is therefore one cell: an Arrow IPC stream, made on the executor and opened on the driver
without a copy per row.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.decoders import decode
from headpond.changes.dsql import Shapes
from headpond.changes.schemas import PENDING_SCHEMA, QUARANTINE_SCHEMA
from headpond.spark.cells import FRAME_SCHEMA, pack, unpack
from headpond.spark.handover import hand_over
from headpond.spark.outline import outline_cells
from headpond.tables.batch import DecodedBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headpond.changes.decoders import Config

TABLE, _QUARANTINE, _PENDING = "table", "quarantine", "pending"
FILE = "file"
"""Kind of a cell that names a file (`handover`) of a table's rows, instead of holding them."""
_COUNTERS, _ARRIVALS, _FACTS = "counters", "arrivals", "facts"

_SHAPES = Shapes()
"""Of the records that a worker has met, kept from task to task."""


def decode_partition(
    config: Config, batches: Iterable[pa.RecordBatch], *, outline: bool = False, folder: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Decode the user records of one partition; runs on an executor.

    Args:
        config: the tables and rules.
        batches: batches with the columns of `USER_RECORD_SCHEMA`.
        outline: whether cells come that tell of the tables' parts without their rows.
        folder: where rows are put for the driver, on the same machine; null: into the cells.

    Yields:
        Batches of `FRAME_SCHEMA`.
    """
    for batch in batches:
        decoded = decode(batch, config, shapes=_SHAPES)
        parts = [_rows_cell(name, rows, folder) for name, rows in decoded.tables.items() if rows.num_rows]
        if outline:
            declared = {spec.name: spec.columns for spec in config.tables}
            for _, name, content in list(parts):
                parts += outline_cells(name, decoded.tables[name], len(content), declared)
        if decoded.quarantine.num_rows:
            parts.append((_QUARANTINE, "", pack(decoded.quarantine)))
        if decoded.pending.num_rows:
            parts.append((_PENDING, "", pack(decoded.pending)))
        parts += [(_FACTS, name, pack(rows)) for name, rows in decoded.facts.items()]
        if batch.num_rows:
            size = pc.sum(pc.binary_length(batch.column("data"))).as_py() or 0
            parts.append((_COUNTERS, "", json.dumps(decoded.counters | {"data_bytes": size}).encode()))
        if newest := _newest_arrivals_us(batch):
            parts.append((_ARRIVALS, "", json.dumps(newest).encode()))
        if parts:
            yield pa.RecordBatch.from_arrays(
                [list(column) for column in zip(*parts, strict=True)], schema=FRAME_SCHEMA
            )


def _rows_cell(name: str, rows: pa.RecordBatch, folder: str | None) -> tuple[str, str, bytes]:
    file = hand_over(folder, name, rows) if folder is not None else None
    return (TABLE, name, pack(rows)) if file is None else (FILE, file, b"")


def gather(frame: pa.Table) -> DecodedBatch:
    """Put the collected parts of one micro-batch together; runs on the driver."""
    batch = DecodedBatch()
    tables: dict[str, list[pa.Table]] = {}
    facts: dict[str, list[pa.Table]] = {}
    refused: list[pa.Table] = []
    pending: list[pa.Table] = []
    counters: Counter[str] = Counter()
    for chunk in frame.to_batches():
        kinds, names = chunk["kind"].to_pylist(), chunk["name"].to_pylist()
        for row, (kind, name) in enumerate(zip(kinds, names, strict=True)):
            content = chunk["content"][row].as_buffer()
            if kind == TABLE:
                tables.setdefault(name, []).append(unpack(content))
            elif kind == _FACTS:
                facts.setdefault(name, []).append(unpack(content))
            elif kind == _QUARANTINE:
                refused.append(unpack(content))
            elif kind == _PENDING:
                pending.append(unpack(content))
            elif kind == _COUNTERS:
                counters.update(json.loads(content.to_pybytes()))
            else:
                for shard, arrival_us in json.loads(content.to_pybytes()).items():
                    newest = batch.newest_arrivals_us
                    newest[shard] = max(arrival_us, newest.get(shard, arrival_us))
    # Batches of one table differ where they brought columns the others did not have.
    batch.tables = {
        name: pa.concat_tables(parts, promote_options="default") for name, parts in sorted(tables.items())
    }
    batch.facts = {name: pa.concat_tables(parts) for name, parts in facts.items()}
    batch.quarantine = pa.concat_tables([QUARANTINE_SCHEMA.empty_table(), *refused])
    batch.pending = pa.concat_tables([PENDING_SCHEMA.empty_table(), *pending])
    batch.counters = counters
    return batch


def _newest_arrivals_us(batch: pa.RecordBatch) -> dict[str, int]:
    arrivals = pa.table(
        {
            "shard": batch.column("shard_id"),
            "arrival": batch.column("approximate_arrival_timestamp").cast(pa.int64()),
        }
    )
    newest = arrivals.group_by("shard").aggregate([("arrival", "max")])
    pairs = zip(newest["shard"].to_pylist(), newest["arrival_max"].to_pylist(), strict=True)
    return {shard: arrival for shard, arrival in pairs if arrival is not None}
