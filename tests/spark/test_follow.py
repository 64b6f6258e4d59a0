"""The whole way on Spark: a stream or an archive in, the expected tables out."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING

import pytest

from headpond.core.errors import ConfigurationError
from headpond.lake.apply import Applied
from headpond.localkinesis import LocalKinesis
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.spark import follow
from headpond.spark.errors import headpond_error_of
from headpond.spark.following.checkpoint import standing
from tests.kit.expected_tables import change_records, differences, fill, pipeline_text
from tests.kit.support import vector_bytes, vector_json, vector_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headpond.lake.tables import Lake
    from headpond.pipeline import Pipeline

pytestmark = pytest.mark.spark

SMALL = vector_bytes("dsql/small.jsonl").splitlines(keepends=True)
EXPECTED = vector_json("dsql/small.expected.json")
STREAM_EXPECTED = vector_json("dsql/stream.expected.json")


@pytest.fixture(scope="module")
def kinesis() -> Iterator[LocalKinesis]:
    with LocalKinesis() as local:
        yield local


def pipeline(folder: Path, source: str) -> Pipeline:
    file = folder / "pipeline.toml"
    file.write_text(pipeline_text(source, path="lake"))
    return load(file)


def caught_up(spark: SparkSession, wanted: Pipeline) -> tuple[Lake, Applied]:
    """Run to the end of what is there."""
    total, writes = Applied(), list[int]()
    query = follow(
        spark,
        wanted,
        until_caught_up=True,
        on_batch=lambda _, applied: total.add(applied),
        before_write=lambda: writes.append(total.batches),
    )
    assert query.awaitTermination(240)
    assert set(writes) == set(range(total.batches))
    return open_lake(wanted), total


def test_a_stream_of_plain_and_aggregated_records_becomes_the_expected_tables(
    spark: SparkSession, kinesis: LocalKinesis, tmp_path: Path
) -> None:
    """Several bounded batches over four shards, then more records, then nothing new."""
    kinesis.engine.create_stream("changes", 4)
    records = change_records()
    random.Random(7).shuffle(records)
    fill(kinesis.client(), "changes", records[:100])
    source = f'stream = "changes"\nendpoint_url = "{kinesis.endpoint_url}"\nstart = "TRIM_HORIZON"\n'
    wanted = pipeline(tmp_path, source + "max_records_per_trigger = 30")
    _, first = caught_up(spark, wanted)
    assert first.counters["records"] == 100
    assert first.batches >= 2
    fill(kinesis.client(), "changes", records[100:])
    lake, second = caught_up(spark, wanted)
    assert second.counters["records"] == len(records) - 100
    assert differences(lake, EXPECTED) == []
    _, third = caught_up(spark, wanted)
    assert third.counters["records"] == 0
    at = standing(wanted.target.checkpoint)
    assert at.planned_batch_id is None
    assert at.offset is not None
    assert set(at.offset["shards"]) == {f"shardId-{i:012}" for i in range(4)}


def test_an_archive_becomes_the_same_tables_with_bad_records_set_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Files plain and compressed, damaged lines and every refused case between them: the tables stand."""
    bad = [
        json.dumps({**case["records"][0], "sequenceNumber": str(10**55 + number)}).encode() + b"\n"
        for number, case in enumerate(vector_lines("dsql/cases.jsonl"))
        if case["expect"]["quarantine"] and not case["name"].startswith("chunk")
    ]
    assert len(bad) >= 5
    (tmp_path / "a.jsonl").write_bytes(b"".join(SMALL[:50] + bad) + b"this is no JSON\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(SMALL[40:])))
    wanted = pipeline(tmp_path, 'archive = "*.jsonl*"\nmax_bytes_per_trigger = "32 KiB"')
    lake, applied = caught_up(spark, wanted)
    assert applied.batches >= 2
    assert differences(lake, EXPECTED) == []
    quarantined = lake.quarantine.read(["reason", "data"])
    assert quarantined.num_rows == len(bad) + 1
    assert lake.quarantine.counts_by("reason")["archive_bad_line"] == 1
    raw = dict(zip(*(quarantined[c].to_pylist() for c in ("reason", "data")), strict=True))
    assert raw["archive_bad_line"].startswith(b"this is no JSON")


def test_chunked_changes_become_whole_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The whole stream, shuffled over files and cut into batches: fragments meet their main records."""
    lines, expected = vector_bytes("dsql/stream.jsonl").splitlines(keepends=True), STREAM_EXPECTED
    random.Random(5).shuffle(lines)
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_bytes(b"".join(lines[number::3]))
    (tmp_path / "pipeline.toml").write_text(
        pipeline_text('archive = "*.jsonl"\nmax_bytes_per_trigger = "900 KiB"', path="lake", wanted=expected)
    )
    lake, applied = caught_up(spark, load(tmp_path / "pipeline.toml"))
    assert applied.batches >= 3
    assert differences(lake, expected) == []
    assert (lake.pending.count(), lake.quarantine.count()) == (0, 0)
    assert applied.counters["chunk_groups_completed"] == expected["counts"]["chunked"]


def test_what_the_driver_finds_wrong_reaches_the_caller_as_its_own_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What is raised while a batch is applied comes through Spark as the error that it was."""
    (tmp_path / "a.jsonl").write_bytes(b"".join(SMALL[:50]))

    def find_wrong(_batch_id: int) -> None:
        raise ConfigurationError("public.orders.quantity is text now.", key="columns")

    query = follow(
        spark, pipeline(tmp_path, 'archive = "a.jsonl"'), until_caught_up=True, on_begin=find_wrong
    )
    with pytest.raises(Exception, match="quantity is text now") as caught:
        query.awaitTermination(240)
    assert isinstance(headpond_error_of(caught.value), ConfigurationError)
