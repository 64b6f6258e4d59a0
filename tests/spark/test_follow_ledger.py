"""QLDB records on Spark: from a stream of aggregates and from an archive, the documents of the vectors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headpond.cli.commands.verify import listed
from headpond.cli.main import main
from headpond.core.formats import one_batch
from headpond.lake.apply import Applied, DecodedBatch, apply_batch
from headpond.lake.reports import lake_summary
from headpond.localkinesis import LocalKinesis
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.qldb.columns import ion_json_column
from headpond.qldb.journal.check import ANOMALIES
from headpond.spark import follow, verify
from headpond.spark.following import query
from headpond.spark.following.parts import apply_as_it_comes
from headpond.spark.sources.cells import FRAME_SCHEMA, Folder
from headpond.spark.sources.decoded import decode_partition
from tests.kit.support import vector_bytes
from tests.lake.ledgers import (
    TABLES,
    config_of,
    datums,
    decoded,
    expected_state,
    ledger_in,
    records,
    rows_of,
    state_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headpond.lake.tables import Lake

pytestmark = pytest.mark.spark

PIPELINE = """
[source]
{source}
format = "qldb"
max_bytes_per_trigger = "200 KiB"
[target]
path = "lake"
raw_ion = true
canonical_json = true
"""


def caught_up(spark: SparkSession, folder: Path, source: str, more: str = "") -> Lake:
    """Run to the end of what is there."""
    tables = "".join(f"[tables.{json.dumps(name, ensure_ascii=False)}]\n" for name in TABLES)
    file = folder / "pipeline.toml"
    file.write_text(PIPELINE.format(source=source) + tables + more)
    wanted = load(file)
    assert follow(spark, wanted, until_caught_up=True).awaitTermination(240)
    return open_lake(wanted)


def test_no_row_of_a_ledger_passes_through_the_jvm(tmp_path: Path) -> None:
    """On one machine revisions, facts and quarantine come as files, part by part: the same tables."""
    config = config_of(*TABLES, raw_ion=True)
    blobs = [*datums("clean"), b"no record"]
    wanted = ledger_in(tmp_path / "one", config)
    apply_batch(wanted, decoded(config, blobs))
    folder, lake, parts = Folder(), ledger_in(tmp_path / "other", config), list[DecodedBatch]()

    def collect() -> pa.Table:
        batches = [records(blobs[first : first + 100], first=first) for first in range(0, len(blobs), 100)]
        cells = decode_partition(config, [one_batch(each) for each in batches], folder=folder.path)
        frame = pa.Table.from_batches(list(cells), FRAME_SCHEMA)
        assert set(frame["kind"].to_pylist()) - {"arrivals", "newest"} == {"file", "counters"}
        return frame

    def apply(part: DecodedBatch) -> Applied:
        parts.append(part)
        return apply_batch(lake, part)

    apply_as_it_comes(folder, collect, apply, part_bytes=50_000)
    assert sum("blocks" in part.facts for part in parts) > 1
    assert state_of(lake) == state_of(wanted) == expected_state()
    assert lake.quarantine.count() == wanted.quarantine.count() == 1
    for name, facts in wanted.extras.facts.items():
        assert lake.extras.facts[name].count() == facts.count()


def test_an_archive_of_aggregates_becomes_documents(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several batches; and a history beside the state has every revision."""
    for way in ("apply_collected", "apply_in_parts"):
        monkeypatch.delattr(query, way)  # on one machine all rows come as files
    (tmp_path / "records.jsonl").write_bytes(vector_bytes("qldb/aggregated.jsonl"))
    past = '[tables.past]\ntable = "Person"\nkeep = "history"\n'
    lake = caught_up(spark, tmp_path, 'archive = "records.jsonl"', past)
    assert state_of(lake) == expected_state()
    summary = lake_summary(lake)
    assert summary["journal"] == {
        "controls": 2, "blocks": 200, "statements": 421, "redactions": 17, "conflicts": 0
    }  # fmt: skip
    past_rows = rows_of(lake)["past"]
    assert len(past_rows) == 100
    ions = pa.array([row["_ion"] for row in past_rows], pa.binary())
    assert [row["_json"] for row in past_rows] == ion_json_column(ions).to_pylist()
    assert summary["quarantined"] == {}


def test_a_stream_of_records_becomes_documents(spark: SparkSession, tmp_path: Path) -> None:
    """Shuffled over shards, with a record that nobody can read between them."""
    with LocalKinesis() as kinesis:
        kinesis.engine.create_stream("ledger", 3)
        records = [
            {"Data": data, "PartitionKey": str(number)}
            for number, data in enumerate([*datums("shuffled"), b"{text: true}"])
        ]
        client = kinesis.client()
        for at in range(0, len(records), 200):
            client.put_records(StreamName="ledger", Records=records[at : at + 200])
        source = f'stream = "ledger"\nendpoint_url = "{kinesis.endpoint_url}"\nregion = "us-east-1"'
        lake = caught_up(spark, tmp_path, source)
    assert state_of(lake) == expected_state()
    assert lake.quarantine.counts_by("reason") == {"not_binary_ion": 1}


def test_pipeline_spark_and_command_line_name_the_same_anomalies(
    spark: SparkSession, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Of records of several journals, each with something wrong."""
    records = tmp_path / "records.jsonl"
    names = ("missing_block", "tampered_revision", "conflicting_duplicate", "tampered_block_hash")
    lines = [vector_bytes(f"qldb/{name}.jsonl").splitlines(keepends=True)[100:500] for name in names]
    records.write_bytes(b"".join(line for part in lines for line in part))
    lake = caught_up(spark, tmp_path, 'archive = "records.jsonl"', "[verify]\nenabled = true\n")
    lake.extras.close(ended=True)
    of_pipeline = in_order(listed(lake.extras.journal.anomalies.read(ANOMALIES.names)))
    found = verify(spark, str(records)).toArrow().select(ANOMALIES.names)
    of_spark = in_order(listed(found))
    capsysbinary.readouterr()
    assert main(["verify", "--json", str(records)]) == 1
    of_command = in_order(json.loads(capsysbinary.readouterr().out)["anomalies"])
    assert len(of_command) > 3
    assert of_pipeline == of_spark == of_command


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    """Anomalies as texts, in one order."""
    return sorted(json.dumps(row, sort_keys=True) for row in rows)
