"""QLDB's hashes: how two become one, how a list becomes one, and what a revision and a block are made of.

::

    dot(a, b)     SHA-256(smaller · greater)         an empty one gives the other
    root(list)    a b c d e → ab cd e → abcd e → …   neighbours by dot, an odd last one moves up as it is
    revision      dot(Ion hash of metadata, Ion hash of data)      redacted: dataHash in place of the latter
    entries       root(entriesHashList); among its items root(revision hashes), Ion hash of transactionInfo
                  and of redactionInfo
    block         dot(entriesHash, previousBlockHash)

Smaller: the hashes are compared from the last byte to the first, each byte as a signed number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import pairwise

import pyarrow as pa

from headpond.core.schemas import whole

_FLIP = bytes(byte ^ 0x80 for byte in range(256))
_NULL_HASH = sha256(b"\x0b\x0f\x0e").digest()
_EMPTY_HASH = sha256(b"").digest()


def dot(first: bytes, second: bytes) -> bytes:
    """Combine two hashes of 32 bytes; an empty one gives the other. The order of the two does not matter."""
    if not first or not second:
        return first or second
    if first.translate(_FLIP)[::-1] > second.translate(_FLIP)[::-1]:
        first, second = second, first
    return sha256(first + second).digest()


def merkle_root(hashes: Sequence[bytes]) -> bytes:
    """Combine neighbours until one hash is left; nothing gives nothing."""
    level = list(hashes)
    while len(level) > 1:
        odd = level[-1:] if len(level) % 2 else []
        level = [dot(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)] + odd
    return level[0] if level else b""


def digest_of_proof(leaf: bytes, proof: Sequence[bytes]) -> bytes:
    """Fold a proof over the hash of a block or revision; a trusted digest must equal the result."""
    for sibling in proof:
        leaf = dot(leaf, sibling)
    return leaf


def revision_hash_ok(
    given: bytes, metadata_hash: bytes, data_hash: bytes | None, given_data_hash: bytes | None
) -> bool:
    """Return whether the Ion hashes of a revision's metadata and data match the hash that it gives.

    `given_data_hash` is its field `dataHash`; where there is data too, it must be the data's hash.
    """
    if data_hash is not None:
        if given_data_hash is not None and given_data_hash != data_hash:
            return False
        return given == dot(metadata_hash, data_hash)
    if given_data_hash is not None:
        return given == dot(metadata_hash, given_data_hash)
    # No real hash of a revision that deletes is known; these are the readings of public code: nothing
    # hashed, a null, an empty digest.
    return given in (metadata_hash, dot(metadata_hash, _NULL_HASH), dot(metadata_hash, _EMPTY_HASH))


def checked_blocks(blocks: pa.Table) -> pa.Table:
    """Fill in what hashes say of each block by itself: null where there is nothing to look at."""
    names = ("entries_hash_list", "entries_hash", "previous_block_hash", "block_hash")
    entries, own, before, given = (blocks[name].to_pylist() for name in names)
    summaries = whole(blocks["revision_summaries"])
    listed = summaries.values.field("hash").to_pylist()
    roots = [merkle_root(listed[low:high]) or None for low, high in pairwise(summaries.offsets.to_pylist())]
    parts = {
        "transaction_info_in_entries": blocks["transaction_info_hash"].to_pylist(),
        "redaction_info_in_entries": blocks["redaction_info_hash"].to_pylist(),
        "revisions_in_entries": roots,
    }
    found = {
        name: [None if one is None else one in some for one, some in zip(hashes, entries, strict=True)]
        for name, hashes in parts.items()
    }
    found["entries_hash_ok"] = [merkle_root(some) == one for some, one in zip(entries, own, strict=True)]
    chained = zip(own, before, given, strict=True)
    found["block_hash_ok"] = [dot(one, earlier) == block for one, earlier, block in chained]
    return _filled_in(blocks, found)


def checked_revisions(revisions: pa.Table) -> pa.Table:
    """Fill in whether each revision has the hash that it gives; null where its contents were not hashed."""
    names = ("hash", "metadata_hash", "data_hash_computed", "data_hash_given")
    hashes = zip(*(revisions[name].to_pylist() for name in names), strict=True)
    right = [None if of[1] is None else revision_hash_ok(*of) for of in hashes]
    return _filled_in(revisions, {"revision_hash_ok": right})


def _filled_in(rows: pa.Table, columns: Mapping[str, Sequence[bool | None]]) -> pa.Table:
    for name, values in columns.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), pa.array(values, pa.bool_()))
    return rows
