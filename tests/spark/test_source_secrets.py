"""What a role is assumed with stays out of everything that Spark shows, writes and logs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headpond.localkinesis.testing import local_kinesis, put_all, read_all
from headpond.pipeline import load
from headpond.pipeline.lake import row_changes
from headpond.spark import register
from headpond.spark.following.query import decoded_changes
from headpond.spark.session.settings import REDACTED_OPTIONS
from headpond.spark.sources.rows import Rules
from tests.kit.expected_tables import pipeline_text
from tests.kit.token_service import EXTERNAL_ID, KEY, ROLE, SECRET, TOKEN, Sts, leaks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

JOB = Path(__file__).with_name("secrets_job.py")


@pytest.mark.thorough
def test_nothing_secret_in_plans_progress_logs_events_checkpoints_and_errors(tmp_path: Path) -> None:
    """Source and sink as another role, working and refused: no key, no token, no external id anywhere."""
    service = Sts()
    service.refused_roles.add(ROLE + "-refused")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(JOB.parents[2]), os.environ.get("PYTHONPATH", "")]),
        "AWS_ENDPOINT_URL_STS": service.url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": TOKEN,
        "AWS_REGION": "us-east-1",
    }
    try:
        with local_kinesis("orders", "copies") as kinesis:
            put_all(kinesis.client(), "orders", [(f"k{n}", b"%d" % n) for n in range(20)])
            done = subprocess.run(
                [sys.executable, str(JOB), kinesis.endpoint_url, str(tmp_path)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=250,
                check=False,
            )
            copies = read_all(kinesis.client(), "copies")
    finally:
        service.stop()
    shown = done.stdout + done.stderr
    assert not leaks(shown), [line for line in shown.splitlines() if leaks(line)][:5]
    assert done.returncode == 0, shown[-3000:]
    assert shown.count("WORKED") == 1
    assert shown.count("FAILED") == 3
    assert copies
    assert {asked["ExternalId"] for asked in service.asked} == {EXTERNAL_ID}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"spark.log", "events", "checkpoint"} <= {path.relative_to(tmp_path).parts[0] for path in files}
    assert not {str(path): found for path in files if (found := leaks(path.read_text(errors="replace")))}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (f'stream = "orders"\nrole_arn = "{ROLE}"\nrole_external_id = "{EXTERNAL_ID}"', ""),
        (
            'archive = "s3://lake/records/*"',
            f'storage_options = {{ aws_access_key_id = "{KEY}", aws_secret_access_key = "{SECRET}" }}',
        ),
    ],
    ids=["stream", "archive"],
)
def test_the_plan_of_a_followed_pipeline_shows_no_secret(
    spark: SparkSession, tmp_path: Path, source: str, target: str
) -> None:
    """Its sources are registered by themselves, not by `register`."""
    file = tmp_path / "pipeline.toml"
    file.write_text(pipeline_text(source, path="lake").replace('path = "lake"', f'path = "lake"\n{target}'))
    wanted = load(file)
    before = spark.conf.get(REDACTED_OPTIONS)
    try:
        spark.conf.set(REDACTED_OPTIONS, "(?i)url")
        frame = decoded_changes(spark, wanted, Rules(row_changes(wanted)))
        shown = frame._jdf.queryExecution().toString()
    finally:
        spark.conf.set(REDACTED_OPTIONS, str(before))
    assert "headpond-decoded" in shown
    assert not leaks(shown)


def test_what_the_session_leaves_out_already_stays_left_out(spark: SparkSession) -> None:
    """Registering adds to the user's own setting, and only once."""
    before = spark.conf.get(REDACTED_OPTIONS)
    try:
        spark.conf.set(REDACTED_OPTIONS, "(?i)url|mine")
        register(spark)
        register(spark)
        assert spark.conf.get(REDACTED_OPTIONS) == "(?:(?i)url|mine)|(?i)role_?external_?id|storage_?options"
        spark.conf.unset(REDACTED_OPTIONS)
        register(spark)
        assert "url" in str(spark.conf.get(REDACTED_OPTIONS))
    finally:
        spark.conf.set(REDACTED_OPTIONS, str(before))
