"""The whole way on a Spark with Delta's jars: an archive in, tables merged by executors out."""

from __future__ import annotations

import random
import sys
from subprocess import run
from typing import TYPE_CHECKING

import pytest

from headpond.lake.apply import Applied
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from tests.kit.expected_tables import differences, pipeline_text
from tests.kit.support import vector_bytes, vector_json

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.maven, pytest.mark.timeout(900)]

SMALL = vector_bytes("dsql/small.jsonl").splitlines(keepends=True)
EXPECTED = vector_json("dsql/small.expected.json")


def test_a_pipeline_goes_from_one_engine_to_the_other(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with deltalake, one decided on in the driver and merged by Spark, one wholly on executors."""
    from headpond.spark import follow
    from headpond.spark.following import distributed as spread

    lines = SMALL.copy()
    random.Random(9).shuffle(lines)
    file = tmp_path / "pipeline.toml"
    total = Applied()
    for number, (engine, above_bytes) in enumerate((("embedded", 0), ("spark", 1 << 30), ("spark", 0))):
        (tmp_path / f"{number}.jsonl").write_bytes(b"".join(lines[number::3]))
        text = pipeline_text('archive = "*.jsonl"', path="lake")
        file.write_text(text.replace("[target]\n", f'[target]\nengine = "{engine}"\n'))
        monkeypatch.setattr(spread, "DISTRIBUTE_ABOVE_BYTES", above_bytes)
        query = follow(
            delta_spark, load(file), until_caught_up=True, on_batch=lambda _, applied: total.add(applied)
        )
        assert query.awaitTermination(280)
    lake = open_lake(load(file))
    assert differences(lake, EXPECTED) == []
    assert total.counters["changes"] == len(lines)
    assert sum(sum(figures.values()) for figures in total.tables.values()) == len(lines)


def test_jars_that_cannot_be_had_are_named(delta_spark: SparkSession, tmp_path: Path) -> None:
    """Spark's start ends with the package, what to look at, and the exit code of a lacking environment."""
    settings = tmp_path / "ivy.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers><filesystem name="none">'
        f'<artifact pattern="{tmp_path}/none/[artifact].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    (tmp_path / "x.jsonl").write_bytes(SMALL[0])
    file = tmp_path / "pipeline.toml"
    text = pipeline_text('archive = "x.jsonl"', path="lake").replace(
        "[target]\n", '[target]\nengine = "spark"\n'
    )
    spark = f'[spark]\n"spark.jars.ivySettings" = "{settings}"\n"spark.jars.ivy" = "{tmp_path}/ivy"\n'
    file.write_text(text + spark)
    done = run(
        [sys.executable, "-m", "headpond", "run", str(file), "--until-caught-up"],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 3
    assert "could not be fetched (io.delta#delta-spark_4.2_2.13;4.4.0: not found)" in done.stderr
    assert "Traceback" not in done.stderr
