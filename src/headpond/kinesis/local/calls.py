"""The calls the local Kinesis answers, by name, and how a request body becomes a reply body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from headpond.kinesis.local import control, events, requests, traffic
from headpond.kinesis.local.refusal import ServiceRefusalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.kinesis.local.consumers import Subscription
    from headpond.kinesis.local.desk import Desk, Pieces

    Answer = bytes | Pieces | Subscription
__all__ = ["CALLS", "answer"]

_R = TypeVar("_R", bound=msgspec.Struct)


class _Call(NamedTuple):
    decode: Callable[[bytes], Any]
    give: Callable[[Desk, Any], Answer]


def _call(request: type[_R], give: Callable[[Desk, _R], Answer]) -> _Call:
    return _Call(msgspec.json.Decoder(request).decode, give)


CALLS = {
    "CreateStream": _call(requests.CreateStream, control.create_stream),
    "DeleteStream": _call(requests.DeleteStream, control.delete_stream),
    "DescribeStream": _call(requests.DescribeStream, control.describe_stream),
    "DescribeStreamSummary": _call(requests.OnStream, control.describe_stream_summary),
    "ListStreams": _call(requests.ListStreams, control.list_streams),
    "ListShards": _call(requests.ListShards, control.list_shards),
    "SplitShard": _call(requests.SplitShard, control.split_shard),
    "MergeShards": _call(requests.MergeShards, control.merge_shards),
    "UpdateShardCount": _call(requests.UpdateShardCount, control.update_shard_count),
    "IncreaseStreamRetentionPeriod": _call(requests.Retention, control.increase_retention),
    "DecreaseStreamRetentionPeriod": _call(requests.Retention, control.decrease_retention),
    "UpdateMaxRecordSize": _call(requests.UpdateMaxRecordSize, control.update_max_record_size),
    "PutRecord": _call(requests.PutRecord, traffic.put_record),
    "PutRecords": _call(requests.PutRecords, traffic.put_records),
    "GetShardIterator": _call(requests.GetShardIterator, traffic.get_shard_iterator),
    "GetRecords": _call(requests.GetRecords, traffic.get_records),
    "RegisterStreamConsumer": _call(requests.RegisterStreamConsumer, events.register_stream_consumer),
    "DeregisterStreamConsumer": _call(requests.OnConsumer, events.deregister_stream_consumer),
    "DescribeStreamConsumer": _call(requests.OnConsumer, events.describe_stream_consumer),
    "ListStreamConsumers": _call(requests.ListStreamConsumers, events.list_stream_consumers),
    "SubscribeToShard": _call(requests.SubscribeToShard, events.subscribe_to_shard),
}
"""Call name → its request and its answer."""


def answer(desk: Desk, call: str, body: bytes) -> Answer:
    """Answer one call, a JSON body for a JSON body (empty where the service answers with nothing).

    SubscribeToShard is answered with a subscription, whose events `events.frames` gives.

    Raises:
        ServiceRefusalError: The service says no, also to unknown calls and unreadable bodies.
    """
    known = CALLS.get(call)
    if known is None:
        raise ServiceRefusalError(
            "UnknownOperationException", f"The local Kinesis does not know {call or 'this'}."
        )
    try:
        request = known.decode(body or b"{}")
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except msgspec.DecodeError as error:
        raise ServiceRefusalError("SerializationException", f"The body is no JSON: {error}.") from error
    return known.give(desk, request)


def _invalid(fault: str) -> ServiceRefusalError:
    # The service tells wrong JSON types from members that break a bound.
    if fault.startswith("Expected") and ", got " in fault:
        return ServiceRefusalError("SerializationException", fault)
    return ServiceRefusalError("ValidationException", f"1 validation error detected: {fault}")
