"""Everything that can be known to be wrong before a query is started, found in a second or two."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.errors import ConfigurationError, EnvironmentLacks
from headpond.kinesis.calls import calls_of
from headpond.kinesis.client import ConnectionSettings, StreamSummary, check_stream
from headpond.kinesis.efo import find_consumer
from headpond.pipeline.lake import open_target
from headpond.spark.archive_files import open_pattern
from headpond.spark.java import find_java
from headpond.spark.settings import check_checkpoint, session_settings
from headpond.tables.remote import is_remote

if TYPE_CHECKING:
    from headpond.pipeline import Pipeline
    from headpond.tables.lake import Lake
    from headpond.tables.ledger import LedgerLake


def preflight(pipeline: Pipeline, *, files_must_exist: bool = False) -> Lake | LedgerLake:
    """Check Java, the source and the lake.

    Args:
        pipeline: what is to be run.
        files_must_exist: an archive without a single file is an error and not something to wait for.

    Returns:
        The lake, its tables created and agreeing with the pipeline.

    Raises:
        JavaMissing: no Java 17 or newer.
        EndpointUnreachable, StreamMissing, AccessRefused: the stream cannot be had.
        ConfigurationError: the archive matches no file, or a table contradicts the pipeline.
        EnvironmentLacks: the lake's folder cannot be written, its object store cannot be used, Spark cannot
            keep a checkpoint where it is to be, or cannot merge into Delta tables though it should.
    """
    check_checkpoint(pipeline)
    session_settings(pipeline)
    find_java()
    if pipeline.source.archive is None:
        check_source(pipeline)
    elif files_must_exist and not _archive_files(pipeline):
        raise ConfigurationError(
            f"No file matches the archive {pipeline.source.archive}.",
            next_step="Correct source.archive; a relative path is relative to the pipeline file.",
            key="source.archive",
        )
    lake = open_target(pipeline)
    if not is_remote(pipeline.target.path):
        _writable(Path(pipeline.target.path))
    lake.prepare()
    return lake


def _archive_files(pipeline: Pipeline) -> dict[str, int]:
    assert pipeline.source.archive is not None
    return open_pattern(pipeline.source.archive, pipeline.target.storage_options).sizes()


def check_source(pipeline: Pipeline) -> StreamSummary:
    """Ask the service for the pipeline's stream, and for its consumer where it reads as one."""
    settings = ConnectionSettings.from_options(pipeline.source.connection_options())
    summary = check_stream(settings)
    if pipeline.source.consumer_name is not None:
        find_consumer(calls_of(settings), settings, pipeline.source.consumer_name)
    return summary


def _writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise EnvironmentLacks(
            f"The lake's folder {folder} cannot be written: {error.strerror or error}.",
            next_step="Correct target.path, or the folder's rights.",
            path=str(folder),
        ) from error
