"""A whole run with secrets of every kind: none comes out; and all that is measured of it agrees."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.request import urlopen

import psutil
import pytest

from headpond.kpl.model import MAGIC
from headpond.lake.reports import batches_in
from headpond.lake.state.run_mark import mark_in
from headpond.localkinesis import LocalKinesis
from tests.kit.expected_tables import change_records, fill, pipeline_text
from tests.kit.s3_server import SECRET as STORE_SECRET
from tests.kit.s3_server import s3_store
from tests.kit.token_service import ROLE, Sts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headpond.kpl import UserRecord

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "first-secret-of-the-stream-0001",
    "LAKE_SECRET": "second-secret-of-the-lake-0002",
    "LAKE_TOKEN": "third-secret-of-the-lake-0003",
    "SPARK_SECRET": "fourth-secret-of-spark-0004",
    "EXTERNAL_ID": "fifth-secret-of-the-role-0005",
}
OF_THE_SERVERS = {"STORE": STORE_SECRET, "ROLE_SECRET": "ROLESECRET", "ROLE_TOKEN": "ROLETOKEN"}
"""Secrets that the stand-ins choose."""
NO_AGGREGATE = MAGIC + b"\xff" * 20 + hashlib.md5(b"\xff" * 20).digest()
"""Looks like an aggregate, has its checksum, and cannot be opened."""


@dataclass
class Ran:
    """A run that is over: its folder, what it printed, and the command lines of what it started."""

    folder: Path
    records: int
    out: bytes
    err: bytes
    commands: set[str]
    exposed: str
    """What Prometheus was served last."""


def run(folder: Path, source: str, options: str, records: int, **environment: str) -> tuple[int, Ran]:
    """Run a pipeline to the end of its source in a process of its own, with a secret of every kind."""
    text = pipeline_text(source, path="lake")
    text = text.replace('path = "lake"', f'path = "lake"\nstorage_options = {options}')
    text += '[spark]\n"spark.hadoop.fs.s3a.secret.key" = "env:SPARK_SECRET"\n'
    # The event log holds every plan as Spark shows it.
    (folder / "events").mkdir()
    text += f'"spark.eventLog.enabled" = "true"\n"spark.eventLog.dir" = "{(folder / "events").as_uri()}"\n'
    text += '"spark.sql.ui.explainMode" = "extended"\n"spark.eventLog.compress" = "false"\n'
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    text += f'[monitor]\nprometheus = "127.0.0.1:{port}"\n'
    (folder / "p.toml").write_text(text)
    command = [sys.executable, "-m", "headpond", "run", str(folder / "p.toml"), "--until-caught-up"]
    process = subprocess.Popen(
        [*command, "--log-format", "json", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=os.environ | SECRETS | {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE"} | environment,
    )
    commands: set[str] = set()
    exposed = ""
    try:
        while process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                try:
                    commands.add(" ".join(child.cmdline()))
                except psutil.Error:  # gone meanwhile
                    continue
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
                exposed = reply.read().decode()
            time.sleep(0.2)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, Ran(folder, records, out, err, commands, exposed)


def shown_secrets(ran: Ran) -> list[tuple[str, str]]:
    """Which secret is where in what a run left, printed and started."""
    assert any("java" in line for line in ran.commands)
    files = [path for path in ran.folder.rglob("*") if path.is_file() and path.name != "p.toml"]
    assert {"run.json", "spark.log"} <= {path.name for path in files}
    events = [path.read_text() for path in files if "events" in path.parts]
    assert any("physicalPlanDescription" in text for text in events)
    written = {str(path): path.read_bytes() for path in files}
    commands = "\n".join(sorted(ran.commands)).encode()
    written |= {"stdout": ran.out, "stderr": ran.err, "commands": commands, "served": ran.exposed.encode()}
    return [
        (name, place)
        for name, value in (SECRETS | OF_THE_SERVERS).items()
        for place, text in written.items()
        if value.encode() in text
    ]


@contextmanager
def stream_of_a_role(records: list[UserRecord]) -> Iterator[tuple[str, dict[str, str]]]:
    """A stream that is read as a role with an external id: its `[source]`, and the environment for it."""
    service = Sts()
    try:
        with LocalKinesis() as kinesis:
            kinesis.engine.create_stream("changes", 2)
            fill(kinesis.client(), "changes", records)
            source = (
                f'stream = "changes"\nendpoint_url = "{kinesis.endpoint_url}"\nstart = "TRIM_HORIZON"\n'
                f'region = "us-east-1"\nrole_arn = "{ROLE}"\nrole_external_id = "env:EXTERNAL_ID"'
            )
            yield source, {"AWS_ENDPOINT_URL_STS": service.url, "AWS_REGION": "us-east-1"}
        assert {asked["ExternalId"] for asked in service.asked} == {SECRETS["EXTERNAL_ID"]}
    finally:
        service.stop()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run to the end of a stream, with a secret of every kind and everything that is measured."""
    folder = tmp_path_factory.mktemp("ran")
    options = '{ aws_secret_access_key = "env:LAKE_SECRET", aws_session_token = "env:LAKE_TOKEN" }'
    records = change_records()
    with stream_of_a_role(records) as (source, environment):
        code, found = run(folder, source, options, len(records), **environment)
    assert code == 0, found.err.decode()
    return found


def test_no_secret_is_in_what_a_run_leaves_prints_or_starts(ran: Ran) -> None:
    """Log lines, summary, checkpoint, Spark's log, the lake, its mark and batch log, every command line."""
    assert shown_secrets(ran) == []


@pytest.mark.thorough
def test_no_secret_is_left_by_a_run_over_an_archive_in_s3_that_fails(tmp_path: Path) -> None:
    """What opens the object store is one of the source's options, too."""
    line = {"data": base64.b64encode(NO_AGGREGATE).decode(), "shard": "s", "sequenceNumber": "1"}
    with s3_store() as store:
        client = store.client()
        client.put_object(Bucket="lake", Key="records/a.jsonl", Body=json.dumps(line).encode())
        client.close()
        source = 'archive = "s3://lake/records/*.jsonl"\non_malformed = "fail"'
        code, found = run(tmp_path, source, store.toml, 1)
    said = found.err.decode()
    assert code != 0, said
    assert "MalformedAggregate" in said, said
    assert shown_secrets(found) == []


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
    assert json.loads(ran.out)["lag_ms"] == 0
    mark = mark_in(str(ran.folder / "lake")).read()
    assert mark is not None
    assert (mark["state"], mark["batch_id"], mark["run_id"]) == (
        "finished",
        rows[-1]["batch_id"],
        rows[-1]["run_id"],
    )
    # The end of a short run is served for moments; what is there from its start was seen.
    assert 'headpond_changes_total{outcome="upserts",pipeline="p",table="public.order_items"}' in ran.exposed
