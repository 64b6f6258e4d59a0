"""Our reader of GetRecords replies against botocore's own: equal records; nothing damaged gets through."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ResponseStreamingError
from botocore.parsers import create_parser
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import EndpointUnreachable, ServiceFailure
from headpond.kinesis.api.calls import ServiceCalls
from headpond.kinesis.api.client import _refuse_cut_reply, connect
from headpond.kinesis.api.replies import Page, Record, _read_body, page_of, record_of
from headpond.kinesis.api.retry import IteratorExpired, Patience
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.reading.reader import to_batch
from headpond.localkinesis.testing import local_kinesis
from tests.kinesis.source_kit import STREAM, Driver, put

OPERATION = botocore.session.Session().get_service_model("kinesis").operation_model("GetRecords")
SHARD = "shardId-000000000000"


def stock(body: bytes) -> dict[str, Any]:
    """What botocore makes of a reply's body."""
    parsed: dict[str, Any] = create_parser("json").parse(
        {"status_code": 200, "headers": {}, "body": body, "context": {}}, OPERATION.output_shape
    )
    return parsed


def fast(body: bytes) -> tuple[Page, bool]:
    """What the client with our reader makes of it, and whether our reader took it."""
    given_members: dict[str, Any] = {}
    response: dict[str, Any] = {"status_code": 200, "headers": {}, "body": body, "context": {}}
    _read_body(response, given_members)
    ours = bool(given_members)
    _refuse_cut_reply(response, given_members)
    parsed = create_parser("json").parse(response, OPERATION.output_shape)
    return page_of({**parsed, **given_members}), ours


def plain(page: Page) -> tuple[Any, ...]:
    """A page as values."""
    records = [
        (r.sequence_number, r.partition_key, r.arrival_us, r.arrival_ms, r.data, r.data_bytes, r.size_bytes)
        for r in page.records
    ]
    return records, page.next_iterator, page.behind_ms


RECORDS = st.fixed_dictionaries(
    {
        "SequenceNumber": st.integers(0, 10**57).map(str),
        "ApproximateArrivalTimestamp": st.one_of(
            st.integers(0, 4_000_000_000),
            st.integers(0, 4_000_000_000_000).map(lambda ms: ms / 1000),
            st.floats(0, 4e9),
        ),
        "PartitionKey": st.text(min_size=1, max_size=20),
        "Data": st.one_of(st.binary(max_size=40), st.binary(min_size=380, max_size=400)).map(
            lambda data: b64encode(data).decode()
        ),
    },
    optional={"EncryptionType": st.sampled_from(["NONE", "KMS"]), "Unknown": st.just({"a": [1, None]})},
)
REPLIES = st.fixed_dictionaries(
    {"Records": st.lists(RECORDS, max_size=6)},
    optional={
        "NextShardIterator": st.one_of(st.none(), st.text(min_size=1, max_size=9)),
        "MillisBehindLatest": st.one_of(st.none(), st.integers(0, 10**12)),
        "ChildShards": st.just([{"ShardId": "shardId-000000000007"}]),
    },
)


@settings(max_examples=60)
@given(REPLIES, st.sampled_from([None, 1]), st.booleans())
def test_the_same_records_as_botocores_own(reply: Any, indent: int | None, ascii_only: bool) -> None:  # noqa: FBT001 (drawn)
    """Any reply gives the same page as through botocore's parser, and is read without it."""
    body = json.dumps(reply, indent=indent, ensure_ascii=ascii_only).encode()
    page, ours = fast(body)
    assert ours
    assert plain(page) == plain(page_of(stock(body)))
    batch = to_batch(page.records, STREAM, [(SHARD, len(page.records))])
    assert batch["data"].to_pylist() == [record.data for record in page.records]
    assert batch["approximate_arrival_timestamp"].cast("int64").to_pylist() == [
        record.arrival_us for record in page.records
    ]
    encrypted = to_batch(page.records, STREAM, [(SHARD, len(page.records))], encryption_type=True)
    types = [record.get("EncryptionType") for record in reply["Records"]]
    assert encrypted["encryption_type"].to_pylist() == types
    assert [record.size_bytes for record in page.records] == [
        len(record.data) + len(record.partition_key.encode()) for record in page.records
    ]


def body_of(**changes: Any) -> bytes:
    record = {
        "SequenceNumber": "495",
        "ApproximateArrivalTimestamp": 1767225600.123,
        "PartitionKey": "k",
        "Data": "aGVsbG8/IQ==",
    }
    kept = {name: value for name, value in {**record, **changes}.items() if value is not None}
    return json.dumps({"Records": [kept], "NextShardIterator": "it", "MillisBehindLatest": 5}).encode()


@pytest.mark.parametrize(
    "body",
    [
        body_of(ApproximateArrivalTimestamp="2026-01-01T00:00:00.5Z"),
        body_of(ApproximateArrivalTimestamp="1767225600.25"),
        body_of().replace(b"aGVsbG8/", rb"aGVsbG8\/"),
        body_of(Data="aGVs\nbG8/IQ=="),
        body_of(Data="aGVs bG8/IQ=="),
        body_of(Data="aGVs" * 300 + "\r\n" + "aGVs"),
    ],
    ids=["iso time", "time in quotes", "escaped slash", "line end", "space", "long with line end"],
)
def test_the_unusual_is_read_as_botocore_reads_it(body: bytes) -> None:
    """What no service writes, but botocore reads, gives the same record."""
    assert [plain(fast(body)[0])[0][0][:5]] == [plain(page_of(stock(body)))[0][0][:5]]


def test_a_reply_cut_anywhere_is_never_a_page() -> None:
    """A body truncated at any byte, its length not told, is a failure; botocore alone takes it for empty."""
    body = body_of()
    for length in range(1, len(body)):
        with pytest.raises(ResponseStreamingError, match="not JSON"):
            fast(body[:length])
    with pytest.raises(ResponseStreamingError, match="not JSON"):
        fast(body + b"}")
    assert "Records" not in stock(body[:-1])


def test_a_reply_without_records_is_a_failure() -> None:
    """An empty success must not read as the end of the shard."""
    for body in (b"", b"{}", b'{"NextShardIterator":"it"}'):
        with pytest.raises(ServiceFailure, match="no member Records"):
            fast(body)


def test_data_that_is_no_base64_is_refused() -> None:
    """Data of a wrong length, or none at all, fails with the record's number when it is asked for."""
    for data in ("aGVsb", 7, ["a"]):
        page, _ = fast(body_of(Data=data))
        with pytest.raises(ServiceFailure, match="record 495 is not base64"):
            _ = page.records[0].data


@pytest.mark.parametrize("size_bytes", [700, 20_000])
def test_records_of_both_parsers_are_one_kind(size_bytes: int) -> None:
    """A client without our reader serves as well, with small records and with large ones."""
    with local_kinesis(STREAM) as kinesis:
        put(kinesis, 30, size_bytes)
        client = kinesis.client()
        place = client.get_shard_iterator(StreamName=STREAM, ShardId=SHARD, ShardIteratorType="TRIM_HORIZON")[
            "ShardIterator"
        ]
        reply = client.get_records(ShardIterator=place)
        page = Driver(kinesis).calls.page(place, SHARD, 1000)
    assert all(isinstance(record, Record) for record in page.records)
    assert [record_of(record) for record in reply["Records"]] == page.records
    assert plain(page_of(reply))[0] == plain(page)[0]


@pytest.mark.slow
@pytest.mark.parametrize("size_bytes", [1_000, 20_000])
def test_cut_replies_and_refusals_stay_botocores(size_bytes: int) -> None:
    """Through the real client: a cut reply is a failed connection, an expired iterator is told."""
    with local_kinesis(STREAM) as kinesis:
        put(kinesis, 50, size_bytes)
        settings_ = ConnectionSettings(stream_name=STREAM, endpoint_url=kinesis.endpoint_url)
        calls = ServiceCalls(
            settings_,
            client=connect(settings_),
            patience=Patience(0.001, 0.002, 0.01, 0.01),
            sleep=lambda _seconds: None,
        )
        place = calls.iterator(SHARD, "TRIM_HORIZON")
        rule = kinesis.faults.cut(when="reply", calls=("GetRecords",))
        with pytest.raises(EndpointUnreachable):
            calls.page(place, SHARD, 1000)
        kinesis.faults.remove(rule)
        kinesis.faults.cut(when="reply", calls=("GetRecords",), times=1)
        assert len(calls.page(place, SHARD, 1000).records) == 50
        kinesis.faults.expire_iterators(times=1)
        with pytest.raises(IteratorExpired):
            calls.page(place, SHARD, 1000)


def test_only_successful_answers_are_taken() -> None:
    """Errors pass to botocore untouched."""
    for status in (400, 500):
        response = {"status_code": status, "body": body_of()}
        members: dict[str, Any] = {}
        _read_body(response, members)
        assert (members, response["body"]) == ({}, body_of())
