"""One micro-batch applied in parts: what the driver holds at a time does not grow with the batch.

::

    cells of a batch   [t 40 MiB] [t 40 MiB] [u 20 MiB] [quarantine] [pending]
    parts              └───── 80 MiB ──────┘ └── the last: all that is no table's row ──┘

Rows of a part take several times their size while they are compared and merged; the cells themselves are as
large as the micro-batch, which the source's bounds keep small. What a table ends with does not depend on the
cuts. Only the last part tells how far reading has come, so that no group of chunks is given up whose missing
piece is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headpond.spark.decoded import gather
from headpond.tables.apply import Applied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headpond.tables.apply import DecodedBatch

PART_BYTES = 96 << 20
"""Decoded rows applied at a time, about: at least one cell, which is what an executor decoded at a time."""

_TABLE = "table"


def parts_of(frame: pa.Table, part_bytes: int = PART_BYTES) -> Iterator[pa.Table]:
    """Cut collected cells into parts, in their order; those that are no table's rows come with the last.

    Args:
        frame: cells (`decoded.FRAME_SCHEMA`); not copied.
        part_bytes: bound of the tables' rows in a part.
    """
    is_rows = pc.equal(frame["kind"], _TABLE).to_pylist()
    sizes = pc.binary_length(frame["content"]).to_pylist()
    part: list[int] = []
    room = part_bytes
    for row, (rows, size) in enumerate(zip(is_rows, sizes, strict=True)):
        if not rows:
            continue
        if part and size > room:
            yield pa.concat_tables([frame.slice(number, 1) for number in part])
            part, room = [], part_bytes
        part.append(row)
        room -= size
    others = [row for row, rows in enumerate(is_rows) if not rows]
    yield pa.concat_tables([frame.slice(0, 0), *(frame.slice(row, 1) for row in (*part, *others))])


def apply_in_parts(
    frame: pa.Table, apply: Callable[[DecodedBatch], Applied], part_bytes: int = PART_BYTES
) -> Applied:
    """Apply the cells of one micro-batch.

    Args:
        frame: the collected cells.
        apply: applies one part.
        part_bytes: as for `parts_of`.

    Returns:
        Figures of all parts, counted as one batch.
    """
    applied = Applied()
    for part in parts_of(frame, part_bytes):
        applied.add(apply(gather(part)))
    applied.batches = 1
    return applied
