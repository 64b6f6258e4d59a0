"""What a user record may be: the checks before packing, each naming what, limit and actual."""

from __future__ import annotations

from headpond.formats.hash_keys import canonical_hash_key
from headpond.formats.kpl_model import UserRecord, invalid

MAX_PARTITION_KEY_CHARACTERS = 256
"""Unicode code points, as the service counts."""
DEFAULT_MAX_USER_RECORD_BYTES = 1024 * 1024
LEAST_MAX_USER_RECORD_BYTES = 64
GREATEST_MAX_USER_RECORD_BYTES = 10 * 1024 * 1024


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
    """Check the setting of the same name and give it back.

    Raises:
        InvalidUserRecord: It lies outside 64 B … 10 MiB.
    """
    if not LEAST_MAX_USER_RECORD_BYTES <= limit <= GREATEST_MAX_USER_RECORD_BYTES:
        raise invalid(
            "max_user_record_bytes",
            (LEAST_MAX_USER_RECORD_BYTES, GREATEST_MAX_USER_RECORD_BYTES),
            limit,
            f"max_user_record_bytes is {limit}; it lies between {LEAST_MAX_USER_RECORD_BYTES}"
            f" and {GREATEST_MAX_USER_RECORD_BYTES}.",
            "Choose a size in that range.",
        )
    return limit


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
            f"The partition key {key[:40]!r} has no UTF-8 form: a lone surrogate stands at {error.start}.",
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
