"""What a pipeline's session is started with, known before Spark is loaded."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.errors import EnvironmentLacks
from headpond.spark.delta_jars import delta_settings
from headpond.spark.session import CHECKPOINTS_CLASS, REMOTE_CHECKPOINTS
from headpond.tables.remote import is_remote, is_s3

if TYPE_CHECKING:
    from headpond.pipeline import Pipeline

S3_JAR = "hadoop-aws"
"""How the jar's name begins that lets Spark use S3."""

_JAR_SETTINGS = frozenset({"spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"})


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
