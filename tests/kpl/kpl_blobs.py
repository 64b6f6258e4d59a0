"""Blobs for the tests of the KPL formats: written by hand, odd on purpose, and as strategies."""

from __future__ import annotations

import base64
import hashlib

from hypothesis import strategies as st

from headpond.kpl import MAGIC, Tag, UserRecord, encode
from tests.kit.support import vector_json


def framed(body: bytes) -> bytes:
    """Put magic and the right MD5 around a message."""
    return MAGIC + body + hashlib.md5(body).digest()


def varint(value: int, padding: int = 0) -> bytes:
    """Write a varint, `padding` bytes longer than needed."""
    out = bytearray()
    while value >= 0x80 or padding:
        if value < 0x80:
            padding -= 1
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(number: int, content: bytes, padding: int = 0) -> bytes:
    """Write a length-delimited field."""
    return varint(number << 3 | 2) + varint(len(content), padding) + content


VECTOR_BLOBS = [base64.b64decode(case["blob_b64"]) for case in vector_json("kpl/decode.json")] + [
    base64.b64decode(case["expected"]["blob_b64"]) for case in vector_json("kpl/encode.json")
]

keys = st.one_of(
    st.sampled_from(["k", "key-1", "device-123", "0123456789", "\n" * 10, "é", "\x1a\x06\x08\x00\x1a\x00"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=140),
)
hash_key_texts = st.none() | st.integers(0, 2**128 - 1).map(str)
payloads = st.one_of(
    st.binary(max_size=20),
    st.integers(0, 300).map(bytes),
    st.sampled_from([b"\x1a\x06\x08\x00\x1a\x02", bytes([0x1A, 4, 8, 0, 0x1A, 0]) * 3, b"x" * 16384]),
    st.sampled_from([blob for blob in VECTOR_BLOBS if len(blob) < 500]),
)
tags = st.lists(
    st.builds(Tag, st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.none() | st.just("v")),
    max_size=2,
).map(tuple)
user_records = st.builds(UserRecord, keys, payloads, hash_key_texts)
tagged_records = st.builds(UserRecord, keys, payloads, hash_key_texts, st.just(()) | tags)

regular_blobs = st.lists(user_records, min_size=1, max_size=8).map(lambda some: encode(some).data)
tagged_blobs = st.lists(tagged_records, min_size=2, max_size=4).map(
    lambda some: encode(some, with_tags=True).data
)


@st.composite
def odd_messages(draw: st.DrawFn) -> bytes:
    """Build messages out of fields in any order, valid and not, known and unknown."""

    def field(depth: int) -> bytes:
        number = draw(st.sampled_from([1, 2, 3, 3, 3, 4, 9]))
        kind = draw(st.integers(0, 7)) if draw(st.booleans()) else 2
        padding = draw(st.sampled_from([0, 0, 0, 1, 3]))
        tag = varint(number << 3 | kind)
        if kind == 0:
            return tag + varint(draw(st.sampled_from([0, 1, 2, 200, 2**32, 2**64 - 1])), padding)
        if kind == 2:
            content = (
                b"".join(field(depth + 1) for _ in range(draw(st.integers(0, 3)))) if depth < 3 else b"k"
            )
            return tag + varint(len(content), padding) + content
        return tag + draw(st.sampled_from([b"", bytes(4), bytes(8), tag[:-1] + bytes([tag[-1] + 1])]))

    return b"".join(field(0) for _ in range(draw(st.integers(0, 6))))


@st.composite
def usual_messages(draw: st.DrawFn) -> bytes:
    """Build messages in the usual order whose indices, lengths and varints may be off."""
    padding = st.sampled_from([0, 0, 0, 0, 1, 2])
    table = b"".join(
        delimited(1, draw(st.binary(max_size=12)), draw(padding)) for _ in range(draw(st.integers(0, 3)))
    )
    table += b"".join(
        delimited(2, draw(st.sampled_from([b"7", b"x", b"\xff"]))) for _ in range(draw(st.integers(0, 2)))
    )
    records = b""
    for _ in range(draw(st.integers(0, 5))):
        inner = b"\x08" + varint(draw(st.integers(0, 3)), draw(padding))
        if draw(st.booleans()):
            inner += b"\x10" + varint(draw(st.integers(0, 2)), draw(padding))
        inner += delimited(3, draw(st.binary(max_size=30)), draw(padding))
        inner += draw(st.sampled_from([b"", b"", b"", b"\x08\x00", b"\x22\x03\x0a\x01t"]))
        records += delimited(3, inner, draw(padding))
    return table + records


@st.composite
def mutated(draw: st.DrawFn, blobs: st.SearchStrategy[bytes]) -> bytes:
    """Change, insert or cut bytes of a blob; most often the checksum is set right again."""
    blob = bytearray(draw(blobs))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(blob)))
        match draw(st.integers(0, 3)):
            case 0:
                blob[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                blob[at:at] = draw(st.binary(max_size=3))
            case 2:
                del blob[at : at + draw(st.integers(1, 4))]
            case _:
                del blob[at:]
    if draw(st.integers(0, 3)):
        return framed(bytes(blob[4:-16]))
    return bytes(blob)


any_blobs = st.one_of(
    regular_blobs,
    regular_blobs,
    tagged_blobs,
    st.sampled_from(VECTOR_BLOBS),
    st.binary(max_size=40),
    odd_messages().map(framed),
    usual_messages().map(framed),
    mutated(regular_blobs),
    mutated(tagged_blobs),
)
"""Everything a stream can hold."""
