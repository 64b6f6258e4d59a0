"""Chunks that wait too long are given up on a silent stream, too, and never while something is unread."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from headpond.dsql.chunks import Chunks
from headpond.kinesis.api.calls import ServiceCalls
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.reading.positions import HORIZON, Offset, Position, after
from headpond.lake.target import DecodedBatch
from headpond.localkinesis import LocalKinesis
from headpond.pipeline import load, loads
from headpond.pipeline.lake import open_lake
from headpond.spark import follow
from headpond.spark.following.checkpoint import Standing
from headpond.spark.following.upkeep import Upkeep, read_up_to_of, stream_read_up_to
from headpond.spark.sources.archive_files import FilePosition, to_json
from tests.lake.lakes import lake_in
from tests.lake.test_pending import ENTRY, START, feed, group, line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headpond.lake.apply import Applied
    from headpond.lake.tables import Lake

pytestmark = pytest.mark.thorough

SHARDS = [f"shardId-{number:012}" for number in range(2)]
LOW, HIGH = "0", str(1 << 127)
"""Explicit hash keys of the one and the other shard."""


def waiting_lake(folder: Path, timeout: timedelta) -> tuple[Lake, Chunks]:
    """A lake where the last of three fragments is missing, the last record of which arrived at `START`."""
    lake, config = lake_in(folder, ENTRY)
    chunks = Chunks(config, round(timeout.total_seconds() * 1000))
    feed(lake, chunks, group(1, {"id": 1, "v": "long"}, 3)[:-1])
    assert lake.pending.count() == 3
    return lake, chunks


def test_a_group_waits_as_long_as_its_missing_fragment_may_be_unread(tmp_path: Path) -> None:
    """By the arrival up to which all is read, however late it is by any clock; then it is given up, once."""
    lake, chunks = waiting_lake(tmp_path, timedelta(hours=1))
    read_up_to: list[datetime | None] = [None]
    told: list[Applied] = []
    late = Upkeep(lake, chunks, lambda _: read_up_to[0], on_given_up=told.append)
    for each in (None, START + timedelta(minutes=59)):
        read_up_to[0] = each
        late.give_up()
        assert (lake.pending.count(), lake.quarantine.count()) == (3, 0)
    read_up_to[0] = START + timedelta(minutes=61)
    late.give_up()
    late.give_up()
    assert lake.pending.open_groups() == 0
    assert lake.quarantine.read(["reason"])["reason"].to_pylist() == ["incomplete_chunks"] * 3
    assert [dict(applied.quarantined) for applied in told] == [{"incomplete_chunks": 3}]


def test_what_is_not_due_costs_no_question(tmp_path: Path) -> None:
    """The source is asked only where a group waits that may be due by our own clock."""

    def asked(_: datetime | None) -> datetime:
        raise AssertionError

    lake, chunks = waiting_lake(tmp_path / "young", datetime.now(UTC) - START + timedelta(minutes=2))
    Upkeep(lake, chunks, asked).give_up()
    empty, config = lake_in(tmp_path / "empty", ENTRY)
    Upkeep(empty, Chunks(config), asked).give_up()


def test_nothing_is_given_up_after_the_querys_end(tmp_path: Path) -> None:
    """Another run may be writing by then."""
    lake, chunks = waiting_lake(tmp_path, timedelta(hours=1))
    Upkeep(lake, chunks, lambda _: START + timedelta(days=1), is_active=lambda: False).give_up()
    assert lake.quarantine.count() == 0


def test_all_of_a_stream_is_read_up_to_its_oldest_unread_record() -> None:
    """Also that of a shard that is silent, or that no batch has come to; with none unread it is now."""
    with LocalKinesis() as kinesis:
        kinesis.engine.create_stream("s", 2)
        client = kinesis.client()

        def put(hash_key: str) -> tuple[str, int]:
            reply = client.put_record(StreamName="s", PartitionKey="k", ExplicitHashKey=hash_key, Data=b"x")
            return reply["SequenceNumber"], round(time.time() * 1000)

        (one, one_ms), (other, other_ms) = put(LOW), put(HIGH)
        calls = ServiceCalls(
            ConnectionSettings(stream_name="s", endpoint_url=kinesis.endpoint_url), client=client
        )
        read, begun = after(one, one_ms), Position("HORIZON")
        assert begun == HORIZON
        time.sleep(3)

        def read_up_to_ms(shards: dict[str, Position]) -> float:
            found = stream_read_up_to(calls, Offset("s", 0, shards))
            assert found is not None
            return found.timestamp() * 1000

        backlog = read_up_to_ms({SHARDS[0]: read, SHARDS[1]: begun})
        assert backlog <= other_ms
        assert read_up_to_ms({SHARDS[0]: read}) <= other_ms
        all_read = read_up_to_ms({SHARDS[0]: read, SHARDS[1]: after(other, other_ms)})
        assert other_ms < all_read <= time.time() * 1000
        assert stream_read_up_to(calls, None) is None


def test_an_archive_is_read_up_to_its_newest_arrival_once_every_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whichever shard; what one shard had is not held back by another that ended earlier."""
    (tmp_path / "a.jsonl").write_bytes(b"x" * 10)
    pipeline = loads(
        f'[source]\narchive = "a.jsonl"\nformat = "dsql"\n[target]\npath = "lake"\n{ENTRY}', tmp_path
    )
    read = [5]

    def standing(*_: Any) -> Standing:
        return Standing(0, to_json({"a.jsonl": FilePosition(read[0], 1)}), None)

    monkeypatch.setattr("headpond.spark.following.upkeep.standing", standing)
    read_up_to = read_up_to_of(pipeline, until_caught_up=False)
    newest = START + timedelta(minutes=9)
    assert read_up_to(newest) is None
    read[0] = 10
    assert read_up_to(newest) == newest
    assert read_up_to_of(pipeline, until_caught_up=True)(newest) is None


def test_the_newest_arrival_of_all_shards_and_batches_is_noted(tmp_path: Path) -> None:
    """It is what an archive that is read whole is read up to."""
    lake, chunks = waiting_lake(tmp_path, timedelta(hours=1))
    noted: list[datetime | None] = []
    upkeep = Upkeep(lake, chunks, noted.append)
    upkeep.chunks(DecodedBatch())
    upkeep.give_up()
    upkeep.chunks(DecodedBatch(newest_arrivals_us={"a": 1_000_000, "b": 9_000_000}))
    upkeep.chunks(DecodedBatch(newest_arrivals_us={"a": 2_000_000}))
    upkeep.give_up()
    assert noted == [None, datetime.fromtimestamp(9, UTC)]


def test_time_outs_are_looked_at_by_the_clock_and_again_after_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, then once a minute however often it could be."""
    now = [0.0]
    asked: list[float] = []

    def failing(_: datetime | None) -> datetime:
        asked.append(now[0])
        raise OSError("no route")

    lake, chunks = waiting_lake(tmp_path, timedelta(hours=1))
    upkeep = Upkeep(lake, chunks, failing, clock=lambda: now[0])
    for second in (0, 5, 59, 60, 61, 130):
        now[0] = second
        upkeep.do_due()
    assert asked == [0, 60, 130]
    assert {record.getMessage() for record in caplog.records} == {
        "Giving chunks up failed and is tried again: no route"
    }


@pytest.mark.parametrize("retention_ms", [50_000, None])
def test_a_run_that_goes_on_drops_tombstones_now_and_then(tmp_path: Path, retention_ms: int | None) -> None:
    """Once an hour, where what is too late by then can be kept; else at the next start."""
    lake, config = lake_in(tmp_path, ENTRY)
    chunks = Chunks(config)
    second = 1_000_000_000
    feed(lake, chunks, [change(1, "d", 100 * second), change(2, "c", 200 * second)])
    assert sum(lake.tombstones.counts().values()) == 1
    now = [0.0]
    upkeep = Upkeep(lake, chunks, lambda _: None, retention_ms=retention_ms, clock=lambda: now[0])
    upkeep.do_due()
    assert sum(lake.tombstones.counts().values()) == 1
    now[0] = 3_601
    upkeep.do_due()
    assert sum(lake.tombstones.counts().values()) == (0 if retention_ms else 1)


def change(key: int, op: str, ts_ns: int) -> bytes:
    """A whole change of one key."""
    source = {"version": "1.0", "ts_ns": ts_ns, "txId": "t", "schema": "public", "table": "t"}
    image = "before" if op == "d" else "after"
    return line(ts_ns, {"type": "full", "op": op, image: {"id": key}, "source": source})


@pytest.mark.spark
def test_chunks_are_given_up_on_a_stream_that_fell_silent(spark: SparkSession, tmp_path: Path) -> None:
    """With no further record; what comes after all, with the rest once more, makes the change whole."""
    records = [
        base64.b64decode(json.loads(line)["data"])
        for line in (*group(1, {"id": 1, "v": "long"}, 3), *group(2, {"id": 2, "v": "lost"}, 2))
    ]
    whole, orphan = records[:4], records[-1]
    with LocalKinesis() as kinesis:
        kinesis.engine.create_stream("changes", 2)
        client = kinesis.client()

        def put(*blobs: bytes) -> None:
            for number, blob in enumerate(blobs):
                client.put_record(StreamName="changes", PartitionKey=str(number), Data=blob)

        (tmp_path / "p.toml").write_text(
            f'[source]\nstream = "changes"\nendpoint_url = "{kinesis.endpoint_url}"\n'
            'start = "TRIM_HORIZON"\nformat = "dsql"\n'
            f'[target]\npath = "lake"\nchunk_timeout = "1 second"\n{ENTRY}'
        )
        wanted = load(tmp_path / "p.toml")
        lake = open_lake(wanted)
        lake.prepare()
        put(*whole[:-1], orphan)
        query = follow(spark, wanted)
        try:
            wait_for(lambda: lake.quarantine.count() == 4, query)
            reasons = lake.quarantine.read(["reason"])["reason"].to_pylist()
            assert sorted(reasons) == ["incomplete_chunks"] * 3 + ["orphan_fragment"]
            put(*whole)
            wait_for(lambda: lake.tables["public.t"].typed.file.read().num_rows == 1, query)
        finally:
            query.stop()


def wait_for(what: Callable[[], Any], query: Any) -> None:
    """Wait until it is so."""
    until = time.monotonic() + 120
    while not what():
        assert time.monotonic() < until
        assert query.exception() is None
        time.sleep(0.3)
