"""Read what lies between two positions of a shard, exactly, as Arrow batches of Kinesis records.

`(start, end]`: every record after `start` up to and with `end`, the same ones however often it is read.
The end was seen when the batch was planned; a shard that ends or goes on without it has lost records.

::

    shard 1 ─► page, page ─┐
    shard 2 ─► page ───────┼─► batch of some MiB ─► batch …
    shard 3 ─► page ───────┘

What opens and decodes batches pays for each, however small: pages that hold little are put together.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headpond.core.errors import DataLoss, ServiceFailure
from headpond.kinesis.api.calls import MOST_PARALLEL_CALLS, StreamCalls
from headpond.kinesis.api.replies import Record
from headpond.kinesis.reading.cursor import MOST_RECORDS_PER_PAGE, LossRule, ShardCursor
from headpond.kinesis.reading.positions import Offset, Position
from headpond.kpl.hash_keys import FULL_RANGE, HashKeyRange
from headpond.kpl.records import ENCRYPTION_TYPE, KINESIS_RECORD_SCHEMA

EMPTY_REPLY_PAUSE_S = 0.2
"""Five reads a second are what a shard allows."""

BATCH_BYTES = 10 << 20
"""Of records as they came, in base64: what is put together is about as large as the largest reply."""

TIP_PATIENCE = 300
"""Empty replies to polling at the tip, about a minute, before the end is given up."""


@dataclass(frozen=True, slots=True)
class ShardRange:
    """What is to be read of one shard; `end` is SEQ or END."""

    shard_id: str
    start: Position
    end: Position
    hash_keys: HashKeyRange = FULL_RANGE  # the shard's own, where a filter asks for it
    records: int = 0  # about how many there are, where that is known: no more are asked for at first
    size_bytes: int = 0  # about how much it is
    iterator: str | None = None  # of the start, from who planned the batch: a call less while it is young


def read_pages(
    calls: StreamCalls,
    wanted: ShardRange,
    loss: LossRule,
    *,
    records_per_page: int = MOST_RECORDS_PER_PAGE,
    most_idle: int = TIP_PATIENCE,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[list[Record]]:
    """Yield the records of each reply that holds any of a range: 10 MiB of them at most, by the service.

    After `most_idle` empty replies at the tip the end is given up.

    Raises:
        DataLoss: Records of the range are gone and loss is fatal.
        ServiceFailure: A shard that must have ended, or must hold the end, gives nothing.
    """
    cursor = ShardCursor(calls, wanted.shard_id, wanted.start, loss, wanted.iterator)
    until = wanted.end.number if wanted.end.kind == "SEQ" else None
    idle, left = 0, wanted.records
    last: str | None = None
    oldest: str | None = None
    while not cursor.closed:
        records = cursor.next_page(min(records_per_page, left) if left > 0 else records_per_page)
        left -= len(records)
        if until is not None and records and records[-1].number >= until:
            kept = [record for record in records if record.number <= until]
            oldest = None if len(kept) == len(records) else records[len(kept)].sequence_number
            if kept:
                yield kept
                last = kept[-1].sequence_number
            break
        if records:
            last = records[-1].sequence_number
            yield records
            idle = 0
        elif not cursor.closed:
            idle = idle + 1 if cursor.at_tip else 0
            if idle > most_idle:
                missing = "its end" if until is None else f"{until}, the batch's end"
                raise ServiceFailure(
                    f"{wanted.shard_id} of {loss.stream} gives no more records before {missing}.",
                    next_step="Run again; if it lasts, the endpoint does not end its closed shards.",
                    shard_id=wanted.shard_id,
                )
            sleep(EMPTY_REPLY_PAUSE_S)
    if until is not None and (last is None or int(last) < until):
        up_to = f"before the position {wanted.start.words}" if last is None else f"up to {last}"
        loss.lost(
            wanted.shard_id,
            f"the batch's end {until} is gone; the records left are those {up_to} and "
            + (f"from {oldest} on" if oldest else "none behind, where the shard ends"),
            sequence_number=str(until),
            last=last,
            oldest=oldest,
        )


def in_batches(
    pages: Iterable[tuple[str, list[Record]]],
    stream: str,
    size_bytes: int = BATCH_BYTES,
    *,
    encryption_type: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Put pages together into batches of about `size_bytes` of base64, in the order they come.

    Yields:
        Batches of `KINESIS_RECORD_SCHEMA`, with `encryption_type` that column behind it, none of them empty.
    """
    waiting: list[Record] = []
    shards: list[tuple[str, int]] = []
    held_bytes = 0
    for shard_id, records in pages:
        waiting = waiting + records
        shards.append((shard_id, len(records)))
        held_bytes += sum(len(record.text) for record in records)
        if held_bytes >= size_bytes:
            yield to_batch(waiting, stream, shards, encryption_type=encryption_type)
            waiting, shards, held_bytes = [], [], 0
    if waiting:
        yield to_batch(waiting, stream, shards, encryption_type=encryption_type)


def to_batch(
    records: list[Record],
    stream: str,
    shards: Iterable[tuple[str, int]],
    *,
    encryption_type: bool = False,
) -> pa.RecordBatch:
    """Turn records into a batch, their data decoded; `shards` says how many are of which, in their order."""
    count = len(records)
    arrivals_s = np.fromiter((record.arrival_s for record in records), np.float64, count)
    arrivals_us = np.rint(arrivals_s * 1e6).astype(np.int64)
    columns: list[pa.Array[Any]] = [
        pa.repeat(pa.scalar(stream, pa.string()), count),
        pa.concat_arrays([pa.repeat(pa.scalar(shard_id, pa.string()), part) for shard_id, part in shards]),
        pa.array([record.sequence_number for record in records], pa.string()),
        pa.array([record.partition_key for record in records], pa.string()),
        pa.array(arrivals_us).view(pa.timestamp("us", tz="UTC")),
        pa.nulls(count, pa.string()),
        pa.array([record.data for record in records], pa.binary()),
    ]
    if not encryption_type:
        return pa.RecordBatch.from_arrays(columns, schema=KINESIS_RECORD_SCHEMA)
    columns.append(pa.array([record.encryption_type for record in records], pa.string()))
    return pa.RecordBatch.from_arrays(columns, schema=KINESIS_RECORD_SCHEMA.append(ENCRYPTION_TYPE))


def lags_ms(calls: StreamCalls, offset: Offset) -> dict[str, int | None]:
    """Return each shard's lag (ms; 0: nothing is unread); None where its place is not known any more."""
    with ThreadPoolExecutor(max_workers=MOST_PARALLEL_CALLS) as pool:
        found = pool.map(lambda item: _lag_ms(calls, *item), offset.shards.items())
        return dict(zip(offset.shards, found, strict=True))


def _lag_ms(calls: StreamCalls, shard_id: str, at: Position) -> int | None:
    # What expired behind a position is not an unread record: nobody needs to know of it here.
    at, loss = replace(at, until_ms=sys.maxsize), LossRule("", retention_ms=0)
    try:
        unread = ShardCursor(calls, shard_id, at, loss).next_records(1)
    except DataLoss:
        return None
    return max(0, calls.now_ms() - unread[0].arrival_ms) if unread else 0
