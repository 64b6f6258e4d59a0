"""One blob to its outcome, and the filter by a shard's hash key range: the scalar side of decoding.

Every rule of the format is written here and in `wire` once, plainly. The batch side
(`batch`) sends what it cannot prove regular to the same parser and is tested against this one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from headpond.kpl.hash_keys import FULL_RANGE, HashKeyRange, effective_hash_key
from headpond.kpl.model import (
    CHECKSUM_BYTES,
    FRAMING_BYTES,
    MAGIC,
    Aggregate,
    HashRangeFilter,
    Outcome,
    Plain,
    PlainReason,
    Tag,
    UserRecord,
)
from headpond.kpl.wire import MAX_EXPANDED_BYTES, MAX_GROUP_DEPTH, WireError, parse_aggregate


def plain_reason(blob: bytes) -> PlainReason | None:
    """Return why a blob is not an aggregate, or None if magic, length and checksum say it is one."""
    if not blob.startswith(MAGIC):
        return "no_magic"
    if len(blob) <= FRAMING_BYTES:
        return "too_short"
    body = memoryview(blob)[len(MAGIC) : -CHECKSUM_BYTES]
    if hashlib.md5(body, usedforsecurity=False).digest() != blob[-CHECKSUM_BYTES:]:
        return "checksum_mismatch"
    return None


def decode(
    blob: bytes,
    *,
    tags: bool = True,
    max_group_depth: int = MAX_GROUP_DEPTH,
    max_expanded_bytes: int = MAX_EXPANDED_BYTES,
) -> Outcome:
    """Open one Kinesis record's data.

    Args:
        blob: The data.
        tags: Whether tags are wanted; without, their text is not looked at.
        max_group_depth: Bound of nesting in unknown fields.
        max_expanded_bytes: Bound of the keys' size, each counted once per record that uses it.

    Returns:
        `Aggregate` with the user records in order (possibly none), `Plain` with the reason why the
        blob is a user's own bytes, or `Malformed` with reason, offset and message.
    """
    reason = plain_reason(blob)
    if reason is not None:
        return Plain(reason)
    try:
        parsed = parse_aggregate(
            blob, tags=tags, max_group_depth=max_group_depth, max_expanded_bytes=max_expanded_bytes
        )
    except WireError as error:
        return error.malformed
    keys: dict[tuple[int, int], str] = {}

    def text(span: tuple[int, int]) -> str:
        found = keys.get(span)
        if found is None:
            found = keys[span] = blob[span[0] : span[1]].decode()
        return found

    return Aggregate(
        tuple(
            UserRecord(
                text(parsed.partition_keys[record.partition_key_index]),
                blob[record.data_start : record.data_end],
                text(parsed.explicit_hash_keys[record.explicit_hash_key_index])
                if record.explicit_hash_key_index >= 0
                else None,
                tuple(Tag(text(key), None if value is None else text(value)) for key, value in record.tags)
                if tags
                else (),
            )
            for record in parsed.records
        )
    )


def kept_by_range(
    records: Sequence[UserRecord], hash_key_range: HashKeyRange, mode: HashRangeFilter
) -> list[int]:
    """List the sub-sequence numbers of an aggregate's records that a shard's range lets through.

    After a split an aggregate may lie in a child shard with records that belong to its sibling.
    `off` keeps all. `per_record` drops just those outside; a record whose explicit hash key is not
    a number on the ring has no place and is kept. `kcl` does what the Kinesis Client Library does:
    one record outside drops the whole aggregate, and a key that is not a number loses its record
    and those after it.
    """
    places: dict[tuple[str, str | None], int | None] = {}
    for record in records:
        keys = record.partition_key, record.explicit_hash_key
        if keys not in places:
            places[keys] = effective_hash_key(*keys)
    found = [places[record.partition_key, record.explicit_hash_key] for record in records]
    return kept_by_place(found, hash_key_range, mode)


def kept_by_place(
    places: Sequence[int | None], hash_key_range: HashKeyRange, mode: HashRangeFilter
) -> list[int]:
    """Apply the rule of `kept_by_range` to hash keys; None is an explicit one that is not a number."""
    if mode == "off":
        return list(range(len(places)))
    kept: list[int] = []
    for position, place in enumerate(places):
        if mode == "per_record":
            if place is None or place not in FULL_RANGE or place in hash_key_range:
                kept.append(position)
        elif place is None:
            return kept
        elif place in hash_key_range:
            kept.append(position)
        else:
            return []
    return kept
