"""The steady state: updates of random keys of a large table with deletion vectors, from a live stream.

Run: python bench/dsql/steady.py [--rows 10000000] [--seconds 600] [--rate 5000] [--shards 4]

The local Kinesis, the producer of KPL aggregates (this process) and `headpond run` share the machine. Prints
how long batches took, by the pipeline's own log, and how far behind the stream was read.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import boto3
from merge import NAME, make
from payloads import records

from headpond.kpl import UserRecord, encode
from headpond.kpl.aggregator import Aggregator

AT_ONCE = 1_000
PIPELINE = """
[source]
stream = "steady"
endpoint_url = "{endpoint}"
format = "dsql"

[target]
path = "{lake}"
deletion_vectors = true

[tables."{name}"]
keys = ["id"]
columns = {{ id = "bigint", quantity = "bigint", note = "text" }}
"""
WITHOUT_ACCOUNT = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}


def begun(*arguments: str, **streams: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headpond", *arguments]
    return subprocess.Popen(command, env=os.environ | WITHOUT_ACCOUNT, text=True, **streams)


def put(endpoint: str, rows: int, rate: int, seconds: float) -> int:
    """Put updates until the time is over, those that are due at once; return how many."""
    client = boto3.Session("a", "b", region_name="us-east-1").client("kinesis", endpoint_url=endpoint)
    like = json.loads(next(records(1, keys_per_table=10)))
    draw, begin, count = random.Random(1), time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        if (time.monotonic() - begin) * rate < count + AT_ONCE:
            time.sleep(0.02)
            continue
        aggregator, packed, now_ns = Aggregator[UserRecord](), [], time.time_ns()
        for number in range(AT_ONCE):
            source = like["source"] | {"table": "orders", "ts_ns": now_ns + number, "ts_ms": now_ns // 10**6}
            row = {"id": draw.randrange(rows), "quantity": number % 100, "note": "x" * 40}
            change = like | {"op": "u", "before": None, "after": row, "source": source}
            packed += aggregator.add(UserRecord(f"key {draw.randrange(64)}", json.dumps(change).encode()))
        count += AT_ONCE
        last = aggregator.close()
        made = [encode(each.records) for each in (*packed, *([last] if last else []))]
        entries = [{"Data": each.data, "PartitionKey": each.partition_key} for each in made]
        client.put_records(StreamName="steady", Records=entries)
    return count


def batches(log: IO[str]) -> list[dict[str, Any]]:
    """Return what the log says of each batch that had records."""
    log.seek(0)
    lines = [json.loads(line) for line in log if line.startswith("{")]
    return [line for line in lines if line["logger"] == "headpond.batches" and line.get("records")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=int, default=5_000, help="updates a second")
    parser.add_argument("--shards", type=int, default=4)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headpond-bench-"))
    make(folder / "lake", options.rows, 0, 40, marks=True)
    stream = f"steady:{options.shards}"
    server = begun("local", "--port", "0", "--stream", stream, "--json", stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        endpoint = json.loads(server.stdout.readline())["endpoint"]
        file, log = folder / "pipeline.toml", (folder / "log").open("w+")
        file.write_text(PIPELINE.format(endpoint=endpoint, lake=folder / "lake", name=NAME))
        run = begun("run", str(file), "--log-format", "json", stdout=subprocess.DEVNULL, stderr=log)
        try:
            while "reading" not in Path(log.name).read_text():
                assert run.poll() is None, Path(log.name).read_text()
                time.sleep(0.5)
            count = put(endpoint, options.rows, options.rate, options.seconds)
            time.sleep(15)
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait(60)
        done = batches(log)
    finally:
        server.terminate()
        server.wait(10)
        shutil.rmtree(folder)
    took = sorted(each["duration_ms"] / 1000 for each in done)
    median, most = statistics.median(took), took[int(0.95 * len(took))]
    behind = max(each["lag_ms"] or 0 for each in done) / 1000
    print(f"{sum(each['records'] for each in done):,} of {count:,} updates in {len(done)} batches")
    print(f"a batch: {median:.2f} s (median), {most:.2f} s (95 %), {took[-1]:.2f} s at most")
    print(f"the stream was read at most {behind:.1f} s behind")


if __name__ == "__main__":
    main()
