"""What the driver must know of a batch whose rows stay with the executors.

Each decoded part of a table has two more cells beside its rows: its shape (columns, how many rows and bytes,
its earliest commit) and its facts (what its rows show of the table's schema, see `changes.schema_changes`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.schema_changes import SCHEMA_CHANGES_SCHEMA, schema_step
from headpond.spark.cells import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

SHAPE, FACTS = "shape", "shown"
"""Kinds of the two cells."""
_FIGURES = b"headpond.figures"


@dataclass(frozen=True, slots=True)
class Shape:
    """One table's changes in a batch: their columns, how many they are, when the first was committed."""

    schema: pa.Schema
    rows: int
    bytes: int
    earliest_ns: int

    def also(self, other: Shape) -> Shape:
        """Both parts as one."""
        return Shape(
            pa.unify_schemas([self.schema, other.schema]),
            self.rows + other.rows,
            self.bytes + other.bytes,
            min(self.earliest_ns, other.earliest_ns),
        )


@dataclass(slots=True)
class Outline:
    """A batch without its rows: shapes and facts of each table."""

    shapes: dict[str, Shape] = field(default_factory=dict)
    facts: dict[str, pa.Table] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of all tables' rows."""
        return sum(shape.bytes for shape in self.shapes.values())


def outline_cells(
    name: str, rows: pa.RecordBatch, size_bytes: int, declared: Mapping[str, Mapping[str, str]]
) -> list[tuple[str, str, bytes]]:
    """Make the two cells of a part; runs on an executor.

    Args:
        name: the table.
        rows: a typed batch of it, not empty.
        size_bytes: what its rows take in their cell.
        declared: table → column → PostgreSQL type, as configured.
    """
    figures = {
        "rows": rows.num_rows,
        "bytes": size_bytes,
        "earliest_ns": pc.min(rows.column("m:ts_ns")).as_py(),
    }
    empty = rows.slice(0, 0).replace_schema_metadata({_FIGURES: json.dumps(figures)})
    cells = [(SHAPE, name, pack(empty))]
    facts = schema_step(
        SCHEMA_CHANGES_SCHEMA.empty_table(), {name: pa.Table.from_batches([rows])}, declared
    ).state
    if facts.num_rows:
        cells.append((FACTS, name, pack(facts)))
    return cells


def outline_of(cells: pa.Table) -> Outline:
    """Read the outline of a batch from its cells of these two kinds; runs on the driver."""
    outline = Outline()
    facts: dict[str, list[pa.Table]] = {}
    for batch in cells.to_batches():
        kinds, names = batch["kind"].to_pylist(), batch["name"].to_pylist()
        for row, (kind, name) in enumerate(zip(kinds, names, strict=True)):
            content = unpack(batch["content"][row].as_buffer())
            if kind == FACTS:
                facts.setdefault(name, []).append(content)
                continue
            shape = Shape(content.schema.remove_metadata(), **json.loads(content.schema.metadata[_FIGURES]))
            outline.shapes[name] = shape.also(outline.shapes[name]) if name in outline.shapes else shape
    outline.facts = {name: pa.concat_tables(parts) for name, parts in facts.items()}
    return outline
