"""Kinesis Data Streams: reading and planning reads, and writing. The only room that imports boto3.

::

    planning/    where a new query starts, and where each batch ends: exact positions, within bounds
    reading/     one shard from a position to another: pages, expired iterators, gaps, Arrow batches
    fanout/      the same over subscriptions (enhanced fan-out)
    api/         the calls: client, settings, what errors mean, retries, rate limits
    archive/     Kinesis records in files, one JSON object a line
    producer/    user records in, KPL aggregates out

Nothing here knows of Spark. `Producer`, `BlockingProducer`, `ProducerSettings` and `ConnectionSettings` are
loaded when they are first used, so that readers do not pay for them. A Kinesis to test against is
`headpond.localkinesis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.core.lazy import lazy

if TYPE_CHECKING:
    from headpond.kinesis.api.settings import ConnectionSettings
    from headpond.kinesis.producer import BlockingProducer, Producer, ProducerSettings

__all__ = ["BlockingProducer", "ConnectionSettings", "Producer", "ProducerSettings"]

_PRODUCER = dict.fromkeys(("BlockingProducer", "Producer", "ProducerSettings"), "headpond.kinesis.producer")
__getattr__, __dir__ = lazy(__name__, {"ConnectionSettings": "headpond.kinesis.api.settings", **_PRODUCER})
