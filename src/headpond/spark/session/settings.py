"""What a session is started with, known before Spark is loaded: settings, secrets, the log.

Spark before 4.3 writes the options of a source into its plans, and so into its log when a query fails, into
its event log and into what `explain` prints: options of ours that hold secrets are redacted there.

Spark's log is a file that no other user of the machine can have put there: it holds names of tables and
places, and in a folder that others can write, under a name that they can guess, they could read or
redirect it.

::

    the lake is a folder    LAKE/_headpond/logs/spark.log
    the lake is a URL       CACHE/logs/NAME-xxxxxxxx.log    CACHE as for `core.passing.cache_folder`, private
    no such folder          a new temporary folder
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.core.errors import ConfigurationError, MissingRequirement
from headpond.core.passing import cache_folder, is_private
from headpond.lake.object_store import AZURE_SCHEMES, GCS_SCHEMES, S3_SCHEMES, is_remote, scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from headpond.pipeline import Pipeline

SECRET_SETTING = re.compile(r"(?i)secret|password|token|credential|access[._-]?key|private")
"""Found in the name of a setting of Spark: its value may be a secret."""

REDACTED_OPTIONS = "spark.sql.redaction.options.regex"
OURS = "(?i)role_?external_?id|storage_?options"
"""Found in the name of an option of ours: what a role is assumed with, and what opens an object store."""


def redact_options(spark: SparkSession) -> None:
    """Have a session redact our options that hold secrets too; to be called where a source is registered."""
    redacted = spark.conf.get(REDACTED_OPTIONS) or ""  # a default given here would hide Spark's own
    if OURS not in redacted:
        spark.conf.set(REDACTED_OPTIONS, f"(?:{redacted})|{OURS}" if redacted else OURS)


_SHOWN_CHARACTERS = 60
_ODD = re.compile(r"[^A-Za-z0-9._-]+")


def log_path(pipeline: Pipeline) -> Path:
    """Return the log of a pipeline; its folder exists already where the lake is a URL."""
    target = pipeline.target
    if not is_remote(target.path):
        return Path(target.path) / "_headpond" / "logs" / "spark.log"
    # Two pipelines may be called alike, and two runs of one share a log.
    apart = hashlib.sha256(target.path.encode()).hexdigest()[:8]
    name = _ODD.sub("_", pipeline.monitor.name)[:_SHOWN_CHARACTERS]
    return private_logs() / f"{name}-{apart}.log"


def private_logs() -> Path:
    """Return a folder for logs that only this user can read; it exists."""
    folder = cache_folder() / "logs"
    return folder if is_private(folder) else Path(tempfile.mkdtemp(prefix="headpond-logs-"))


_JAR_SETTINGS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")

CHECKPOINTS_CLASS = "spark.sql.streaming.checkpointFileManagerClass"
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
REMOTE_CHECKPOINTS = f"{_CHECKPOINTS}.FileContextBasedCheckpointFileManager"
"""Spark's own choice. On a disk it asks about links and rights by starting some 70 programs a batch, which
takes a sixth of a second; the other one writes the same files and renames them alike."""
LOCAL_CHECKPOINTS = f"{_CHECKPOINTS}.FileSystemBasedCheckpointFileManager"

UNDER_SUBMIT = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit started this process: its JVM is up, with settings that are not seen from here."""

_JARS = (
    (S3_SCHEMES, ("hadoop-aws",)),
    (AZURE_SCHEMES, ("hadoop-azure",)),
    (GCS_SCHEMES, ("hadoop-gcp", "gcs-connector")),
)
"""How the names begin of the jars with which Spark uses a store; the first is Hadoop's own."""
NO_JAR = re.compile(r"ClassNotFoundException: Class org\.apache\.hadoop\.fs\.(s3a|azurebfs|gs)\.")
"""Found in what Spark says where it has none."""


def session_settings(pipeline: Pipeline) -> dict[str, str]:
    """Return the settings that a pipeline's session is started with: `[spark]`, and what its places need."""
    given = dict(pipeline.spark)
    if is_remote(pipeline.target.checkpoint):
        given.setdefault(CHECKPOINTS_CLASS, REMOTE_CHECKPOINTS)
    return given


def check_checkpoint(pipeline: Pipeline, *, jars: Path | None = None) -> None:
    """Refuse a checkpoint in an object store that Spark has no jars for.

    Raises:
        MissingRequirement: the jars are nowhere.
    """
    checkpoint = pipeline.target.checkpoint
    wanted = _jars_for(checkpoint)
    if not wanted or UNDER_SUBMIT in os.environ:  # spark-submit may have brought jars
        return
    brought = " ".join(value for name, value in pipeline.spark.items() if name in _JAR_SETTINGS)
    own = spark_jars() if jars is None else jars
    there = brought.split() + ([] if own is None else [jar.name for jar in own.glob("*.jar")])
    if not any(name in each for name in wanted for each in there):
        raise no_jar_for(checkpoint)


def _jars_for(place: str) -> tuple[str, ...]:
    scheme = scheme_of(place)
    return next((names for schemes, names in _JARS if scheme in schemes), ())


def no_jar_for(checkpoint: str) -> MissingRequirement:
    """Return the error of a checkpoint in an object store that Spark has no jars for."""
    jar = _jars_for(checkpoint)[0]
    return MissingRequirement(
        f"The checkpoint {checkpoint} is in an object store, and this Spark has no jar for it ({jar}).",
        next_step='Set target.checkpoint to a folder that lasts, such as checkpoint = "checkpoint"; the lake '
        "may stay where it is. Or bring the jar, of the version of Spark's Hadoop: "
        f'"spark.jars.packages" = "org.apache.hadoop:{jar}:VERSION" under [spark].',
        key="target.checkpoint",
    )


def check_lasting(pipeline: Pipeline, environ: Mapping[str, str] | None = None) -> None:
    """Refuse a lake or checkpoint in a folder that YARN deletes when this process ends.

    Raises:
        ConfigurationError: the key, the place, and which folder that is.
    """
    env = os.environ if environ is None else environ
    # What a node manager tells each of its containers: https://hadoop.apache.org/docs/stable/hadoop-yarn/
    listed = env.get("LOCAL_DIRS", "") if "CONTAINER_ID" in env else ""
    temporary = [Path(folder).resolve() for folder in listed.split(",") if folder]
    target = pipeline.target
    for key, place in (("target.path", target.path), ("target.checkpoint", target.checkpoint)):
        for folder in temporary:
            if not is_remote(place) and Path(place).resolve().is_relative_to(folder):
                raise ConfigurationError(
                    f"{key} is {place}, in {folder}, which YARN deletes when the driver ends.",
                    next_step="Give a URL, or the whole path of a folder that every machine has; or start "
                    "the driver on a machine that stays (--deploy-mode client).",
                    key=key,
                )


def spark_jars() -> Path | None:
    """Find the folder of Spark's jars without loading Spark; None when it cannot be found."""
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home) / "jars"
    try:
        found = importlib.util.find_spec("pyspark")
    except ValueError:  # a module that is only half there
        return None
    places = found.submodule_search_locations if found is not None else None
    return Path(next(iter(places))) / "jars" if places else None
