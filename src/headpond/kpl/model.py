"""The things of the KPL aggregation format: user records and their limits, what decoding can find.

`Aggregate | Plain | Malformed` is the closed set of outcomes. Reasons are the codes of the format's
specification; in a pipeline they are written with the prefix `kpl_`. Each check of a limit names what, limit
and actual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from headpond.core.errors import InvalidData, UsageError
from headpond.kpl.hash_keys import canonical_hash_key

MAGIC = b"\xf3\x89\x9a\xc2"
CHECKSUM_BYTES = 16
FRAMING_BYTES = len(MAGIC) + CHECKSUM_BYTES
"""What an aggregate adds around its protobuf message."""

AGGREGATE_PARTITION_KEY = "a"
"""The partition key that aggregates carry towards the service; routing goes by explicit hash key."""

MAX_PARTITION_KEY_CHARACTERS = 256
"""Unicode code points, as the service counts."""
DEFAULT_MAX_USER_RECORD_BYTES = 1024 * 1024
LEAST_MAX_USER_RECORD_BYTES = 64
GREATEST_MAX_USER_RECORD_BYTES = 10 * 1024 * 1024

PlainReason = Literal["no_magic", "too_short", "checksum_mismatch"]
MalformedReason = Literal[
    "protobuf_error",
    "missing_required",
    "index_out_of_range",
    "invalid_utf8",
    "expansion_limit",
    "internal_error",
]
HashRangeFilter = Literal["off", "per_record", "kcl"]
OnMalformed = Literal["passthrough", "fail"]


class Tag(NamedTuple):
    """A tag of a user record: the format has them, the KPL never writes them."""

    key: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user record: what a producer puts, and the unit that aggregates contain.

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
    """A valid aggregate; it may hold no record at all."""

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
    """Magic number and checksum say aggregate, but the message inside is unusable; none of it is returned."""

    reason: MalformedReason
    offset: int
    """Bytes from the start of the blob to the part that is wrong."""
    message: str
    outcome: Literal["malformed"] = "malformed"


Outcome = Aggregate | Plain | Malformed


class MalformedAggregate(InvalidData):
    """An aggregate that cannot be opened, where the caller asked for failure (`on_malformed="fail"`)."""


class InvalidUserRecord(UsageError):
    """A user record, or a setting, breaks a limit; `facts` has `what`, `limit` and `actual`."""


def invalid(what: str, limit: Any, actual: Any, message: str, next_step: str) -> InvalidUserRecord:
    """Build the error for one broken limit."""
    return InvalidUserRecord(message, next_step=next_step, what=what, limit=limit, actual=actual)


def validate(record: UserRecord, *, max_user_record_bytes: int = DEFAULT_MAX_USER_RECORD_BYTES) -> UserRecord:
    """Check one user record and give it back with its explicit hash key in canonical form.

    Raises:
        InvalidUserRecord: Partition key or data break a limit; `facts` say what, limit and actual.
        InvalidHashKey: The explicit hash key is not a number on the ring.
    """
    partition_key_bytes(record.partition_key)
    check_type(record.data)
    check_length(record.data, max_user_record_bytes)
    if record.explicit_hash_key is None:
        return record
    canonical = canonical_hash_key(record.explicit_hash_key)
    if canonical == record.explicit_hash_key:
        return record
    return UserRecord(record.partition_key, record.data, canonical, record.tags)


def check_max_user_record_bytes(limit: int) -> int:
    """Return the setting of that name, if it is from 64 B to 10 MiB; raises `InvalidUserRecord`."""
    return check_size(
        "max_user_record_bytes", limit, LEAST_MAX_USER_RECORD_BYTES, GREATEST_MAX_USER_RECORD_BYTES
    )


def check_size(what: str, size: int, least: int, greatest: int) -> int:
    """Return a size, if it lies between two bounds; raises `InvalidUserRecord`."""
    if least <= size <= greatest:
        return size
    said = f"{what} is {size}; it lies between {least} and {greatest}."
    raise invalid(what, (least, greatest), size, said, "Choose a size in that range.")


def partition_key_bytes(key: str) -> bytes:
    """Check a partition key and give its UTF-8 form."""
    if not isinstance(key, str):
        raise invalid(
            "partition_key",
            "str",
            type(key).__name__,
            f"A partition key is text, not {type(key).__name__}.",
            "Decode it, or name it in text.",
        )
    if not 1 <= len(key) <= MAX_PARTITION_KEY_CHARACTERS:
        raise invalid(
            "partition_key",
            MAX_PARTITION_KEY_CHARACTERS,
            len(key),
            f"The partition key {key[:40]!r} has {len(key)} characters; it must have 1 to"
            f" {MAX_PARTITION_KEY_CHARACTERS}.",
            "Shorten the key, or hash it yourself.",
        )
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise invalid(
            "partition_key",
            "UTF-8",
            key[error.start],
            f"The partition key {key[:40]!r} has no UTF-8 form: there is a lone surrogate at {error.start}.",
            "Repair the text before it becomes a key.",
        ) from error


def check_type(data: bytes) -> None:
    """Refuse data that is not bytes, or something that stands for bytes item by item."""
    try:
        if memoryview(data).nbytes == len(data):
            return
    except TypeError:
        pass  # no bytes in it at all: refused below like the rest
    raise invalid(
        "data",
        "bytes",
        type(data).__name__,
        f"A user record's data is bytes, not {type(data).__name__}.",
        "Encode it first; for empty data give b''.",
    )


def check_length(data: bytes, limit: int) -> None:
    """Refuse data beyond the limit."""
    if len(data) > limit:
        raise invalid(
            "data",
            limit,
            len(data),
            f"A user record's data has {len(data)} bytes; max_user_record_bytes is {limit}.",
            "Split the data, or raise max_user_record_bytes if the stream takes larger records.",
        )
