"""Apply a batch whatever one of its records does: halve it until that record is found, and quarantine it.

::

    apply(batch) fails ─┬► apply(first half)
                        └► apply(second half) fails ─┬► apply(third quarter)
                                                     └► … one row: quarantined as `internal_error`

Applying a part again changes nothing, and the result does not depend on cuts: what was written before the
failure stays. An environment's fault (a full disk, a lost race, a damaged table) is not a record's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from headpond.core.errors import HeadpondError, RecordFault
from headpond.core.formats import INTERNAL_ERROR, quarantined_changes, shown_fault
from headpond.core.schemas import ORIGIN_COLUMNS, OWN
from headpond.lake.target import DecodedBatch

if TYPE_CHECKING:
    from headpond.lake.apply import Applied

MAX_FAULTS = 20
"""Records of one batch that may fail: more of them have a cause in common, which is not a record."""

OF_RECORDS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a record may make headpond raise; errors of its own are not among them, nor those of a system."""


def apply_sparing(
    batch: DecodedBatch, apply: Callable[[DecodedBatch], Applied], *, most: int = MAX_FAULTS
) -> Applied:
    """Apply a batch; a record that headpond fails on goes to quarantine, and the others are applied.

    `apply` applies one, as `lake.apply.apply_batch` does, and is called again with parts of it; at most
    `most` records may fail.

    Raises:
        RecordFault: the batch does not keep the bytes of the record; decode it again with `keep_data`.
        Exception: what `apply` raises, where it is not a record's fault or too many fail.
    """
    faulty: list[pa.Table] = []

    def attempt(part: DecodedBatch) -> Applied:
        try:
            return apply(part)
        except (HeadpondError, OSError, MemoryError):
            raise
        except OF_RECORDS as fault:
            if (count := _size(part)) > 1:
                applied = attempt(_cut(part, 0, count // 2))
                applied.add(attempt(_cut(replace(part, counters=type(part.counters)()), count // 2, count)))
                applied.batches = 1
                return applied
            if len(faulty) == most or not (rows := _quarantined(part, fault)).num_rows:
                raise
            faulty.append(rows)
            return apply(DecodedBatch(counters=part.counters))

    applied = attempt(batch)
    if faulty:
        applied.add(apply(DecodedBatch(quarantine=pa.concat_tables(faulty))))
        applied.batches = 1
    return applied


def _size(batch: DecodedBatch) -> int:
    parts = (batch.pending, *batch.tables.values(), *batch.facts.values())
    return sum(len(rows) for rows in parts)


def _cut(batch: DecodedBatch, start: int, end: int) -> DecodedBatch:
    """Return some of the rows; what is quarantined already comes with the first."""
    at = 0

    def taken(rows: pa.Table) -> pa.Table:
        nonlocal at
        first, at = at, at + rows.num_rows
        low, high = max(start, first), min(end, at)
        return rows.slice(low - first, max(0, high - low))

    return replace(
        batch,
        tables={name: taken(rows) for name, rows in batch.tables.items()},
        pending=taken(batch.pending),
        facts={name: taken(rows) for name, rows in batch.facts.items()},
        quarantine=batch.quarantine if start == 0 else batch.quarantine.slice(0, 0),
    )


def _quarantined(part: DecodedBatch, fault: Exception) -> pa.Table:
    """Return the quarantine row of the one row of a part; none where its record is not known.

    A change of a log is there with its place alone: its bytes travel as images.
    """
    rows = next((rows for rows in part.tables.values() if rows.num_rows), None)
    if rows is None:
        rows = pa.table({f"{OWN}{name}": part.pending[name] for name in (*ORIGIN_COLUMNS, "data")})
    elif rows[f"{OWN}data"].null_count and rows[f"{OWN}stream"].null_count:
        raise RecordFault(
            f"headpond failed on a change: {shown_fault(fault)}.",
            next_step="Follow the stream again with keep_data=True: the record goes to quarantine.",
        ) from fault
    return quarantined_changes(rows, INTERNAL_ERROR, shown_fault(fault))
