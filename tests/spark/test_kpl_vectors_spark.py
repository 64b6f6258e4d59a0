"""Every KPL decode vector through Spark: what the scalar expectation says, row by row."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from tests.kit.support import vector_json

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_the_vectors_are_opened_by_spark_as_expected(spark: SparkSession, tmp_path: Path) -> None:
    """Aggregates row by row with keys and data; what is plain or malformed is one row with its bytes."""
    from headpond.spark import register

    cases = [case for case in vector_json("kpl/decode.json") if case["kind"] == "decode"]
    lines = [
        json.dumps(
            {"shardId": "s", "sequenceNumber": str(n), "partitionKey": "api", "data": case["blob_b64"]}
        )
        for n, case in enumerate(cases)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    register(spark)
    frame = spark.read.format("headpond-archive").option("path", f"{tmp_path}/a.jsonl").load()
    found: dict[int, list[tuple[object, ...]]] = {}
    for row in frame.orderBy("sub_sequence_number").collect():
        found.setdefault(int(row["sequence_number"]), []).append(
            (row["partition_key"], row["explicit_hash_key"], bytes(row["data"]), row["aggregated"])
        )
    wanted: dict[int, list[tuple[object, ...]]] = {}
    for n, case in enumerate(cases):
        if case["expected"]["outcome"] != "aggregate":
            wanted[n] = [("api", None, base64.b64decode(case["blob_b64"]), False)]
        elif case["expected"]["records"]:
            wanted[n] = [
                (r["partition_key"], r["explicit_hash_key"], base64.b64decode(r["data_b64"]), True)
                for r in case["expected"]["records"]
            ]
    assert len(cases) > 20
    assert found == wanted
