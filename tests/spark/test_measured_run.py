"""A whole run with secrets of every kind: none comes out; and all that is measured of it agrees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import pytest

from headpond.cli.demo import pipeline_text
from headpond.cli.demo_stream import change_records, fill
from headpond.kinesis.local import LocalKinesis
from headpond.tables.batch_log import batches_in
from headpond.tables.run_mark import mark_in

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "first-secret-of-the-stream-0001",
    "LAKE_SECRET": "second-secret-of-the-lake-0002",
    "LAKE_TOKEN": "third-secret-of-the-lake-0003",
    "SPARK_SECRET": "fourth-secret-of-spark-0004",
}


@dataclass
class Ran:
    """A run that is over: its folder, what it printed, and the command lines of what it started."""

    folder: Path
    records: int
    out: bytes
    err: bytes
    commands: set[str]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run to the end of a stream, with a secret of every kind and everything that is measured."""
    folder = tmp_path_factory.mktemp("ran")
    with LocalKinesis() as kinesis:
        kinesis.engine.create_stream("changes", 2)
        records = change_records()
        fill(kinesis.client(), "changes", records)
        source = f'stream = "changes"\nendpoint_url = "{kinesis.endpoint_url}"\nstart = "TRIM_HORIZON"'
        options = '{ aws_secret_access_key = "env:LAKE_SECRET", aws_session_token = "env:LAKE_TOKEN" }'
        text = pipeline_text(source, path="lake")
        text = text.replace('path = "lake"', f'path = "lake"\nstorage_options = {options}')
        text += '[spark]\n"spark.hadoop.fs.s3a.secret.key" = "env:SPARK_SECRET"\n'
        text += '[monitor]\ntextfile = "m.prom"\n'
        (folder / "p.toml").write_text(text)
        command = [sys.executable, "-m", "headpond", "run", str(folder / "p.toml"), "--until-caught-up"]
        process = subprocess.Popen(
            [*command, "--log-format", "json", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=os.environ | SECRETS | {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE"},
        )
        commands: set[str] = set()
        try:
            while process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    try:
                        commands.add(" ".join(child.cmdline()))
                    except psutil.Error:  # gone meanwhile
                        continue
                time.sleep(0.2)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err.decode()
    return Ran(folder, len(records), out, err, commands)


def test_no_secret_is_in_what_a_run_leaves_prints_or_starts(ran: Ran) -> None:
    """Log lines, summary, checkpoint, Spark's log, the lake, its mark and batch log, every command line."""
    assert any("java" in line for line in ran.commands)
    files = [path for path in ran.folder.rglob("*") if path.is_file() and path.name != "p.toml"]
    assert {"run.json", "spark.log", "m.prom"} <= {path.name for path in files}
    written = {str(path): path.read_bytes() for path in files}
    commands = "\n".join(sorted(ran.commands)).encode()
    written |= {"stdout": ran.out, "stderr": ran.err, "commands": commands}
    found = [
        (name, place)
        for name, value in SECRETS.items()
        for place, text in written.items()
        if value.encode() in text
    ]
    assert found == []


def test_a_run_is_measured_by_sparks_listener(ran: Ran) -> None:
    """The log of batches, the mark, Prometheus' file and the log lines tell the same of every batch."""
    told = [json.loads(line) for line in ran.err.decode().splitlines()]
    lines = [line for line in told if line["message"].endswith("is done")]
    rows = batches_in(str(ran.folder / "lake")).last(100)
    assert [row["batch_id"] for row in rows] == [line["batch_id"] for line in lines] != []
    assert sum(row["records"] for row in rows) == sum(line["records"] for line in lines) == ran.records
    for row in rows:
        assert row["applied"] + row["duplicates"] + row["stale"] + row["quarantined"] == row["records"]
        assert row["data_bytes"] > row["records"]
        assert row["duration_ms"] >= row["phases_ms"]["addBatch"] > 0
    assert set(rows[-1]["lags_ms"]) <= {f"shardId-{number:012}" for number in range(2)}
    assert rows[-1]["lag_ms"] == 0
    assert rows[0]["sizes"]["public.order_items"]["files"] >= 1
    mark = mark_in(str(ran.folder / "lake")).read()
    assert mark is not None
    assert (mark["state"], mark["batch_id"], mark["run_id"]) == (
        "finished",
        rows[-1]["batch_id"],
        rows[-1]["run_id"],
    )
    exposed = (ran.folder / "m.prom").read_text()
    assert f'headpond_records_total{{pipeline="p"}} {float(ran.records)}' in exposed
    assert f'headpond_batches_total{{pipeline="p"}} {float(len(rows))}' in exposed
