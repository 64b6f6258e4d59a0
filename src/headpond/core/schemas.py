"""The Arrow shapes in which rooms meet: user records, and what decoders return.

One row of `USER_RECORD_SCHEMA` is one user record: what a producer put, after KPL aggregates were opened. A
Kinesis record that is not an aggregate is one row with `sub_sequence_number` 0. A row with a `problem` could
not be opened; its `data` is the untouched Kinesis record, and it goes to quarantine under that reason.

A typed batch of one table has own columns, named `m:…`, and the table's columns, named `c:<column>`; the
prefixes keep the two apart whatever a user calls a column.
"""

from __future__ import annotations

from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

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


_NEEDS_ESCAPE = r'["\\\x00-\x1f]'
FORMAT_VERSION = 1
"""`format_version` of every row written with these shapes."""

_ORIGIN = [
    pa.field("stream", pa.string()),
    pa.field("shard_id", pa.string()),
    pa.field("sequence_number", pa.string()),
    pa.field("sub_sequence_number", pa.int64()),
    pa.field("approximate_arrival_timestamp", pa.timestamp("us", tz="UTC")),
]
ORIGIN_COLUMNS = tuple(field.name for field in _ORIGIN)
"""Where a user record came from; the first four are its identity."""

QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        *_ORIGIN,
        pa.field("data", pa.binary()),  # untouched
        pa.field("format_version", pa.int32()),
    ]
)

PENDING_SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string()),  # chunked | fragment
        pa.field("chunk_id", pa.string()),  # of a fragment
        pa.field("fragment_index", pa.int64()),
        pa.field("before_chunk_id", pa.string()),  # of a main record
        pa.field("after_chunk_id", pa.string()),
        *_ORIGIN,
        pa.field("data", pa.binary()),  # the whole record, untouched
        pa.field("format_version", pa.int32()),
    ]
)

ASSEMBLY_SCHEMA = PENDING_SCHEMA.append(pa.field("status", pa.string()))
"""State of reassembly: pending rows and what became of their group.

`waiting`; `failed` (quarantined, and kept until the time-out in case a better fragment comes); `finished`
(the main record alone, so that late copies are known). Rows without a status are waiting.
"""

COLUMNS_TYPE = pa.dictionary(pa.int32(), pa.string())
"""The columns that an image names: a JSON array of names after renaming, sorted; most rows share one."""

OWN_FIELDS = [
    pa.field("m:key", pa.string()),  # canonical JSON array of the key's values; null in a log without a key
    pa.field("m:version", pa.binary()),  # comparable byte by byte, see dsql.versions
    pa.field("m:op", pa.string()),  # as delivered
    pa.field("m:delete", pa.bool_()),
    pa.field("m:ts_ns", pa.int64()),
    pa.field("m:tx_id", pa.string()),
    pa.field("m:image_hash", pa.binary()),  # 32 bytes
    pa.field("m:columns", COLUMNS_TYPE),  # names in the image, nulls among them; null where not known
    *(field.with_name(f"m:{field.name}") for field in _ORIGIN),  # null where `m:data` and the images are
    pa.field("m:before", pa.string()),  # raw images, only for tables kept as log; else null
    pa.field("m:after", pa.string()),
    pa.field(
        "m:data", pa.binary()
    ),  # untouched record, only where it may be needed for quarantine; else null
]
"""Own columns of a typed batch, before its `c:` columns."""

OWN, VALUE = "m:", "c:"

STATE_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("version", pa.binary()),
        pa.field("image_hash", pa.binary()),  # null for a tombstone
        pa.field("live", pa.bool_()),  # false: a tombstone
    ]
)
"""What is known of keys before a batch; a key may have a live row and a tombstone at once."""

DELETED_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("version", pa.binary()),
        pa.field("ts_ns", pa.int64()),
        pa.field("tx_id", pa.string()),
    ]
)
"""Deleted keys that a step wants written: tombstones, or deletes that a history remembers."""


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the column's chunks as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def filled(columns: Mapping[str, Any], schema: pa.Schema, count: int) -> pa.Table:
    """Return rows of a schema, null where there is no such column."""
    arrays = [columns[each.name] if each.name in columns else pa.nulls(count, each.type) for each in schema]
    return pa.table(arrays, schema=schema)


def format_versions(count: int) -> pa.Array:
    """Return the `format_version` column."""
    return pa.repeat(pa.scalar(FORMAT_VERSION, pa.int32()), count)


quote = encode_basestring
"""Return a JSON string with the fewest escapes."""


def json_texts(values: pa.Array) -> pa.Array:
    """Return texts as JSON strings with the fewest escapes; None stays None."""
    if pc.any(pc.match_substring_regex(values, _NEEDS_ESCAPE)).as_py():
        texts = [None if text is None else encode_basestring(text) for text in values.to_pylist()]
        return pa.array(texts, pa.string())
    return pc.binary_join_element_wise('"', values, '"', "")
