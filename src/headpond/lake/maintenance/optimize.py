"""Housekeeping of a lake's Delta tables: few large files, a short log, nothing unneeded.

::

    many small files ── compact ──► files of about the target size     (the small ones stay for readers)
    many log entries ── checkpoint ► one Parquet file to begin with
    files no version of the last days needs ── vacuum ──► gone

Rows stay as they are, and the versions before stay readable until a vacuum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headpond.lake.delta import DeltaFile, Size, writer_of
from headpond.lake.engine.merge import Alone

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Optimized:
    """What housekeeping did to one table.

    `vacuumed`: files removed, None without a vacuum; `rewritten_bytes`: what each of the last batches wrote
    again where deletion vectors would avoid that.
    """

    before: Size
    after: Size
    vacuumed: int | None
    rewritten_bytes: int = 0


def optimize_file(
    file: DeltaFile,
    *,
    target_bytes: int | None = None,
    retain_ms: int | None = None,
    order_by: Sequence[str] = (),
    alone: Alone | None = None,
) -> Optimized:
    """Compact a table that is there, write a checkpoint of its log, and remove old files if that is wanted.

    Args:
        file: the table.
        target_bytes: size the files are to have; None: as the table says, or 100 MiB.
        retain_ms: remove files that no version of this time needs; None: none. A query, and another writer's
            commit, that takes longer may lose files that it needs.
        order_by: sort all rows by these Delta columns (Z-order): merges then skip most files.
        alone: as of `engine.merge`.
    """
    before, rewritten = file.size(), file.rewriting()
    if order_by:
        file.committing(
            lambda table: table.optimize.z_order(
                list(order_by), target_size=target_bytes, writer_properties=writer_of(table)
            )
        )
    else:
        file.compact(file_bytes=target_bytes, alone=alone)
    vacuumed = None if retain_ms is None else file.vacuum(retain_ms)
    file.shorten_log(retain_ms)
    return Optimized(before, file.size(), vacuumed, rewritten)
