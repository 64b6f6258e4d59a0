"""Jars of other programs for the tests beside them: fetched once by Maven, or a skip that says why not."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from headpond.spark.session.start import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FETCHED = Path(__file__).parents[2] / ".bench"
FETCH_TIMEOUT_S = 280
_DELTA = {"4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"}
"""Minor version of Spark → the package of Delta's jars for it; another Spark's loads, and fails later."""
_FETCH = """
import json, sys
from headpond.spark.session.start import spark_session
spark_session("fetch", conf=json.loads(sys.argv[2]), log_path=sys.argv[1], quick=True).stop()
"""


def delta_session(log: Path) -> SparkSession:
    """Start a Spark with Delta's jars, or skip where there are none.

    They are fetched in one process: two at a time spoil each other's files in Ivy's cache.
    """
    if (package := _DELTA.get(pyspark.__version__.rpartition(".")[0])) is None:
        pytest.skip(
            f"Delta has no jars for Spark {pyspark.__version__} (`make test-oldest` has a Spark that fits)"
        )
    conf = {
        "spark.jars.packages": package,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    FETCHED.mkdir(exist_ok=True)
    fetched = FETCHED / f"delta-for-{pyspark.__version__}"
    with (FETCHED / "delta.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not fetched.exists():
            done = subprocess.run(
                [sys.executable, "-c", _FETCH, str(FETCHED / "delta.log"), json.dumps(conf)],
                capture_output=True, text=True, check=False, timeout=FETCH_TIMEOUT_S,
            )  # fmt: skip
            if done.returncode:
                pytest.skip(f"Delta's jars cannot be fetched: {done.stderr[-300:]}")
            fetched.touch()
    return spark_session("headpond tests", conf=conf, log_path=log, quick=True)


def maven_jars(name: str, artifacts: list[str], *, alone: bool = False) -> Path:
    """Give a folder of jars.

    Args:
        name: of the folder below `.bench`; it holds one set of versions.
        artifacts: `group:artifact:version`, each with all that it depends on.
        alone: without what they depend on.
    """
    place = FETCHED / name
    if place.exists():
        return place
    for tool in ("mvn", "javac"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool}")
    everything = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    leave_out = f"<exclusions>{everything}</exclusions>" if alone else ""
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"{leave_out}</dependency>"
        for group, artifact, version in (each.split(":") for each in artifacts)
    )
    with tempfile.TemporaryDirectory() as folder:
        pom, fetched = Path(folder) / "pom.xml", Path(folder) / "jars"
        pom.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>peer</groupId><artifactId>peer</artifactId><version>1</version>"
            f"<dependencies>{wanted}</dependencies></project>"
        )
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={fetched}"]
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", str(pom), *goal],
            capture_output=True, text=True, check=False, timeout=FETCH_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode:
            said = done.stdout.strip().splitlines()[:1]
            pytest.skip(f"Maven cannot fetch {', '.join(artifacts)}: {said}")
        FETCHED.mkdir(exist_ok=True)
        shutil.move(fetched, place)
    return place
