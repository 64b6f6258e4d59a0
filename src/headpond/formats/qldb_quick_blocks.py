"""BLOCK_SUMMARY records of one shape to columns of `BLOCKS_SCHEMA`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.formats.ion import IS_NULL
from headpond.formats.ion_shape_compile import NoShapeError
from headpond.formats.ion_shape_hash import ShapeHash
from headpond.formats.qldb_hash import dot, merkle_root
from headpond.formats.qldb_quick import Quick, binaries
from headpond.formats.qldb_tables import BLOCK_CHECKS, BLOCKS_SCHEMA, HASH

if TYPE_CHECKING:
    from headpond.formats.ion_shape import Item
    from headpond.formats.ion_symbols import Symbols
    from headpond.formats.qldb_model import BlockSummary

_MAX_DOCUMENTS = 16
"""Documents of a block whose ids are compared pair by pair."""


def varying_symbols(record: BlockSummary, symbols: Symbols) -> frozenset[int]:
    """Ids of the symbols that are ids of the block's documents.

    Raises:
        NoShapeError: One of them is another name too, or there are too many.
    """
    wanted = [one.document_id for one in record.documents]
    found = frozenset(sid for sid, text in enumerate(symbols.by_id) if text in wanted)
    if len(found) != len(wanted) or len(wanted) > _MAX_DOCUMENTS or any(sid < 10 for sid in found):  # noqa: PLR2004 - system
        raise NoShapeError
    return found


def quick_blocks(quick: Quick) -> dict[str, Any]:
    """Columns of the records, all but the hashes, of good and other rows.

    Raises:
        NoShapeError: The shape is not one that is read here.
    """
    top = quick.is_struct(quick.shape.root)
    quick.is_text(top, "recordType", "BLOCK_SUMMARY")
    payload = quick.struct(top, "payload")
    columns = block_columns(quick, payload)
    return columns | {
        "stream_arn": quick.text(top, "qldbStreamArn"),
        "revision_summaries": _summaries(quick, payload),
    }


def block_columns(quick: Quick, payload: Item) -> dict[str, Any]:
    """Columns of what stream records and exported blocks share.

    Raises:
        NoShapeError: The shape is not one that is read here.
    """
    address = quick.struct(payload, "blockAddress")
    time, time_ns = quick.timestamp(payload, "blockTimestamp")
    info, redaction = payload.members.get("transactionInfo"), payload.members.get("redactionInfo")
    columns = {
        "strand_id": quick.text(address, "strandId"),
        "sequence_no": quick.count_of(quick.member(address, "sequenceNo")),
        "transaction_id": quick.text(payload, "transactionId"),
        "block_timestamp": time,
        "block_timestamp_ns": time_ns,
        "block_hash": quick.hash_of(quick.member(payload, "blockHash")),
        "entries_hash": quick.hash_of(quick.member(payload, "entriesHash")),
        "previous_block_hash": quick.hash_of(quick.member(payload, "previousBlockHash")).cast(pa.binary()),
        "entries_hash_list": quick.lists(
            [quick.hash_of(item) for item in quick.items(payload, "entriesHashList")], HASH
        ),
        "statements": _lists(quick, "statements", []),
        "documents": _lists(quick, "documents", []),
        "redactions": _lists(quick, "redactions", []),
        "has_transaction_info": _same(quick, there=info is not None),
        "has_redaction_info": _same(quick, there=redaction is not None),
    }
    if info is not None:
        quick.sound(quick.is_struct(info))
        columns["statements"] = _statements(quick, info)
        if "documents" in info.members:
            columns["documents"] = _documents(quick, quick.struct(info, "documents"))
    if redaction is not None:
        quick.sound(quick.is_struct(redaction))
        columns["redactions"] = _redactions(quick, redaction)
    for name in BLOCK_CHECKS:
        columns[name] = quick.nulls(BLOCKS_SCHEMA.field(name).type)
    return columns


def _same(quick: Quick, *, there: bool) -> pa.Array:
    return pa.array(np.full(quick.count, there))


def _lists(quick: Quick, name: str, rows: list[dict[str, pa.Array]]) -> pa.Array:
    """Structs of columns as a list per record."""
    kind = BLOCKS_SCHEMA.field(name).type.value_type
    structs = [
        pa.StructArray.from_arrays([row[one.name].cast(one.type) for one in kind], fields=list(kind))
        for row in rows
    ]
    return quick.lists(structs, kind)


def _summaries(quick: Quick, payload: Item) -> pa.Array:
    rows = []
    if "revisionSummaries" in payload.members:
        for item in quick.items(payload, "revisionSummaries"):
            quick.is_struct(item)
            named = "documentId" in item.members
            document = quick.text(item, "documentId") if named else quick.nulls(pa.string())
            rows.append({"hash": quick.hash_of(quick.member(item, "hash")), "document_id": document})
    return listed(quick, rows)


def listed(quick: Quick, rows: list[dict[str, pa.Array]]) -> pa.Array:
    """Hash and document of each revision of a block, as `revision_summaries`."""
    return _lists(quick, "revision_summaries", rows)


def _statements(quick: Quick, info: Item) -> pa.Array:
    rows = []
    for item in quick.items(info, "statements"):
        quick.is_struct(item)
        time, time_ns = quick.timestamp(item, "startTime")
        rows.append(
            {
                "statement": quick.text(item, "statement"),
                "start_time": time,
                "start_time_ns": time_ns,
                "statement_digest": quick.hash_of(quick.member(item, "statementDigest")),
            }
        )
    return _lists(quick, "statements", rows)


def _documents(quick: Quick, documents: Item) -> pa.Array:
    rows: list[dict[str, pa.Array]] = []
    for item in documents.children:
        if quick.is_struct(item).name_slot < 0:
            raise NoShapeError
        document_id = quick.text_of_slot(item.name_slot)
        for other in rows:  # the same id twice is a repeated field
            different = pc.not_equal(document_id, other["document_id"])
            quick.good &= different.to_numpy(zero_copy_only=False)
        rows.append(
            {
                "document_id": document_id,
                "table_name": quick.text(item, "tableName"),
                "table_id": quick.text(item, "tableId"),
                "statements": quick.lists(
                    [quick.count_of(one) for one in quick.items(item, "statements")], pa.int64()
                ),
            }
        )
    return _lists(quick, "documents", rows)


def _redactions(quick: Quick, redaction: Item) -> pa.Array:
    rows = []
    for item in quick.items(redaction, "revisions"):
        quick.is_struct(item)
        address = quick.struct(item, "blockAddress")
        rows.append(
            {
                "document_id": quick.text(item, "documentId"),
                "version": quick.count_of(quick.member(item, "version")),
                "table_id": quick.text(item, "tableId"),
                "strand_id": quick.text(address, "strandId"),
                "sequence_no": quick.count_of(quick.member(address, "sequenceNo")),
            }
        )
    return _lists(quick, "redactions", rows)


def verify_blocks(quick: Quick, columns: dict[str, Any]) -> None:
    """Fill in the hashes; every row must be good."""
    payload = quick.shape.root.members["payload"]
    summaries = payload.members.get("revisionSummaries")
    verify_block(quick, columns, payload, 0 if summaries is None else len(summaries.children))


def verify_block(quick: Quick, columns: dict[str, Any], payload: Item, width: int) -> None:
    """Fill in the hashes of blocks with so many revisions each."""
    hashing = ShapeHash(quick.page, quick.found, quick.symbols)
    entries = columns["entries_hash_list"].to_pylist()
    for name in ("transaction", "redaction"):
        item = payload.members.get(f"{name}Info")
        if item is not None and item.low != IS_NULL:
            hashes = hashing.hashes(item)
            columns[f"{name}_info_hash"] = binaries(hashes)
            listed = [one in some for one, some in zip(hashes, entries, strict=True)]
            columns[f"{name}_info_in_entries"] = pa.array(listed, pa.bool_())
    summaries = columns["revision_summaries"]
    if width:
        flat = summaries.flatten().field("hash").to_pylist()
        roots = [merkle_root(flat[at : at + width]) for at in range(0, len(flat), width)]
        columns["revisions_in_entries"] = pa.array(
            [root in some for root, some in zip(roots, entries, strict=True)], pa.bool_()
        )
    entries_hash = columns["entries_hash"].to_pylist()
    chained = zip(
        entries_hash,
        columns["previous_block_hash"].to_pylist(),
        columns["block_hash"].to_pylist(),
        strict=True,
    )
    columns["block_hash_ok"] = pa.array(
        [dot(one, before) == block for one, before, block in chained], pa.bool_()
    )
    columns["entries_hash_ok"] = pa.array(
        [merkle_root(some) == one for one, some in zip(entries_hash, entries, strict=True)], pa.bool_()
    )
