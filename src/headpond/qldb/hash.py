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

from collections.abc import Sequence
from hashlib import sha256

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
