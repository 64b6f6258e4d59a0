"""User records to one Kinesis record, byte for byte as the KPL's C++ core writes it.

The message holds the partition key table in order of first use, then the explicit hash key table
(only what users gave, in canonical decimal), then the records in order, each as index, hash key
index, data. One record alone is sent raw. Two additions that the KPL lacks: a lone record whose own
bytes are a valid aggregate is wrapped, since every consumer would open it; and tags are written if
asked for.

The work per record is kept in C: `map` over a dictionary of indices by first use, record
headers from a cache, one join, one MD5. Source: spec "KPL aggregated records", encoding.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import count

from headpond.kpl.decoder import plain_reason
from headpond.kpl.hash_keys import canonical_hash_key, hash_key
from headpond.kpl.model import (
    AGGREGATE_PARTITION_KEY,
    DEFAULT_MAX_USER_RECORD_BYTES,
    MAGIC,
    KinesisRecord,
    Tag,
    UserRecord,
    check_length,
    check_max_user_record_bytes,
    check_type,
    invalid,
    partition_key_bytes,
)

_CONTINUED = 0x80
_MAX_CACHED = 65536
_NO_TAGS: tuple[Tag, ...] = ()


def varint(value: int) -> bytes:
    """Write a varint in its shortest form."""
    out = bytearray()
    while value >= _CONTINUED:
        out.append(value & 0x7F | _CONTINUED)
        value >>= 7
    out.append(value)
    return bytes(out)


def record_header(
    partition_key_index: int, explicit_hash_key_index: int, data_length: int, tail: int = 0
) -> bytes:
    """Write a record's bytes up to its data; `tail` bytes (tags) follow the data, index -1 is none."""
    inner = b"\x08" + varint(partition_key_index)
    if explicit_hash_key_index >= 0:
        inner += b"\x10" + varint(explicit_hash_key_index)
    inner += b"\x1a" + varint(data_length)
    return b"\x1a" + varint(len(inner) + data_length + tail) + inner


class _HeaderCache(dict[tuple[int, int], bytes]):
    """(Partition key index, data length) → a record's bytes up to its data."""

    def __missing__(self, key: tuple[int, int]) -> bytes:
        if len(self) >= _MAX_CACHED:
            self.clear()
        index, length = key
        header = self[key] = record_header(index, -1, length)
        return header


class _EntryCache(dict[str, bytes]):
    """Valid partition key → its entry in the table."""

    def __missing__(self, key: str) -> bytes:
        raw = partition_key_bytes(key)
        if len(self) >= _MAX_CACHED:
            self.clear()
        entry = self[key] = b"\x0a%b%b" % (varint(len(raw)), raw)
        return entry


def _index_table() -> defaultdict[str, int]:
    """Map partition keys to indices, given out in order of first use."""
    return defaultdict(count().__next__)


_headers = _HeaderCache()
_entries = _EntryCache()


@lru_cache(4096)
def _hash_key_text(partition_key: str) -> str:
    return str(hash_key(partition_key_bytes(partition_key)))


def encode(
    records: Sequence[UserRecord],
    *,
    max_user_record_bytes: int = DEFAULT_MAX_USER_RECORD_BYTES,
    with_tags: bool = False,
    wrap: bool = True,
) -> KinesisRecord:
    """Pack user records, in this order, into one Kinesis record.

    Args:
        records: At least one.
        max_user_record_bytes: Bound of each record's data, 64 B … 10 MiB.
        with_tags: Write tags. No other writer does; without, a record that has some is refused.
        wrap: Put a single record whose own bytes are a valid aggregate into one, so that consumers give these
            bytes and do not open them. Otherwise they are sent as they are.

    Raises:
        InvalidUserRecord: A limit is broken.
        InvalidHashKey: An explicit hash key is not a number on the ring.
    """
    check_max_user_record_bytes(max_user_record_bytes)
    if not records:
        raise invalid(
            "records", 1, 0, "An aggregate was asked for without any user record.", "Give at least one."
        )
    first = records[0]
    indices = _index_table()
    # One pass gives the indices and notices what few records have.
    numbers = [
        indices[one.partition_key]
        for one in records
        if one.explicit_hash_key is None and one.tags is _NO_TAGS
    ]
    body: bytes | bytearray
    if len(numbers) == len(records):
        head, body = _message(indices, numbers, [one.data for one in records])
    else:
        head, body = _message_with_all(records, with_tags=with_tags)
    if len(head) + len(body) > max_user_record_bytes:  # else no record in it can be larger
        for record in records:
            check_length(record.data, max_user_record_bytes)
    given = first.explicit_hash_key
    api_hash_key = _hash_key_text(first.partition_key) if given is None else canonical_hash_key(given)
    if len(records) == 1 and not first.tags:
        raw = bytes(first.data)
        if not wrap or plain_reason(raw) is not None:
            return KinesisRecord(first.partition_key, api_hash_key, raw)
    md5 = hashlib.md5(head, usedforsecurity=False)
    md5.update(body)
    return KinesisRecord(AGGREGATE_PARTITION_KEY, api_hash_key, b"".join((MAGIC, head, body, md5.digest())))


def _message(
    indices: dict[str, int], numbers: list[int], datas: list[bytes]
) -> tuple[bytes, bytes | bytearray]:
    """Write the message of user records that have neither explicit hash keys nor tags, in two pieces.

    `indices` are those of the partition keys, `numbers` that of each record.
    """
    head = b"".join(map(_entries.__getitem__, indices))
    try:
        lengths = list(map(len, datas))
        if lengths.count(lengths[0]) == len(lengths) and len(indices) <= _CONTINUED:
            # Headers differ in one byte, the index, which is put in afterwards. The first one's is 0.
            header = _headers[0, lengths[0]]
            stride = len(header) + lengths[0]
            body = bytearray(header).join(datas)
            if len(body) + len(header) == stride * len(datas):
                body[lengths[0] + header.rindex(b"\x08\x00\x1a") + 1 :: stride] = bytes(numbers)[1:]
                return head + header, body
        if set(map(type, datas)) != {bytes}:
            for data in datas:
                check_type(data)
    except TypeError:
        for data in datas:
            check_type(data)
        raise
    parts = [b""] * (2 * len(datas))
    parts[::2] = map(_headers.__getitem__, zip(numbers, lengths, strict=True))
    parts[1::2] = datas
    return head, b"".join(parts)


def _message_with_all(records: Sequence[UserRecord], *, with_tags: bool) -> tuple[bytes, bytes]:
    """Write tables and records of any user records."""
    indices = _index_table()
    hash_key_indices: dict[str, int] = {}
    canonical: dict[str, str] = {}
    body: list[bytes] = []
    for position, record in enumerate(records):
        check_type(record.data)
        tail = b""
        if record.tags:
            if not with_tags:
                raise invalid(
                    "tags",
                    0,
                    len(record.tags),
                    f"User record {position} has {len(record.tags)} tags, and tags were not asked for.",
                    "Pass with_tags=True, or leave the tags out.",
                )
            tail = b"".join(map(_tag_bytes, record.tags))
        index = -1
        given = record.explicit_hash_key
        if given is not None:
            if given not in canonical:
                canonical[given] = canonical_hash_key(given)
            index = hash_key_indices.setdefault(canonical[given], len(hash_key_indices))
        header = record_header(indices[record.partition_key], index, len(record.data), len(tail))
        body += (header, record.data, tail)
    head = [_entries[key] for key in indices]
    head += [b"\x12%b%b" % (varint(len(text)), text.encode()) for text in hash_key_indices]
    return b"".join(head), b"".join(body)


def tags_length(tags: Sequence[Tag]) -> int:
    """Count the bytes that tags add to a record."""
    return sum(len(_tag_bytes(tag)) for tag in tags)


def _tag_bytes(tag: Tag) -> bytes:
    key = tag[0].encode()
    inner = b"\x0a%b%b" % (varint(len(key)), key)
    if tag[1] is not None:
        value = tag[1].encode()
        inner += b"\x12%b%b" % (varint(len(value)), value)
    return b"\x22%b%b" % (varint(len(inner)), inner)
