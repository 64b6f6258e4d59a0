"""Delta's jars for Spark: which there are, how a session gets them, and a clear word where it cannot.

Delta is compiled for one minor version of Spark; the jar for another one loads, and fails in the middle of a
merge. Nothing of it is downloaded unless a pipeline asks for `engine = "spark"`; Spark's own package
resolver does that then, once, into its cache.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from headpond.errors import EnvironmentLacks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

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

_EXTENSIONS, _CATALOG, _PACKAGES = (
    "spark.sql.extensions",
    "spark.sql.catalog.spark_catalog",
    "spark.jars.packages",
)
_BRINGERS = ("spark.jars", _PACKAGES, "spark.driver.extraClassPath")
_JAR = "delta-spark"
_CORE = re.compile(r"spark-core_[\d.]+-(\d+\.\d+)[^/]*\.jar$")


def delta_settings(given: Mapping[str, str], *, jars: Path | None = None) -> dict[str, str]:
    """Extend a session's settings so that Spark can merge into Delta tables.

    Args:
        given: the settings of `[spark]`; extensions and packages are added to those in there, and jars of
            Delta that they bring are used in place of the ones known here.
        jars: the folder of Spark's own jars, where it is known.

    Raises:
        EnvironmentLacks: there are no jars of Delta for this version of Spark.
    """
    settings = dict(given) | FIXED
    if not _brought(given, jars):
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
        EnvironmentLacks: there is none.
    """
    found = PACKAGES.get(".".join(spark.split(".")[:2]))
    if found is not None:
        return found
    known = ", ".join(PACKAGES)
    raise EnvironmentLacks(
        f'engine = "spark" merges with Delta\'s jars: there are some for Spark {known}, none for {spark}.',
        next_step=f"Run this job in an environment with pyspark {known} (pip install 'pyspark=={known}.*'), "
        f'bring jars that fit with "{_PACKAGES}" under [spark], or set target.engine = "embedded".',
        key="target.engine",
        spark=spark,
    )


def spark_version(jars: Path | None = None) -> str:
    """Give Spark's version from its jars, or that of the package pyspark; empty when neither is there."""
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
        EnvironmentLacks: the session was started without Delta's jars or without its extension.
    """
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # noqa: SLF001 - no other way
    there = loader.getResource(EXTENSION.replace(".", "/") + ".class") is not None
    if there and EXTENSION in (spark.conf.get(_EXTENSIONS, "") or ""):
        return
    lacks = "its extension" if there else "its jars"
    raise EnvironmentLacks(
        f'engine = "spark" merges with Delta, and this Spark session was started without {lacks}.',
        next_step="Start it with the settings that headpond.spark.delta_settings({}) gives, or let "
        "`headpond run` start it.",
        key="target.engine",
    )


def _brought(given: Mapping[str, str], jars: Path | None) -> bool:
    named = any(_JAR in given.get(setting, "") for setting in _BRINGERS)
    return named or (jars is not None and any(jars.glob(f"{_JAR}*.jar")))


def _joined(before: str | None, more: str) -> str:
    return f"{before},{more}" if before else more
