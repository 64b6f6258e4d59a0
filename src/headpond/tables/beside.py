"""Apply a batch while another process applies its own to the same lake.

Each write compares versions, so two writers of one key agree on what a table ends with, with one exception:
a writer that read "no tombstone" just before another wrote one may bring a deleted row back. Applying the
batch again finds the tombstone, and mends it; where nobody interfered the second time reads and writes
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.tables.apply import Applied, DecodedBatch, apply_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.tables.apply import Chunks
    from headpond.tables.lake import Lake


def apply_beside(
    lake: Lake,
    batch: DecodedBatch,
    *,
    chunks: Chunks | None = None,
    between: Callable[[str], None] = lambda _: None,
) -> Applied:
    """Apply a batch, and then look once more at the keys it touched.

    Args:
        lake: a prepared lake.
        batch: the decoded changes.
        chunks: as for `apply_batch`.
        between: as for `apply_batch`; called with `second look` between the two.

    Returns:
        Figures of the first time.
    """
    applied = apply_batch(lake, batch, chunks=chunks, between=between)
    kept = lake.current.keys() | lake.histories.keys()
    keyed = {name: rows for name, rows in batch.tables.items() if name in kept}
    if keyed:
        between("second look")
        apply_batch(lake, DecodedBatch(tables=keyed))
    return applied
