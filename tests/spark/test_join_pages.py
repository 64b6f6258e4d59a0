"""The programs of the page on joins run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headpond.localkinesis.testing import local_kinesis, put_all
from headpond.spark.session.java import find_java
from headpond.spark.session.start import QUICK_JAVA_OPTIONS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "join.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def block(words: str) -> str:
    """The one program of the page that has these words."""
    (found,) = (each for each in BLOCKS if words in each)
    return found


def run(program: str, folder: Path, **environment: str) -> str:
    """What a program prints."""
    (folder / "program.py").write_text(program)
    environment["JDK_JAVA_OPTIONS"] = QUICK_JAVA_OPTIONS
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**{name: each for name, each in os.environ.items() if name != "PYSPARK_PYTHON"}, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
def test_the_page_joins_files(tmp_path: Path) -> None:
    """Files are made, joined and printed as the page says."""
    program = block("def files(topic)")
    (printed,) = re.findall(re.escape(program) + r"```\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert run(program, tmp_path) == printed


@pytest.mark.thorough
def test_a_session_of_ones_own_gets_what_the_join_needs(tmp_path: Path) -> None:
    """The page's program with Spark's own session, where `python3` is one without headpond."""
    builder = "SparkSession.builder.master('local[2]').config('spark.sql.shuffle.partitions', 2)"
    program = re.sub(
        r"^spark = spark_session\(.*$",
        f"spark = {builder}.getOrCreate()",
        block("def files(topic)"),
        flags=re.MULTILINE,
    )
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho a Python without headpond >&2\nexit 1\n")
    other.chmod(0o755)
    printed = run(
        "from pyspark.sql import SparkSession\n" + program,
        tmp_path,
        PATH=f"{other.parent}{os.pathsep}{os.environ['PATH']}",
        JAVA_HOME=str(find_java().home),
    )
    assert printed.endswith("bob a lamp None\neve tea 4.20\n")


@pytest.mark.thorough
def test_the_page_reads_kinesis(tmp_path: Path) -> None:
    """Its stream, at another address, joins with itself: it has all that a join needs."""
    session = """
from headpond.spark.session.start import spark_session

spark = spark_session("orders", log_path="spark.log")
"""
    query = """
from headpond.kstreams import JoinWindows
from headpond.spark import windowed_join

joined = windowed_join(orders, None, JoinWindows(before_ms=60_000, after_ms=0), "self")
query = (
    joined.select("key", "left_value", "headers")
    .writeStream.option("checkpointLocation", "checkpoint")
    .trigger(availableNow=True)
    .start("joined")
)
query.awaitTermination()
for row in spark.read.parquet("joined").collect():
    print(row.key, bytes(row.left_value), [(each.key, bytes(each.value)) for each in row.headers])
"""
    with local_kinesis("orders") as kinesis:
        put_all(kinesis.client(), "orders", [("ann", b"tea")])
        printed = run(
            session + block("headpond-kinesis") + query,
            tmp_path,
            AWS_ENDPOINT_URL=kinesis.endpoint_url,
            AWS_ACCESS_KEY_ID="here",
            AWS_SECRET_ACCESS_KEY="here",
        )
    assert printed == "ann b'tea' [('shard', b'shardId-000000000000')]\n"
