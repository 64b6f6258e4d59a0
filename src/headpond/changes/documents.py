"""Which revision of a document wins: versions as bytes that compare as the rule says.

::

  ┌───────────────────┬──────────────────┬──────────────┬──────────────────────────────┬─────────────────────┐
  │ version, 8 bytes  │ listed, 1 byte   │ hash         │ form, 1 byte                 │ block that it names │
  │ big-endian        │ by a known block │ 32 bytes     │ keep: 1 data, 0 redacted     │ 8 bytes, big-endian │
  │                   │                  │              │ honour: 0 data, 1 redacted   │                     │
  └───────────────────┴──────────────────┴──────────────┴──────────────────────────────┴─────────────────────┘

The highest version of a document is its current state. Of one version there is one revision, but for a ledger
(or a copy of it) that contradicts itself: then the one that its block lists wins, and while no block is known
the one with the greatest hash. The redacted form of a revision has the same hash and is not another revision;
which of both stays is the user's choice. The rule is a total order, so that the order of arrival, cuts and
repeats do not matter.

In a history the key is the document and the version; in a current table the document alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.keys import json_texts
from headpond.changes.schemas import VALUE, whole

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

HASH_BYTES = 32
Listing = tuple[str, bytes, int]
"""Document, hash, and sequence number of the block that lists the two."""
REDACTED = "redacted"
DELETE = "delete"


class Version(NamedTuple):
    """The parts of a version's bytes."""

    revision: int
    listed: bool
    hash: bytes
    form: int
    block: int | None
    """Sequence number of the block that it names; null in tombstones written before it was kept."""


def encode_version(version: Version) -> bytes:
    """Give the bytes of one version."""
    return (
        version.revision.to_bytes(8, "big")
        + bytes([version.listed])
        + version.hash.ljust(HASH_BYTES, b"\0")
        + bytes([version.form])
        + (b"" if version.block is None else version.block.to_bytes(8, "big"))
    )


def decode_version(version: bytes) -> Version:
    """Give the parts of a version."""
    end = 9 + HASH_BYTES
    block = int.from_bytes(version[end + 1 :], "big") if len(version) > end + 1 else None
    return Version(int.from_bytes(version[:8], "big"), version[8] != 0, version[9:end], version[end], block)


def encode_versions(revisions: Any, listed: Any, hashes: Any, forms: Any, blocks: Any) -> pa.Array:
    """Give the bytes of many versions.

    Args:
        revisions: int64.
        listed: boolean.
        hashes: binary of 32 bytes.
        forms: int64, 0 or 1.
        blocks: int64.
    """
    count = len(revisions)
    parts = np.zeros((count, 8 + 1 + HASH_BYTES + 1 + 8), np.uint8)
    parts[:, :8] = _numpy(revisions).astype(">i8").view(np.uint8).reshape(count, 8)
    parts[:, 8] = _numpy(listed)
    fixed = whole(hashes).cast(pa.binary(HASH_BYTES))
    buffer = fixed.buffers()[1]
    if count:
        flat = np.frombuffer(buffer, np.uint8, count * HASH_BYTES, fixed.offset * HASH_BYTES)
        parts[:, 9 : 9 + HASH_BYTES] = flat.reshape(count, HASH_BYTES)
    parts[:, 9 + HASH_BYTES] = _numpy(forms)
    parts[:, -8:] = _numpy(blocks).astype(">i8").view(np.uint8).reshape(count, 8)
    return pa.Array.from_buffers(
        pa.binary(parts.shape[1]), count, [None, pa.py_buffer(parts.tobytes())]
    ).cast(pa.binary())


def forms_of(redacted: Any, *, honour: bool) -> Any:
    """Give the form's rank of revisions, told whether they are redacted."""
    return pc.cast(redacted if honour else pc.invert(redacted), pa.int64())


def keys_of(document_ids: Any, revisions: Any | None = None) -> pa.Array:
    """Give canonical JSON of documents' ids, with the version where a history is kept."""
    texts = json_texts(whole(document_ids))
    if revisions is None:
        return pc.binary_join_element_wise("[", texts, "]", "")
    return pc.binary_join_element_wise("[", texts, ",", whole(revisions).cast(pa.string()), "]", "")


def ranked(rows: pa.Table, *, past: bool, honour: bool, listed: AbstractSet[Listing]) -> pa.Table:
    """Give typed revisions what `latest_step` goes by: `m:key`, `m:version`, `m:image_hash`, `m:delete`.

    Args:
        rows: typed revisions (`qldb.REVISION_FIELDS` and values).
        past: for a history, where every version is a row and a delete is one, too.
        honour: a redacted form beats the data.
        listed: what the blocks list that contested revisions name.
    """
    kinds = rows["m:kind"]
    redacted = pc.equal(kinds, REDACTED)
    versions = encode_versions(
        rows["m:revision"],
        listed_of(rows["m:document_id"], rows["m:hash"], rows["m:block_sequence_no"], listed),
        rows["m:hash"],
        forms_of(redacted, honour=honour),
        rows["m:block_sequence_no"],
    )
    deletes = pa.repeat(False, rows.num_rows) if past else whole(pc.equal(kinds, DELETE))
    columns = {
        "m:key": keys_of(rows["m:document_id"], rows["m:revision"] if past else None),
        "m:version": versions,
        "m:image_hash": whole(rows["m:hash"]),
        "m:delete": deletes,
    }
    for name, values in columns.items():
        rows = rows.append_column(name, values)
    return rows


def listed_of(document_ids: Any, hashes: Any, blocks: Any, listed: AbstractSet[Listing]) -> pa.Array:
    """Say which revisions the block lists that each of them names."""
    if not listed:
        return pa.repeat(False, len(document_ids))
    told = zip(document_ids.to_pylist(), hashes.to_pylist(), blocks.to_pylist(), strict=True)
    return pa.array([one in listed for one in told], pa.bool_())


def without_contents(rows: pa.Table, which: Any) -> pa.Table:
    """Give revisions with the contents of some removed, as if they had come redacted.

    Args:
        rows: typed revisions.
        which: boolean per row; deletes have no contents and stay what they are.
    """
    which = whole(pc.and_(which, pc.not_equal(rows["m:kind"], DELETE)))
    if not pc.any(which, min_count=0).as_py():
        return rows
    # Taken, not masked: beneath a mask the bytes would still be there, and be in whatever Arrow writes.
    taken = pa.array(np.arange(rows.num_rows), mask=which.to_numpy(zero_copy_only=False))
    for at, field in enumerate(rows.schema):
        if field.name.startswith(VALUE) or field.name in ("m:ion", "m:json", "m:data"):
            rows = rows.set_column(at, field, whole(rows[field.name]).take(taken))
        elif field.name == "m:kind":
            rows = rows.set_column(at, field, pc.if_else(which, REDACTED, whole(rows[field.name])))
    return rows


def _numpy(values: Any) -> np.ndarray[Any, np.dtype[Any]]:
    found: np.ndarray[Any, np.dtype[Any]] = whole(values).to_numpy(zero_copy_only=False)
    return found
