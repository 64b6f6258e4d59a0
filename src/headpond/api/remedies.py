"""What an operator can do about a quarantined record, by its reason."""

from __future__ import annotations

_KEYS = "Correct keys in the table's entry, then headpond rebuild, requeue, and bootstrap --from-start."
_PIECES = "Requeue it when the missing pieces have arrived."
_DAMAGED = "Ask who writes the stream; headpond inspect shows the bytes."
_REQUEUE = "then headpond requeue."

_REMEDIES = {
    "not_utf8 invalid_json duplicate_json_key not_an_object archive_bad_line":
        "See what it is with headpond inspect, and ask who writes the stream.",
    "unknown_type bad_op bad_source bad_image bad_fragment bad_chunked unsupported_version":
        "Look for other data in the same stream, or a newer version of the format.",
    "unexpected_cluster": "Correct source.cluster, or take the other writer off the stream.",
    "unknown_table": f"Add a [tables] entry, {_REQUEUE}",
    "missing_after delete_with_after missing_before": "Ask who writes the stream: the change lacks an image.",
    "future_commit": f"Correct the writer's clock, or raise max_commit_ahead, {_REQUEUE}",
    "missing_key key_mismatch": _KEYS,
    "cast_error out_of_range": f"Correct columns in the table's entry, headpond rebuild, {_REQUEUE}",
    "too_many_columns": f"Raise max_columns if that many are meant, {_REQUEUE}",
    "too_late": "Remember deletes for longer: raise tombstone_retention.",
    "checksum_mismatch bad_reassembled_image fragment_conflict chunk_conflict fragment_index_out_of_range":
        "Feed in a better copy of the pieces, if there is one.",
    "incomplete_chunks orphan_fragment": _PIECES,
    "chunks_too_large": "Ask who writes the stream: no row needs that much.",
    "conflicting_revision": "See which of the two the block lists; it decides when it arrives.",
    "internal_error": "Report it with the record's bytes; requeue it after an upgrade.",
    "empty not_binary_ion truncated bad_ion unknown_symbol no_value multiple_values not_struct missing_field "
    "wrong_type unknown_record_type too_deep too_many_symbols": _DAMAGED,
}  # fmt: skip
_BY_REASON = {reason: words for reasons, words in _REMEDIES.items() for reason in reasons.split()}


def remedy(reason: str) -> str:
    """Return what to do about records that are in quarantine for a reason.

    >>> remedy("unknown_table")
    'Add a [tables] entry, then headpond requeue.'
    """
    if reason.startswith("kpl_"):
        return "See what the aggregate holds: headpond quarantine --export, then headpond inspect --as kpl."
    return _BY_REASON.get(reason, "headpond quarantine shows the detail and the bytes.")
