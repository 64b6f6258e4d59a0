"""A join's checkpoint in S3: a server of its own on loopback, and Hadoop's own client for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headpond.kstreams.join.rules import JoinRules
from headpond.spark.session.settings import spark_jars
from tests.kit.maven_jars import maven_jars
from tests.kit.s3_server import SECRET, s3_store
from tests.kit.support import ROOT
from tests.spark.join_s3_job import WINDOWS
from tests.spark.join_streams import random_batches, rows_of, wanted, write

pytestmark = [pytest.mark.spark, pytest.mark.maven, pytest.mark.timeout(900)]
JOB = Path(__file__).with_name("join_s3_job.py")


@pytest.fixture(scope="module")
def jars() -> Path:
    """Those with which the Hadoop of this Spark reaches S3."""
    there = spark_jars()
    assert there is not None
    (client,) = there.glob("hadoop-client-api-*.jar")
    name = f"hadoop-aws-{client.stem.rpartition('-')[2]}"
    return maven_jars(name, [f"org.apache.hadoop:{name.replace('aws-', 'aws:')}"])


def run(*arguments: object) -> str:
    """What a process of its own prints."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def test_a_checkpoint_in_s3_is_shown_rescaled_and_continued(jars: Path, spark: Any, tmp_path: Path) -> None:
    """The query, `inspect`, `show` and `rescale` see the same records; the copy goes on with other tasks."""
    batches = [
        [event for event in batch if event.key is not None]
        for batch in random_batches(9, batches=2, size=60, spread_ms=0)
    ]
    old, new = "s3a://lake/joins/old", "s3a://lake/joins/new"
    with s3_store() as store:
        conf = {
            "spark.jars": ",".join(map(str, sorted(jars.glob("*.jar")))),
            "spark.hadoop.fs.s3a.endpoint": store.url,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
            # Hadoop's clients do not take how moto answers "Expect: 100-continue": the usual one can do
            # without, the one for whole files cannot, and is left out.
            "spark.hadoop.fs.s3a.connection.expect.continue": "false",
            "spark.hadoop.fs.s3a.optimized.copy.from.local.enabled": "false",
            "spark.hadoop.fs.s3a.access.key": "AKIAEXAMPLE",
            "spark.hadoop.fs.s3a.secret.key": SECRET,
        }
        settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]

        def answers(*command: str) -> list[Any]:
            out = run("-m", "headpond", "join", *command, "--json", *settings)
            return [json.loads(line) for line in out.splitlines()]

        write(tmp_path, batches[:1])
        run(JOB, tmp_path, 3, old, json.dumps(conf))
        (found,) = answers("inspect", old)
        assert found["tasks"] == 3
        assert found["records"] > 0
        key = batches[0][-1].key
        assert key
        values = {event.value and event.value.hex() for event in batches[0] if event.key == key}
        shown = answers("show", old, "--key", key.decode())
        assert shown
        assert {each["value"] for each in shown} <= values
        (done,) = answers("rescale", old, "--tasks", "2", "--out", new)
        assert done == {"from_tasks": 3, "to_tasks": 2, "records": found["records"], "checkpoint": new}
        (moved,) = answers("inspect", new)
        assert (moved["tasks"], moved["records"]) == (2, found["records"])
        write(tmp_path, batches[1:], 1)
        run(JOB, tmp_path, 2, new, json.dumps(conf))
    # Nothing came later than the grace allows: results do not depend on the tasks.
    assert rows_of(spark, tmp_path) == wanted(JoinRules("inner", WINDOWS), batches, 1)[0]
