"""Transport: hashing, shards, positions, the client, the producer, and a Kinesis to run beside you.

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
