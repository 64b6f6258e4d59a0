"""Documents of a ledger written by Spark's executors, and by both engines in turn."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from headpond.lake.apply import apply_batch
from headpond.lake.delta import DeltaFile
from headpond.qldb.config import DocumentSpec
from headpond.qldb.decode import LedgerConfig
from tests.lake.ledgers import block, config_of, datums, decoded, ledger_in, revision, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headpond.spark.following.delta_file import SparkFiles

pytestmark = [pytest.mark.maven, pytest.mark.timeout(900)]


@pytest.fixture
def spark_files(delta_spark: SparkSession) -> SparkFiles:
    """The engine on Spark."""
    from headpond.spark.following.delta_file import SparkFiles

    return SparkFiles(delta_spark)


def test_a_lake_written_by_both_engines_in_turn(spark_files: SparkFiles, tmp_path: Path) -> None:
    """Current documents and histories in any order, with repeats, contradictions, deletes and redactions."""
    config = config_of("Mixed", "Person", raw_ion=True, canonical_json=True, honour=True)
    draw = random.Random(5)
    blobs = [
        *draw.sample(datums("duplicated"), 300),
        revision("d", 1, "{a: 1, b: 2.50}", hashed=1),
        revision("d", 1, "{a: 2}", hashed=2),
        revision("d", 0, "{a: 0}", hashed=3),
        revision("e", 0, "{a: 1}"),
        revision("e", 1, None),
        block([("d", 1)], redacts=[("d", 0)]),
    ]
    draw.shuffle(blobs)
    want = ledger_in(tmp_path / "embedded", config)
    apply_batch(want, decoded(config, blobs))
    engines = (spark_files, DeltaFile)
    for number in range(4):
        lake = ledger_in(tmp_path / "both", config, engines[number % 2])
        some = decoded(config, blobs[number * 80 : (number + 1) * 80], first=number * 80)
        apply_batch(lake, some, transaction=("query", number))
        again = apply_batch(lake, some, transaction=("query", number))
        assert not any(figures["upserts"] + figures["deletes"] for figures in again.tables.values())
    assert rows_of(lake) == rows_of(want)
    assert lake.tombstones.counts() == want.tombstones.counts()


def test_partitioned_documents_on_the_engine_of_spark(spark_files: SparkFiles, tmp_path: Path) -> None:
    """A merge finds the rows of a document in their folders."""
    spec = DocumentSpec(
        name="t", table="Person", columns={"a": "bigint"}, partition_by=("a",), buckets=3, keep="history"
    )
    config = LedgerConfig(tables=(spec,))
    lake = ledger_in(tmp_path, config, spark_files)
    blobs = [revision(f"d{at % 7}", at // 7, f"{{a: {at % 2}, b: {at}}}") for at in range(28)]
    for at in (slice(0, None, 2), slice(1, None, 2), slice(5, 15)):
        apply_batch(lake, decoded(config, blobs[at]))
    assert [(row["_version"], row["b"]) for row in rows_of(lake)["t"] if row["_document_id"] == "d3"] == [
        (at, str(at * 7 + 3)) for at in range(4)
    ]
    assert lake.tables["t"].typed.file.count() == 28
