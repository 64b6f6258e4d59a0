"""The KPL aggregated record format: many user records in one Kinesis record.

::

    0               4                  N          N+16
    +---------------+------------------+----------+
    | F3 89 9A C2   | protobuf message | MD5 of   |      aggregate: longer than 20 bytes, magic right,
    | magic         | (wire.py)        | message  |      MD5 right; anything else is a user's own bytes
    +---------------+------------------+----------+

    message   0A key …   12 hash key …   1A record …          tables, then records
    record    1A len | 08 key index | 10 hash key index | 1A len data | 22 tag …

One blob: `decode` and `encode`. Many blobs to Arrow: `headpond.kpl.batch`. When to close an aggregate:
`Aggregator` and `pack`. Neither direction needs a protobuf runtime; the MD5 detects damage and is
asked for as "not for security". Source: spec "KPL aggregated records".
"""

from __future__ import annotations

from headpond.kpl.aggregator import DEFAULT_MAX_COUNT, DEFAULT_MAX_SIZE, Aggregator, Packed, alone, pack
from headpond.kpl.decoder import decode, kept_by_range, plain_reason
from headpond.kpl.encoder import encode, tags_length
from headpond.kpl.model import (
    AGGREGATE_PARTITION_KEY,
    DEFAULT_MAX_USER_RECORD_BYTES,
    FRAMING_BYTES,
    MAGIC,
    Aggregate,
    HashRangeFilter,
    InvalidUserRecord,
    KinesisRecord,
    Malformed,
    MalformedAggregate,
    OnMalformed,
    Outcome,
    Plain,
    Tag,
    UserRecord,
    validate,
)

__all__ = [
    "AGGREGATE_PARTITION_KEY",
    "DEFAULT_MAX_COUNT",
    "DEFAULT_MAX_SIZE",
    "DEFAULT_MAX_USER_RECORD_BYTES",
    "FRAMING_BYTES",
    "MAGIC",
    "Aggregate",
    "Aggregator",
    "HashRangeFilter",
    "InvalidUserRecord",
    "KinesisRecord",
    "Malformed",
    "MalformedAggregate",
    "OnMalformed",
    "Outcome",
    "Packed",
    "Plain",
    "Tag",
    "UserRecord",
    "alone",
    "decode",
    "encode",
    "kept_by_range",
    "pack",
    "plain_reason",
    "tags_length",
    "validate",
]
