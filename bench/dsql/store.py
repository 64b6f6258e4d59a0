"""What a batch of many tables costs in an object store that takes a while for each request.

Run: python bench/dsql/store.py [--tables 20] [--partitions 1] [--delay-ms 30] [--rounds 5] [--json FILE]

A store of moto's, a process of its own, answers each request after the delay. deltalake's merge, one table
after the other as in a loop by hand, gets the same changes: per batch and table 500 of 5,000 keys. It keeps
no tombstones. With `--partitions` each table has so many, and every batch reaches all of them. Shown are the
time to make the tables, the medians of batches, and their requests. moto itself computes for some
milliseconds a request, one at a time: a real store answers sooner.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from merge import changes

from headpond.dsql.config import TableSpec
from headpond.dsql.decode import DsqlConfig
from headpond.lake.apply import DecodedBatch, apply_batch
from headpond.lake.tables import Lake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SERVER = """
import logging, sys, threading, time
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
logging.getLogger("werkzeug").setLevel(logging.ERROR)
store, asked = DomainDispatcherApplication(create_backend_app), []
def answer(environ, start_response):
    if environ["PATH_INFO"] == "/asked":
        start_response("200 OK", [])
        return [str(len(asked)).encode()]
    asked.append(None)
    time.sleep(float(sys.argv[1]))
    return store(environ, start_response)
class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
server = make_server("127.0.0.1", 0, answer, threaded=True, request_handler=Handler)
print(server.port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""
KEYS, CHANGES = 5_000, 500
COLUMNS = {"id": "bigint", "quantity": "bigint", "note": "text", "day": "text"}


@contextmanager
def slow_store(delay_s: float) -> Iterator[str]:
    """Serve S3 with a bucket `lake`, and yield its URL."""
    command = [sys.executable, "-c", _SERVER, str(delay_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.stdin.close()


def asked(url: str) -> int:
    with urllib.request.urlopen(f"{url}/asked") as answer:
        return int(answer.read())


def timed(url: str, work: Callable[[], Any]) -> tuple[float, int]:
    """Seconds that something took, and requests."""
    before, begun = asked(url), time.perf_counter()
    work()
    return time.perf_counter() - begun, asked(url) - before


def merge_each(place: str, options: dict[str, str], batch: dict[str, pa.Table]) -> None:
    """Merge one table after the other with deltalake."""
    for name, rows in batch.items():
        source = pa.table([rows[f"c:{c}"] for c in COLUMNS] + [rows["m:ts_ns"]], [*COLUMNS, "_ts_ns"])
        source = source.group_by(["id", "day", "_ts_ns"], use_threads=False).aggregate(
            [("quantity", "first"), ("note", "first")]
        )
        source = source.rename_columns(["id", "day", "_ts_ns", "quantity", "note"])
        (
            DeltaTable(f"{place}/{name}", storage_options=options)
            .merge(source, "t.day = s.day AND t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_update_all("t._ts_ns < s._ts_ns")
            .when_not_matched_insert_all()
            .execute()
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--delay-ms", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    names = [f"public.t{number}" for number in range(given.tables)]
    by = ("day",) if given.partitions > 1 else ()
    specs = [
        TableSpec(
            name=n,
            schema="public",
            table=n.partition(".")[2],
            keys=("id",),
            columns=COLUMNS,
            partition_by=by,
        )
        for n in names
    ]
    draw = np.random.default_rng(7)
    found: dict[str, list[tuple[float, int]]] = {"headpond": [], "deltalake": []}
    with slow_store(given.delay_ms / 1000) as url:
        secrets = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1"}
        options = secrets | {"AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"}
        boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="s"
        ).create_bucket(Bucket="lake")
        lake = Lake("s3://lake/h", DsqlConfig(tables=tuple(specs)), options)
        start = timed(url, lake.prepare)
        kinds = {"id": pa.int64(), "quantity": pa.int64(), "note": pa.string(), "day": pa.string()}
        schema = pa.schema([*kinds.items(), ("_ts_ns", pa.int64())])
        for name in names:
            DeltaTable.create(
                f"s3://lake/l/{name}", schema, partition_by=list(by) or None, storage_options=options
            )
        for number in range(given.rounds + 1):
            batch = {}
            for spec in specs:
                ids = draw.integers(0, KEYS, CHANGES)
                day = pa.array([f"d{each % given.partitions:03}" for each in ids.tolist()])
                batch[spec.name] = changes(spec, ids, number + 1, draw, 60).append_column("c:day", day)
            ours = timed(url, lambda: apply_batch(lake, DecodedBatch(batch)))  # noqa: B023 - at once
            theirs = timed(url, lambda: merge_each("s3://lake/l", options, batch))  # noqa: B023
            if number:  # the first one fills the tables
                found["headpond"].append(ours)
                found["deltalake"].append(theirs)
    print(f"{given.tables} tables made: {start[0]:.1f} s, {start[1]} requests")
    figures: dict[str, float] = {"start_s": start[0], "start_requests": start[1]}
    for side, rounds in found.items():
        seconds, requests = (statistics.median(each) for each in zip(*rounds, strict=True))
        figures |= {f"{side}_s": seconds, f"{side}_requests": requests}
        print(f"{side:10} a batch: {seconds:6.2f} s, {requests / given.tables:5.1f} requests a table")
    if given.json:
        given.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
