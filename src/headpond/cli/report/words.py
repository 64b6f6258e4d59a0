"""What each anomaly of a QLDB journal means, and what a person can do about it."""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    """An anomaly in words."""

    title: str
    meaning: str
    next_step: str


_ANOTHER_COPY = (
    "Look for another copy of the record: a second stream, the archive as delivered, a journal export."
)

WORDS = {
    "revision_hash_mismatch": Words(
        "A revision's contents do not match its hash",
        "The data or the metadata of this revision were changed after QLDB wrote them, or the record was "
        "damaged on its way.",
        f"{_ANOTHER_COPY} Do not rely on this revision's values until one verifies.",
    ),
    "revision_not_in_block": Words(
        "A revision is not what its block lists",
        "The block that this revision names lists no revision of the document with this hash, or says "
        "otherwise about its table or transaction.",
        f"{_ANOTHER_COPY} The block decides: what it lists is what was committed.",
    ),
    "revision_missing": Words(
        "A revision that a block lists is absent",
        "The block proves that a revision of this document was committed; no record of it was read.",
        "Read the archive's neighbouring files too, or the journal export that holds this block.",
    ),
    "conflicting_revision": Words(
        "One version of a document is there with different contents",
        "Two records claim the same document and version and have different hashes; at most one is true.",
        "See which of them the block lists: the other is also reported as revision_not_in_block.",
    ),
    "conflicting_block": Words(
        "One block is there with different hashes",
        "Two records claim the same place in the journal; at most one is true.",
        "The chain tells: the block after it names the hash of the true one.",
    ),
    "transaction_info_not_in_entries": Words(
        "The transaction's statements are not what the block hashed",
        "transactionInfo (statements, times, tables of documents) was altered, or the list of hashes was.",
        f"{_ANOTHER_COPY} Statements and table names of this block are not proved.",
    ),
    "redaction_info_not_in_entries": Words(
        "The redaction request is not what the block hashed",
        "redactionInfo was altered, or the list of hashes was.",
        f"{_ANOTHER_COPY} Do not redact by this block.",
    ),
    "revisions_not_in_entries": Words(
        "The list of revisions is not what the block hashed",
        "A hash in revisionSummaries was altered, added or left out, or their order was changed.",
        f"{_ANOTHER_COPY} Which revisions belong to this block is not proved.",
    ),
    "entries_hash_mismatch": Words(
        "The block's entries do not add up to its entriesHash",
        "entriesHashList or entriesHash was altered.",
        _ANOTHER_COPY,
    ),
    "block_hash_mismatch": Words(
        "The block's parts do not add up to its blockHash",
        "entriesHash, previousBlockHash or blockHash was altered.",
        _ANOTHER_COPY,
    ),
    "chain_break": Words(
        "A block does not name the hash of the block before it",
        "This block or the one before it was altered or replaced.",
        "If the block before has an anomaly too, that is the likelier one; else compare other copies.",
    ),
    "missing_blocks": Words(
        "Blocks are absent",
        "Blocks before and after these were read, so these were written too. What they changed is not known.",
        "Read the archive's neighbouring files too, or the journal exports of this range.",
    ),
}
"""Kind → words; every kind of `changes.journal_check` has them."""
