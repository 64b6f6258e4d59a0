"""Answers of the calls that carry records.

Data stays the base64 text it came as: it is checked, not decoded, and a reply joins the stored JSON.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from headpond.kinesis.local.desk import Desk, Pieces, range_json
from headpond.kinesis.local.model import check_hash_key
from headpond.kinesis.local.refusal import ServiceRefusalError
from headpond.kinesis.local.requests import check_same_stream
from headpond.kinesis.local.tokens import open_iterator, seal_iterator

if TYPE_CHECKING:
    from msgspec import Raw

    from headpond.kinesis.local import requests
    from headpond.kinesis.local.faults import Rule
    from headpond.kinesis.local.model import Shard
    from headpond.kinesis.local.settings import Placed

__all__ = ["children_json", "get_records", "get_shard_iterator", "put_record", "put_records"]

_BASE64_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SMALL_PIECE_BYTES = 8 * 1024  # smaller ones are sent faster in one copy
_PADDINGS = (b"", b"=", b"==")


class _Incoming(NamedTuple):
    """A record to be stored."""

    partition_key: str
    data_base64: bytes
    data_bytes: int
    explicit_hash_key: int | None

    @property
    def size_bytes(self) -> int:
        return self.data_bytes + len(self.partition_key.encode())


def put_record(desk: Desk, call: requests.PutRecord) -> bytes:
    """PutRecord."""
    return _placed_json(_store(desk, call.stream(), _incoming(call)))


def put_records(desk: Desk, call: requests.PutRecords) -> bytes:
    """PutRecords: each record is stored or fails for itself, in request order."""
    stream = desk.engine.stream(call.stream())
    incoming = [_incoming(entry) for entry in call.records]
    # A request that breaks a bound is refused whole, before anything is stored.
    largest, total = max(r.size_bytes for r in incoming), sum(r.size_bytes for r in incoming)
    if largest > stream.max_record_bytes:
        raise ServiceRefusalError(
            "ValidationException",
            f"A record takes {largest} bytes with its partition key; the stream takes at most "
            f"{stream.max_record_bytes}.",
        )
    if total > desk.engine.settings.request_bytes:
        raise ServiceRefusalError(
            "InvalidArgumentException",
            f"Records size exceeds {desk.engine.settings.request_bytes} bytes limit: {total}.",
        )
    results, failed = [], 0
    for record in incoming:
        refusal: Rule | ServiceRefusalError
        struck = desk.faults.strike("PutRecords", inner="fail_entry")
        try:
            if not struck:
                results.append(_placed_json(_store(desk, stream.name, record)))
                continue
            refusal = struck[0]
        except ServiceRefusalError as error:
            refusal = error
        failed += 1
        results.append(orjson.dumps({"ErrorCode": refusal.code, "ErrorMessage": refusal.message}))
    return b'{"FailedRecordCount":%d,"Records":[%b],"EncryptionType":"NONE"}' % (failed, b",".join(results))


def get_shard_iterator(desk: Desk, call: requests.GetShardIterator) -> bytes:
    """GetShardIterator, all five kinds."""
    number, seconds = call.starting_sequence_number, call.timestamp
    position = desk.engine.position(
        call.stream(),
        call.shard_id,
        call.shard_iterator_type,
        sequence_number=None if number is None else int(number),
        # Seconds with a fraction: rounding to microseconds undoes what binary fractions add.
        timestamp_ms=None if seconds is None else round(seconds * 1_000_000) / 1000,
    )
    return orjson.dumps({"ShardIterator": seal_iterator(position, desk.now_ms)})


def get_records(desk: Desk, call: requests.GetRecords) -> bytes | Pieces:
    """GetRecords; at the end of a closed shard there is no next iterator, but children."""
    now_ms = desk.now_ms
    position = open_iterator(call.shard_iterator, now_ms, desk.lifetime_ms)
    if call.stream_arn is not None:
        check_same_stream(position.stream, call.stream_arn)
    if desk.faults.strike("GetRecords", inner="empty_read"):
        token = seal_iterator(position, now_ms)
        return orjson.dumps({"Records": [], "NextShardIterator": token, "MillisBehindLatest": 1})
    reading = desk.engine.read(position, call.limit)
    tail: dict[str, Any] = {"MillisBehindLatest": reading.behind_ms}
    if reading.position is None:
        tail["ChildShards"] = children_json(reading.children)
    else:
        tail["NextShardIterator"] = seal_iterator(reading.position, now_ms)
    end = b"]," + orjson.dumps(tail)[1:]
    pieces = Pieces([b'{"Records":['])
    for record in reading.records:
        pieces += (record.wire, b",")
    if reading.records:
        pieces.pop()
    pieces.append(end)
    if pieces.size_bytes < len(pieces) * _SMALL_PIECE_BYTES:
        return b"".join(pieces)
    return pieces


def children_json(children: list[Shard]) -> list[dict[str, Any]]:
    """The shards below one that ended, as its last reply tells them."""
    return [
        {"ShardId": shard.shard_id, "ParentShards": list(shard.parents), "HashKeyRange": range_json(shard)}
        for shard in children
    ]


def _store(desk: Desk, stream: str, record: _Incoming) -> Placed:
    return desk.engine.put_base64(
        stream,
        record.partition_key,
        record.data_base64,
        record.data_bytes,
        explicit_hash_key=record.explicit_hash_key,
    )


def _placed_json(placed: Placed) -> bytes:
    return b'{"ShardId":"%b","SequenceNumber":"%d"}' % (placed.shard_id.encode(), placed.sequence_number)


def _incoming(entry: requests.Entry | requests.PutRecord) -> _Incoming:
    text, size_bytes = _canonical(entry.data)
    hash_key = None if entry.explicit_hash_key is None else int(entry.explicit_hash_key)
    if hash_key is not None:
        check_hash_key(hash_key)
    return _Incoming(entry.partition_key, text, size_bytes, hash_key)


def _canonical(data: Raw) -> tuple[bytes, int]:
    """Base64 text of a data member without its quotes, and the number of bytes it stands for."""
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
