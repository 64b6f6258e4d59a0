"""The whole way with `engine = "spark"`: an archive in, tables written by executors out."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
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

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SMALL = vector_bytes("dsql/small.jsonl").splitlines(keepends=True)
EXPECTED = vector_json("dsql/small.expected.json")


def test_a_pipeline_goes_from_one_engine_to_the_other(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run in the driver, one with the other engine whose batch is small, and one on executors."""
    from headpond.spark import follow
    from headpond.spark.following import distributed

    lines = SMALL.copy()
    random.Random(9).shuffle(lines)
    file = tmp_path / "pipeline.toml"
    total = Applied()
    for number, (engine, above_bytes) in enumerate((("embedded", 0), ("spark", 1 << 30), ("spark", 0))):
        (tmp_path / f"{number}.jsonl").write_bytes(b"".join(lines[number::3]))
        text = pipeline_text('archive = "*.jsonl"', path="lake")
        file.write_text(text.replace("[target]\n", f'[target]\nengine = "{engine}"\n'))
        monkeypatch.setattr(distributed, "DISTRIBUTE_ABOVE_BYTES", above_bytes)
        query = follow(
            spark, load(file), until_caught_up=True, on_batch=lambda _, applied: total.add(applied)
        )
        assert query.awaitTermination(280)
    lake = open_lake(load(file))
    assert differences(lake, EXPECTED) == []
    assert total.counters["changes"] == len(lines)
    assert sum(sum(figures.values()) for figures in total.tables.values()) == len(lines)


@pytest.mark.slow
def test_the_command_takes_a_batch_that_executors_share(tmp_path: Path) -> None:
    """In a process of its own, as the console starts it, with what it keeps out of that process."""
    count, note = 24_000, "x" * 1_000
    with (tmp_path / "a.jsonl").open("w") as archive:
        for number in range(count):
            source = {"version": "1.0", "ts_ns": number, "txId": "t", "schema": "public", "table": "orders"}
            change = {"type": "full", "op": "c", "before": None, "after": {"id": number, "note": note}}
            data = base64.b64encode(json.dumps(change | {"source": source}).encode()).decode()
            archive.write(json.dumps({"data": data}) + "\n")
    file = tmp_path / "p.toml"
    file.write_text(
        '[source]\narchive = "a.jsonl"\nformat = "dsql"\n[target]\nengine = "spark"\npath = "lake"\n'
        '[tables."public.orders"]\nkeys = ["id"]\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "headpond", "run", str(file), "--until-caught-up", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["tables"]["public.orders"]["rows"] == count
