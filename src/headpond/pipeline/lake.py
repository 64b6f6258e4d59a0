"""The lake that a pipeline file describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.tables.lake import Lake

if TYPE_CHECKING:
    from headpond.pipeline.model import Pipeline


def open_lake(pipeline: Pipeline) -> Lake:
    """Open the lake of a pipeline; nothing is created or read yet."""
    return Lake(pipeline.target.path, pipeline.dsql_config().tables, pipeline.target.storage_options)
