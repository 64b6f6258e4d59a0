"""The join from Kafka to Kafka: a real broker, Spark's connector, a restart, Kafka Streams beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.kit.maven_jars import maven_jars
from tests.spark.join_kafka_job import JOINS
from tests.spark.join_streams import wanted
from tests.spark.join_topics import PARTITIONS, ask, halves, results, sent
from tests.spark.test_join_broker import JOIN, address, streams

pytestmark = [pytest.mark.spark, pytest.mark.maven, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
SPARK = "4.2"
CONNECTOR = [
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    # It asks for one of its own version, which some mirrors lack; its interface has not changed since.
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
]
__all__ = ["address", "streams"]  # fixtures


@pytest.fixture
def connector() -> Path:
    """The jars of Spark's Kafka connector."""
    if not pyspark.__version__.startswith(f"{SPARK}."):
        pytest.skip(
            f"Spark's Kafka connector is among Maven's packages for Spark {SPARK}, not for "
            f"{pyspark.__version__}. (`make test-oldest` makes an environment in which this test can run.)"
        )
    return maven_jars("spark-kafka-4.2.0", CONNECTOR, alone=True)


def run_job(folder: Path, address: str, connector: Path) -> None:
    """Run the joins in a process of their own, to the end of the topics."""
    done = subprocess.run(
        [sys.executable, str(HERE / "join_kafka_job.py"), str(folder), address, str(connector)],
        env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    # Spark's plan stands behind the reason, and is long.
    assert done.returncode == 0, done.stderr[:6000]


def test_from_kafka_to_kafka(connector: Path, streams: Path, address: str, tmp_path: Path) -> None:
    """Half of the topics, a restart, the rest: the reference engine's results, and Kafka Streams' own."""
    first, second = halves()
    assert any(value is None for event in first for _, value in event.headers)
    assert any(len({name for name, _ in e.headers}) < len(e.headers) for e in first)
    topics = ["left", "right", "streams-out", *JOINS]
    ask(streams, address, tmp_path, [*(f"topic\t{name}\t{PARTITIONS}" for name in topics), *sent(first)])
    run_job(tmp_path, address, connector)
    (half,) = ask(streams, address, tmp_path, [*sent(second), "read\touter-out"])
    run_job(tmp_path, address, connector)
    lines = [JOIN, *(f"read\t{name}" for name in ("streams-out", *JOINS))]
    theirs, *ours = ask(streams, address, tmp_path, lines)
    for (rules, tasks), records in zip(JOINS.values(), ours, strict=True):
        expected, counters = wanted(rules, [first, second], tasks)
        assert results(records, timed=True) == expected
        assert counters.joined > 100
        assert counters.unmatched > 10
    assert 10 < len(half) < len(ours[0]) - 10
    assert results(theirs, timed=False) == results(ours[0], timed=True)
