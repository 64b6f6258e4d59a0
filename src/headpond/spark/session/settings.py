"""What a session is started with, known before Spark is loaded: settings, secrets, Delta's jars, the log.

Delta is compiled for one minor version of Spark; the jar for another one loads, and fails in the middle of a
merge. Nothing of it is downloaded unless a pipeline asks for `engine = "spark"`; Spark's own package
resolver does that then, once, into its cache.

Spark before 4.3 writes the options of a source into its plans, and so into its log when a query fails, into
its event log and into what `explain` prints: options of ours that hold secrets are redacted there.

Spark's log is a file that no other user of the machine can have put there: it holds names of tables and
places, and in a folder that others can write, under a name that they can guess, they could read or
redirect it.

::

    the lake is a folder    LAKE/_headpond/logs/spark.log
    the lake is a URL       CACHE/logs/NAME-xxxxxxxx.log    CACHE as for `java.cache_folder`, private
    no such folder          a new temporary folder
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import stat
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.core.errors import MissingRequirement
from headpond.lake.storage import is_remote, is_s3
from headpond.spark.session.java import cache_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from headpond.pipeline import Pipeline

SECRET_SETTING = re.compile(r"(?i)secret|password|token|credential|access[._-]?key|private")
"""Found in the name of a setting of Spark: its value may be a secret."""

REDACTED_OPTIONS = "spark.sql.redaction.options.regex"
OURS = "(?i)roleexternalid|storageoptions"
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
    return folder if _is_private(folder) else Path(tempfile.mkdtemp(prefix="headpond-logs-"))


def _is_private(folder: Path) -> bool:
    """Make a folder that only this user can read, and return whether it is."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        folder.chmod(0o700)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


PACKAGES = {"4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"}
"""Minor version of Spark → the package of Delta's jars for it, as Maven repositories name it."""

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
FIXED = {
    # Spark's default (INT96) holds nanoseconds: readers lose dates before 1677 and after 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Dates before 1582 as they are, in the calendar that Delta prescribes.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
}
"""What every session that merges must have: a file must mean the same to both engines."""

_EXTENSIONS, _CATALOG = "spark.sql.extensions", "spark.sql.catalog.spark_catalog"
_PACKAGES = "spark.jars.packages"
_JAR_SETTINGS = ("spark.jars", _PACKAGES, "spark.driver.extraClassPath")
_JAR = "delta-spark"
_CORE = re.compile(r"spark-core_[\d.]+-(\d+\.\d+)[^/]*\.jar$")


def delta_settings(given: Mapping[str, str], *, jars: Path | None = None) -> dict[str, str]:
    """Extend a session's settings so that Spark can merge into Delta tables.

    Args:
        given: the settings of `[spark]`; extensions and packages are added to those in there, and jars of
            Delta that they bring are used in place of the ones known here.
        jars: the folder of Spark's own jars, where it is known.

    Raises:
        MissingRequirement: there are no jars of Delta for this version of Spark.
    """
    settings = dict(given) | FIXED
    named = any(_JAR in given.get(setting, "") for setting in _JAR_SETTINGS)
    if not (named or (jars is not None and any(jars.glob(f"{_JAR}*.jar")))):
        settings[_PACKAGES] = _joined(given.get(_PACKAGES), package_for(spark_version(jars)))
    if EXTENSION not in given.get(_EXTENSIONS, ""):
        settings[_EXTENSIONS] = _joined(given.get(_EXTENSIONS), EXTENSION)
    settings.setdefault(_CATALOG, CATALOG)
    if given.get("spark.master", "local").startswith("local"):
        # Delta sorts a table's log in so many tasks before each merge; its default of 50 is for clusters.
        settings.setdefault("spark.databricks.delta.snapshotPartitions", "2")
    return settings


def package_for(spark: str) -> str:
    """Name the package of Delta's jars for a version of Spark.

    Raises:
        MissingRequirement: there is none.
    """
    found = PACKAGES.get(".".join(spark.split(".")[:2]))
    if found is not None:
        return found
    known = ", ".join(PACKAGES)
    raise MissingRequirement(
        f'engine = "spark" merges with Delta\'s jars: there are some for Spark {known}, none for {spark}.',
        next_step=f"Run this job in an environment with pyspark {known} (pip install 'pyspark=={known}.*'), "
        f'bring jars that fit with "{_PACKAGES}" under [spark], or set target.engine = "embedded".',
        key="target.engine",
        spark=spark,
    )


def spark_version(jars: Path | None = None) -> str:
    """Return Spark's version from its jars, or that of the package pyspark; empty when neither exists."""
    for jar in jars.glob("spark-core_*.jar") if jars is not None else ():
        if found := _CORE.search(jar.name):
            return found[1]
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return ""


def require_delta(spark: SparkSession) -> None:
    """Check that a running session can merge, before anything is read.

    Raises:
        MissingRequirement: the session was started without Delta's jars or without its extension.
    """
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # noqa: SLF001 - no other way
    there = loader.getResource(EXTENSION.replace(".", "/") + ".class") is not None
    if there and EXTENSION in (spark.conf.get(_EXTENSIONS, "") or ""):
        return
    lacks = "its extension" if there else "its jars"
    raise MissingRequirement(
        f'engine = "spark" merges with Delta, and this Spark session was started without {lacks}.',
        next_step="Start it with the settings that headpond.spark.delta_settings({}) gives, or let "
        "`headpond run` start it.",
        key="target.engine",
    )


def _joined(before: str | None, more: str) -> str:
    return f"{before},{more}" if before else more


CHECKPOINTS_CLASS = "spark.sql.streaming.checkpointFileManagerClass"
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
REMOTE_CHECKPOINTS = f"{_CHECKPOINTS}.FileContextBasedCheckpointFileManager"
"""Spark's own choice. On a disk it asks about links and rights by starting some 70 programs a batch, which
takes a sixth of a second; the other one writes the same files and renames them alike."""
LOCAL_CHECKPOINTS = f"{_CHECKPOINTS}.FileSystemBasedCheckpointFileManager"

S3_JAR = "hadoop-aws"
"""How the jar's name begins that lets Spark use S3."""


def session_settings(pipeline: Pipeline) -> dict[str, str]:
    """Return the settings that a pipeline's session is started with: `[spark]`, and what its engine needs.

    Raises:
        MissingRequirement: Spark cannot have what the engine needs.
    """
    given = dict(pipeline.spark)
    if is_remote(pipeline.target.checkpoint):
        given.setdefault(CHECKPOINTS_CLASS, REMOTE_CHECKPOINTS)
    if pipeline.target.engine == "embedded":
        return given
    if is_remote(pipeline.target.path):
        raise MissingRequirement(
            f'engine = "spark" keeps lakes in folders, and {pipeline.target.path} is in an object store: '
            "commits of Delta's jars and of deltalake would not see each other there.",
            next_step='Set target.engine = "embedded", which is safe there.',
            key="target.engine",
        )
    return delta_settings(given, jars=spark_jars())


def check_checkpoint(pipeline: Pipeline, *, jars: Path | None = None) -> None:
    """Refuse a checkpoint in S3 that Spark has no jars for.

    Raises:
        MissingRequirement: the jars are nowhere.
    """
    checkpoint = pipeline.target.checkpoint
    if not is_s3(checkpoint):
        return
    brought = " ".join(value for name, value in pipeline.spark.items() if name in _JAR_SETTINGS)
    own = spark_jars() if jars is None else jars
    if S3_JAR in brought or (own is not None and any(own.glob(f"{S3_JAR}*.jar"))):
        return
    raise MissingRequirement(
        f"The checkpoint {checkpoint} is in S3, and this Spark has no jar for S3 ({S3_JAR}).",
        next_step='Set target.checkpoint to a folder that lasts, such as checkpoint = "checkpoint"; the lake '
        "may stay where it is.",
        key="target.checkpoint",
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
