"""Jars of other programs for the tests beside them: fetched once by Maven, or a skip that says why not."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
import pytest

FETCHED = Path(__file__).parents[2] / ".bench"
FETCH_TIMEOUT_S = 280
_START = """
import sys
from headpond.spark import delta_settings
from headpond.spark.session.settings import spark_jars
from headpond.spark.session.start import spark_session
spark_session("fetch", conf=delta_settings({}, jars=spark_jars()), log_path=sys.argv[1], quick=True).stop()
"""


def fetch_delta_once() -> None:
    """Have Spark fetch Delta's jars in one process: two at a time spoil each other's files in Ivy's cache.

    What goes wrong is left to the tests to say.
    """
    FETCHED.mkdir(exist_ok=True)
    fetched = FETCHED / f"delta-for-{pyspark.__version__}"
    with (FETCHED / "delta.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not fetched.exists():
            done = subprocess.run(
                [sys.executable, "-c", _START, str(FETCHED / "delta.log")],
                capture_output=True, check=False, timeout=FETCH_TIMEOUT_S,
            )  # fmt: skip
            if not done.returncode:
                fetched.touch()


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
