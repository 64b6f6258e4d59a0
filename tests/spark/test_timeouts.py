"""Chunks that wait too long are given up on a silent stream, too, and never while something is unread."""

from __future__ import annotations

import base64
import json
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from lakes import lake_in
from test_reassembly import ENTRY, START, feed, group, line

from headpond.changes.assemble import ChunkRules
from headpond.kinesis.calls import ServiceCalls
from headpond.kinesis.client import ConnectionSettings
from headpond.kinesis.local import LocalKinesis
from headpond.kinesis.positions import HORIZON, Offset, Position, after
from headpond.pipeline import load
from headpond.pipeline.lake import open_lake
from headpond.spark import follow
from headpond.spark.following import _Beside
from headpond.spark.keeper import Keeper, Round
from headpond.spark.timeouts import ArchiveClock, StreamClock, TimeOuts
from headpond.tables.batch import Chunks, DecodedBatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headpond.tables.apply import Applied
    from headpond.tables.lake import Lake

pytestmark = pytest.mark.thorough

SHARDS = [f"shardId-{number:012}" for number in range(2)]
LOW, HIGH = "0", str(1 << 127)
"""Explicit hash keys of the one and the other shard."""


def waiting_lake(folder: Path, timeout: timedelta) -> tuple[Lake, Chunks]:
    """A lake where the last of three fragments is missing, the last record of which arrived at `START`."""
    lake, config = lake_in(folder, ENTRY)
    rules = ChunkRules(timeout_ms=round(timeout.total_seconds() * 1000))
    chunks = Chunks(config, rules)
    feed(lake, chunks, group(1, {"id": 1, "v": "long"}, 3)[:-1])
    assert lake.pending.count() == 3
    return lake, chunks


def test_a_group_waits_as_long_as_its_missing_fragment_may_be_unread(tmp_path: Path) -> None:
    """By the arrival up to which all is read, however late it is by any clock; then it is given up, once."""
    lake, chunks = waiting_lake(tmp_path, timedelta(hours=1))
    read_up_to: list[datetime | None] = [None]
    told: list[Applied] = []
    late = TimeOuts(lake, chunks, lambda: read_up_to[0], threading.Lock(), on_given_up=told.append)
    for each in (None, START + timedelta(minutes=59)):
        read_up_to[0] = each
        late.look()
        assert (lake.pending.count(), lake.quarantine.count()) == (3, 0)
    read_up_to[0] = START + timedelta(minutes=61)
    late.look()
    late.look()
    assert lake.pending.open_groups() == 0
    assert lake.quarantine.read(["reason"])["reason"].to_pylist() == ["incomplete_chunks"] * 3
    assert [dict(applied.quarantined) for applied in told] == [{"incomplete_chunks": 3}]


def test_what_is_not_due_costs_no_question(tmp_path: Path) -> None:
    """The source is asked only where a group waits that may be due by our own clock."""

    def asked() -> datetime:
        raise AssertionError

    lake, chunks = waiting_lake(tmp_path / "young", datetime.now(UTC) - START + timedelta(minutes=2))
    TimeOuts(lake, chunks, asked, threading.Lock()).look()
    empty, config = lake_in(tmp_path / "empty", ENTRY)
    TimeOuts(empty, Chunks(config), asked, threading.Lock()).look()


def test_nothing_is_given_up_after_the_querys_end(tmp_path: Path) -> None:
    """Another run may be writing by then."""
    lake, chunks = waiting_lake(tmp_path, timedelta(hours=1))
    clock = lambda: START + timedelta(days=1)  # noqa: E731
    TimeOuts(lake, chunks, clock, threading.Lock(), is_active=lambda: False).look()
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
            found = StreamClock(calls, lambda: Offset("s", 0, shards))()
            assert found is not None
            return found.timestamp() * 1000

        backlog = read_up_to_ms({SHARDS[0]: read, SHARDS[1]: begun})
        assert backlog <= other_ms
        assert read_up_to_ms({SHARDS[0]: read}) <= other_ms
        all_read = read_up_to_ms({SHARDS[0]: read, SHARDS[1]: after(other, other_ms)})
        assert other_ms < all_read <= time.time() * 1000
        assert StreamClock(calls, lambda: None)() is None


def test_an_archive_is_read_up_to_its_newest_arrival_once_every_file_is_read() -> None:
    """Of whichever shard; what one shard had is not held back by another that ended earlier."""
    is_read = [False]
    clock = ArchiveClock(lambda: is_read[0])
    clock.note(DecodedBatch())
    assert clock() is None
    clock.note(DecodedBatch(newest_arrivals_us={"a": 1_000_000, "b": 9_000_000}))
    clock.note(DecodedBatch(newest_arrivals_us={"a": 2_000_000}))
    assert clock() is None
    is_read[0] = True
    assert clock() == datetime.fromtimestamp(9, UTC)


def test_rounds_are_done_by_the_clock_and_again_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """Each in its own time; one that fails does not keep the others from being done."""
    now = [0.0]
    done: list[tuple[str, float]] = []

    def failing() -> None:
        done.append(("often", now[0]))
        raise OSError("no route")

    rounds = [
        Round("Often", 10, failing, at_once=True),
        Round("Rarely", 25, lambda: done.append(("rarely", now[0]))),
    ]
    keeper = Keeper(lambda: True, rounds, lambda: now[0])
    waits = []
    for second in (0, 5, 10, 20, 25):
        now[0] = second
        waits.append(keeper.do_due())
    assert done == [("often", 0), ("often", 10), ("often", 20), ("rarely", 25)]
    assert waits == [10, 5, 10, 5, 5]
    assert {record.getMessage() for record in caplog.records} == {"Often failed and is tried again: no route"}


@pytest.mark.parametrize("keep_data", [True, False])
def test_a_run_that_goes_on_drops_tombstones_now_and_then(tmp_path: Path, *, keep_data: bool) -> None:
    """Once an hour, where what is too late by then can be kept; else at the next start."""
    lake, config = lake_in(tmp_path, ENTRY)
    chunks = Chunks(replace(config, keep_data=keep_data))
    second = 1_000_000_000
    feed(lake, chunks, [change(1, "d", 100 * second), change(2, "c", 200 * second)])
    assert sum(lake.tombstones.counts().values()) == 1
    now = [0.0]
    beside = _Beside(lake, chunks, ArchiveClock(lambda: False))
    keeper = Keeper(lambda: True, beside.rounds(lambda: True, 50_000, None), lambda: now[0])
    keeper.do_due()
    assert sum(lake.tombstones.counts().values()) == 1
    now[0] = 3_601
    keeper.do_due()
    assert sum(lake.tombstones.counts().values()) == (0 if keep_data else 1)


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
            wait_for(lambda: lake.current["public.t"].typed.file.read().num_rows == 1, query)
        finally:
            query.stop()


def wait_for(what: Callable[[], Any], query: Any) -> None:
    """Wait until it is so."""
    until = time.monotonic() + 120
    while not what():
        assert time.monotonic() < until
        assert query.exception() is None
        time.sleep(0.3)
