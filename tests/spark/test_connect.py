"""Over Spark Connect: what works, and what is refused with a sentence."""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from headpond.core.errors import UsageError
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.producer import BlockingProducer
from headpond.kstreams import JoinWindows
from headpond.localkinesis.testing import local_kinesis, put_all, read_all
from headpond.pipeline import loads
from headpond.spark import follow, register, ship, verify, windowed_join
from tests.kit.support import vector_bytes, vector_json
from tests.soak import soak_join, soak_join_job
from tests.soak.soak_put import held

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headpond.localkinesis import LocalKinesis

pytestmark = [pytest.mark.elsewhere, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start a Connect server on loopback, in a JVM of this process, and be its client."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    # The server's workers are of its own environment's Python, which must have headpond.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with warnings.catch_warnings():
        # The server starts with all of them, and then the client may not set most of them once more.
        warnings.simplefilter("ignore", UserWarning)
        session = SparkSession.builder.remote("local[2]").config(map=settings).getOrCreate()
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def kinesis() -> Iterator[LocalKinesis]:
    """One local Kinesis with the streams of all tests."""
    with local_kinesis("orders", "copies", "left", "right", shards=2) as running:
        put_all(running.client(), "orders", [(f"k{n}", b"%d" % n) for n in range(100)])
        yield running


def test_source_and_sink(spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path) -> None:
    """A query reads a stream and puts it into another."""
    options = {"endpointUrl": kinesis.endpoint_url, "region": "us-east-1"}
    query = (
        spark.readStream.format("headpond-kinesis")
        .options(streamName="orders", startingPosition="TRIM_HORIZON", **options)
        .load()
        .select("partition_key", "data")
        .writeStream.format("headpond-kinesis")
        .options(streamName="copies", checkpointLocation=str(tmp_path / "checkpoint"), **options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert read_all(kinesis.client(), "copies")
    copies = (
        spark.read.format("headpond-kinesis")
        .options(streamName="copies", startingPosition="TRIM_HORIZON", **options)
        .load()
    )
    assert sorted(int(bytes(row["data"])) for row in copies.collect()) == list(range(100))


def test_the_windowed_join(spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path) -> None:
    """The join of two streams gives the pairs it gives everywhere."""
    for side in ("left", "right"):
        maker = soak_join.KeyedMaker(side, 3, keys=4)
        where = ConnectionSettings(stream_name=side, endpoint_url=kinesis.endpoint_url, region="us-east-1")
        with BlockingProducer(where) as producer:
            producer.send_all([maker.record() for _ in range(80)])
    sides = [soak_join_job.source(spark, kinesis.endpoint_url, side) for side in ("left", "right")]
    windows = JoinWindows(soak_join_job.BEFORE_MS, soak_join_job.AFTER_MS, soak_join_job.GRACE_MS)
    query = (
        windowed_join(*sides, windows, "inner", tasks=2, headers="merge")
        .select("key", "left_value", "right_value", "timestamp", "headers")
        .writeStream.format("parquet")
        .options(checkpointLocation=str(tmp_path / "checkpoint"), path=str(tmp_path / "out"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    wanted = soak_join.expect(
        *([each for _, each in held(kinesis.endpoint_url, side)] for side in ("left", "right"))
    )
    assert wanted.total() > 50
    assert soak_join.results(tmp_path / "out") == wanted


def test_what_works_in_the_driver_is_refused(spark: SparkSession) -> None:
    """Before anything is done, with the next step."""
    pipeline = loads(
        '[source]\nstream = "orders"\nformat = "dsql"\n[target]\npath = "lake"\n[tables."a.b"]\nkeys = []'
    )
    with pytest.raises(
        UsageError, match=r"^Following a stream works in the process of Spark's driver"
    ) as caught:
        follow(spark, pipeline)
    assert "headpond run" in str(caught.value)
    with pytest.raises(UsageError, match="Install headpond into the Python environment of the server"):
        ship(spark)


def test_a_journal_is_verified(spark: SparkSession, tmp_path: Path) -> None:
    """The archive source, and the proof on the server's workers."""
    for name in ("clean.jsonl", "tampered_block_hash.jsonl"):
        (tmp_path / name).write_bytes(vector_bytes(f"qldb/{name}"))
        found = Counter(row["kind"] for row in verify(spark, str(tmp_path / name)).collect())
        assert found == vector_json("qldb/expected.json")["files"][name]["anomaly_kinds"]
