"""`headpond suggest`, on archives and on a stream."""

from __future__ import annotations

import base64
import gzip
import json
import tomllib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headpond.kinesis.archive.lines import read_lines
from headpond.kpl import UserRecord, encode
from headpond.kpl.records import open_records
from headpond.lake.apply import DecodedBatch, apply_batch
from headpond.localkinesis import LocalKinesis
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli

HEAD = '[source]\n{source}\nformat = "dsql"\n[target]\npath = "lake"\n'


def data(number: int, *, delete: bool = False) -> bytes:
    source = {
        "version": "1.0",
        "ts_ns": number,
        "txId": "t",
        "schema": "public",
        "table": "t",
        "cluster": "c",
    }
    images: dict[str, Any] = {"before": {"id": number}} if delete else {"after": {"id": number, "v": "1.50"}}
    return json.dumps({"type": "full", "op": "d" if delete else "c", "source": source} | images).encode()


def line(number: int, content: bytes) -> bytes:
    record = {"data": base64.b64encode(content).decode(), "shard": "s", "sequenceNumber": str(number)}
    return json.dumps(record).encode() + b"\n"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A pipeline without tables, and two files, one of them a gzip file that was cut short."""
    file = tmp_path / "p.toml"
    file.write_text(HEAD.format(source='archive = "*.jsonl*"'))
    (tmp_path / "a.jsonl").write_bytes(line(1, data(1)) + line(2, data(1, delete=True)) + b"no line\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(line(n, data(n)) for n in range(50)))[:-9])
    return file


def test_a_proposal_for_an_archive_is_toml(cli: Cli, archive: Path) -> None:
    """It can be put into the file as it is."""
    said = cli("suggest", archive)
    assert said.code == 0
    found = tomllib.loads(said.stdout.decode())
    assert found == {"tables": {"public.t": {"keys": ["id"], "columns": {"id": "bigint", "v": "text"}}}}
    assert "every value looks like numeric" in said.stdout.decode()
    assert "would be quarantined: archive_bad_line" in said.stdout.decode()
    archive.write_text(archive.read_text() + said.stdout.decode())
    (again,) = cli("suggest", archive, "--json").lines()
    assert again["tables"]["public.t"]["configured_as"] == "public.t"


def test_no_more_records_than_asked_are_read(cli: Cli, archive: Path) -> None:
    """From the beginning."""
    (found,) = cli("suggest", archive, "--records", 1, "--json").lines()
    assert found["records"] == 1
    assert found["tables"]["public.t"]["deletes"] == 0


def test_an_archive_without_files_is_refused(cli: Cli, archive: Path) -> None:
    """There is nothing to propose from."""
    archive.write_text(HEAD.format(source='archive = "none/*.jsonl"'))
    said = cli("suggest", archive)
    assert said.code == 2
    assert "No file matches" in said.stderr


def test_a_file_without_tables_still_cannot_run(cli: Cli, archive: Path) -> None:
    """Only the proposal does without."""
    said = cli("run", archive)
    assert said.code == 2
    assert "There is no [tables] entry" in said.stderr


def test_a_table_that_only_its_raw_log_knows_is_proposed_from_it(cli: Cli, archive: Path) -> None:
    """What has left the source, or lies too far in, is in the lake."""
    open_file = archive.with_name("open.toml")
    open_file.write_text(archive.read_text().replace("[target]", '[target]\nunknown_tables = "log"'))
    records = [data(1), data(2), data(2, delete=True)]
    lines = [line(n, each.replace(b'"table": "t"', b'"table": "gone"')) for n, each in enumerate(records)]
    lake = open_lake(load(open_file))
    read = read_lines(lines, stream="s", file="f", first_line=1)
    for opened in open_records(read):
        tables = {
            name: pa.Table.from_batches([rows]) for name, rows in lake.config.decode(opened).tables.items()
        }
        apply_batch(lake, DecodedBatch(tables))
    (found,) = cli("suggest", open_file, "--json").lines()
    assert found["tables"]["public.t"]["from_log"] == 0
    gone = found["tables"]["public.gone"]
    assert (gone["from_log"], gone["upserts"], gone["deletes"], gone["keys"]) == (3, 2, 1, ["id"])
    assert {name: column["type"] for name, column in gone["columns"].items()} == {"id": "bigint", "v": "text"}
    said = cli("suggest", open_file).stdout.decode()
    assert "# from 3 entries of its raw log, not from the source" in said
    assert tomllib.loads(said)["tables"]["public.gone"]["keys"] == ["id"]


@pytest.mark.slow
def test_a_stream_is_read_with_its_aggregates(cli: Cli, tmp_path: Path) -> None:
    """All shards, from the horizon, whatever `start` says; and without Spark."""
    with LocalKinesis() as kinesis:
        kinesis.engine.create_stream("orders-cdc", 3)
        client = kinesis.client()
        for number in range(5):
            client.put_record(StreamName="orders-cdc", PartitionKey=str(number), Data=data(number))
        packed = encode([UserRecord("k", data(7)), UserRecord("k", data(7, delete=True))])
        client.put_record(StreamName="orders-cdc", PartitionKey=packed.partition_key, Data=packed.data)
        file = tmp_path / "p.toml"
        source = f'stream = "orders-cdc"\nendpoint_url = "{kinesis.endpoint_url}"\nstart = "LATEST"'
        file.write_text(HEAD.format(source=source))
        (found,) = cli("suggest", file, "--json").lines()
    assert found["records"] == 7
    table = found["tables"]["public.t"]
    assert (table["upserts"], table["deletes"], table["keys"]) == (6, 1, ["id"])
    assert table["columns"]["v"] == {
        "type": "text",
        "note": "every value looks like numeric",
        "values": 6,
        "nulls": 0,
    }
