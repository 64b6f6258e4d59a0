"""The lake that a pipeline file describes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headpond.changes.journal_proof import read_digest
from headpond.errors import ConfigurationError
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


def open_ledger(pipeline: Pipeline, *, files: FileMaker = DeltaFile) -> LedgerLake:
    """Open the lake of a pipeline that reads QLDB records; only a saved digest is read yet.

    Args:
        pipeline: what to keep, and where.
        files: makes the file of each table of documents; the embedded engine's unless told otherwise.

    Raises:
        ConfigurationError: the digest's file cannot be read.
        DamagedInput: it is no saved digest.
    """
    target = pipeline.target
    saved = None
    if pipeline.verify.digest is not None:
        try:
            content = Path(pipeline.verify.digest).read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"The digest {pipeline.verify.digest} cannot be read: {error.strerror or error}.",
                next_step="Correct verify.digest; a relative path is relative to the pipeline file.",
                key="verify.digest",
            ) from error
        saved = read_digest(content)
    return LedgerLake(target.path, ledger_config(pipeline), target.storage_options, files=files, digest=saved)


def open_lake(pipeline: Pipeline, *, files: FileMaker = DeltaFile) -> Lake:
    """Open the lake of a pipeline that reads DSQL changes; nothing is created or read yet.

    Args:
        pipeline: what to keep, and where.
        files: makes the file of each source table; the embedded engine's unless told otherwise.

    Raises:
        UsageError: the pipeline reads QLDB records, for which what is asked for is not there.
    """
    target = pipeline.target
    return Lake(
        target.path,
        pipeline.dsql_config().tables,
        target.storage_options,
        files=files,
        max_unknown_tables=target.max_unknown_tables,
    )
