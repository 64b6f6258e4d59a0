"""What tests of several rooms share: the engine that lakes are written with."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pyspark.sql import SparkSession

# A shell that starts this run in its background makes all that comes of it ignore Ctrl-C, which tests send.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's affair: two cores may do three things beside this. What is drawn
# is new in every run, except where a change is judged: there the change alone decides.
hypothesis.settings.register_profile(
    "headpond",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="HEADPOND_SAME_DRAWS" in os.environ,
)
hypothesis.settings.load_profile("headpond")

# Programs that tests start, and Python workers of Spark, import `tests` as well.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
)


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """No test waits for the disk; those of `tests/lake/test_durable.py` have one of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _handle: None)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where everything must run (HEADPOND_NO_SKIPS), a test that is skipped has failed."""
    report = yield
    if report.skipped and "HEADPOND_NO_SKIPS" in os.environ:
        report.outcome, report.longrepr = "failed", f"skipped where nothing may be: {report.longrepr}"
    return report


FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""Every merge of a test has another plan: compiling it costs a quarter of the time and gives the same rows.
The tests on clusters and of whole runs leave these as they are."""


@pytest.fixture(scope="session")
def delta_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for the whole run, with Delta's jars; skipped, with the reason, where there are none."""
    from headpond.core.errors import MissingRequirement
    from headpond.spark import delta_settings
    from headpond.spark.session.settings import require_delta, spark_jars
    from headpond.spark.session.start import spark_session
    from tests.kit.maven_jars import fetch_delta_once

    log = tmp_path_factory.mktemp("spark") / "spark.log"
    fetch_delta_once()
    try:
        settings = delta_settings(FEW_ROWS, jars=spark_jars())
        session = spark_session("headpond tests", conf=settings, log_path=log, quick=True)
        require_delta(session)
    except MissingRequirement as error:
        pytest.skip(f"{error.message} (`make test-oldest` makes an environment in which this test can run.)")
    yield session
    session.stop()


@pytest.fixture(scope="module", params=["embedded", pytest.param("spark", marks=pytest.mark.maven)])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a module's tests once with each engine: every lake that `lakes` opens is written by it."""
    from tests.lake import lakes

    if request.param == "spark":
        from headpond.spark.following.delta_file import SparkFiles

        lakes.written_by(SparkFiles(request.getfixturevalue("delta_spark")))
    yield request.param
    lakes.written_by(None)
