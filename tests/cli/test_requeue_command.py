"""`headpond requeue`, called as a user calls it."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from headpond.lake.apply import apply_batch
from headpond.lake.maintenance.rebuild import rebuild
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake, row_changes
from tests.lake.lakes import decoded

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli

FILE = """[source]
archive = "x.jsonl"
format = "dsql"
[target]
path = "lake"
[tables."public.t"]
keys = ["id"]
columns = { id = "bigint", v = "KIND" }
"""


def record(number: int, v: object) -> bytes:
    source = {
        "version": "1.0",
        "ts_ns": number,
        "txId": "t",
        "schema": "public",
        "table": "t",
        "cluster": "c",
    }
    change: dict[str, Any] = {"type": "full", "op": "c", "after": {"id": number, "v": v}, "source": source}
    data = base64.b64encode(json.dumps(change).encode()).decode()
    return json.dumps({"data": data, "shard": "s", "sequenceNumber": str(number)}).encode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A pipeline with two changes in quarantine, one of which the file, mended since, accepts."""
    file = tmp_path / "p.toml"
    file.write_text(FILE.replace("KIND", "text"))
    pipeline = load(file)
    lake = open_lake(pipeline)
    lake.prepare()
    apply_batch(lake, decoded(row_changes(pipeline), [record(1, 7), record(2, "x"), b"no line"]))
    file.write_text(FILE.replace("KIND", "any"))
    rebuild(open_lake(load(file)), "public.t")
    return file


def test_what_is_mended_goes_to_its_table(cli: Cli, file: Path) -> None:
    """The figures as JSON, and the row in the table."""
    done = cli("requeue", file, "--reason", "cast_error", "--json")
    assert done.code == 0
    assert done.lines() == [
        {
            "reason": "cast_error",
            "dry_run": False,
            "read": 1,
            "left": 1,
            "stayed": {},
            "without_data": 0,
            "pending": 0,
            "tables": {"public.t": {"upserts": 1}},
        }
    ]
    lake = open_lake(load(file))
    assert lake.typed["public.t"].file.count() == 2
    assert dict(lake.quarantine.counts_by("reason")) == {"archive_bad_line": 1}


def test_a_dry_run_says_what_would_be(cli: Cli, file: Path) -> None:
    """For a person, over all reasons; nothing is changed."""
    said = cli("requeue", file, "--reason", "all", "--dry-run")
    assert said.code == 0
    assert "1 of 2 records would leave the quarantine." in said.stdout.decode()
    assert "next: headpond requeue" in said.stdout.decode()
    assert "archive_bad_line" in said.stdout.decode()
    assert open_lake(load(file)).quarantine.count() == 2


def test_a_reason_that_is_not_there_is_refused_with_those_that_are(cli: Cli, file: Path) -> None:
    """A spelling mistake is no success."""
    said = cli("requeue", file, "--reason", "cast-error")
    assert said.code == 2
    assert "cast-error" in said.stderr
    assert "archive_bad_line (1), cast_error (1)" in said.stderr
