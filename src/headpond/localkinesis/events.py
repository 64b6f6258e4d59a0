"""Answers of the calls around enhanced fan-out: registering consumers, and what a subscription sends.

A subscription sends an event at once, one whenever there are records, and an empty one now and then. Its
last event at the end of a closed shard has children and no continuation. Each event is a frame:

::

    total length (4) │ headers length (4) │ CRC-32 of the 8 bytes (4) │ headers │ payload │ CRC-32 of all (4)
    header: name length (1) │ name │ 7 (text) │ value length (2) │ value

Numbers are big-endian. Source: the framing that botocore's `eventstream` module reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from struct import pack
from typing import TYPE_CHECKING, Any
from zlib import crc32

import orjson

from headpond.core.bucket import Bucket
from headpond.localkinesis.answers import children_json
from headpond.localkinesis.model import Start
from headpond.localkinesis.settings import ServiceRefusalError, invalid_argument
from headpond.localkinesis.tokens import Page, open_page, seal_page

if TYPE_CHECKING:
    from headpond.localkinesis.consumers import Consumer, Subscription
    from headpond.localkinesis.engine import Engine
    from headpond.localkinesis.faults import Rule
    from headpond.localkinesis.model import Reading

_PAGE = 100
_TEXT = 7
_PRELUDE_AND_CHECKSUMS = 16
_SHORTEST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.1


def register_stream_consumer(engine: Engine, call: Any) -> bytes:
    """RegisterStreamConsumer."""
    consumer = engine.consumers.register(call.stream_arn, call.consumer_name)
    return orjson.dumps({"Consumer": {**_consumer_json(engine, consumer), "ConsumerStatus": "CREATING"}})


def deregister_stream_consumer(engine: Engine, call: Any) -> bytes:
    """DeregisterStreamConsumer."""
    engine.consumers.deregister(_find(engine, call))
    return b""


def describe_stream_consumer(engine: Engine, call: Any) -> bytes:
    """DescribeStreamConsumer."""
    consumer = _find(engine, call)
    described = {**_consumer_json(engine, consumer), "StreamARN": consumer.stream_arn}
    return orjson.dumps({"ConsumerDescription": described})


def list_stream_consumers(engine: Engine, call: Any) -> bytes:
    """ListStreamConsumers, a page of consumers by name."""
    stream = engine.stream(call.stream_arn)
    after = ""
    if call.next_token is not None:
        page = open_page(engine, call.next_token)
        if (page.stream, page.created_ms) != (stream.name, stream.created_ms):
            raise invalid_argument("NextToken is of another stream.")
        after = page.after
    found = [each for each in engine.consumers.of_stream(stream.name) if each.name > after]
    shown = found[: call.max_results or _PAGE]
    reply: dict[str, Any] = {"Consumers": [_consumer_json(engine, each) for each in shown]}
    if len(found) > len(shown):
        reply["NextToken"] = seal_page(engine, Page(stream.name, stream.created_ms, shown[-1].name))
    return orjson.dumps(reply)


def subscribe_to_shard(engine: Engine, call: Any) -> Subscription:
    """SubscribeToShard, up to the point where events are sent."""
    at = call.starting_position
    start = Start.of(at.type, at.sequence_number, at.timestamp)
    return engine.consumers.subscribe(call.consumer_arn, call.shard_id, start)


async def frames(engine: Engine, subscription: Subscription) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield a subscription's frames as they become due, and for each whether to cut it in its middle."""
    yield event_frame("initial-response", b"{}"), False
    loop, settings = asyncio.get_running_loop(), engine.settings
    rate = settings.limits.read_bytes_per_second
    bucket = None if rate is None else Bucket(rate, now_ms=loop.time() * 1000)
    due_s, pause_s = loop.time(), _SHORTEST_PAUSE_S
    while True:
        try:
            reading = engine.consumers.read(subscription)
        except ServiceRefusalError as refusal:
            yield _exception(refusal), False
            return
        if reading is None:
            return
        if not (reading.records or reading.position is None or loop.time() >= due_s):
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            continue
        due_s, pause_s = loop.time() + settings.heartbeat_ms / 1000, _SHORTEST_PAUSE_S
        failing = engine.faults.hitting("SubscribeToShard", inner="fail_event")
        if failing:
            yield _exception(failing[0]), False
            return
        cutting = bool(engine.faults.hitting("SubscribeToShard", inner="cut_event"))
        yield event_frame("SubscribeToShardEvent", _event_json(reading)), cutting
        if bucket is not None:
            bucket.take(sum(record.size_bytes for record in reading.records))
            await asyncio.sleep(bucket.wait_ms(1, loop.time() * 1000) / 1000)


def event_frame(event_type: str, payload: bytes) -> bytes:
    """Write one event, such as `initial-response` or `SubscribeToShardEvent`."""
    headers = {
        ":message-type": "event",
        ":event-type": event_type,
        ":content-type": "application/x-amz-json-1.1",
    }
    return _frame(headers, payload)


def exception_frame(code: str, payload: bytes) -> bytes:
    """Write an exception, after which the stream ends."""
    return _frame({":message-type": "exception", ":exception-type": code}, payload)


def _frame(headers: dict[str, str], payload: bytes) -> bytes:
    head = b"".join(
        pack(">B", len(name)) + name.encode() + pack(">BH", _TEXT, len(value)) + value.encode()
        for name, value in headers.items()
    )
    lengths = pack(">II", _PRELUDE_AND_CHECKSUMS + len(head) + len(payload), len(head))
    start = lengths + pack(">I", crc32(lengths)) + head
    return b"".join([start, payload, pack(">I", crc32(payload, crc32(start)))])


def _exception(refusal: Rule | ServiceRefusalError) -> bytes:
    return exception_frame(refusal.code, orjson.dumps({"message": refusal.message}))


def _event_json(reading: Reading) -> bytes:
    tail: dict[str, Any] = {"MillisBehindLatest": reading.behind_ms}
    if reading.position is None:
        tail["ChildShards"] = children_json(reading.children)
    else:
        tail["ContinuationSequenceNumber"] = str(reading.position.after)
    records = b",".join([record.wire for record in reading.records])
    return b'{"Records":[%b],%b' % (records, orjson.dumps(tail)[1:])


def _find(engine: Engine, call: Any) -> Consumer:
    return engine.consumers.find(arn=call.consumer_arn, stream_name=call.stream_arn, name=call.consumer_name)


def _consumer_json(engine: Engine, consumer: Consumer) -> dict[str, Any]:
    return {
        "ConsumerName": consumer.name,
        "ConsumerARN": consumer.arn,
        "ConsumerStatus": consumer.status(engine.clock()),
        "ConsumerCreationTimestamp": consumer.created_ms // 1000,
    }
