"""Settings of the producer: the KPL's names and defaults, in milliseconds, bytes and percent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from headpond.core.errors import ConfigurationError

_MIB = 1024 * 1024


_BOUNDS = {
    "aggregation_max_count": (1, 2**63 - 1),
    "aggregation_max_size": (64, 10 * _MIB),
    "collection_max_count": (1, 500),
    "collection_max_size": (52_224, 10 * _MIB),
    "collection_max_shard_size": (1, 10 * _MIB),
    "connect_timeout": (100, 300_000),
    "request_timeout": (100, 600_000),
    "max_connections": (1, 256),
    "rate_limit": (1, 2**63 - 1),
    "record_max_buffered_time_ms": (0, 2**63 - 1),
    "record_ttl_ms": (100, 2**63 - 1),
    "max_user_record_bytes": (64, 10 * _MIB),
    "max_outstanding_records": (1, 2**63 - 1),
    "max_outstanding_bytes": (1, 2**63 - 1),
}
"""Setting → its least and its greatest value."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How records are gathered and sent. Attributes marked (ours) the KPL does not have.

    Attributes:
        aggregation_enabled: Pack user records into KPL aggregates.
        aggregation_max_count: Most user records in an aggregate.
        aggregation_max_size: Most bytes of an aggregate; a larger user record goes alone. Above 1 MiB less
            a byte only where the stream takes larger records: it refuses what is larger with all in it.
        collection_max_count: Most Kinesis records in a PutRecords.
        collection_max_size: Most bytes in a PutRecords, partition keys included.
        collection_max_shard_size: Bytes for one shard that make a PutRecords go at once, and about the
            most that one PutRecords carries for a shard.
        connect_timeout: Milliseconds to wait for a connection.
        request_timeout: Milliseconds to wait for a reply.
        fail_if_throttled: Fail throttled records instead of trying again.
        max_connections: Most requests under way at a time.
        rate_limit: Percent of a shard's 1,000 records and 1 MiB a second that this producer may use;
            above 100 since several producers seldom peak together.
        record_max_buffered_time_ms: Longest a record waits for company.
        record_ttl_ms: Age at which a record fails as expired; the only end of trying again.
        max_user_record_bytes: Most bytes of a user record's data; above 1 MiB only where the stream
            takes larger records.
        max_outstanding_records: Records without a result yet, above which putting waits (ours).
        max_outstanding_bytes: The same for their data (ours).

    Raises:
        ConfigurationError: A value is out of its bounds; the message has name, bounds and value.
    """

    aggregation_enabled: bool = True
    aggregation_max_count: int = 4_294_967_295
    aggregation_max_size: int = 51_200
    collection_max_count: int = 500
    collection_max_size: int = 5 * _MIB
    collection_max_shard_size: int = 256 * 1024
    connect_timeout: int = 6_000
    request_timeout: int = 6_000
    fail_if_throttled: bool = False
    max_connections: int = 24
    rate_limit: int = 150
    record_max_buffered_time_ms: int = 100
    record_ttl_ms: int = 30_000
    max_user_record_bytes: int = _MIB
    max_outstanding_records: int = 100_000
    max_outstanding_bytes: int = 256 * _MIB

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= most:
                raise ConfigurationError(
                    f"{name} is {value!r}; expected a whole number from {least} to {most}.",
                    next_step=f"Correct {name}.",
                    option=name,
                )

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Read the producer's settings from text options, in any case and with or without `_`.

        Raises:
            ConfigurationError: A value is not a number, not `true` or `false`, or out of bounds.
        """
        given = {name.lower().replace("_", ""): value for name, value in options.items()}
        found: dict[str, bool | int] = {}
        for each in fields(cls):
            text = given.get(each.name.replace("_", ""))
            if text is not None:
                found[each.name] = _parse(each.name, text, flag=isinstance(each.default, bool))
        return cls(**found)  # type: ignore[arg-type]


def _parse(name: str, text: str, *, flag: bool) -> bool | int:
    word = text.strip().lower()
    if flag and word in {"true", "false"}:
        return word == "true"
    if not flag and word.isascii() and word.isdigit():
        return int(word)
    raise ConfigurationError(
        f"{name} is {text!r}; expected {'true or false' if flag else 'a whole number'}.",
        next_step=f"Correct {name}.",
        option=name,
    )
