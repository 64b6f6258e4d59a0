"""A table that was configured later, caught up from the start of its stream or archive.

A second query reads the source from its beginning, beside the pipeline, with a checkpoint and pending chunks
of its own, applies the changes of that table alone, and ends at what was the tip when it began. Versions make
the seam to the pipeline exact. When it is done, chunks that still wait for others go to the pipeline, which
has read what comes after the tip; then nothing of it is left. Killed, it goes on where it stood.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from headpond.changes.schemas import PENDING_SCHEMA
from headpond.formats.dsql import Chunked, parse
from headpond.pipeline.lake import open_lake
from headpond.spark.run import Run
from headpond.tables.catch_up import CaughtUp, configured
from headpond.tables.naming import table_folder
from headpond.tables.remote import remove_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.changes.config import TableSpec
    from headpond.pipeline import Pipeline


def catch_up_from_start(
    pipeline: Pipeline, table: str, *, say: Callable[[str], None] = lambda _: None
) -> CaughtUp:
    """Apply every change of a table that its stream or archive still holds.

    Args:
        pipeline: the pipeline, with the table configured.
        table: the table's name as configured.
        say: told how far it is.

    Raises:
        UsageError: there is no such table.
        HeadpondError: whatever a run of the pipeline may end with.
    """
    spec = configured(pipeline.dsql_config(), table)
    job = Run(from_the_start(pipeline, table), until_caught_up=True, only=table, say=say)
    job.go()
    finish(job.pipeline, spec)
    return CaughtUp(sum(job.applied.tables.get(table, {}).values()), job.applied)


def from_the_start(pipeline: Pipeline, table: str) -> Pipeline:
    """Give the pipeline that reads everything there is, with a checkpoint of its own."""
    checkpoint = f"{pipeline.target.checkpoint}-catch-up/{table_folder(table)}"
    return replace(
        pipeline,
        source=replace(pipeline.source, start="TRIM_HORIZON", kcl_leases=None),
        target=replace(pipeline.target, checkpoint=checkpoint),
    )


def finish(pipeline: Pipeline, spec: TableSpec) -> None:
    """Hand what still waits over to the pipeline, and clear up.

    Args:
        pipeline: the one that read from the start.
        spec: the table.
    """
    lake = open_lake(pipeline)
    rows = lake.catching_up(spec.name).pending.read(None, "status = 'waiting'")
    waiting = [row for row in rows.to_pylist() if not _of_another(row["data"], spec)]
    lake.end_catch_up(spec.name, pa.Table.from_pylist(waiting, rows.schema).select(PENDING_SCHEMA.names))
    remove_folder(pipeline.target.checkpoint, pipeline.target.storage_options)


def _of_another(data: bytes, spec: TableSpec) -> bool:
    record = parse(data)
    if not isinstance(record, Chunked):
        return False
    return (record.source.schema, record.source.table) != (spec.schema, spec.table)
