"""The archive source in Spark: every record once, in bounded batches, across restarts."""

from __future__ import annotations

import base64
import gzip
import json
from typing import TYPE_CHECKING

import pytest

from headpond.core.errors import ConfigurationError, DataLoss
from headpond.kpl import UserRecord, encode
from headpond.spark import register
from headpond.spark.errors import headpond_error_of
from tests.kit.support import vector_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Sink:
    """Rows of each batch, by its number: what a target that can repeat a batch would hold."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[str, str, int]]] = {}
        self.repeated: dict[int, list[tuple[str, str, int]]] = {}

    def __call__(self, frame: DataFrame, number: int) -> None:
        def rows() -> list[tuple[str, str, int]]:
            return sorted(
                (row["shard_id"], row["sequence_number"], row["sub_sequence_number"])
                for row in frame.select("shard_id", "sequence_number", "sub_sequence_number").collect()
            )

        self.batches[number] = rows()
        self.repeated[number] = rows()

    @property
    def all(self) -> list[tuple[str, str, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)


def run(spark: SparkSession, folder: Path, sink: Sink, **options: str) -> None:
    """Run to the end of what is there now."""
    register(spark)
    frame = spark.readStream.format("headpond-archive").options(path=f"{folder}/records/*", **options).load()
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_an_archive_is_read_once_in_bounded_batches_and_on_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Plain and gzip files, then files that came while the query was stopped: each record exactly once."""
    lines = vector_bytes("dsql/small.jsonl").splitlines(keepends=True)
    expected = sorted((r["shard"], r["sequenceNumber"], 0) for r in map(json.loads, lines))
    records = tmp_path / "records"
    records.mkdir()
    (records / "b.jsonl").write_bytes(b"".join(lines[:60]))
    sink = Sink()
    bound = sum(map(len, lines[:60])) // 2
    run(spark, tmp_path, sink, maxBytesPerTrigger=str(bound))
    assert len(sink.batches) in (2, 3)
    (records / "a.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[60:])))
    run(spark, tmp_path, sink, maxBytesPerTrigger=str(bound))
    assert expected == sink.all
    assert sink.repeated == sink.batches


def test_a_batch_read_opens_aggregates_and_keeps_bad_lines(spark: SparkSession, tmp_path: Path) -> None:
    """Aggregates open as they do from a stream; a damaged gzip file and a bad line are rows."""
    register(spark)
    data = base64.b64encode(encode([UserRecord("k", b"1"), UserRecord("k", b"2")]).data).decode()
    good = json.dumps({"data": data, "shard": "s", "sequenceNumber": 5}).encode()
    (tmp_path / "a.jsonl").write_bytes(good + b"\nnot a record\n" + good)
    (tmp_path / "b.gz").write_bytes(gzip.compress(good + b"\n" + bytes(range(256)) * 50)[:-10])
    frame = spark.read.format("headpond-archive").option("path", f"{tmp_path}/*").load()
    rows = [row.asDict() for row in frame.collect()]
    opened = [
        (r["sequence_number"], r["sub_sequence_number"], bytes(r["data"])) for r in rows if r["aggregated"]
    ]
    assert opened == [("5", 0, b"1"), ("5", 1, b"2")] * 3
    bad = [r for r in rows if r["problem"] == "archive_bad_line"]
    assert (
        bad[0]["shard_id"],
        bad[0]["sequence_number"],
        bytes(bad[0]["data"]),
    ) == ("a.jsonl", "2", b"not a record")
    assert any(b"gzip file of" in bytes(r["data"]) for r in bad)
    tagged = spark.read.format("headpond-archive").options(path=f"{tmp_path}/a*", includeTags="true").load()
    assert tagged.columns[-1] == "tags"
    assert tagged.count() == 5


def test_an_empty_archive_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Files without lines are an archive, too."""
    (tmp_path / "empty.jsonl").touch()
    register(spark)
    assert spark.read.format("headpond-archive").load(f"{tmp_path}/*.jsonl").collect() == []


def test_our_errors_are_found_again_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    """A wrong option, and a file that changed under the checkpoint, arrive as our own classes."""
    register(spark)
    with pytest.raises(Exception, match="HEADPOND") as caught:
        spark.read.format("headpond-archive").options(path="x/*", maxBytePerTrigger="1").load()
    error = headpond_error_of(caught.value)
    assert isinstance(error, ConfigurationError)
    assert error.next_step == "Did you mean maxBytesPerTrigger?"

    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "a.jsonl").write_bytes(b'{"data": ""}\n' * 3)
    run(spark, tmp_path, Sink())
    (tmp_path / "records" / "a.jsonl").write_bytes(b'{"data": ""}\n')
    with pytest.raises(Exception, match="HEADPOND") as caught:
        run(spark, tmp_path, Sink())
    loss = headpond_error_of(caught.value)
    assert isinstance(loss, DataLoss)
    assert (loss.facts["file"], loss.facts["expected"], loss.facts["found"]) == ("a.jsonl", 39, 13)
    sink = Sink()
    run(spark, tmp_path, sink, failOnDataLoss="false")
    assert sink.all == []
