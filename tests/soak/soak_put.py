"""The soak's producers, one a stream, and what the streams hold in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import boto3

from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.producer import BlockingProducer, ProducerSettings, PutFailed
from headpond.kpl import Aggregate, UserRecord, decode
from headpond.localkinesis.testing import read_all

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

SETTINGS = ProducerSettings(record_ttl_ms=120_000)
"""Records wait out bad weather: none may fail."""
Identity = tuple[str, str, int]


class Producers:
    """A producer for each stream, put to in small parts.

    Args:
        endpoint: of the local Kinesis.
        streams: their names.
        acknowledged: counts what is acknowledged, by stream.
        failed: takes a sentence for each part that was not.
    """

    def __init__(
        self, endpoint: str, streams: tuple[str, ...], acknowledged: Counter[str], failed: list[str]
    ) -> None:
        self._acknowledged, self._failed = acknowledged, failed
        self._waiting: dict[str, list[Any]] = {name: [] for name in streams}
        self._producers = {
            name: BlockingProducer(
                ConnectionSettings(stream_name=name, endpoint_url=endpoint, region="us-east-1"), SETTINGS
            )
            for name in streams
        }

    def __enter__(self) -> Self:
        for producer in self._producers.values():
            producer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for producer in self._producers.values():
            producer.close()

    def put(self, stream: str, record: tuple[Any, ...]) -> None:
        """Note a record; `send` puts it."""
        self._waiting[stream].append(record)

    def send(self) -> None:
        """Put what was noted and wait for it."""
        for name, producer in self._producers.items():
            some, self._waiting[name] = self._waiting[name], []
            try:
                self._acknowledged[name] += len(producer.put_all(some)) if some else 0
            except PutFailed as error:
                self._failed.append(f"{name}: {error}")


def held(endpoint: str, stream: str) -> Iterator[tuple[Identity, UserRecord]]:
    """Give every user record of a stream with its identity."""
    client = boto3.client(
        "kinesis", endpoint_url=endpoint, region_name="us-east-1",
        aws_access_key_id="local", aws_secret_access_key="local",
    )  # fmt: skip
    for record in read_all(client, stream):
        opened = decode(record.data)
        inside = (
            [UserRecord(each.partition_key, each.data, None, tuple(each.tags)) for each in opened.records]
            if isinstance(opened, Aggregate)
            else [UserRecord(record.partition_key, record.data)]
        )
        for place, each in enumerate(inside):
            yield (record.shard_id, str(record.sequence_number), place), each
    client.close()
