"""The whole stream through Spark, ten times: permuted, cut into files and batches at random."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from headpond.lake.apply import Applied
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.spark import follow
from tests.kit.expected_tables import differences, pipeline_text
from tests.kit.support import vector_bytes, vector_json

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

STREAM = vector_bytes("dsql/stream.jsonl").splitlines(keepends=True)
EXPECTED = vector_json("dsql/stream.expected.json")


MORE = [pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 10)]


@pytest.mark.parametrize("seed", [0, 1, *MORE])
def test_the_tables_do_not_depend_on_order_and_cuts(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    """Some records delivered twice; two to four files, two to five batches, chunks in any of them."""
    draw = random.Random(seed)
    lines = draw.sample(STREAM, len(STREAM)) + draw.sample(STREAM, 100)
    cuts = sorted(draw.sample(range(1, len(lines)), draw.randint(1, 3)))
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(lines)], strict=True)):
        (tmp_path / f"{number}.jsonl").write_bytes(b"".join(lines[start:end]))
    size = sum(map(len, lines)) // draw.randint(2, 4)
    source = f'archive = "*.jsonl"\nmax_bytes_per_trigger = {size}'
    (tmp_path / "p.toml").write_text(pipeline_text(source, path="lake", wanted=EXPECTED))
    pipeline, total = load(tmp_path / "p.toml"), Applied()
    query = follow(spark, pipeline, until_caught_up=True, on_batch=lambda _, applied: total.add(applied))
    assert query.awaitTermination(240)
    lake = open_lake(pipeline)
    assert differences(lake, EXPECTED) == []
    assert (lake.pending.count(), lake.quarantine.count()) == (0, 0)
    assert total.batches >= 2
    assert total.counters["records"] == len(lines)
