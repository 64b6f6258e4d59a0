"""Housekeeping of a lake's Delta tables: few large files, a short log, nothing unneeded.

::

    many small files ── compact ──► files of about the target size     (the small ones stay for readers)
    many log entries ── checkpoint ► one Parquet file to begin with
    files no version of the last days needs ── vacuum ──► gone

    property headpond.buckets = 0 ──► all rows, overwritten in one commit ──► headpond.buckets = N
                    a pipeline refuses a table that says 0: what lies between is never merged into

Another writer's commit in between makes compaction start again, and the other way round. Rows stay as they
are; a table that is partitioned again goes through memory in batches, and the versions before stay readable
until a vacuum.
"""

from __future__ import annotations

import queue
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

from headpond.core.errors import UsageError
from headpond.lake.delta import Size, plain, quoted, selected, writer_of
from headpond.lake.engine.log import EXPRESSION
from headpond.lake.naming import BUCKET, PROPERTY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalake import DeltaTable

    from headpond.lake.delta import DeltaFile
    from headpond.lake.engine.merge import Alone
    from headpond.lake.target import Target

HOUR_MS = 3_600_000
SAFE_RETENTION_MS = 7 * 24 * HOUR_MS
"""Younger files may still be read by a query that began before, or be part of a commit under way."""


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


def check_retention(retain_ms: int | None, *, unsafe: bool) -> None:
    """Refuse a vacuum that could remove files under a reader."""
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
    alone: Alone | None = None,
) -> Optimized:
    """Compact a table's files, write a checkpoint of its log, and remove old files if that is wanted.

    Args:
        file: the table; it must exist.
        target_bytes: size the files are to have; None: as the table says, or 100 MiB.
        retain_ms: remove files that no version of this time needs; None: none.
        unsafe: whether `retain_ms` may be below `SAFE_RETENTION_MS`.
        order_by: sort all rows by these Delta columns (Z-order): merges then skip most files.
        alone: compact beside batches, which are held up for the commits alone (`engine.merge`).
    """
    check_retention(retain_ms, unsafe=unsafe)
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


def _texts(field: pa.Field) -> dict[str, str | None]:
    return {name.decode(): text.decode() for name, text in (field.metadata or {}).items()}


_PARTS_AHEAD = 4
_PAUSE_S = 0.2


def repartition(target: Target) -> bool:
    """Write a table again with the partitions of its entry; return whether there was anything to do.

    Nothing else may write to it meanwhile.
    """
    typed, file = target.typed, target.typed.file
    if not file.exists():
        raise UsageError(
            f"The table {typed.name!r} is not there yet.",
            next_step="Nothing is to be done: it will be made as its entry says.",
            table=typed.name,
        )
    wanted = typed.wanted_partitions()
    have = wanted.of_file(file)
    if have.way == wanted.way:
        return False
    schema = file.schema()
    needed = [column for column in wanted.columns if column not in wanted.expressions]
    needed += [typed.column(each.column) for each in typed.derived.values()]
    if missing := [column for column in needed if column not in schema.names]:
        raise UsageError(
            f"The table {typed.name!r} has no column {missing[0]!r} yet.",
            next_step="Let the pipeline run once without partition_by: it adds declared columns.",
            table=typed.name,
        )
    dealing = {BUCKET, *have.expressions}
    kept = [field for field in schema if field.name not in dealing]
    made = pa.schema([*kept, *(field.remove_metadata() for field in typed.dealing_fields)])

    def attempt(table: DeltaTable) -> None:
        with _rows_of(table, [field.name for field in kept]) as parts:
            dealt = (typed.dealt(part, made, target.key_texts) for part in parts)
            batches = (batch for part in dealt for batch in part.to_batches())
            write_deltalake(
                table,
                pa.RecordBatchReader.from_batches(made, batches),
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=wanted.all_columns,
                target_file_size=wanted.target_file_bytes,
                writer_properties=writer_of(table),
            )

    # deltalake would compute the columns that follow from others, and does not know all functions.
    file.alter({PROPERTY: "0"}, {name: {EXPRESSION: None} for name in have.expressions})
    file.committing(attempt)
    said = {field.name: _texts(field) for field in typed.dealing_fields}
    file.alter({PROPERTY: str(wanted.buckets or 0)}, said)
    return True


@contextmanager
def _rows_of(table: DeltaTable, columns: Sequence[str]) -> Iterator[Iterator[pa.Table]]:
    """Read a table in parts, in a thread: a reader of deltalake cannot be asked from within its writer."""
    ready: queue.Queue[pa.Table | BaseException | None] = queue.Queue(_PARTS_AHEAD)
    over = threading.Event()

    def put(part: pa.Table | BaseException | None) -> None:
        while not over.is_set():
            with suppress(queue.Full):
                ready.put(part, timeout=_PAUSE_S)
                return

    def read() -> None:
        try:
            for part in selected(table, [*map(quoted, columns)]):
                put(plain(pa.Table.from_batches([pa.record_batch(part)])))
                if over.is_set():
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001 - raised by whoever takes the parts
            put(error)

    def taken() -> Iterator[pa.Table]:
        while (part := ready.get()) is not None:
            if isinstance(part, BaseException):
                raise part
            yield part

    reader = threading.Thread(target=read, name="headpond-repartition", daemon=True)
    reader.start()
    try:
        yield taken()
    finally:
        over.set()
        reader.join()
