"""Reading that ends at a time: by the source's option in each kind of read, and by `headpond run --until`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from itertools import count, islice
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from headpond.cli.main import main
from headpond.core.errors import ConfigurationError
from headpond.localkinesis.testing import ManualClock, local_kinesis, put_all, read_all
from headpond.spark import register
from headpond.spark.errors import headpond_error_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headpond.localkinesis import LocalKinesis

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

STREAM = "orders"
Row = tuple[str, int, bytes]


def iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def rows(frame: Any) -> list[Row]:
    found = frame.select("shard_id", "sequence_number", "data").collect()
    return sorted((row[0], int(row[1]), bytes(row[2])) for row in found)


def held(kinesis: LocalKinesis) -> list[Row]:
    return sorted((r.shard_id, r.sequence_number, r.data) for r in read_all(kinesis.client(), STREAM))


def test_each_kind_of_read_ends_before_the_time(spark: SparkSession, tmp_path: Path) -> None:
    """At once, by a query to the end, and by one that goes on, which began before; through a split."""
    clock = ManualClock()
    with local_kinesis(STREAM, shards=2, clock=clock) as kinesis:

        def put(first: int) -> None:
            put_all(kinesis.client(), STREAM, [(f"k{n}", b"%d" % n) for n in range(first, first + 40)])
            clock.advance(5_000)

        put(0)
        kinesis.engine.split_shard(STREAM, "shardId-000000000000")
        put(40)
        end_ms = clock() + 600_000
        register(spark)
        given = {
            "streamName": STREAM,
            "endpointUrl": kinesis.endpoint_url,
            "startingPosition": "TRIM_HORIZON",
            "endingPosition": iso(end_ms),
        }
        stream = spark.readStream.format("kinesis").options(**given)
        goes_on: list[Row] = []
        query = (
            stream.load()
            .writeStream.foreachBatch(lambda frame, _: goes_on.extend(rows(frame)))
            .option("checkpointLocation", str(tmp_path / "goes on"))
            .start()
        )
        with pytest.raises(Exception, match="not come yet") as caught:
            spark.read.format("kinesis").options(**given).load().collect()
        assert isinstance(headpond_error_of(caught.value), ConfigurationError)
        clock.advance(570_000)
        put(80)
        clock.advance(24_999)
        put(120)  # a millisecond before the end
        put(160)
        wanted = [row for row in held(kinesis) if int(row[2]) < 160]
        clock.advance(60_000)
        assert rows(spark.read.format("kinesis").options(**given).load()) == wanted
        ends: list[Row] = []
        (
            stream.load()
            .writeStream.foreachBatch(lambda frame, _: ends.extend(rows(frame)))
            .option("checkpointLocation", str(tmp_path / "ends"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        assert sorted(ends) == wanted
        deadline = time.monotonic() + 60
        while len(goes_on) < len(wanted) and time.monotonic() < deadline:
            time.sleep(0.1)
        query.processAllAvailable()
        query.stop()
        assert sorted(goes_on) == wanted


def change(number: int) -> bytes:
    """An Aurora DSQL change that inserts a row."""
    ns = time.time_ns()
    source = {"version": "1.0", "schema": "public", "table": "t", "txId": f"tx{number}", "ts_ns": ns}
    record = {"type": "full", "op": "c", "before": None, "after": {"id": number}, "source": source}
    return json.dumps(record).encode()


def arrived_before(kinesis: LocalKinesis, end_ms: int) -> set[int]:
    """The rows whose changes arrived before a moment, by the service's own times."""
    client, found = kinesis.client(), set()
    for shard in client.list_shards(StreamName=STREAM)["Shards"]:
        place: str | None = client.get_shard_iterator(
            StreamName=STREAM, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while place is not None:
            reply = client.get_records(ShardIterator=place)
            for record in reply["Records"]:
                if record["ApproximateArrivalTimestamp"].timestamp() * 1000 < end_ms - 0.5:
                    found.add(json.loads(record["Data"])["after"]["id"])
            place = (
                reply.get("NextShardIterator") if reply["Records"] or reply["MillisBehindLatest"] else None
            )
    return found


@pytest.mark.thorough
def test_a_run_until_a_time_ahead(tmp_path: Path) -> None:
    """Killed in between, the stream split and written to all the while: the rows before it, no other."""
    with local_kinesis(STREAM, shards=2) as kinesis:
        end_ms = round(time.time() * 1000) + 45_000
        over, numbers = Event(), count()

        def write() -> None:
            client = kinesis.client()
            while not over.wait(0.05):
                put_all(client, STREAM, [(f"k{n}", change(n)) for n in islice(numbers, 5)])

        writer = Thread(target=write)
        writer.start()
        try:
            (tmp_path / "p.toml").write_text(
                f'[source]\nstream = "{STREAM}"\nformat = "dsql"\nendpoint_url = "{kinesis.endpoint_url}"\n'
                'region = "us-east-1"\n[target]\npath = "lake"\ntrigger = "1 second"\n'
                '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint" }\n'
            )
            command = [
                sys.executable,
                "-m",
                "headpond",
                "run",
                str(tmp_path / "p.toml"),
                "--until",
                iso(end_ms),
            ]
            first = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
            time.sleep(22)
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
            kinesis.engine.split_shard(STREAM, "shardId-000000000000")
            ran = subprocess.run([*command, "--json"], capture_output=True, timeout=200, check=False)
        finally:
            over.set()
            writer.join()
        assert ran.returncode == 0, ran.stderr.decode()
        assert time.time() * 1000 > end_ms
        wanted = arrived_before(kinesis, end_ms)
        assert 0 < len(wanted) < next(numbers)
        table = DeltaTable(tmp_path / "lake" / "public.t").to_pyarrow_table(columns=["id"])
        assert sorted(table["id"].to_pylist()) == sorted(wanted)


def test_what_until_cannot_be_used_with(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A time without a zone, an archive, and the end of what is there."""
    (tmp_path / "p.toml").write_text(
        '[source]\narchive = "*.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\nunknown_tables = "log"\n'
    )
    until = "2026-01-01T00:00:00Z"
    for arguments, says in (
        (["--until", "2026-01-01T00:00:00"], "no time zone"),
        (["--until", until], "--until is for streams"),
    ):
        assert main(["run", str(tmp_path / "p.toml"), *arguments]) == 2
        assert says in capfd.readouterr().err
