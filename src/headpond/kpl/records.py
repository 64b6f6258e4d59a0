"""Kinesis records as Arrow batches, and the step from them to user records.

::

    KINESIS_RECORD_SCHEMA   one row per Kinesis record    ──open_records──►   USER_RECORD_SCHEMA
                            (poll, archive line)             KPL opened       one row per user record

A Kinesis record that already has a `problem` (an archive line that could not be read) passes as one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.schemas import TAGS_TYPE, USER_RECORD_SCHEMA
from headpond.kpl import OnMalformed
from headpond.kpl.batch import OpenCounters, open_batches
from headpond.kpl.hash_keys import FULL_RANGE, HashKeyRange
from headpond.kpl.model import MAGIC, HashRangeFilter

_FIELDS: list[pa.Field[Any]] = [
    pa.field("stream", pa.string(), nullable=False),
    pa.field("shard_id", pa.string(), nullable=False),
    pa.field("sequence_number", pa.string(), nullable=False),
    pa.field("partition_key", pa.string()),
    pa.field("approximate_arrival_timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("problem", pa.string()),
    pa.field("data", pa.binary(), nullable=False),
]
KINESIS_RECORD_SCHEMA = pa.schema(_FIELDS)
"""Columns of one batch of Kinesis records, before any aggregate is opened."""

USER_RECORD_SCHEMA_WITH_TAGS = USER_RECORD_SCHEMA.append(pa.field("tags", TAGS_TYPE))
ENCRYPTION_TYPE: pa.Field[Any] = pa.field("encryption_type", pa.string())
"""Column of Kinesis and of user records, where it is wanted: `KMS`, `NONE`, or null where no reply said."""


def user_record_schema(*, tags: bool = False, encryption_type: bool = False) -> pa.Schema:
    """Return `USER_RECORD_SCHEMA`, with the columns that are there on request."""
    schema = USER_RECORD_SCHEMA_WITH_TAGS if tags else USER_RECORD_SCHEMA
    return schema.append(ENCRYPTION_TYPE) if encryption_type else schema


def open_records(
    records: pa.RecordBatch,
    *,
    deaggregate: bool = True,
    on_malformed: OnMalformed = "passthrough",
    tags: bool = False,
    hash_range_filter: HashRangeFilter = "off",
    hash_keys: HashKeyRange = FULL_RANGE,
    counters: OpenCounters | None = None,
) -> Iterator[pa.RecordBatch]:
    """Open the KPL aggregates of a batch.

    Args:
        records: A batch of `KINESIS_RECORD_SCHEMA`; a column `encryption_type` behind it is passed on.
        deaggregate: False leaves every Kinesis record as it is, aggregates too.
        on_malformed: What to do with an aggregate that cannot be opened: one row with a `problem`, or fail.
        tags: Whether to add the column `tags`.
        hash_range_filter: Whether user records outside `hash_keys` are left out, one by one or as the KCL
            does; see `kept_by_range`.
        hash_keys: The hash keys of the shard that all the records are of.
        counters: What was found is added to these.

    Yields:
        Batches of `USER_RECORD_SCHEMA` (with `tags`: `USER_RECORD_SCHEMA_WITH_TAGS`), none of them empty, in
        the order given; records that came with a `problem` follow after the others.

    Raises:
        MalformedAggregate: With `on_malformed="fail"`, at the first aggregate that cannot be opened.
    """
    bad = records["problem"].is_valid()
    if not deaggregate:
        sound, rest = records.slice(0, 0), records
    elif records["problem"].null_count == records.num_rows:
        sound, rest = records, records.slice(0, 0)
    else:
        sound, rest = records.filter(pc.invert(bad)), records.filter(bad)
    schema = user_record_schema(tags=tags, encryption_type=ENCRYPTION_TYPE.name in records.schema.names)
    if sound.num_rows and not pc.any(pc.starts_with(sound["data"], MAGIC)).as_py():
        # Nothing to open: the columns pass as they are, without a copy of the data.
        if counters is not None:
            counters.add(OpenCounters(kinesis_records=sound.num_rows, plain=sound.num_rows))
        yield _unopened(sound, schema)
        sound = sound.slice(0, 0)

    def where(index: int) -> dict[str, Any]:
        return {name: sound[name][index].as_py() for name in ("stream", "shard_id", "sequence_number")}

    for opened in open_batches(
        sound["data"],
        sound["partition_key"],
        on_malformed=on_malformed,
        tags=tags,
        hash_range_filter=hash_range_filter,
        hash_keys=hash_keys,
        where=where,
    ):
        if counters is not None:
            counters.add(opened.counters)
        if opened.batch.num_rows:
            yield _with_origins(opened.batch, sound, schema)
    if rest.num_rows:
        yield _unopened(rest, schema)


def _with_origins(opened: pa.RecordBatch, records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Add to each user record what its Kinesis record says."""
    origin = opened["origin"]
    columns: list[pa.Array[Any]] = []
    for each in schema:
        source = opened[each.name] if each.name in opened.schema.names else records[each.name].take(origin)
        columns.append(source.cast(each.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _unopened(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    count = records.num_rows
    own: dict[str, pa.Array[Any]] = {
        "sub_sequence_number": pa.repeat(pa.scalar(0, pa.int64()), count),
        "explicit_hash_key": pa.nulls(count, pa.string()),
        "aggregated": pa.repeat(pa.scalar(value=False), count),
    }
    if "tags" in schema.names:
        own["tags"] = pa.array([[]] * count, TAGS_TYPE)
    columns = [own[name] if name in own else records[name] for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
