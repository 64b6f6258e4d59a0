"""Our reader of GetRecords replies against botocore's own: equal records; nothing damaged gets through."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import datetime
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ResponseStreamingError
from botocore.parsers import create_parser
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.core.errors import EndpointUnreachable, ServiceFailure
from headpond.kinesis.api.calls import ServiceCalls
from headpond.kinesis.api.client import connect
from headpond.kinesis.api.replies import Page, _read
from headpond.kinesis.api.retry import IteratorExpired, Patience
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.reading.reader import to_batch
from headpond.localkinesis.testing import local_kinesis
from tests.kinesis.source_kit import STREAM, put
from tests.kit.support import share_of

OPERATION = botocore.session.Session().get_service_model("kinesis").operation_model("GetRecords")
SHARD = "shardId-000000000000"


Row = tuple[str, str, datetime, bytes, str | None]


def stock(body: bytes) -> tuple[list[Row], Any, int]:
    """What botocore makes of a reply's body."""
    given = {"status_code": 200, "headers": {}, "body": body, "context": {}}
    parsed = create_parser("json").parse(given, OPERATION.output_shape)
    rows = [
        (
            record["SequenceNumber"],
            record["PartitionKey"],
            record["ApproximateArrivalTimestamp"],
            record["Data"],
            record.get("EncryptionType"),
        )
        for record in parsed["Records"]
    ]
    return rows, parsed.get("NextShardIterator"), parsed.get("MillisBehindLatest", 0)


def ours(body: bytes) -> Page:
    """What a client of headpond makes of it."""
    members: dict[str, Any] = {}
    response = {"status_code": 200, "body": body}
    _read(response, members)
    assert response["body"] == b"{}"
    found: Page = members["Page"]
    return found


def plain(page: Page) -> tuple[list[Row], Any, int]:
    """A page as values."""
    batch = to_batch(page.records, STREAM, [(SHARD, len(page.records))], encryption_type=True)
    names = ("sequence_number", "partition_key", "approximate_arrival_timestamp", "data", "encryption_type")
    rows = zip(*(batch[name].to_pylist() for name in names), strict=True)
    return list(rows), page.next_iterator, page.behind_ms


RECORDS = st.fixed_dictionaries(
    {
        "SequenceNumber": st.integers(0, 10**57).map(str),
        "ApproximateArrivalTimestamp": st.one_of(
            st.integers(0, 4_000_000_000),
            st.integers(0, 4_000_000_000_000).map(lambda ms: ms / 1000),
            st.integers(0, 4_000_000_000_000_000).map(lambda us: us / 1_000_000),
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
        "MillisBehindLatest": st.integers(0, 10**12),
        "ChildShards": st.just([{"ShardId": "shardId-000000000007"}]),
    },
)


@settings(max_examples=share_of(60))
@given(REPLIES, st.sampled_from([None, 1]), st.booleans())
def test_the_same_records_as_botocores_own(reply: Any, indent: int | None, ascii_only: bool) -> None:  # noqa: FBT001 (drawn)
    """Any reply gives the same records as through botocore's parser."""
    body = json.dumps(reply, indent=indent, ensure_ascii=ascii_only).encode()
    page = ours(body)
    assert plain(page) == stock(body)
    for record, row in zip(page.records, stock(body)[0], strict=True):
        assert record.data == row[3]
        assert record.size_bytes == len(row[3]) + len(row[1].encode())
        assert abs(record.arrival_ms - row[2].timestamp() * 1000) <= 0.5


def body_of(**changes: Any) -> bytes:
    record = {
        "SequenceNumber": "495",
        "ApproximateArrivalTimestamp": 1767225600.123,
        "PartitionKey": "k",
        "Data": "aGVsbG8/IQ==",
    }
    kept = {name: value for name, value in {**record, **changes}.items() if value is not None}
    return json.dumps({"Records": [kept], "NextShardIterator": "it", "MillisBehindLatest": 5}).encode()


def test_a_reply_cut_anywhere_is_never_a_page() -> None:
    """A body truncated at any byte is a failure; botocore alone takes it for empty."""
    body = body_of()
    for length in range(len(body)):
        with pytest.raises(ResponseStreamingError, match="not one to GetRecords"):
            ours(body[:length])
    with pytest.raises(ResponseStreamingError, match="not one to GetRecords"):
        ours(body + b"}")
    assert plain(ours(body)) == stock(body)


def test_a_reply_without_records_is_a_failure() -> None:
    """An empty success must not read as the end of the shard."""
    for body in (b"", b"{}", b'{"NextShardIterator":"it"}', b'{"Records":null}', body_of(Data=7)):
        with pytest.raises(ResponseStreamingError, match="not one to GetRecords"):
            ours(body)


def test_data_that_is_no_base64_is_refused() -> None:
    """Data that is not whole base64 text fails with the record's number when it is asked for."""
    for data in ("aGVsb", "aGVs bG8/IQ==", "é"):
        page = ours(body_of(Data=data))
        with pytest.raises(ServiceFailure, match="record 495 is not base64"):
            _ = page.records[0].data


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
        _read(response, members)
        assert (members, response["body"]) == ({}, body_of())
