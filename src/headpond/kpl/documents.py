"""Aggregates as JSON documents: for `headpond inspect --as kpl` and `headpond aggregate`.

::

    inspect     {"outcome": …, "reason": …, "records": [{"sub_sequence_number": 0, "partition_key": …,
                 "explicit_hash_key": …, "data": base64, "tags": [{"key": …, "value": …}]}]}
    aggregate   {"records": [{"partition_key": …, "explicit_hash_key": …, "data": base64, "tags": […]}]}
             →  {"partition_key": …, "explicit_hash_key": …, "data": base64}
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from headpond.core.errors import InvalidData
from headpond.kpl.decoder import decode
from headpond.kpl.encoder import encode
from headpond.kpl.model import Aggregate, Tag, UserRecord


class _TagLine(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    value: str | None = None


class _RecordLine(msgspec.Struct, forbid_unknown_fields=True):
    partition_key: str
    data: bytes
    explicit_hash_key: str | None = None
    tags: list[_TagLine] | None = None


class _AggregateLine(msgspec.Struct, forbid_unknown_fields=True):
    records: list[_RecordLine]


_reader = msgspec.json.Decoder(_AggregateLine)


def inspect_blob(blob: bytes) -> dict[str, Any]:
    """Return what a Kinesis record's data is; `records` is empty unless it is an aggregate."""
    found = decode(blob)
    records = found.records if isinstance(found, Aggregate) else ()
    return {
        "outcome": found.outcome,
        "reason": found.reason,
        "records": [
            {
                "sub_sequence_number": position,
                "partition_key": record.partition_key,
                "explicit_hash_key": record.explicit_hash_key,
                "data": base64.b64encode(record.data).decode(),
                "tags": [{"key": tag.key, "value": tag.value} for tag in record.tags],
            }
            for position, record in enumerate(records)
        ],
    }


def aggregate_line(line: bytes | str) -> dict[str, str]:
    """Pack the user records of one JSON document into one Kinesis record; tags are written.

    Raises:
        InvalidData: The line is not the document above.
        InvalidUserRecord: A record breaks a limit.
        InvalidHashKey: An explicit hash key is not a number on the ring.
    """
    try:
        parsed = _reader.decode(line)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidData(
            f"The line is not a list of user records: {error}.",
            next_step='Write {"records": [{"partition_key": …, "data": base64}]} on each line.',
            reason="invalid_json",
        ) from error
    packed = encode(
        [
            UserRecord(
                record.partition_key,
                record.data,
                record.explicit_hash_key,
                tuple(Tag(tag.key, tag.value) for tag in record.tags or ()),
            )
            for record in parsed.records
        ],
        with_tags=True,
    )
    return {
        "partition_key": packed.partition_key,
        "explicit_hash_key": packed.explicit_hash_key,
        "data": base64.b64encode(packed.data).decode(),
    }
