"""Answers of the calls that make, describe and reshape streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from headpond.kinesis.local.desk import Desk, shard_json
from headpond.kinesis.local.listing import ShardFilter
from headpond.kinesis.local.refusal import ServiceRefusalError
from headpond.kinesis.local.requests import check_same_stream
from headpond.kinesis.local.tokens import PageToken, open_page, seal_page

if TYPE_CHECKING:
    from headpond.kinesis.local import requests
    from headpond.kinesis.local.engine import Engine
    from headpond.kinesis.local.model import Stream

__all__ = [
    "create_stream",
    "decrease_retention",
    "delete_stream",
    "describe_stream",
    "describe_stream_summary",
    "increase_retention",
    "list_shards",
    "list_streams",
    "merge_shards",
    "split_shard",
    "update_max_record_size",
    "update_shard_count",
]

_LEAST_RETENTION_HOURS = 24
_MOST_RETENTION_HOURS = 8760


def create_stream(desk: Desk, call: requests.CreateStream) -> bytes:
    """CreateStream; an on-demand stream starts with 4 shards."""
    mode = call.stream_mode_details
    on_demand = mode is not None and mode.stream_mode == "ON_DEMAND"
    if call.shard_count is None and not on_demand:
        raise ServiceRefusalError("ValidationException", "ShardCount must be given for a provisioned stream.")
    desk.engine.create_stream(
        call.stream_name,
        call.shard_count or 4,
        on_demand=on_demand,
        max_record_bytes=call.max_record_size_in_kib * 1024,
    )
    return b""


def delete_stream(desk: Desk, call: requests.DeleteStream) -> bytes:
    """DeleteStream; consumers go with it only when told."""
    if desk.engine.consumers.of_stream(call.stream()) and not call.enforce_consumer_deletion:
        raise ServiceRefusalError(
            "ResourceInUseException",
            f"Stream {call.stream()} has consumers: deregister them, or set EnforceConsumerDeletion.",
        )
    desk.engine.delete_stream(call.stream())
    return b""


def describe_stream(desk: Desk, call: requests.DescribeStream) -> bytes:
    """DescribeStream, a page of shards."""
    stream = desk.engine.stream(call.stream())
    shards = [
        s for s in desk.engine.shards(stream.name) if s.shard_id > (call.exclusive_start_shard_id or "")
    ]
    described = _description(desk.engine, stream)
    described["HasMoreShards"] = len(shards) > call.limit
    described["Shards"] = [shard_json(shard) for shard in shards[: call.limit]]
    return orjson.dumps({"StreamDescription": described})


def describe_stream_summary(desk: Desk, call: requests.OnStream) -> bytes:
    """DescribeStreamSummary."""
    stream = desk.engine.stream(call.stream())
    described = _description(desk.engine, stream)
    described["OpenShardCount"] = len(stream.open_shards)
    described["ConsumerCount"] = len(desk.engine.consumers.of_stream(stream.name))
    described["MaxRecordSizeInKiB"] = stream.max_record_bytes // 1024
    return orjson.dumps({"StreamDescriptionSummary": described})


def list_streams(desk: Desk, call: requests.ListStreams) -> bytes:
    """ListStreams, a page of names in order."""
    after = call.exclusive_start_stream_name or ""
    if call.next_token is not None:
        after = open_page(call.next_token, desk.now_ms, desk.lifetime_ms).stream
    names = [name for name in desk.engine.stream_names() if name > after]
    page = names[: call.limit]
    described = [_description(desk.engine, desk.engine.stream(name)) for name in page]
    members = ("StreamName", "StreamARN", "StreamStatus", "StreamModeDetails", "StreamCreationTimestamp")
    reply: dict[str, Any] = {
        "StreamNames": page,
        "StreamSummaries": [{member: each[member] for member in members} for each in described],
        "HasMoreStreams": len(names) > len(page),
    }
    if len(names) > len(page):
        reply["NextToken"] = seal_page(PageToken(page[-1], 0, "", None, None), desk.now_ms)
    return orjson.dumps(reply)


def list_shards(desk: Desk, call: requests.ListShards) -> bytes:
    """ListShards, a page of what the filter lets through; a page goes on under its first filter."""
    page = _first_page(desk, call) if call.next_token is None else _next_page(desk, call, call.next_token)
    if desk.engine.stream(page.stream).created_ms != page.created_ms:
        raise ServiceRefusalError(
            "ResourceNotFoundException", f"Stream {page.stream} of creation time {page.created_ms} not found."
        )
    chosen = None
    if page.filter_type is not None:
        value = page.filter_value
        chosen = ShardFilter(
            page.filter_type,
            value if isinstance(value, str) else None,
            value if isinstance(value, int) else None,
        )
    found = [s for s in desk.engine.shards(page.stream, chosen) if s.shard_id > page.after_shard_id]
    shown = found[: call.max_results]
    reply: dict[str, Any] = {"Shards": [shard_json(shard) for shard in shown]}
    if len(found) > len(shown):
        reply["NextToken"] = seal_page(page._replace(after_shard_id=shown[-1].shard_id), desk.now_ms)
    return orjson.dumps(reply)


def split_shard(desk: Desk, call: requests.SplitShard) -> bytes:
    """SplitShard."""
    desk.engine.split_shard(call.stream(), call.shard_to_split, int(call.new_starting_hash_key))
    return b""


def merge_shards(desk: Desk, call: requests.MergeShards) -> bytes:
    """MergeShards."""
    desk.engine.merge_shards(call.stream(), call.shard_to_merge, call.adjacent_shard_to_merge)
    return b""


def update_shard_count(desk: Desk, call: requests.UpdateShardCount) -> bytes:
    """UpdateShardCount to even shards."""
    stream = desk.engine.stream(call.stream())
    before = desk.engine.update_shard_count(stream.name, call.target_shard_count)
    reply = {"CurrentShardCount": before, "TargetShardCount": call.target_shard_count}
    return orjson.dumps({"StreamName": stream.name, "StreamARN": stream.arn, **reply})


def increase_retention(desk: Desk, call: requests.Retention) -> bytes:
    """IncreaseStreamRetentionPeriod, to no less than it is."""
    held = desk.engine.stream(call.stream()).retention_hours
    return _set_retention(desk, call, range(held, _MOST_RETENTION_HOURS + 1))


def decrease_retention(desk: Desk, call: requests.Retention) -> bytes:
    """DecreaseStreamRetentionPeriod, to no more than it is."""
    held = desk.engine.stream(call.stream()).retention_hours
    return _set_retention(desk, call, range(_LEAST_RETENTION_HOURS, held + 1))


def update_max_record_size(desk: Desk, call: requests.UpdateMaxRecordSize) -> bytes:
    """UpdateMaxRecordSize."""
    desk.engine.set_max_record_bytes(call.stream(), call.max_record_size_in_kib * 1024)
    return b""


def _set_retention(desk: Desk, call: requests.Retention, allowed: range) -> bytes:
    if call.retention_period_hours not in allowed:
        raise ServiceRefusalError(
            "InvalidArgumentException",
            f"Retention of {call.retention_period_hours} hours is not in {allowed[0]}..{allowed[-1]}.",
        )
    desk.engine.set_retention(call.stream(), call.retention_period_hours)
    return b""


def _description(engine: Engine, stream: Stream) -> dict[str, Any]:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": engine.status(stream.name),
        "StreamModeDetails": {"StreamMode": "ON_DEMAND" if stream.on_demand else "PROVISIONED"},
        "RetentionPeriodHours": stream.retention_hours,
        "StreamCreationTimestamp": stream.created_ms / 1000,
        "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
        "EncryptionType": "NONE",
    }


def _first_page(desk: Desk, call: requests.ListShards) -> PageToken:
    stream = desk.engine.stream(call.stream())
    created_ms, filter_type = stream.created_ms, None
    value: str | int | None = None
    if call.stream_creation_timestamp is not None:
        created_ms = round(call.stream_creation_timestamp * 1000)
    if call.shard_filter is not None:
        filter_type, value = call.shard_filter.type, call.shard_filter.shard_id
        if call.shard_filter.timestamp is not None:
            value = round(call.shard_filter.timestamp * 1000)
    return PageToken(stream.name, created_ms, call.exclusive_start_shard_id or "", filter_type, value)


def _next_page(desk: Desk, call: requests.ListShards, token: str) -> PageToken:
    alone = (
        call.stream_name,
        call.exclusive_start_shard_id,
        call.shard_filter,
        call.stream_creation_timestamp,
    )
    if any(each is not None for each in alone):
        raise ServiceRefusalError(
            "InvalidArgumentException",
            "NextToken and StreamName, ExclusiveStartShardId, ShardFilter or StreamCreationTimestamp "
            "cannot be given together.",
        )
    page = open_page(token, desk.now_ms, desk.lifetime_ms)
    if call.stream_arn is not None:
        check_same_stream(page.stream, call.stream_arn)
    return page
