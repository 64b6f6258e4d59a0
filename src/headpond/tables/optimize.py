"""Housekeeping of a lake's Delta tables: few large files, a short log, and no files that nobody needs.

::

    many small files ── compact ──► files of about the target size     (the small ones stay for readers)
    many log entries ── checkpoint ► one Parquet file to begin with
    files no version of the last days needs ── vacuum ──► gone

Another writer's commit in between makes compaction start again, and the other way round; rows stay as they
are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.errors import UsageError
from headpond.tables.delta import DeltaFile, writer_of
from headpond.tables.lake import OWN_FOLDER
from headpond.tables.ledger import LedgerLake

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalake import DeltaTable

    from headpond.tables.lake import Lake

HOUR_MS = 3_600_000
SAFE_RETENTION_MS = 7 * 24 * HOUR_MS
"""Younger files may still be read by a query that began before, or be part of a commit under way."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Files of a table's newest version, and their bytes."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Optimized:
    """What housekeeping did to one table.

    Attributes:
        before: sizes at the start.
        after: sizes at the end.
        vacuumed: files removed because no version within the retention needs them; null without a vacuum.
    """

    before: Sizes
    after: Sizes
    vacuumed: int | None


def files_of(lake: Lake | LedgerLake) -> Iterator[tuple[str, DeltaFile]]:
    """Every Delta table of a lake that is there, the configured ones first, then `_headpond/…`."""
    if isinstance(lake, LedgerLake):
        yield from lake.files()
        return
    found = {name: typed.file for name, typed in lake.typed.items()}
    for part in (*vars(lake).values(), lake.deletes.facts, lake.unknown.index):
        file = getattr(part, "file", None)
        if isinstance(file, DeltaFile):
            found[f"{OWN_FOLDER}/{file.uri.rpartition('/')[2]}"] = file
    for log in lake.unknown.logs.values():
        found[f"{OWN_FOLDER}/unknown/{log.typed.file.uri.rpartition('/')[2]}"] = log.typed.file
    yield from ((name, file) for name, file in found.items() if file.exists())


def check_retention(retain_ms: int | None, *, unsafe: bool) -> None:
    """Refuse a vacuum that could take files away from a reader.

    Raises:
        UsageError: the retention is shorter than `SAFE_RETENTION_MS`, and that was not allowed.
    """
    if retain_ms is not None and retain_ms < SAFE_RETENTION_MS and not unsafe:
        raise UsageError(
            f"A retention of {retain_ms / HOUR_MS:g} hours is shorter than 7 days: readers and commits "
            "under way could lose files that they need.",
            next_step="Retain at least 7 days, or say --unsafe-retention while nothing else uses the lake.",
            retain_ms=retain_ms,
        )


def optimize_file(
    file: DeltaFile,
    *,
    target_bytes: int | None = None,
    retain_ms: int | None = None,
    unsafe: bool = False,
    order_by: Sequence[str] = (),
) -> Optimized:
    """Compact a table's files, write a checkpoint of its log, and remove old files if that is wanted.

    Args:
        file: the table; it must exist.
        target_bytes: size the files are to have; null leaves it to deltalake (100 MiB).
        retain_ms: remove files that no version of this time needs, in whole hours, rounded up; null: none.
        unsafe: whether `retain_ms` may be below `SAFE_RETENTION_MS`.
        order_by: Delta columns by which rows are put in order, all files rewritten (Z-order where there are
            several): then a file has a narrow range of them, and merges pass over most files.

    Raises:
        UsageError: the retention is too short.
    """
    check_retention(retain_ms, unsafe=unsafe)
    before = _sizes(file.open())
    if order_by:
        file.committing(
            lambda table: table.optimize.z_order(
                list(order_by), target_size=target_bytes, writer_properties=writer_of(table)
            )
        )
    else:
        file.committing(
            lambda table: table.optimize.compact(target_size=target_bytes, writer_properties=writer_of(table))
        )
    vacuumed = None
    if retain_ms is not None:
        hours = -(-retain_ms // HOUR_MS)

        def vacuum(table: DeltaTable) -> list[str]:
            return table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=not unsafe)

        vacuumed = len(file.committing(vacuum))
    table = file.open()
    table.create_checkpoint()
    return Optimized(before, _sizes(table), vacuumed)


def _sizes(table: DeltaTable) -> Sizes:
    actions: Any = pa.table(table.get_add_actions(flatten=True))
    return Sizes(actions.num_rows, pc.sum(actions["size_bytes"]).as_py() or 0)
