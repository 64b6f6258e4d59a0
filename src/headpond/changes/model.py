"""The version of a change and the hash of its image.

A version is bytes that compare as changes are ordered, whatever made them. Of a DSQL change::

    ┌──────────────────┬─────────────────────────────┬───────────┬──────┐
    │ ts_ns, 8 bytes   │ txId in UTF-8, 00 as 00 FF  │ end 00 00 │ rank │
    │ big-endian       │                             │           │      │
    └──────────────────┴─────────────────────────────┴───────────┴──────┘
                                            rank: 00 delete, 01 upsert

An image's hash is the SHA-256 of its canonical JSON: names sorted by their code points, no spaces, members
that are null left out (absent equals null), strings with the fewest escapes, numbers as they were written.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.schemas import whole
from headpond.formats.dsql_columns import bytes_of
from headpond.formats.json_strict import read_object

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_CANONICAL_DEPTH = 64
"""Brackets a value may hold to be put into canonical form."""

_STRING = msgspec.json.Decoder(str)
_END = b"\x00\x00"
_RANK = {True: b"\x00", False: b"\x01"}  # delete?


def encode_time(ts_ns: int) -> bytes:
    """Give what all versions of a commit time begin with; no version of that time or a later one is less."""
    return struct.pack(">q", ts_ns)


def encode_version(ts_ns: int, tx_id: str, *, delete: bool) -> bytes:
    """Give the version of one DSQL change; `ts_ns` is 0 … 2⁶³ - 1."""
    return encode_time(ts_ns) + tx_id.encode().replace(b"\x00", b"\x00\xff") + _END + _RANK[delete]


def decode_version(version: bytes) -> tuple[int, str, bool]:
    """Give `ts_ns`, txId and whether it is a delete."""
    (ts_ns,) = struct.unpack(">q", version[:8])
    return ts_ns, version[8:-3].replace(b"\x00\xff", b"\x00").decode(), version[-1:] == _RANK[True]


def encode_versions(
    ts_ns: pa.Array | pa.ChunkedArray, tx_id: pa.Array | pa.ChunkedArray, delete: pa.Array | pa.ChunkedArray
) -> pa.Array:
    """Give the versions of many DSQL changes; null where any part is null."""
    ts_ns, tx_id, delete = (whole(column) for column in (ts_ns, tx_id, delete))
    times = pc.fill_null(ts_ns, 0).to_numpy(zero_copy_only=False).astype(">i8")
    heads = pa.Array.from_buffers(pa.binary(8), len(times), [None, pa.py_buffer(times.tobytes())])
    heads = pc.if_else(pc.is_valid(ts_ns), heads.cast(pa.binary()), pa.scalar(None, pa.binary()))
    texts = tx_id.cast(pa.binary())
    if (bytes_of(texts) == 0).any():
        texts = pa.array(
            [None if t is None else t.replace(b"\x00", b"\x00\xff") for t in texts.to_pylist()], pa.binary()
        )
    ranks = pc.if_else(delete, pa.scalar(_RANK[True]), pa.scalar(_RANK[False]))
    return pc.binary_join_element_wise(heads, texts, pa.scalar(_END), ranks, pa.scalar(b""))


def canonical_token(token: str) -> str:
    """Canonical JSON of one raw JSON value that was read as valid before.

    Values nested deeper than `MAX_CANONICAL_DEPTH` can be are taken as they were written.
    """
    if token[0] == '"':
        return token if "\\" not in token else quote(_STRING.decode(token))
    if token[0] not in "[{" or token.count("[") + token.count("{") > MAX_CANONICAL_DEPTH:
        return token
    return _dump(json.loads(token, parse_int=_Verbatim, parse_float=_Verbatim))


class _Verbatim(str):
    """A number's text."""

    __slots__ = ()


def _dump(value: Any) -> str:
    """Canonical JSON of a value whose numbers were kept as text."""
    if isinstance(value, _Verbatim):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(_dump, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{quote(name)}:{_dump(value[name])}" for name in sorted(value)) + "}"
    return json.dumps(value, ensure_ascii=False)


def quote(text: str) -> str:
    """JSON string with the fewest escapes."""
    return msgspec.json.encode(text).decode()


def canonical_image(members: Mapping[str, str]) -> str:
    """Canonical JSON of an image, given as name → raw token."""
    kept = [name for name in sorted(members) if members[name] != "null"]
    return "{" + ",".join(f"{quote(name)}:{canonical_token(members[name])}" for name in kept) + "}"


def image_hash(image: str | None) -> bytes:
    """SHA-256, 32 bytes, of the canonical JSON of an image's raw text; no image counts as `null`."""
    # Its nesting was looked at when the record was read, by a bound that may be any.
    canonical = "null" if image is None else canonical_image(read_object(image, max_depth=len(image)))
    return hashlib.sha256(canonical.encode()).digest()


NO_IMAGE_HASH = image_hash(None)
"""Hash of a change without an image: every delete has it."""


def sha256_each(texts: pa.Array) -> pa.Array:
    """SHA-256 of each binary value."""
    digest = hashlib.sha256
    return pa.array([digest(text).digest() for text in texts.to_pylist()], pa.binary())
