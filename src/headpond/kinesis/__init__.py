"""Kinesis Data Streams: reading and planning reads, writing, and a Kinesis to run beside you.

What Spark's source and sink, the tools and your own programs do with a stream is done here; nothing in
this room knows of Spark. From the calls up::

    options, option_values         what the source's options mean
      │
    begin ─ leases                 where a new query begins; a KCL application's lease table
      │
    plan ─┬─ watch                 the stream as described and listed: is it still the same one?
          ├─ losses                until when nothing unread had expired; gaps gone on over
          ├─ ends ─┬─ ahead        exact bounds: look at each record, drop its data
          │        ├─ tip          else: the newest record, or the first one of a later moment
          │        ├─ fixed_ends   ends that no batch goes beyond (AvailableNow)
          │        └─ quiet        idle shards need not be asked yet
          └─ read                  what a task reads: (start, end] of one shard, as Arrow batches
                  │
    cursor ─ positions, shards     a place in one shard that moves on, and what a gap is
      │
    calls ─┬─ client, connection, aws_errors    the AWS client, its settings, what its errors mean
           ├─ replies              GetRecords' answers without botocore's parser
           ├─ pace, bucket         a shard's limits, kept before the service refuses
           └─ efo ─ efo_events, efo_turns       the same calls over subscriptions (enhanced fan-out)

    lag        how far a reader is behind      producer/  writes, aggregated as the KPL does
    testing    helpers for tests               local/     a Kinesis in memory

`Producer`, `BlockingProducer`, `ProducerSettings`, `ConnectionSettings` and `LocalKinesis` may be taken from
here; they are loaded when first asked for, so that reading rooms do not pay for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headpond.kinesis.client import ConnectionSettings
    from headpond.kinesis.local import LocalKinesis
    from headpond.kinesis.producer import BlockingProducer, Producer, ProducerSettings

__all__ = ["BlockingProducer", "ConnectionSettings", "LocalKinesis", "Producer", "ProducerSettings"]

_HOMES = {
    "BlockingProducer": "headpond.kinesis.producer",
    "ConnectionSettings": "headpond.kinesis.client",
    "LocalKinesis": "headpond.kinesis.local",
    "Producer": "headpond.kinesis.producer",
    "ProducerSettings": "headpond.kinesis.producer",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
