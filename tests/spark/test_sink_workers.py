"""What the tasks of one worker share: a client, a role and a shard map, renewed where need be."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from headpond.kinesis.api.shards import shard_of
from headpond.kpl import Aggregate, decode
from headpond.kpl.hash_keys import effective_hash_key
from headpond.localkinesis.testing import local_kinesis, read_all
from headpond.spark.errors import headpond_error_of
from headpond.spark.sinks import kinesis as sink
from tests.kit.token_service import ROLE, Sts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.localkinesis import LocalKinesis

STREAM = "orders"
SCHEMA = StructType([StructField(name, StringType()) for name in ("partition_key", "data")])


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    with local_kinesis(STREAM, "copies", shards=2) as running:
        yield running


@pytest.fixture(autouse=True)
def _worker() -> Iterator[None]:
    """A worker that begins and ends with the test."""
    yield
    for producer in sink._idle.values():
        producer.close()
    sink._idle.clear()


def writer(kinesis: LocalKinesis, stream: str = STREAM, **options: str) -> sink.KinesisWriter:
    given = {"streamName": stream, "endpointUrl": kinesis.endpoint_url, **options}
    return sink.KinesisWriter(sink.prepare(given, SCHEMA, overwrite=False))


def rows(first: int, count: int = 100) -> Iterator[pa.RecordBatch]:
    numbers = [str(n) for n in range(first, first + count)]
    yield pa.record_batch({"partition_key": numbers, "data": numbers}, schema=None)


def stored(kinesis: LocalKinesis, stream: str = STREAM) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for record in read_all(kinesis.client(), stream):
        opened = decode(record.data)
        found.update(
            [each.data for each in opened.records] if isinstance(opened, Aggregate) else [record.data]
        )
    return found


def wanted(count: int) -> Counter[bytes]:
    return Counter(b"%d" % n for n in range(count))


@pytest.mark.slow
def test_tasks_of_a_worker_share_role_and_shard_map(kinesis: LocalKinesis) -> None:
    """One AssumeRole and one ListShards for all of them; another stream has its own."""
    service = Sts()
    listings = kinesis.faults.delay(0, calls=["ListShards"])
    try:
        for task in range(5):
            given = writer(kinesis, roleArn=ROLE, stsEndpointUrl=service.url)  # as unpickled for each task
            assert given.write(rows(task * 100)).rows == 100
        assert (len(service.asked), listings.hits) == (1, 1)
        writer(kinesis, "copies", roleArn=ROLE, stsEndpointUrl=service.url).write(rows(0))
        assert (len(service.asked), listings.hits) == (2, 2)
    finally:
        service.stop()
    assert stored(kinesis) == wanted(500)


@pytest.mark.slow
def test_a_map_that_is_out_of_date_is_renewed(kinesis: LocalKinesis) -> None:
    """A reshard between two tasks: every row is where its key belongs, and the next task needs no listing."""
    listings = kinesis.faults.delay(0, calls=["ListShards"])
    writer(kinesis).write(rows(0))
    kinesis.client().update_shard_count(StreamName=STREAM, TargetShardCount=4, ScalingType="UNIFORM_SCALING")
    for task in range(1, 4):
        writer(kinesis).write(rows(task * 100))
    assert listings.hits == 2
    assert set(stored(kinesis)) == set(wanted(400))  # what was stored elsewhere is put again
    ranges = {
        each["ShardId"]: shard_of(each).hash_keys
        for each in kinesis.client().list_shards(StreamName=STREAM)["Shards"]
    }
    placed = {
        each.data
        for record in read_all(kinesis.client(), STREAM)
        if isinstance(opened := decode(record.data), Aggregate)
        for each in opened.records
        if effective_hash_key(each.partition_key, None) in ranges[record.shard_id]
    }
    assert placed == set(wanted(400))


@pytest.mark.slow
def test_after_a_failure_a_worker_begins_anew(kinesis: LocalKinesis) -> None:
    """Nothing of a task that failed is left for the next one, and its count is its own."""
    writer(kinesis).write(rows(0))
    broken = kinesis.faults.refuse("AccessDeniedException", calls=["PutRecords"])
    with pytest.raises(Exception, match="100 rows of a task were not put") as caught:
        writer(kinesis).write(rows(100))
    error = headpond_error_of(caught.value)
    assert error is not None
    assert error.facts["acknowledged"] == 0
    kinesis.faults.remove(broken)
    assert writer(kinesis).write(rows(100)).rows == 100
    assert stored(kinesis) == wanted(200)


def test_credentials_that_were_replaced_are_found(
    kinesis: LocalKinesis, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A task whose worker's credentials are refused goes on with those that lie there now."""
    secret = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(secret))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    def rotate(key: str) -> None:
        secret.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = x\n")

    rotate("OLD")
    writer(kinesis).write(rows(0))
    rotate("NEW")
    expired = kinesis.faults.refuse("ExpiredTokenException", calls=["PutRecords"], times=1)
    assert writer(kinesis).write(rows(100)).rows == 100
    assert expired.hits == 1
    (producer,) = sink._idle.values()
    clients = producer._producer._clients
    assert clients is not None
    assert clients.client._request_signer._credentials.access_key == "NEW"  # type: ignore[attr-defined]
    assert stored(kinesis) == wanted(200)


@pytest.mark.slow
def test_a_worker_keeps_few_producers(kinesis: LocalKinesis) -> None:
    """Those of the streams that were written to last."""
    for most in range(7):
        writer(kinesis, maxConnections=str(most + 1)).write(rows(0))
    assert len(sink._idle) == sink._MOST_LENT
