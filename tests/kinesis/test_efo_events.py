"""Our reader of subscription events against botocore's: equal events, and damage found."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import botocore.session
import pytest
from botocore.eventstream import EventStream
from botocore.parsers import EventStreamJSONParser
from hypothesis import given, settings
from hypothesis import strategies as st
from urllib3.exceptions import ProtocolError

from headpond.core.errors import ServiceFailure
from headpond.kinesis.api.calls import ServiceCalls
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.fanout import EventFailed, FanOut, read_events
from headpond.localkinesis.events import event_frame, exception_frame
from tests.kinesis.test_replies import RECORDS
from tests.kit.support import share_of

SHAPE = (
    botocore.session.Session()
    .get_service_model("kinesis")
    .operation_model("SubscribeToShard")
    .output_shape.members["EventStream"]
)


class Raw:
    """The bytes of a reply, in pieces, as urllib3 gives them; `fault` is raised behind them."""

    def __init__(self, data: bytes, fault: Exception | None = None, piece: int = 64) -> None:
        self.data, self.fault, self.piece = data, fault, piece
        self.closed = False

    def stream(self) -> Any:
        for start in range(0, len(self.data), self.piece):
            yield self.data[start : start + self.piece]
        if self.fault is not None:
            raise self.fault

    def close(self) -> None:
        self.closed = True


Found = tuple[list[tuple[str, str, bytes]], str | None, int]


def stream_of(data: bytes, fault: Exception | None = None) -> EventStream:
    return EventStream(Raw(data, fault), SHAPE, EventStreamJSONParser(), "SubscribeToShard")


def events_of(data: bytes, fault: Exception | None = None) -> list[Found | str]:
    """What our reader makes of an event stream; the last item is the code of its failure, if it fails."""
    found: list[Found | str] = []
    try:
        for event in read_events(stream_of(data, fault)):
            records = [(r.sequence_number, r.partition_key, r.data) for r in event.records]
            found.append((records, event.continuation, event.behind_ms))
    except EventFailed as failed:
        found.append(failed.code)
    return found


def stock(data: bytes) -> list[Found]:
    """What botocore makes of it."""
    return [
        (
            [(r["SequenceNumber"], r["PartitionKey"], r["Data"]) for r in event["Records"]],
            event.get("ContinuationSequenceNumber"),
            event["MillisBehindLatest"],
        )
        for parsed in stream_of(data)
        if (event := parsed.get("SubscribeToShardEvent")) is not None
    ]


def frame(records: list[Any], continuation: str | None = "7", **more: Any) -> bytes:
    payload = {"Records": records, "MillisBehindLatest": 0, **more}
    if continuation is not None:
        payload["ContinuationSequenceNumber"] = continuation
    return event_frame("SubscribeToShardEvent", json.dumps(payload).encode())


def record(number: int) -> dict[str, Any]:
    return {
        "SequenceNumber": str(number),
        "ApproximateArrivalTimestamp": 1767225600.5,
        "PartitionKey": "k",
        "Data": b64encode(b"%d" % number).decode(),
    }


@settings(max_examples=share_of(40))
@given(
    st.lists(st.tuples(st.lists(RECORDS, max_size=3), st.integers(0, 10**56).map(str)), max_size=3),
    st.booleans(),
)
@pytest.mark.slow
def test_the_same_events_as_botocores_own(events: Any, ends: bool) -> None:  # noqa: FBT001 (drawn)
    """Any events, and the last one of a shard, are read alike."""
    data = b"".join(frame(records, continuation) for records, continuation in events)
    if ends:
        data += frame([], None, ChildShards=[{"ShardId": "shardId-1", "ParentShards": ["shardId-0"]}])
    assert events_of(data) == stock(data)
    assert len(events_of(data)) == len(events) + ends


def test_events_of_an_unknown_kind_are_passed_over() -> None:
    """The service may add some."""
    data = frame([record(1)]) + event_frame("SomethingNew", b"{}") + frame([record(2)])
    assert events_of(data) == stock(data)
    assert len(events_of(data)) == 2


def test_exceptions_are_told_by_code() -> None:
    """An exception ends the events with the service's code."""
    data = frame([record(1)]) + exception_frame("ResourceInUseException", b'{"message":"x"}')
    assert events_of(data)[1:] == ["ResourceInUseException"]


@pytest.mark.parametrize("payload", [b"", b"{}", b'{"Records":', b'{"Records":[],"MillisBehindLatest":0}'])
def test_payloads_that_say_nothing_are_failures(payload: bytes) -> None:
    """No records, broken JSON, or neither continuation nor children: never an end of the shard."""
    assert events_of(event_frame("SubscribeToShardEvent", payload)) == ["EventDamaged"]


def test_cut_or_damaged_anywhere() -> None:
    """Cut at any byte, events are a beginning of all; with any byte changed, the rest is refused."""
    data = frame([record(1)]) + frame([record(2), record(3)])
    whole = events_of(data)
    for length in range(len(data)):
        assert events_of(data[:length]) in ([], whole[:1])
        assert events_of(data[:length], ProtocolError("cut"))[-1] == "ProtocolError"
        broken = bytearray(data)
        broken[length] ^= 0x10
        found = events_of(bytes(broken))
        assert [each for each in found if not isinstance(each, str)] in ([], whole[:1])


def test_records_out_of_order_are_refused() -> None:
    """A record that does not follow the last one cannot be of this shard's reading."""
    calls = ServiceCalls(ConnectionSettings(stream_name="s", endpoint_url="http://127.0.0.1:9"))
    fan_out = FanOut(calls, ConnectionSettings(stream_name="s", region="eu-west-1"), "arn")
    streams = [
        stream_of(frame([record(5)], "5")),
        stream_of(frame([record(5), record(6)], "6") + frame([record(4)], "6")),
    ]
    calls.once = lambda *_given, **_arguments: {"EventStream": streams.pop(0)}  # type: ignore[method-assign]
    place = fan_out.iterator("shard", "TRIM_HORIZON")
    assert [r.number for r in fan_out.page(place, "shard", 1).records] == [5]
    assert [r.number for r in fan_out.page(place, "shard", 1).records] == [6]
    with pytest.raises(ServiceFailure, match="sent record 4 after 6"):
        fan_out.page(place, "shard", 1)
    fan_out.close()
