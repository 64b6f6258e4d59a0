"""The one Spark session of a test run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for the whole run, in this machine's memory, its chatter in a file."""
    from headpond.spark.session.start import spark_session

    log = tmp_path_factory.mktemp("spark") / "spark.log"
    session = spark_session("headpond tests", log_path=log, quick=True)
    partitions = session.conf.get("spark.sql.shuffle.partitions")
    yield session
    # A test that leaves more of them behind makes all later ones slow.
    assert session.conf.get("spark.sql.shuffle.partitions") == partitions
    session.stop()
