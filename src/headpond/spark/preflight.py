"""Everything that can be known to be wrong before Spark is started, found in a second or two."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.errors import ConfigurationError, EnvironmentLacks
from headpond.kinesis.calls import calls_of
from headpond.kinesis.client import ConnectionSettings, StreamSummary, check_stream
from headpond.kinesis.efo import find_consumer
from headpond.pipeline.lake import open_target
from headpond.spark.archive_files import open_pattern
from headpond.spark.delta_jars import delta_settings
from headpond.spark.java import find_java
from headpond.spark.session import CHECKPOINTS_CLASS, REMOTE_CHECKPOINTS
from headpond.tables.remote import is_remote, is_s3

if TYPE_CHECKING:
    from headpond.pipeline import Pipeline
    from headpond.tables.lake import Lake
    from headpond.tables.ledger import LedgerLake


S3_JAR = "hadoop-aws"
"""How the jar's name begins that lets Spark use S3."""

_JAR_SETTINGS = frozenset({"spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"})


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


def session_settings(pipeline: Pipeline) -> dict[str, str]:
    """Give the settings that a pipeline's session is started with: `[spark]`, and what its engine needs.

    Raises:
        EnvironmentLacks: Spark cannot have what the engine needs.
    """
    given = dict(pipeline.spark)
    if is_remote(pipeline.target.checkpoint):
        given.setdefault(CHECKPOINTS_CLASS, REMOTE_CHECKPOINTS)
    if pipeline.target.engine == "embedded":
        return given
    if is_remote(pipeline.target.path):
        raise EnvironmentLacks(
            f'engine = "spark" keeps lakes in folders, and {pipeline.target.path} is in an object store: '
            "commits of Delta's jars and of deltalake would not see each other there.",
            next_step='Set target.engine = "embedded", which is safe there.',
            key="target.engine",
        )
    return delta_settings(given, jars=spark_jars())


def _archive_files(pipeline: Pipeline) -> dict[str, int]:
    assert pipeline.source.archive is not None
    return open_pattern(pipeline.source.archive, pipeline.target.storage_options).sizes()


def check_checkpoint(pipeline: Pipeline, *, jars: Path | None = None) -> None:
    """Refuse a checkpoint in S3 that Spark has no jars for.

    Args:
        pipeline: what is to be run; its `[spark]` settings may bring the jars.
        jars: the folder of Spark's own jars; found when null.

    Raises:
        EnvironmentLacks: the jars are nowhere.
    """
    checkpoint = pipeline.target.checkpoint
    if not is_s3(checkpoint):
        return
    brought = " ".join(value for name, value in pipeline.spark.items() if name in _JAR_SETTINGS)
    own = spark_jars() if jars is None else jars
    if S3_JAR in brought or (own is not None and any(own.glob(f"{S3_JAR}*.jar"))):
        return
    raise EnvironmentLacks(
        f"The checkpoint {checkpoint} is in S3, and this Spark has no jar for S3 ({S3_JAR}).",
        next_step='Set target.checkpoint to a folder that lasts, such as checkpoint = "checkpoint"; the lake '
        "may stay where it is.",
        key="target.checkpoint",
    )


def spark_jars() -> Path | None:
    """Find the folder of Spark's jars without loading Spark; null when it cannot be found."""
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home) / "jars"
    try:
        found = importlib.util.find_spec("pyspark")
    except ValueError:  # a module that is only half there
        return None
    places = found.submodule_search_locations if found is not None else None
    return Path(next(iter(places))) / "jars" if places else None


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
