"""What a QLDB stream says beside the rows: blocks, statements, control records, redactions.

::

    block summary ─┬► blocks       one row a block: hashes, and the revisions it lists
                   ├► statements   one row a statement of its transaction
                   └► redactions   (document, version) named by redactionInfo     ┐ one row each: contents
    revision without data, with dataHash ─────────────────────────────────────────┘ of this are to go
    control record ─► controls

Each is a set of facts: a repeated record adds nothing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.journal_facts import once
from headpond.changes.schemas import format_versions

if TYPE_CHECKING:
    from headpond.formats.qldb_batch import DecodedQldb

_VERSION = pa.field("format_version", pa.int32())
_PLACE = [pa.field("strand_id", pa.string()), pa.field("sequence_no", pa.int64())]
TIME = pa.timestamp("us", "UTC")

CONTROLS = pa.schema(
    [pa.field("stream_arn", pa.string()), pa.field("control_record_type", pa.string()), _VERSION]
)
BLOCKS = pa.schema(
    [
        *_PLACE,
        pa.field("block_hash", pa.binary()),
        pa.field("transaction_id", pa.string()),
        pa.field("block_timestamp", TIME),  # null outside of the years 1677 to 2262
        pa.field("block_timestamp_text", pa.string()),  # Ion text, with all digits
        pa.field("previous_block_hash", pa.binary()),
        pa.field("entries_hash", pa.binary()),
        pa.field("entries_hash_list", pa.list_(pa.binary())),
        pa.field(
            "revision_summaries",
            pa.list_(pa.struct([("hash", pa.binary()), ("document_id", pa.string())])),
        ),
        pa.field("listing_digest", pa.binary()),  # SHA-256 over those: a changed copy has its own row
        _VERSION,
    ]
)
STATEMENTS = pa.schema(
    [
        *_PLACE,
        pa.field("block_hash", pa.binary()),
        pa.field("statement_no", pa.int64()),  # from 0, as `transactionInfo.documents` counts
        pa.field("statement", pa.string()),
        pa.field("start_time", TIME),
        pa.field("start_time_text", pa.string()),
        pa.field("statement_digest", pa.binary()),
        _VERSION,
    ]
)
REDACTIONS = pa.schema(
    [
        pa.field("document_id", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("source", pa.string()),  # request: redactionInfo of a block; form: a revision without data
        pa.field("table_id", pa.string()),
        pa.field("strand_id", pa.string()),  # of the block that asks, or of the revision
        pa.field("sequence_no", pa.int64()),
        _VERSION,
    ]
)

FACTS = {"controls": CONTROLS, "blocks": BLOCKS, "statements": STATEMENTS, "redactions": REDACTIONS}
IDENTITIES = {
    "controls": ("stream_arn", "control_record_type"),
    "blocks": ("strand_id", "sequence_no", "block_hash", "listing_digest"),
    "statements": ("strand_id", "sequence_no", "block_hash", "statement_no"),
    "redactions": ("document_id", "version", "source"),
}
"""What makes two facts one."""


def block_facts(found: DecodedQldb) -> dict[str, pa.Table]:
    """Give the controls, blocks and statements of decoded records."""
    return {
        "controls": _filled(once(found.controls, CONTROLS.names[:-1]), CONTROLS),
        "blocks": _filled(
            found.blocks,
            BLOCKS,
            block_timestamp=_time(found.blocks["block_timestamp_ns"]),
            block_timestamp_text=found.blocks["block_timestamp"],
            listing_digest=_listing_digests(found.blocks["revision_summaries"]),
        ),
        "statements": _statements(found.blocks),
    }


def redaction_forms(found: DecodedQldb) -> pa.Table:
    """Give the revisions whose contents were redacted: those that blocks name, and those without contents."""
    forms = found.revisions.filter(pc.equal(found.revisions["kind"], "redacted"))
    owners, items = _items(found.blocks, "redactions")
    asked = {name: pc.struct_field(items, name) for name in ("document_id", "version", "table_id")}
    asked |= {name: found.blocks[name].take(owners) for name in ("strand_id", "sequence_no")}
    parts = [
        _filled(pa.table(asked), REDACTIONS, source=pa.repeat("request", len(owners))),
        _filled(forms, REDACTIONS, source=pa.repeat("form", forms.num_rows)),
    ]
    return pa.concat_tables(parts)


def _statements(blocks: pa.Table) -> pa.Table:
    owners, items = _items(blocks, "statements")
    before: dict[int, int] = {}
    numbers = []
    for owner in owners.to_pylist():
        numbers.append(before.get(owner, 0))
        before[owner] = numbers[-1] + 1
    rows = {name: pc.struct_field(items, name) for name in ("statement", "statement_digest")}
    rows |= {name: blocks[name].take(owners) for name in ("strand_id", "sequence_no", "block_hash")}
    return _filled(
        pa.table(rows),
        STATEMENTS,
        statement_no=pa.array(numbers, pa.int64()),
        start_time=_time(pc.struct_field(items, "start_time_ns")),
        start_time_text=pc.struct_field(items, "start_time"),
    )


def _items(blocks: pa.Table, column: str) -> tuple[pa.Array, Any]:
    lists = blocks[column].combine_chunks()
    return pc.list_parent_indices(lists), pc.list_flatten(lists)


def _listing_digests(summaries: pa.ChunkedArray) -> pa.Array:
    digests = []
    for listed in summaries.to_pylist():
        digest = hashlib.sha256()
        for one in listed:
            digest.update(one["hash"] + (one["document_id"] or "").encode() + b"\0")
        digests.append(digest.digest())
    return pa.array(digests, pa.binary())


def _time(ns: Any) -> Any:
    return pc.floor_temporal(ns.cast(pa.timestamp("ns", "UTC")), unit="microsecond").cast(TIME)


def _filled(rows: pa.Table, schema: pa.Schema, **more: Any) -> pa.Table:
    columns = {name: rows[name] for name in schema.names if name in rows.column_names}
    columns |= {"format_version": format_versions(rows.num_rows)} | more
    return pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)
