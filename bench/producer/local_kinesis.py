"""MB a second of the local Kinesis, in and out, per second of the server's own CPU time.

    python bench/producer/local_kinesis.py [--size 25000] [--megabytes 200]

The server runs in a process of its own; the client speaks plain HTTP with ready-made bodies, so that the
server is measured and not boto3.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import subprocess
import sys
import time
from typing import Any

import psutil

MOST_RECORDS = 500
MOST_BYTES = 8_000_000
SERVE = """
from headpond.localkinesis import serve_forever
def announce(url, engine):
    engine.create_stream("bench")
    print(url, flush=True)
serve_forever(0, announce=announce)
"""


class Client:
    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def call(self, name: str, body: bytes) -> bytes:
        self._connection.request("POST", "/", body, {"X-Amz-Target": f"Kinesis_20131202.{name}"})
        return self._connection.getresponse().read()

    def ask(self, name: str, **arguments: Any) -> tuple[dict[str, Any], int]:
        reply = self.call(name, json.dumps(arguments).encode())
        return json.loads(reply), len(reply)


def write(client: Client, size: int, count: int, requests: int) -> None:
    data = base64.b64encode(bytes(size)).decode()
    records = [{"PartitionKey": str(n), "Data": data} for n in range(count)]
    body = json.dumps({"StreamName": "bench", "Records": records}).encode()
    for _ in range(requests):
        client.call("PutRecords", body)


def read(client: Client) -> int:
    found, _ = client.ask(
        "GetShardIterator",
        StreamName="bench",
        ShardId="shardId-000000000000",
        ShardIteratorType="TRIM_HORIZON",
    )
    place, records = found["ShardIterator"], 0
    while True:
        reply = client.call("GetRecords", json.dumps({"ShardIterator": place}).encode())
        records += reply.count(b'"PartitionKey"')
        # The records are not parsed: that would measure this client.
        tail = json.loads(b"{" + reply[reply.rindex(b"],") + 2 :])
        place = tail["NextShardIterator"]
        if not tail["MillisBehindLatest"]:
            return records


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=25_000)
    parser.add_argument("--megabytes", type=int, default=200)
    chosen = parser.parse_args()
    count = min(MOST_RECORDS, MOST_BYTES // chosen.size)
    requests = max(1, chosen.megabytes * 1_000_000 // (chosen.size * count))
    server = subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        client = Client(int(server.stdout.readline().rpartition(":")[2]))
        process = psutil.Process(server.pid)
        for name in ("in", "out"):
            cpu, wall = sum(process.cpu_times()[:2]), time.perf_counter()
            if name == "in":
                write(client, chosen.size, count, requests)
                records = count * requests
            else:
                records = read(client)
            cpu, wall = sum(process.cpu_times()[:2]) - cpu, time.perf_counter() - wall
            megabytes = records * chosen.size / 1e6
            print(
                f"{name:4}{records:8,} records of {chosen.size:,} B: {megabytes / cpu:7.0f} MB a CPU second"
                f" of the server, {megabytes / wall:6.0f} MB/s on the clock,"
                f" {cpu / records * 1e6:6.1f} us CPU a record"
            )
    finally:
        server.terminate()
        server.wait()


main()
