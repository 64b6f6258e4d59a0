"""The lake that a pipeline file describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.tables.delta import DeltaFile
from headpond.tables.lake import Lake

if TYPE_CHECKING:
    from headpond.pipeline.model import Pipeline
    from headpond.tables.lake import FileMaker


def open_lake(pipeline: Pipeline, *, files: FileMaker = DeltaFile) -> Lake:
    """Open the lake of a pipeline; nothing is created or read yet.

    Args:
        pipeline: what to keep, and where.
        files: makes the file of each source table; the embedded engine's unless told otherwise.
    """
    target = pipeline.target
    return Lake(
        target.path,
        pipeline.dsql_config().tables,
        target.storage_options,
        files=files,
        max_unknown_tables=target.max_unknown_tables,
    )
