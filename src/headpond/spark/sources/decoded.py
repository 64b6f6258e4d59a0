"""How decoded changes travel from executors to the driver: Arrow streams in the cells of a small frame.

The typed rows of one table have columns of their own, so they cannot share a frame with another table's: each
decoded part is one cell. Where rows stay with the executors, each part has more cells for the driver: its
summary (columns, how many bytes) and, of changes of rows, what these show of the table's schema.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.formats import ChangeFormat, Decoded, add_newest, decoded_parts
from headpond.core.schemas import PENDING_SCHEMA, QUARANTINE_SCHEMA
from headpond.lake.state.schema_changes import SCHEMA_CHANGES_SCHEMA, schema_step
from headpond.lake.target import DecodedBatch, together
from headpond.spark.sources.cells import FRAME_SCHEMA, pack, unpack, write_file

SHAPE, FACTS = "shape", "shown"
"""Kinds of these cells."""
_BYTES = b"headpond.bytes"


@dataclass(frozen=True, slots=True)
class TableSummary:
    """One table's changes in a batch: their columns, and how many bytes they are."""

    schema: pa.Schema
    bytes: int

    def also(self, other: TableSummary) -> TableSummary:
        """Both parts as one."""
        return TableSummary(pa.unify_schemas([self.schema, other.schema]), self.bytes + other.bytes)


@dataclass(slots=True)
class BatchSummary:
    """A batch without its rows: shapes and facts of each table."""

    tables: dict[str, TableSummary] = field(default_factory=dict)
    facts: dict[str, pa.Table] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of all tables' rows."""
        return sum(shape.bytes for shape in self.tables.values())


def summary_cells(
    name: str, rows: pa.RecordBatch, size_bytes: int, declared: Mapping[str, str]
) -> list[tuple[str, str, bytes]]:
    """Make these cells of a part; runs on an executor."""
    # Not a slice without rows, which Arrow would write with the offsets of all rows around it.
    empty = rows.schema.with_metadata({_BYTES: str(size_bytes)}).empty_table()
    cells = [(SHAPE, name, pack(empty))]
    if "m:columns" in rows.schema.names:
        step = schema_step(
            SCHEMA_CHANGES_SCHEMA.empty_table(), {name: pa.Table.from_batches([rows])}, {name: declared}
        )
        cells += [(FACTS, name, pack(step.state))] if step.state else []
    return cells


def summary_of(cells: pa.Table) -> BatchSummary:
    """Read the summary of a batch from its cells of these two kinds; runs on the driver."""
    summary = BatchSummary()
    facts: defaultdict[str, list[pa.Table]] = defaultdict(list)
    for kind, name, packed in _cells_of(cells):
        content = unpack(packed)
        if kind == FACTS:
            facts[name].append(content)
            continue
        shape = TableSummary(content.schema.remove_metadata(), int(content.schema.metadata[_BYTES]))
        summary.tables[name] = shape.also(summary.tables[name]) if name in summary.tables else shape
    summary.facts = {name: pa.concat_tables(parts) for name, parts in facts.items()}
    return summary


def _cells_of(frame: pa.Table) -> Iterator[tuple[str, str, pa.Buffer]]:
    """Yield kind, name and content of each cell, not copied."""
    for batch in frame.to_batches():
        kinds, names = batch["kind"].to_pylist(), batch["name"].to_pylist()
        for row, (kind, name) in enumerate(zip(kinds, names, strict=True)):
            yield kind, name, batch["content"][row].as_buffer()


CELL_BYTES = 4 << 20
"""Rows of a cell, about: Spark holds several copies of a cell in its heap, for each task."""
TABLE, _QUARANTINE, _PENDING, LEDGER_FACTS = "table", "quarantine", "pending", "facts"
ROWS = (TABLE, _QUARANTINE, _PENDING, LEDGER_FACTS)
"""Kinds of the cells that hold rows, of which files may take the place; the last are a ledger's."""
FILE = "file"
"""Kind of a cell that names a file of rows (`cells.Folder`), instead of holding them."""
_COUNTERS, _ARRIVALS, _NEWEST = "counters", "arrivals", "newest"


def decode_partition(
    config: ChangeFormat,
    batches: Iterable[pa.RecordBatch],
    *,
    summary: bool = False,
    folder: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decode the user records of one partition to batches of `FRAME_SCHEMA`; runs on an executor.

    With `summary` cells come that sum the tables' parts up without their rows. Rows are put into `folder` for
    a driver on the same machine; None: into the cells.
    """
    rules = config if summary else None
    for batch in batches:
        parts = [cell for decoded in decoded_parts(config, batch) for cell in _cells(decoded, folder, rules)]
        if batch.num_rows:
            size = pc.sum(pc.binary_length(batch.column("data"))).as_py() or 0
            parts.append((_COUNTERS, "", json.dumps({"data_bytes": size}).encode()))
        if newest := _newest_arrivals_us(batch):
            parts.append((_ARRIVALS, "", json.dumps(newest).encode()))
        if parts:
            yield pa.RecordBatch.from_arrays(
                [list(column) for column in zip(*parts, strict=True)], schema=FRAME_SCHEMA
            )


def _cells(
    decoded: Decoded, folder: str | None, rules: ChangeFormat | None
) -> Iterator[tuple[str, str, bytes]]:
    parts = [(TABLE, name, rows) for name, rows in decoded.tables.items()]
    parts += [(_QUARANTINE, "", decoded.quarantine), (_PENDING, "", decoded.pending)]
    parts += [(LEDGER_FACTS, name, rows) for name, rows in decoded.facts.items()]
    parts = [each for each in parts if each[2].num_rows]
    file = write_file(folder, parts) if parts and folder is not None else None
    if file is not None:
        yield FILE, file, b""
    for kind, name, rows in parts if file is None else ():
        contents = [pack(part) for part in _of_cells(rows)]
        yield from ((kind, name, content) for content in contents)
        if rules is not None and kind == TABLE:
            entry = rules.entry(name)
            declared = entry.columns if entry is not None else {}
            yield from summary_cells(name, rows, sum(map(len, contents)), declared)
    if decoded.newest:
        yield _NEWEST, "", json.dumps(decoded.newest).encode()
    if decoded.counters:
        yield _COUNTERS, "", json.dumps(decoded.counters).encode()


def _of_cells(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut rows into parts that are about as large as a cell may be."""
    at_once = max(1, CELL_BYTES * rows.num_rows // (rows.nbytes + 1))
    return (rows.slice(start, at_once) for start in range(0, rows.num_rows, at_once))


def gather(frame: pa.Table) -> DecodedBatch:
    """Put the collected parts of one micro-batch together; runs on the driver."""
    cells = list(_cells_of(frame))
    batch = batch_of((kind, name, unpack(cell)) for kind, name, cell in cells if kind in ROWS)
    newest = batch.newest_arrivals_us
    for kind, _, content in cells:
        if kind == _COUNTERS:
            batch.counters.update(json.loads(content.to_pybytes()))
        elif kind == _NEWEST:
            add_newest(batch.newest, json.loads(content.to_pybytes()))
        elif kind == _ARRIVALS:
            for shard, arrival_us in json.loads(content.to_pybytes()).items():
                newest[shard] = max(arrival_us, newest.get(shard, arrival_us))
    return batch


def batch_of(rows: Iterable[tuple[str, str, pa.Table]]) -> DecodedBatch:
    """Return rows, each with their kind and name, as a batch that has nothing else."""
    found: defaultdict[str, defaultdict[str, list[pa.Table]]] = defaultdict(lambda: defaultdict(list))
    for kind, name, part in rows:
        found[kind][name].append(part)
    return DecodedBatch(
        together(found[TABLE]),
        pa.concat_tables([QUARANTINE_SCHEMA.empty_table(), *found[_QUARANTINE][""]]),
        pa.concat_tables([PENDING_SCHEMA.empty_table(), *found[_PENDING][""]]),
        facts=together(found[LEDGER_FACTS]),
    )


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
