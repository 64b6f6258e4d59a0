"""The things of the KPL aggregation format: user records, Kinesis records, what decoding can find.

`Aggregate | Plain | Malformed` is the closed set of outcomes. Reasons are the codes of the format's
specification; in a pipeline they are written with the prefix `kpl_`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from headpond.errors import DamagedInput, UsageError

MAGIC = b"\xf3\x89\x9a\xc2"
CHECKSUM_BYTES = 16
FRAMING_BYTES = len(MAGIC) + CHECKSUM_BYTES
"""What an aggregate adds around its protobuf message."""

AGGREGATE_PARTITION_KEY = "a"
"""The partition key that aggregates carry towards the service; routing goes by explicit hash key."""

PlainReason = Literal["no_magic", "too_short", "checksum_mismatch"]
MalformedReason = Literal[
    "protobuf_error", "missing_required", "index_out_of_range", "invalid_utf8", "expansion_limit"
]
HashRangeFilter = Literal["off", "per_record", "kcl"]
OnMalformed = Literal["passthrough", "fail"]


class Tag(NamedTuple):
    """A tag of a user record: the format has them, the KPL never writes them."""

    key: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class UserRecord:
    """What a producer puts: the unit that aggregates pack.

    Inside an `Aggregate` its sub-sequence number is its position in `records`.
    """

    partition_key: str
    data: bytes
    explicit_hash_key: str | None = None
    """Decimal text. Encoding brings it into canonical form; decoding carries it as written."""
    tags: tuple[Tag, ...] = ()


class KinesisRecord(NamedTuple):
    """What is sent to the service: a PutRecord call, or one entry of PutRecords."""

    partition_key: str
    explicit_hash_key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The blob is an aggregate and every part of it is sound; it may hold no record at all."""

    records: tuple[UserRecord, ...]
    outcome: Literal["aggregate"] = "aggregate"
    reason: None = None


@dataclass(frozen=True, slots=True)
class Plain:
    """The blob is a user's own bytes."""

    reason: PlainReason
    outcome: Literal["plain"] = "plain"


@dataclass(frozen=True, slots=True)
class Malformed:
    """Magic and checksum say aggregate, the message inside is not usable; none of it is emitted."""

    reason: MalformedReason
    offset: int
    """Bytes from the start of the blob to the part that is wrong."""
    message: str
    outcome: Literal["malformed"] = "malformed"


Outcome = Aggregate | Plain | Malformed


class MalformedAggregate(DamagedInput):
    """An aggregate that cannot be opened, where the caller asked for failure (`on_malformed="fail"`)."""


class InvalidUserRecord(UsageError):
    """A user record, or a setting, breaks a limit; `facts` has `what`, `limit` and `actual`."""


def invalid(what: str, limit: Any, actual: Any, message: str, next_step: str) -> InvalidUserRecord:
    """Build the error for one broken limit."""
    return InvalidUserRecord(message, next_step=next_step, what=what, limit=limit, actual=actual)
