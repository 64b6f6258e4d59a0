"""The Arrow tables a batch of QLDB records becomes, and what verifying adds to a row.

::

    verdicts   one row per datum      verdict, detail, record_type
    controls   ┐
    blocks     │ one row per record of the type; `index` is the datum's place in the batch
    revisions  ┘
"""

from __future__ import annotations

import pyarrow as pa

HASH = pa.binary(32)

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
REVISION_CHECKS = REVISIONS_SCHEMA.names[REVISIONS_SCHEMA.get_field_index("metadata_hash") :]
