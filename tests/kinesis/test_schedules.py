"""Random schedules of reshards, kills, replaced credentials and faults: accounts close, and errors say where.

A kill is a reader that is gone with whatever it had in memory; the next one has the last offset that was
written, as from a checkpoint, and may read its batch once more.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from headpond.core.errors import HeadpondError, MissingRequirement
from headpond.kinesis.api import client as api_client
from headpond.kinesis.api.calls import ServiceCalls
from headpond.kinesis.api.retry import Patience
from headpond.kinesis.planning.planner import Planner
from headpond.kinesis.producer import BlockingProducer, ProducerSettings, PutFailed
from headpond.localkinesis import Settings
from headpond.localkinesis.testing import local_kinesis
from tests.kinesis.source_kit import CONSUMER, STREAM, Driver, Row, held, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headpond.kinesis.api.shards import Shard
    from headpond.kinesis.reading.positions import Offset
    from headpond.localkinesis import LocalKinesis

BOUNDS: list[dict[str, str]] = [
    {"maxSpanPerTrigger": "none"},
    {"maxSpanPerTrigger": "1 s"},
    {"maxRecordsPerTrigger": "5"},
    {"maxBytesPerTrigger": "300"},
]
ROUNDS = int(os.environ.get("HEADPOND_FAULT_ROUNDS", "10"))
PATIENCE = Patience(0.001, 0.002, 2.0, 2.0)


class Reader(Driver):
    """A driver with a client of its own, whose credentials lie in a file; nothing is slept through."""

    made: ClassVar[list[Reader]] = []

    def __init__(
        self,
        kinesis: LocalKinesis,
        patience: Patience = PATIENCE,
        kind: type[ServiceCalls] = ServiceCalls,
        **options: str,
    ) -> None:
        super().__init__(kinesis, **options)
        self.calls = kind(self.settings.connection, patience=patience, sleep=lambda _seconds: None)
        self.planner = Planner(self.calls, self.settings)
        self.made.append(self)


class Keys:
    """Credentials in a file, which the service refuses once they were replaced."""

    def __init__(self, kinesis: LocalKinesis, path: Path) -> None:
        self._kinesis, self._path, self.number = kinesis, path, 0
        self.replace()

    def replace(self) -> None:
        self.number += 1
        self._path.write_text(f"[default]\naws_access_key_id = KEY{self.number}\naws_secret_access_key = x\n")
        if self.number > 1:
            self._kinesis.faults.refuse("ExpiredTokenException", times=1)


@pytest.fixture
def keys_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setattr(api_client, "RECONNECT_S", 0.0)
    return tmp_path / "credentials"


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    with local_kinesis(STREAM, shards=2, settings=Settings(resubscribe_ms=0, heartbeat_ms=5)) as running:
        yield running


@pytest.fixture(autouse=True)
def _closed(kinesis: LocalKinesis) -> Iterator[None]:
    """Readers end before the service does."""
    yield
    kinesis.faults.clear()
    for reader in Reader.made:
        reader.planner._pool.shutdown(cancel_futures=True)
        reader.calls.close()
    Reader.made.clear()


def reshard(kinesis: LocalKinesis, draw: random.Random) -> None:
    """Split a shard or merge two neighbours."""
    client = kinesis.client()
    shards = client.list_shards(StreamName=STREAM, ShardFilter={"Type": "AT_LATEST"})["Shards"]
    shards.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
    at = draw.randrange(len(shards))
    if len(shards) < 6 and (at + 1 == len(shards) or draw.random() < 0.6):
        keys = shards[at]["HashKeyRange"]
        middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2 + 1
        client.split_shard(
            StreamName=STREAM, ShardToSplit=shards[at]["ShardId"], NewStartingHashKey=str(middle)
        )
    elif at + 1 < len(shards):
        client.merge_shards(
            StreamName=STREAM,
            ShardToMerge=shards[at]["ShardId"],
            AdjacentShardToMerge=shards[at + 1]["ShardId"],
        )


def strike(kinesis: LocalKinesis, *, cuts: bool) -> None:
    """Half of all calls throttled, a tenth failing, iterators expiring, connections cut."""
    kinesis.faults.throttle(0.5, calls=["GetRecords", "GetShardIterator", "ListShards", "PutRecords"])
    kinesis.faults.internal_failure(0.1)
    kinesis.faults.expire_iterators(0.1)
    kinesis.faults.empty_reads(0.1)
    if cuts:
        kinesis.faults.cut(0.05)
        kinesis.faults.cut(0.05, when="reply")


def deregister(kinesis: LocalKinesis, reader: Reader, at: Offset) -> None:
    """Take the consumer away before its first shard is read, and register it again, under another ARN."""
    consumers, end = kinesis.engine.consumers, reader.next(at)
    ranges = reader.planner.ranges(at, end)
    with reader.reading() as calls:
        consumers.deregister(consumers.of_stream(STREAM)[0])
        for wanted in ranges[:1]:
            with pytest.raises(MissingRequirement, match=f"{STREAM}.*{wanted.shard_id}"):
                reader._rows(calls, wanted, end)
    consumers.register(STREAM, CONSUMER)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_each_record_once_through_a_random_schedule(
    kinesis: LocalKinesis, keys_file: Path, seed: int
) -> None:
    """Splits, merges, kills, replaced credentials, consumers that go; a batch tried again is the same.

    Every other schedule reads as a consumer, each bound both ways.
    """
    draw = random.Random(seed)
    keys, options, first = Keys(kinesis, keys_file), BOUNDS[seed % len(BOUNDS)], 0
    steps = ["put", "put", "reshard", "kill", "rotate", "read", "read", "read", "read"]
    if (seed + seed // len(BOUNDS)) % 2 == 0:
        kinesis.engine.consumers.register(STREAM, CONSUMER)
        steps.append("deregister")
    reader = Reader(kinesis, **options)
    at, found, done = reader.initial(), list[Row](), dict.fromkeys(steps, 0)
    for step in range(40):
        what = steps[step] if step < len(steps) else draw.choice(steps)
        if what == "put":
            kinesis.faults.clear()
            put(kinesis, draw.randrange(1, 30), first=first)
            first += 30
        elif what == "reshard":
            kinesis.faults.clear()
            reshard(kinesis, draw)
        elif what == "rotate":
            keys.replace()
        elif what == "deregister":
            deregister(kinesis, reader, at)
        elif what == "kill":
            reader = Reader(kinesis, **options)
        else:
            if step % 3 == 0:
                strike(kinesis, cuts=bool(seed % 2))
            end = reader.next(at)
            rows = reader.read(at, end)
            if draw.random() < 0.3:  # killed before the batch was done
                reader = Reader(kinesis, **options)
                assert reader.read(at, end) == rows
            found += rows
            at = end
        done[what] += 1
    kinesis.faults.clear()
    _, batches = Reader(kinesis, **options).run(at)
    assert sorted(found + [row for batch in batches for row in batch]) == held(kinesis)
    assert all(done.values())


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(min(ROUNDS, 2)))
def test_what_a_producer_acknowledges_is_there(kinesis: LocalKinesis, keys_file: Path, seed: int) -> None:
    """Through reshards, replaced credentials and faults, for as long as records have to wait."""
    draw, keys = random.Random(seed), Keys(kinesis, keys_file)
    settings = ProducerSettings(record_max_buffered_time_ms=5, record_ttl_ms=200_000)
    connection = Driver(kinesis).settings.connection
    put_in, failed = set[bytes](), 0
    with BlockingProducer(connection, settings) as producer:
        for number in range(8):
            strike(kinesis, cuts=bool(seed % 2))
            if number % 3 == 0:
                keys.replace()
            futures = [(n, producer.put(f"k{n}", b"%d-%d" % (number, n))) for n in range(200)]
            for n, future in futures:
                try:
                    future.result(240)
                    put_in.add(b"%d-%d" % (number, n))
                except PutFailed:
                    failed += 1
            kinesis.faults.clear()
            reshard(kinesis, draw)
    assert (len(put_in) + failed, failed) == (8 * 200, 0)
    from headpond.kpl import Aggregate, decode

    stored = [decode(data) for _, _, data in held(kinesis)]
    inner = {each.data for one in stored if isinstance(one, Aggregate) for each in one.records}
    assert put_in <= inner | {data for _, _, data in held(kinesis)}


@pytest.mark.slow
def test_a_shard_list_that_changes_between_two_calls(kinesis: LocalKinesis) -> None:
    """A shard splits or merges after each listing, before what was listed is asked for."""
    draw = random.Random(5)

    class Changing(ServiceCalls):
        def list_shards(self) -> list[Shard]:
            found = super().list_shards()
            if draw.random() < 0.5:
                reshard(kinesis, draw)
                put(kinesis, 10, first=draw.randrange(10**6))
            return found

    put(kinesis, 40)
    driver = Reader(kinesis, kind=Changing, maxRecordsPerTrigger="7")
    at, found = driver.initial(), list[Row]()
    for _ in range(25):
        end = driver.next(at)
        found += driver.read(at, end)
        at = end
    _, batches = Driver(kinesis).run(at)
    assert sorted(found + [row for batch in batches for row in batch]) == held(kinesis)


SHARD = "shardId-000000000000"


@pytest.mark.slow
@pytest.mark.parametrize(
    "strikes",
    [
        lambda faults: faults.throttle(calls=["GetRecords"]),
        lambda faults: faults.internal_failure(calls=["GetRecords"]),
        lambda faults: faults.cut(calls=["GetRecords"]),
        lambda faults: faults.cut(calls=["GetRecords"], when="reply"),
        lambda faults: faults.refuse("AccessDeniedException", calls=["GetRecords"]),
        lambda faults: faults.refuse("ExpiredTokenException", calls=["GetRecords"]),
        lambda faults: faults.refuse("KMSDisabledException", calls=["GetRecords"]),
    ],
)
def test_what_does_not_pass_names_stream_shard_and_remedy(kinesis: LocalKinesis, strikes: Any) -> None:
    """Whatever the call meets for good."""
    put(kinesis, 5)
    driver = Reader(kinesis, Patience(0.001, 0.002, 0.01, 0.01))
    start = driver.initial()
    strikes(kinesis.faults)
    with pytest.raises(HeadpondError) as caught:
        driver.planner.latest(start)
    assert f"stream {STREAM}" in caught.value.message.lower()
    assert "shardId-0000000000" in caught.value.message
    assert caught.value.next_step


def test_a_consumer_that_is_deregistered_meanwhile(kinesis: LocalKinesis) -> None:
    """The message names stream, shard, consumer and what to do; with a consumer again it goes on."""
    kinesis.engine.consumers.register(STREAM, CONSUMER)
    put(kinesis, 20)
    driver = Driver(kinesis)
    start = driver.initial()
    end = driver.next(start)
    ranges = driver.planner.ranges(start, end)
    with driver.reading() as calls:
        kinesis.engine.consumers.deregister(kinesis.engine.consumers.of_stream(STREAM)[0])
        with pytest.raises(MissingRequirement, match=f"{STREAM}.*{SHARD}") as caught:
            driver._rows(calls, ranges[0], end)
    assert "headpond consumers register" in caught.value.next_step
    kinesis.engine.consumers.register(STREAM, CONSUMER)
    assert sorted(driver.read(start, end)) == held(kinesis)
