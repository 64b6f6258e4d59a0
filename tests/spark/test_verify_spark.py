"""Verification on executors names the anomalies that the command line names."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from amazon.ion import simpleion

from headpond.cli.verify_pieces import examine, files_of, pieces
from headpond.core.errors import UsageError
from headpond.qldb.batch import decode_qldb
from headpond.qldb.columns import ion_json_column
from headpond.qldb.files import split_datums
from headpond.qldb.journal.known import Journal
from headpond.spark import verify
from headpond.spark.journal import MALFORMED
from tests.kit.support import vector_bytes, vector_json, vector_lines
from tests.lake.ledgers import exported

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

EXPECTED = vector_json("qldb/expected.json")
FILES = [name for name, told in EXPECTED["files"].items() if told.get("anomalies")]


def datums(name: str) -> list[bytes]:
    return [base64.b64decode(line["data"]) for line in vector_lines(f"qldb/{name}")]


def frame_of(spark: SparkSession, blobs: list[bytes]) -> DataFrame:
    return spark.createDataFrame(pa.table({"data": pa.array(blobs, pa.binary())})).repartition(2)


def rows(found: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in found.collect()), key=lambda row: json.dumps(row, sort_keys=True))


def test_all_tampered_journals_in_one(spark: SparkSession) -> None:
    """In slices so small that every check crosses them; equal to the core in one go."""
    blobs = [blob for name in FILES for blob in datums(name)[300:420]]
    journal = Journal()
    journal.add(decode_qldb(pa.array(blobs, pa.binary())))
    expected = sorted(
        journal.checked().anomalies.to_pylist(), key=lambda row: json.dumps(row, sort_keys=True)
    )
    assert len(expected) > 5
    assert rows(verify(spark, frame_of(spark, blobs), slice_blocks=16)) == expected


def test_an_archive_with_gaps_and_what_is_no_record(spark: SparkSession, tmp_path: Path) -> None:
    """Aggregates are opened; a missing block is a range; malformed lines and datums are rows of their own."""
    lines = vector_bytes("qldb/missing_block.jsonl").splitlines(keepends=True)
    bad = vector_bytes("qldb/malformed.jsonl").splitlines(keepends=True)[2]
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines[:300]) + bad + b"nothing\n" + b"".join(lines[300:]))
    found = rows(verify(spark, f"{tmp_path}/*.jsonl"))
    gone = EXPECTED["files"]["missing_block.jsonl"]["removed_sequence_no"]
    assert [(row["first"], row["last"]) for row in found if row["kind"] == "missing_blocks"] == [(gone, gone)]
    malformed = [row["detail"].split()[0] for row in found if row["kind"] == MALFORMED]
    assert sorted(malformed) == ["archive_bad_line", "no_value"]
    assert len(found) == 3
    (tmp_path / "a.jsonl").write_bytes(vector_bytes("qldb/aggregated.jsonl"))
    assert rows(verify(spark, f"{tmp_path}/*.jsonl")) == []


def test_a_journal_export_by_its_manifest(spark: SparkSession, tmp_path: Path) -> None:
    """Objects of Ion and of JSON Lines: the anomalies that the command line names."""
    blocks = exported()[:60]
    blocks[9]["entriesHash"] = bytes(32)
    del blocks[20]
    (tmp_path / "one.ion").write_bytes(simpleion.dumps(blocks[:30], binary=True, sequence_as_stream=True))
    binary = simpleion.dumps(blocks[30:], binary=True, sequence_as_stream=True)
    data = pa.array([datum.data for datum in split_datums(bytes(binary))], pa.binary())
    (tmp_path / "two.json").write_text("\n".join(ion_json_column(data).to_pylist()))
    manifest = tmp_path / "export.completed.manifest"
    manifest.write_text('{keys:["prefix/one.ion", "prefix/two.json"]}')
    journal = Journal()
    for part in examine(piece for name in files_of([str(manifest)]) for piece in pieces(name)):
        journal.absorb(part.journal)
    expected = journal.checked().anomalies.to_pylist()
    assert {row["kind"] for row in expected} == {
        "entries_hash_mismatch", "block_hash_mismatch", "missing_blocks"
    }  # fmt: skip
    found = rows(verify(spark, str(manifest)))
    assert found == sorted(expected, key=lambda row: json.dumps(row, sort_keys=True))


def test_the_last_blocks_of_a_completed_stream(spark: SparkSession) -> None:
    """COMPLETED reaches every strand; without closing nothing is missing."""
    blobs = datums("clean.jsonl")
    decoded = decode_qldb(pa.array(blobs, pa.binary()))
    last = max(decoded.revisions["sequence_no"].to_pylist())
    gone = {
        row["index"]
        for row in decoded.blocks.select(["index", "sequence_no"]).to_pylist()
        if row["sequence_no"] >= last
    }
    kept = [blob for number, blob in enumerate(blobs) if number not in gone]
    (row,) = rows(verify(spark, frame_of(spark, kept)))
    assert (row["kind"], row["first"], row["last"]) == ("missing_blocks", last, last)
    assert rows(verify(spark, frame_of(spark, kept), closed=False)) == []


def test_a_frame_without_data_is_refused(spark: SparkSession) -> None:
    """Before anything runs, with the columns it has."""
    with pytest.raises(UsageError, match="binary column `data`"):
        verify(spark, spark.createDataFrame([("x",)], "data string"))
