"""The Arrow shape of one batch of user records, as every room after the transport meets it.

One row is one user record: what a producer put, after KPL aggregates were opened. A Kinesis record
that is no aggregate is one row with `sub_sequence_number` 0. A row with a `problem` could not be
opened; its `data` is the untouched Kinesis record, and it goes to quarantine under that reason.
"""

from __future__ import annotations

import pyarrow as pa

TAGS_TYPE = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]),
)
"""KPL tags of a user record: key and optional value, in order."""

USER_RECORD_SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),  # name or ARN as configured
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("sequence_number", pa.string(), nullable=False),  # decimal text: exceeds 64 bits
        pa.field("sub_sequence_number", pa.int64(), nullable=False),  # 0-based position in its aggregate
        pa.field("partition_key", pa.string()),
        pa.field("explicit_hash_key", pa.string()),
        pa.field("approximate_arrival_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("aggregated", pa.bool_(), nullable=False),
        pa.field("problem", pa.string()),  # null, or a reason code such as kpl_checksum_mismatch
        pa.field("data", pa.binary(), nullable=False),
    ]
)
"""Columns of the `kinesis` source, in this order."""
