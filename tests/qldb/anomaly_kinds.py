"""What can be wrong with a journal, by the words of the specification."""

from __future__ import annotations

KINDS = (
    "revision_hash_mismatch", "revision_not_in_block", "revision_missing", "conflicting_revision",
    "conflicting_block", "transaction_info_not_in_entries", "redaction_info_not_in_entries",
    "revisions_not_in_entries", "entries_hash_mismatch", "block_hash_mismatch", "chain_break",
    "missing_blocks",
)  # fmt: skip
"""Every anomaly there is."""
