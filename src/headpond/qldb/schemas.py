"""The Arrow tables a batch of QLDB records becomes, and rows of them from records read one by one.

::

    verdicts   one row per datum      verdict, detail, record_type
    controls   ┐
    blocks     │ one row per record of the type; `index` is the datum's place in the batch
    revisions  ┘
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headpond.ion.timestamps import Timestamp
from headpond.qldb.hash import dot, merkle_root, revision_hash_ok
from headpond.qldb.records import BlockSummary, Control, RevisionDetails

HASH = pa.binary(32)
_INT64 = 2**63

VERDICTS_SCHEMA = pa.schema(
    [
        pa.field("verdict", pa.string(), nullable=False),
        ("detail", pa.string()),  # null where the verdict is ok
        ("record_type", pa.string()),  # null where it could not be read
    ]
)
_TEXT, _INT = pa.string(), pa.int64()
_STATEMENT = pa.struct(
    {"statement": _TEXT, "start_time": _TEXT, "start_time_ns": _INT, "statement_digest": HASH}
)
_DOCUMENT = pa.struct(
    {"document_id": _TEXT, "table_name": _TEXT, "table_id": _TEXT, "statements": pa.list_(_INT)}
)
_REDACTION = pa.struct(
    {"document_id": _TEXT, "version": _INT, "table_id": _TEXT, "strand_id": _TEXT, "sequence_no": _INT}
)
CONTROLS_SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        ("stream_arn", pa.string()),
        ("control_record_type", pa.string()),
    ]
)
BLOCKS_SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        ("stream_arn", pa.string()),  # null in a journal export
        ("strand_id", pa.string()),
        ("sequence_no", pa.int64()),
        ("transaction_id", pa.string()),
        ("block_timestamp", pa.string()),  # Ion text, exact
        ("block_timestamp_ns", pa.int64()),  # since 1970 UTC; null outside of 1677 to 2262
        ("block_hash", HASH),
        ("entries_hash", HASH),
        ("previous_block_hash", pa.binary()),  # 32 bytes, or none
        ("entries_hash_list", pa.list_(HASH)),
        ("statements", pa.list_(_STATEMENT)),
        ("documents", pa.list_(_DOCUMENT)),
        ("redactions", pa.list_(_REDACTION)),
        ("revision_summaries", pa.list_(pa.struct([("hash", HASH), ("document_id", pa.string())]))),
        ("has_transaction_info", pa.bool_()),
        ("has_redaction_info", pa.bool_()),
        # All below are null without verify, and where there is nothing to check.
        ("transaction_info_hash", HASH),
        ("redaction_info_hash", HASH),
        ("transaction_info_in_entries", pa.bool_()),
        ("redaction_info_in_entries", pa.bool_()),
        ("revisions_in_entries", pa.bool_()),
        ("entries_hash_ok", pa.bool_()),
        ("block_hash_ok", pa.bool_()),
    ]
)
REVISIONS_SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        ("stream_arn", pa.string()),
        ("table_name", pa.string()),
        ("table_id", pa.string()),
        ("strand_id", pa.string()),
        ("sequence_no", pa.int64()),
        ("hash", HASH),
        ("document_id", pa.string()),
        ("version", pa.int64()),
        ("tx_time", pa.string()),  # Ion text, exact
        ("tx_time_ns", pa.int64()),
        ("tx_id", pa.string()),
        ("kind", pa.string()),  # insert, update, delete, redacted
        ("data", pa.binary()),  # one Ion value with its symbol tables: can be read alone
        ("data_hash_given", HASH),  # the field dataHash
        # All below are null without verify.
        ("metadata_hash", HASH),
        ("data_hash_computed", HASH),  # null where there is no data
        ("revision_hash_ok", pa.bool_()),
    ]
)
BLOCK_CHECKS = BLOCKS_SCHEMA.names[BLOCKS_SCHEMA.get_field_index("transaction_info_hash") :]
CONTENT_CHECKS = BLOCK_CHECKS[:4]
"""Those that need the very contents of transactionInfo and redactionInfo."""
REVISION_CHECKS = REVISIONS_SCHEMA.names[REVISIONS_SCHEMA.get_field_index("metadata_hash") :]


_OF_BLOCKS = (
    "stream_arn", "strand_id", "sequence_no", "transaction_id", "block_hash", "entries_hash",
    "previous_block_hash", "entries_hash_list",
)  # fmt: skip
_OF_REVISIONS = (
    "stream_arn", "table_name", "table_id", "strand_id", "sequence_no", "hash", "document_id", "version",
    "tx_id", "kind",
)  # fmt: skip
"""Columns that are attributes of the record."""


def ns_or_none(time: Timestamp) -> int | None:
    """Nanoseconds since 1970 where they fit 64 bits."""
    ns = time.ns
    return ns if -_INT64 <= ns < _INT64 else None


def control_row(index: int, record: Control) -> dict[str, Any]:
    """Return a row of `CONTROLS_SCHEMA`."""
    return {
        "index": index,
        "stream_arn": record.stream_arn,
        "control_record_type": record.control_record_type,
    }


def block_row(index: int, record: BlockSummary, *, verify: bool) -> dict[str, Any]:
    """Return a row of `BLOCKS_SCHEMA`."""
    row: dict[str, Any] = {name: getattr(record, name) for name in _OF_BLOCKS}
    row |= {
        "index": index,
        "block_timestamp": record.block_timestamp.text,
        "block_timestamp_ns": ns_or_none(record.block_timestamp),
        "statements": [
            {
                "statement": one.statement,
                "start_time": one.start_time.text,
                "start_time_ns": ns_or_none(one.start_time),
                "statement_digest": one.statement_digest,
            }
            for one in record.statements
        ],
        "documents": [one._asdict() for one in record.documents],
        "redactions": [one._asdict() for one in record.redactions],
        "revision_summaries": [one._asdict() for one in record.revision_summaries],
        "has_transaction_info": record.transaction_info is not None,
        "has_redaction_info": record.redaction_info is not None,
    }
    row.update(_block_checks(record) if verify else dict.fromkeys(BLOCK_CHECKS))
    return row


def _block_checks(record: BlockSummary) -> dict[str, Any]:
    entries = record.entries_hash_list
    checks: dict[str, Any] = {}
    for name, part in (("transaction", record.transaction_info), ("redaction", record.redaction_info)):
        found = None if part is None else part.ion_hash()
        checks[f"{name}_info_hash"] = found
        checks[f"{name}_info_in_entries"] = None if found is None else found in entries
    root = merkle_root([one.hash for one in record.revision_summaries])
    checks["revisions_in_entries"] = root in entries if root else None
    checks["entries_hash_ok"] = merkle_root(entries) == record.entries_hash
    checks["block_hash_ok"] = dot(record.entries_hash, record.previous_block_hash) == record.block_hash
    return checks


def revision_row(index: int, record: RevisionDetails, *, verify: bool) -> dict[str, Any]:
    """Return a row of `REVISIONS_SCHEMA`."""
    row: dict[str, Any] = {name: getattr(record, name) for name in _OF_REVISIONS}
    row |= {
        "index": index,
        "tx_time": record.tx_time.text,
        "tx_time_ns": ns_or_none(record.tx_time),
        "data": None if record.data is None else record.data.raw,
        "data_hash_given": record.data_hash,
        **dict.fromkeys(REVISION_CHECKS),
    }
    if verify:
        metadata_hash = record.metadata.ion_hash()
        data_hash = None if record.data is None else record.data.ion_hash()
        row["metadata_hash"] = metadata_hash
        row["data_hash_computed"] = data_hash
        row["revision_hash_ok"] = revision_hash_ok(record.hash, metadata_hash, data_hash, record.data_hash)
    return row
