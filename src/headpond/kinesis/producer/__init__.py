"""A Kinesis producer with the KPL's stages: aggregate, limit, collect, send, judge.

::

    core (Producer) ─► dispatcher ─► lanes ─► kpl.Aggregator
    blocking              │  └─► sender (threads)
                          ├─► records: their results, and how many may be outstanding
                          └─► shard_map
"""

from headpond.kinesis.producer.blocking import BlockingProducer
from headpond.kinesis.producer.core import Producer
from headpond.kinesis.producer.metrics import (
    MemoryMetrics,
    Metrics,
    NoMetrics,
    OpenTelemetryMetrics,
    Statistics,
)
from headpond.kinesis.producer.records import Attempt, PutFailed, PutResult
from headpond.kinesis.producer.settings import ProducerSettings

__all__ = [
    "Attempt",
    "BlockingProducer",
    "MemoryMetrics",
    "Metrics",
    "NoMetrics",
    "OpenTelemetryMetrics",
    "Producer",
    "ProducerSettings",
    "PutFailed",
    "PutResult",
    "Statistics",
]
