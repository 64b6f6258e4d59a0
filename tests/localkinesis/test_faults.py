"""Fault rules of the local Kinesis, as boto3 meets them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from headpond.localkinesis import Faults, LocalKinesis
from headpond.localkinesis.testing import local_kinesis, put_all

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    with local_kinesis("one", seed=7) as running:
        yield running


def outcomes(client: Any, count: int) -> list[str]:
    found = []
    for _ in range(count):
        try:
            client.put_record(StreamName="one", PartitionKey="k", Data=b"")
            found.append("ok")
        except ClientError as error:
            found.append(error.response["Error"]["Code"])
    return found


def test_throttle_a_share_of_one_call(kinesis: LocalKinesis) -> None:
    """A share of the named calls is refused, nothing of them is stored, other calls go on."""
    rule = kinesis.faults.throttle(0.5, calls=("PutRecord",))
    client = kinesis.client()
    found = outcomes(client, 100)
    refused = found.count("ProvisionedThroughputExceededException")
    assert 30 <= refused <= 70
    assert refused == rule.hits
    assert len(kinesis.engine.records("one")) == 100 - refused
    client.list_streams()
    kinesis.faults.remove(rule)
    assert set(outcomes(client, 5)) == {"ok"}


def test_skip_and_times(kinesis: LocalKinesis) -> None:
    """A rule may leave the first calls alone and end after some strikes."""
    kinesis.faults.internal_failure(skip=2, times=1)
    assert outcomes(kinesis.client(), 4) == ["ok", "ok", "InternalFailureException", "ok"]


def test_any_refusal(kinesis: LocalKinesis) -> None:
    """Any error type of the service can be given."""
    kinesis.faults.refuse("AccessDeniedException", calls=("PutRecord",))
    assert outcomes(kinesis.client(), 1) == ["AccessDeniedException"]


@pytest.mark.parametrize(("when", "stored"), [("before", 0), ("after", 1)])
def test_cut_before_and_after(kinesis: LocalKinesis, when: Any, stored: int) -> None:
    """Cut before the call, nothing is left behind; cut after it, the record is there unacknowledged."""
    kinesis.faults.cut(when=when, times=1)
    with pytest.raises(ConnectionClosedError):
        kinesis.client().put_record(StreamName="one", PartitionKey="k", Data=b"")
    assert len(kinesis.engine.records("one")) == stored


def test_a_service_that_dies_after_some_calls(kinesis: LocalKinesis) -> None:
    """It answers so many calls, then none; when it is back, what it acknowledged is there and no more."""
    crash = kinesis.faults.crash(after=3)
    client = kinesis.client()
    assert outcomes(client, 3) == ["ok"] * 3
    for _ in range(3):
        with pytest.raises(ConnectionClosedError):
            client.put_record(StreamName="one", PartitionKey="k", Data=b"")
        with pytest.raises(ConnectionClosedError):
            client.list_streams()
    kinesis.faults.remove(crash)
    assert len(kinesis.engine.records("one")) == 3
    assert outcomes(client, 1) == ["ok"]


def test_cut_in_mid_reply(kinesis: LocalKinesis) -> None:
    """A reply cut in the middle comes to stock boto3 as an empty success: the trap our own client closes."""
    put_all(kinesis.client(), "one", [("k", b"x")])
    client = kinesis.client()
    place = client.get_shard_iterator(
        StreamName="one", ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    kinesis.faults.cut(when="reply", times=1)
    assert "Records" not in client.get_records(ShardIterator=place)
    assert len(client.get_records(ShardIterator=place)["Records"]) == 1


def test_delay(kinesis: LocalKinesis) -> None:
    """A delayed call answers later, and does not hold up other calls."""
    kinesis.faults.delay(200, calls=("PutRecord",))
    start = time.monotonic()
    outcomes(kinesis.client(), 1)
    assert time.monotonic() - start >= 0.2


def test_entries_of_put_records_fail_for_themselves(kinesis: LocalKinesis) -> None:
    """Some entries of a PutRecords fail with a code and message, the others are stored."""
    kinesis.faults.fail_entries(0.3, code="InternalFailure", message="broken")
    entries: list[Any] = [{"PartitionKey": "k", "Data": b"%d" % n} for n in range(200)]
    reply = kinesis.client().put_records(StreamName="one", Records=entries)
    failed = [r for r in reply["Records"] if "ErrorCode" in r]
    assert len(failed) == reply["FailedRecordCount"]
    assert 30 <= len(failed) <= 90
    assert {(r["ErrorCode"], r["ErrorMessage"]) for r in failed} == {("InternalFailure", "broken")}
    kept = [e["Data"] for e, r in zip(entries, reply["Records"], strict=True) if "ErrorCode" not in r]
    assert [r.data for r in kinesis.engine.records("one")] == kept


def test_empty_reads_and_expired_iterators(kinesis: LocalKinesis) -> None:
    """A read may come back empty though there is more, or find its iterator expired; then it goes on."""
    client = kinesis.client()
    put_all(client, "one", [("k", b"x")])
    place = client.get_shard_iterator(
        StreamName="one", ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    kinesis.faults.empty_reads(times=1)
    empty = client.get_records(ShardIterator=place)
    assert empty["Records"] == []
    assert empty["MillisBehindLatest"] > 0
    kinesis.faults.expire_iterators(times=1)
    with pytest.raises(client.exceptions.ExpiredIteratorException):
        client.get_records(ShardIterator=empty["NextShardIterator"])
    assert len(client.get_records(ShardIterator=empty["NextShardIterator"])["Records"]) == 1


def test_draws_repeat_with_the_seed() -> None:
    """The same seed gives the same faults; clearing lifts all rules."""

    def draws(seed: int) -> list[int]:
        faults = Faults(seed)
        faults.throttle(0.5)
        return [len(faults.hitting("X")) for _ in range(50)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    faults = Faults()
    faults.throttle()
    faults.clear()
    assert faults.hitting("X") == []
