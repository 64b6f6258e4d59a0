"""The lake that a pipeline file describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.errors import UsageError
from headpond.pipeline.ledger import ledger_config
from headpond.tables.delta import DeltaFile
from headpond.tables.lake import Lake
from headpond.tables.ledger import LedgerLake

if TYPE_CHECKING:
    from headpond.pipeline.model import Pipeline
    from headpond.tables.lake import FileMaker


def open_target(pipeline: Pipeline) -> Lake | LedgerLake:
    """Open the lake of a pipeline of either format; nothing is created or read yet."""
    return open_ledger(pipeline) if pipeline.source.format == "qldb" else open_lake(pipeline)


def open_ledger(pipeline: Pipeline) -> LedgerLake:
    """Open the lake of a pipeline that reads QLDB records; nothing is created or read yet."""
    target = pipeline.target
    return LedgerLake(target.path, ledger_config(pipeline), target.storage_options)


def open_lake(pipeline: Pipeline, *, files: FileMaker = DeltaFile) -> Lake:
    """Open the lake of a pipeline that reads DSQL changes; nothing is created or read yet.

    Args:
        pipeline: what to keep, and where.
        files: makes the file of each source table; the embedded engine's unless told otherwise.

    Raises:
        UsageError: the pipeline reads QLDB records, for which what is asked for is not there.
    """
    if pipeline.source.format == "qldb":
        raise UsageError(
            'This is for pipelines that read DSQL changes, and source.format is "qldb".',
            next_step="Use it with another pipeline file.",
            key="source.format",
        )
    target = pipeline.target
    return Lake(
        target.path,
        pipeline.dsql_config().tables,
        target.storage_options,
        files=files,
        max_unknown_tables=target.max_unknown_tables,
    )
