"""The answers of all calls but those around enhanced fan-out: streams and shards, and records.

Data stays the base64 text it came as: it is checked, not decoded, and a reply joins the stored JSON.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from headpond.localkinesis.model import ShardFilter, Start, check_hash_key
from headpond.localkinesis.requests import check_same_stream, stream_of
from headpond.localkinesis.settings import ServiceRefusalError, in_use, invalid, invalid_argument, not_found
from headpond.localkinesis.tokens import Page, open_iterator, open_page, seal_iterator, seal_page

if TYPE_CHECKING:
    from msgspec import Raw

    from headpond.localkinesis.engine import Engine
    from headpond.localkinesis.faults import Rule
    from headpond.localkinesis.model import Placed, Shard, Stream

_LEAST_RETENTION_HOURS = 24
_MOST_RETENTION_HOURS = 8760
_BASE64_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_LEAST_RECORD_KIB = 1024
_PAGE, _MOST_SHARDS = 100, 1000  # of a listing, unless the call says otherwise
_PADDINGS = (b"", b"=", b"==")


# Streams and shards


def create_stream(engine: Engine, call: Any) -> bytes:
    """CreateStream; an on-demand stream starts with 4 shards."""
    mode = call.stream_mode_details
    on_demand = mode is not None and mode.stream_mode == "ON_DEMAND"
    if call.shard_count is None and not on_demand:
        raise invalid("ShardCount must be given for a provisioned stream.")
    engine.create_stream(
        call.stream_name,
        call.shard_count or 4,
        on_demand=on_demand,
        max_record_bytes=(call.max_record_size_in_ki_b or _LEAST_RECORD_KIB) * 1024,
    )
    return b""


def delete_stream(engine: Engine, call: Any) -> bytes:
    """DeleteStream; consumers go with it only where the call asks for that."""
    name = stream_of(call)
    if engine.consumers.of_stream(name) and not call.enforce_consumer_deletion:
        raise in_use(f"Stream {name} has consumers: deregister them, or set EnforceConsumerDeletion.")
    engine.delete_stream(name)
    return b""


def describe_stream(engine: Engine, call: Any) -> bytes:
    """DescribeStream, a page of shards."""
    stream = engine.stream(stream_of(call))
    after = call.exclusive_start_shard_id or ""
    shards = [each for each in engine.shards(stream.name) if each.shard_id > after]
    described = _description(engine, stream)
    limit = call.limit or _PAGE
    described["HasMoreShards"] = len(shards) > limit
    described["Shards"] = [_shard_json(shard) for shard in shards[:limit]]
    return orjson.dumps({"StreamDescription": described})


def describe_stream_summary(engine: Engine, call: Any) -> bytes:
    """DescribeStreamSummary."""
    stream = engine.stream(stream_of(call))
    described = _description(engine, stream)
    described["OpenShardCount"] = len(stream.open_shards)
    described["ConsumerCount"] = len(engine.consumers.of_stream(stream.name))
    described["MaxRecordSizeInKiB"] = stream.max_record_bytes // 1024
    return orjson.dumps({"StreamDescriptionSummary": described})


def list_streams(engine: Engine, call: Any) -> bytes:
    """ListStreams, a page of names in order."""
    after = call.exclusive_start_stream_name or ""
    if call.next_token is not None:
        after = open_page(engine, call.next_token).stream
    names = [name for name in engine.stream_names() if name > after]
    page = names[: call.limit or _PAGE]
    described = [_description(engine, engine.stream(name)) for name in page]
    members = ("StreamName", "StreamARN", "StreamStatus", "StreamModeDetails", "StreamCreationTimestamp")
    reply: dict[str, Any] = {
        "StreamNames": page,
        "StreamSummaries": [{member: each[member] for member in members} for each in described],
        "HasMoreStreams": len(names) > len(page),
    }
    if len(names) > len(page):
        reply["NextToken"] = seal_page(engine, Page(page[-1], 0, ""))
    return orjson.dumps(reply)


def list_shards(engine: Engine, call: Any) -> bytes:
    """ListShards, a page of what the filter lets through; a page goes on under its first filter."""
    page = _first_page(engine, call) if call.next_token is None else _next_page(engine, call, call.next_token)
    if engine.stream(page.stream).created_ms != page.created_ms:
        raise not_found(f"Stream {page.stream} of creation time {page.created_ms} not found.")
    listed = engine.shards(page.stream, page.chosen)
    found = [each for each in listed if each.shard_id > page.after]
    shown = found[: call.max_results or _MOST_SHARDS]
    reply: dict[str, Any] = {"Shards": [_shard_json(shard) for shard in shown]}
    if len(found) > len(shown):
        reply["NextToken"] = seal_page(engine, page._replace(after=shown[-1].shard_id))
    return orjson.dumps(reply)


def split_shard(engine: Engine, call: Any) -> bytes:
    """SplitShard."""
    engine.split_shard(stream_of(call), call.shard_to_split, int(call.new_starting_hash_key))
    return b""


def merge_shards(engine: Engine, call: Any) -> bytes:
    """MergeShards."""
    engine.merge_shards(stream_of(call), call.shard_to_merge, call.adjacent_shard_to_merge)
    return b""


def update_shard_count(engine: Engine, call: Any) -> bytes:
    """UpdateShardCount to even shards."""
    stream = engine.stream(stream_of(call))
    before = engine.update_shard_count(stream.name, call.target_shard_count)
    reply = {"CurrentShardCount": before, "TargetShardCount": call.target_shard_count}
    return orjson.dumps({"StreamName": stream.name, "StreamARN": stream.arn, **reply})


def increase_retention(engine: Engine, call: Any) -> bytes:
    """IncreaseStreamRetentionPeriod, to no less than it is."""
    held = engine.stream(stream_of(call)).retention_hours
    return _set_retention(engine, call, range(held, _MOST_RETENTION_HOURS + 1))


def decrease_retention(engine: Engine, call: Any) -> bytes:
    """DecreaseStreamRetentionPeriod, to no more than it is."""
    held = engine.stream(stream_of(call)).retention_hours
    return _set_retention(engine, call, range(_LEAST_RETENTION_HOURS, held + 1))


def update_max_record_size(engine: Engine, call: Any) -> bytes:
    """UpdateMaxRecordSize."""
    engine.set_max_record_bytes(stream_of(call), call.max_record_size_in_ki_b * 1024)
    return b""


def _set_retention(engine: Engine, call: Any, allowed: range) -> bytes:
    if call.retention_period_hours not in allowed:
        raise invalid_argument(
            f"Retention of {call.retention_period_hours} hours is not in {allowed[0]}..{allowed[-1]}."
        )
    engine.set_retention(stream_of(call), call.retention_period_hours)
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


def _first_page(engine: Engine, call: Any) -> Page:
    stream = engine.stream(stream_of(call))
    created_ms, wanted, chosen = stream.created_ms, call.shard_filter, None
    if call.stream_creation_timestamp is not None:
        created_ms = round(call.stream_creation_timestamp * 1000)
    if wanted is not None:
        moment_ms = None if wanted.timestamp is None else round(wanted.timestamp * 1000)
        chosen = ShardFilter(wanted.type, wanted.shard_id, moment_ms)
    return Page(stream.name, created_ms, call.exclusive_start_shard_id or "", chosen)


def _next_page(engine: Engine, call: Any, token: str) -> Page:
    others = (call.stream_name, call.exclusive_start_shard_id, call.shard_filter)
    if any(each is not None for each in (*others, call.stream_creation_timestamp)):
        raise invalid_argument(
            "NextToken and StreamName, ExclusiveStartShardId, ShardFilter or StreamCreationTimestamp "
            "cannot be given together."
        )
    page = open_page(engine, token)
    if call.stream_arn is not None:
        check_same_stream(page.stream, call.stream_arn)
    return page


# Records


class _Incoming(NamedTuple):
    partition_key: str
    data_base64: bytes
    data_bytes: int
    explicit_hash_key: int | None

    @property
    def size_bytes(self) -> int:
        return self.data_bytes + len(self.partition_key.encode())


def put_record(engine: Engine, call: Any) -> bytes:
    """PutRecord."""
    return _placed_json(_store(engine, stream_of(call), _incoming(call)))


def put_records(engine: Engine, call: Any) -> bytes:
    """PutRecords: each record is stored or fails for itself, in request order."""
    stream = engine.stream(stream_of(call))
    incoming = [_incoming(entry) for entry in call.records]
    # A request that breaks a bound is refused whole, before anything is stored.
    largest, total = max(r.size_bytes for r in incoming), sum(r.size_bytes for r in incoming)
    if largest > stream.max_record_bytes:
        raise invalid(
            f"A record takes {largest} bytes with its partition key; the stream takes at most "
            f"{stream.max_record_bytes}."
        )
    if total > engine.settings.request_bytes:
        raise invalid_argument(f"Records size exceeds {engine.settings.request_bytes} bytes limit: {total}.")
    results, failed = [], 0
    for record in incoming:
        refusal: Rule | ServiceRefusalError
        failing = engine.faults.hitting("PutRecords", inner="fail_entry")
        try:
            if not failing:
                results.append(_placed_json(_store(engine, stream.name, record)))
                continue
            refusal = failing[0]
        except ServiceRefusalError as error:
            refusal = error
        failed += 1
        results.append(orjson.dumps({"ErrorCode": refusal.code, "ErrorMessage": refusal.message}))
    return b'{"FailedRecordCount":%d,"Records":[%b],"EncryptionType":"NONE"}' % (failed, b",".join(results))


def get_shard_iterator(engine: Engine, call: Any) -> bytes:
    """GetShardIterator, all five kinds."""
    start = Start.of(call.shard_iterator_type, call.starting_sequence_number, call.timestamp)
    position = engine.position(stream_of(call), call.shard_id, start)
    return orjson.dumps({"ShardIterator": seal_iterator(engine, position)})


def get_records(engine: Engine, call: Any) -> bytes:
    """GetRecords; at the end of a closed shard there are children."""
    position = open_iterator(engine, call.shard_iterator)
    if call.stream_arn is not None:
        check_same_stream(position.stream, call.stream_arn)
    if engine.faults.hitting("GetRecords", inner="empty_read"):
        token = seal_iterator(engine, position)
        return orjson.dumps({"Records": [], "NextShardIterator": token, "MillisBehindLatest": 1})
    reading = engine.read(position, call.limit)
    tail: dict[str, Any] = {"MillisBehindLatest": reading.behind_ms}
    if reading.position is None:
        tail["ChildShards"] = children_json(reading.children)
    else:
        tail["NextShardIterator"] = seal_iterator(engine, reading.position)
    records = b",".join([record.wire for record in reading.records])
    return b'{"Records":[%b],%b' % (records, orjson.dumps(tail)[1:])


def _shard_json(shard: Shard) -> dict[str, Any]:
    """Return a shard as ListShards and DescribeStream write it."""
    numbers = {"StartingSequenceNumber": str(shard.starting_sequence_number)}
    if shard.closed_ms is not None:
        numbers["EndingSequenceNumber"] = str(shard.ending_sequence_number)
    described: dict[str, Any] = {
        "ShardId": shard.shard_id,
        "HashKeyRange": _range_json(shard),
        "SequenceNumberRange": numbers,
    }
    # One parent after a split, two after a merge.
    described.update(zip(("ParentShardId", "AdjacentParentShardId"), shard.parents, strict=False))
    return described


def _range_json(shard: Shard) -> dict[str, str]:
    return {"StartingHashKey": str(shard.low), "EndingHashKey": str(shard.high)}


def children_json(children: list[Shard]) -> list[dict[str, Any]]:
    """Return the shards below one that ended, as its last reply lists them."""
    return [
        {"ShardId": shard.shard_id, "ParentShards": list(shard.parents), "HashKeyRange": _range_json(shard)}
        for shard in children
    ]


def _store(engine: Engine, stream: str, record: _Incoming) -> Placed:
    return engine.put_base64(
        stream,
        record.partition_key,
        record.data_base64,
        record.data_bytes,
        explicit_hash_key=record.explicit_hash_key,
    )


def _placed_json(placed: Placed) -> bytes:
    return b'{"ShardId":"%b","SequenceNumber":"%d"}' % (placed.shard_id.encode(), placed.sequence_number)


def _incoming(entry: Any) -> _Incoming:
    text, size_bytes = _canonical(entry.data)
    hash_key = None if entry.explicit_hash_key is None else int(entry.explicit_hash_key)
    if hash_key is not None:
        check_hash_key(hash_key)
    return _Incoming(entry.partition_key, text, size_bytes, hash_key)


def _canonical(data: Raw) -> tuple[bytes, int]:
    """Return the base64 text of a data member without its quotes, and how many bytes it stands for."""
    text = bytes(data)
    inner = text[1:-1]
    padding = inner.translate(None, _BASE64_ALPHABET) if len(inner) % 4 == 0 else b"?"
    if text[:1] != b'"' or padding not in _PADDINGS or not inner.endswith(padding):
        try:
            # Escaped slashes and the like are legal JSON, though no AWS client writes them.
            inner = b64encode(b64decode(orjson.loads(text), validate=True))
        except (ValueError, TypeError) as error:
            raise ServiceRefusalError("SerializationException", "Data must be valid base64 text.") from error
        padding = inner[len(inner.rstrip(b"=")) :]
    return inner, len(inner) // 4 * 3 - len(padding)
