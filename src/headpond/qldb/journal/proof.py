"""A saved digest of a ledger, and the proof that a block is covered by it.

::

    block hash ── dot ── dot ── dot ──► must equal the digest
                   │      │      │
                proof[0]  [1]    [2]          dot: formats.qldb_hash

The file is the one AWS's migration sample saved beside each journal export: JSON with `Ledger`, `Digest`
(base64), `DigestTipAddress` {`strandId`, `sequenceNo`}, `LastBlockNum` (the block the proof is of), `Proof`
(list of base64), and `Export`, `LastBlockTimestamp`. Only a digest that was kept apart from the records
proves that nobody rewrote them.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pyarrow.compute as pc

from headpond.core.errors import InvalidData
from headpond.qldb.hash import digest_of_proof
from headpond.qldb.journal.facts import JournalFacts

MAX_PROOF = 64
"""Hashes a proof may hold: a tree of 2⁶³ blocks needs no more."""
HASH_BYTES = 32

_NEXT = "Give the JSON that was saved with the journal export: Digest, DigestTipAddress, LastBlockNum, Proof."


@dataclass(frozen=True, slots=True)
class SavedDigest:
    """A digest and the proof of one block."""

    ledger: str | None
    digest: bytes
    proof: tuple[bytes, ...]
    strand_id: str | None
    """Of the digest's tip; None where the file does not name it."""
    sequence_no: int
    """The block that the proof is of."""


@dataclass(frozen=True, slots=True)
class DigestChecked:
    """What a saved digest says of a journal."""

    verdict: Literal["ok", "mismatch", "pending"]
    """`pending`: the block is not among those known."""
    sequence_no: int
    expected: bytes
    found: bytes | None
    """The digest that follows from the block as it is known; None while pending."""

    def as_json(self) -> dict[str, Any]:
        """Return what `verify --json` prints of it; hashes in base64, as in the file."""
        found = None if self.found is None else base64.b64encode(self.found).decode()
        return {
            "verdict": self.verdict,
            "sequenceNo": self.sequence_no,
            "expected": base64.b64encode(self.expected).decode(),
            "found": found,
        }


def read_digest(text: bytes) -> SavedDigest:
    """Read a saved digest, a JSON object; raises `InvalidData` that names the member."""
    try:
        saved = msgspec.json.decode(text)
    except msgspec.DecodeError as wrong:
        raise InvalidData(f"The digest file is not JSON: {wrong}.", next_step=_NEXT) from wrong
    if not isinstance(saved, dict):
        raise InvalidData(
            f"The digest file holds {type(saved).__name__}, expected one object.", next_step=_NEXT
        )
    proof = saved.get("Proof")
    if not isinstance(proof, list) or len(proof) > MAX_PROOF:
        raise _wrong("Proof", f"a list of at most {MAX_PROOF} hashes", proof)
    tip = saved.get("DigestTipAddress") or {}
    if not isinstance(tip, dict):
        raise _wrong("DigestTipAddress", "an object with strandId and sequenceNo", tip)
    number = saved.get("LastBlockNum", tip.get("sequenceNo"))
    if isinstance(number, str) and number.isdecimal():
        number = int(number)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise _wrong("LastBlockNum", "a block's sequence number", number)
    ledger, strand = saved.get("Ledger"), tip.get("strandId")
    return SavedDigest(
        ledger=ledger if isinstance(ledger, str) else None,
        digest=_hash("Digest", saved.get("Digest")),
        proof=tuple(_hash(f"Proof[{at}]", one) for at, one in enumerate(proof)),
        strand_id=strand if isinstance(strand, str) else None,
        sequence_no=number,
    )


def check_digest(saved: SavedDigest, facts: JournalFacts) -> DigestChecked:
    """Fold the proof over the block's hash and compare with the digest.

    Where the block is known in several copies, one that fits is enough: `conflicting_block` names the others.
    """
    blocks = facts.blocks.filter(pc.equal(facts.blocks["sequence_no"], saved.sequence_no))
    if saved.strand_id is not None:
        blocks = blocks.filter(pc.equal(blocks["strand_id"], saved.strand_id))
    leaves = sorted(set(blocks["block_hash"].to_pylist()))
    found = [digest_of_proof(leaf, saved.proof) for leaf in leaves]
    if not found:
        return DigestChecked("pending", saved.sequence_no, saved.digest, None)
    if saved.digest in found:
        return DigestChecked("ok", saved.sequence_no, saved.digest, saved.digest)
    return DigestChecked("mismatch", saved.sequence_no, saved.digest, found[0])


def _hash(name: str, value: object) -> bytes:
    if isinstance(value, str):
        try:
            decoded = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            decoded = b""
        if len(decoded) == HASH_BYTES:
            return decoded
    raise _wrong(name, f"{HASH_BYTES} bytes in base64", value)


def _wrong(name: str, expected: str, found: object) -> InvalidData:
    return InvalidData(
        f"{name} of the digest file should be {expected}; found {repr(found)[:80]}.", next_step=_NEXT
    )
