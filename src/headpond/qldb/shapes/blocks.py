"""Blocks and revisions of one shape, of streams and exports, to columns of the tables in `schemas`.

A stream record is one of both. Exported blocks have a shape in common where they have as many statements,
revisions and documents, and revisions of the same shapes in the same places. The columns come first; hashes
are filled in for those rows that proved good.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.ion import binary
from headpond.ion.stream import only_value
from headpond.ion.symbols import Symbols
from headpond.qldb.records import Record, Refused, read, read_block
from headpond.qldb.schemas import BLOCK_CHECKS, BLOCKS_SCHEMA, HASH, REVISION_CHECKS, REVISIONS_SCHEMA
from headpond.qldb.shapes.groups import Kind, LearnedShape, ShapedRecords, binaries
from headpond.qldb.shapes.hash import ShapeHash
from headpond.qldb.shapes.shape import Item, NoShapeError, shape_of

_MAX_DOCUMENTS = 16
"""Documents of a block whose ids are compared pair by pair."""


class StreamRecords(Kind):
    """Stream records: BLOCK_SUMMARY and REVISION_DETAILS."""

    def shape_of(self, datum: bytes) -> LearnedShape | None:
        """Return the shape of a record, None where the scalar reader refuses it or it has none."""
        record = read(datum, max_depth=self.max_depth)
        if isinstance(record, Refused) or record.type == "CONTROL":
            return None
        value = only_value(datum, max_depth=self.max_depth)
        is_block = record.type == "BLOCK_SUMMARY"
        varying = varying_symbols(record, value.symbols) if is_block else frozenset[int]()
        noted = None if is_block else _data_is_noted
        shape = shape_of(datum, value.node, value.symbols, varying=varying, noted=noted)
        return LearnedShape(record.type, shape, value.symbols)

    def columns(self, shaped: ShapedRecords) -> list[dict[str, Any]]:
        """Return the columns of the records, all but the hashes."""
        top = shaped.is_struct(shaped.shape.root)
        shaped.is_text(top, "recordType", shaped.record_type)
        payload = shaped.struct(top, "payload")
        if shaped.record_type == "BLOCK_SUMMARY":
            columns = block_columns(shaped, payload) | {"revision_summaries": _summaries(shaped, payload)}
        else:
            columns = _revision(shaped, payload)
        return [columns | {"stream_arn": shaped.text(top, "qldbStreamArn")}]

    def fill_in(self, shaped: ShapedRecords, parts: list[dict[str, Any]]) -> None:
        """Fill in the hashes."""
        payload = shaped.shape.root.members["payload"]
        if shaped.record_type == "BLOCK_SUMMARY":
            verify_block(shaped, parts[0], payload)
        else:
            verify_revision(shaped, parts[0], payload.members["revision"])


def _data_is_noted(path: tuple[str, ...]) -> bool:
    return path == ("payload", "revision", "data")


def _revision(shaped: ShapedRecords, payload: Item) -> dict[str, Any]:
    table = shaped.struct(payload, "tableInfo")
    before = pa.scalar(binary.MARKER + shaped.shape.table, pa.binary())
    columns = revision_columns(shaped, shaped.struct(payload, "revision"), before)
    return columns | {
        "table_name": shaped.text(table, "tableName"),
        "table_id": shaped.text(table, "tableId"),
    }


def varying_symbols(record: Record, symbols: Symbols) -> frozenset[int]:
    """Return the ids of symbols that are ids of the block's documents; raises `NoShapeError`."""
    wanted = [one["document_id"] for one in record.row["documents"]]
    found = frozenset(sid for sid, text in enumerate(islice(symbols.by_id, symbols.known)) if text in wanted)
    if len(found) != len(wanted) or len(wanted) > _MAX_DOCUMENTS or any(sid < 10 for sid in found):
        raise NoShapeError
    return found


def block_columns(shaped: ShapedRecords, payload: Item) -> dict[str, Any]:
    """Return the columns that stream records and exported blocks share; raises `NoShapeError`."""
    info, redaction = payload.members.get("transactionInfo"), payload.members.get("redactionInfo")
    columns = {
        **_address(shaped, payload),
        "transaction_id": shaped.text(payload, "transactionId"),
        **shaped.times("block_timestamp", payload, "blockTimestamp"),
        "block_hash": shaped.hash_of(shaped.member(payload, "blockHash")),
        "entries_hash": shaped.hash_of(shaped.member(payload, "entriesHash")),
        "previous_block_hash": shaped.hash_of(shaped.member(payload, "previousBlockHash")).cast(pa.binary()),
        "entries_hash_list": shaped.lists(
            [shaped.hash_of(item) for item in shaped.items(payload, "entriesHashList")], HASH
        ),
        "statements": _lists(shaped, "statements", []),
        "documents": _lists(shaped, "documents", []),
        "redactions": _lists(shaped, "redactions", []),
        "has_transaction_info": pa.array(np.full(shaped.count, info is not None)),
        "has_redaction_info": pa.array(np.full(shaped.count, redaction is not None)),
    }
    if info is not None:
        shaped.sound(shaped.is_struct(info))
        columns["statements"] = _statements(shaped, info)
        if "documents" in info.members:
            columns["documents"] = _documents(shaped, shaped.struct(info, "documents"))
    if redaction is not None:
        shaped.sound(shaped.is_struct(redaction))
        columns["redactions"] = _redactions(shaped, redaction)
    for name in BLOCK_CHECKS:
        columns[name] = shaped.nulls(BLOCKS_SCHEMA.field(name).type)
    return columns


def _lists(shaped: ShapedRecords, name: str, rows: list[dict[str, pa.Array]]) -> pa.Array:
    """Structs of columns as a list per record."""
    kind = BLOCKS_SCHEMA.field(name).type.value_type
    structs = [
        pa.StructArray.from_arrays([row[one.name].cast(one.type) for one in kind], fields=list(kind))
        for row in rows
    ]
    return shaped.lists(structs, kind)


def _summaries(shaped: ShapedRecords, payload: Item) -> pa.Array:
    rows = []
    if "revisionSummaries" in payload.members:
        for item in shaped.structs(payload, "revisionSummaries"):
            named = "documentId" in item.members
            document = shaped.text(item, "documentId") if named else shaped.nulls(pa.string())
            rows.append({"hash": shaped.hash_of(shaped.member(item, "hash")), "document_id": document})
    return _lists(shaped, "revision_summaries", rows)


def _statements(shaped: ShapedRecords, info: Item) -> pa.Array:
    rows = [
        {
            "statement": shaped.text(item, "statement"),
            **shaped.times("start_time", item, "startTime"),
            "statement_digest": shaped.hash_of(shaped.member(item, "statementDigest")),
        }
        for item in shaped.structs(info, "statements")
    ]
    return _lists(shaped, "statements", rows)


def _documents(shaped: ShapedRecords, documents: Item) -> pa.Array:
    rows: list[dict[str, pa.Array]] = []
    for item in documents.children:
        if shaped.is_struct(item).name_slot < 0:
            raise NoShapeError
        document_id = shaped.texts(shaped.found.body[item.name_slot], shaped.found.stop[item.name_slot])
        for other in rows:  # the same id twice is a repeated field
            different = pc.not_equal(document_id, other["document_id"])
            shaped.good &= different.to_numpy(zero_copy_only=False)
        numbers = [shaped.count_of(one) for one in shaped.items(item, "statements")]
        rows.append(
            {
                "document_id": document_id,
                "table_name": shaped.text(item, "tableName"),
                "table_id": shaped.text(item, "tableId"),
                "statements": shaped.lists(numbers, pa.int64()),
            }
        )
    return _lists(shaped, "documents", rows)


def _redactions(shaped: ShapedRecords, redaction: Item) -> pa.Array:
    rows = [
        {
            "document_id": shaped.text(item, "documentId"),
            "version": shaped.count_of(shaped.member(item, "version")),
            "table_id": shaped.text(item, "tableId"),
            **_address(shaped, item),
        }
        for item in shaped.structs(redaction, "revisions")
    ]
    return _lists(shaped, "redactions", rows)


def _address(shaped: ShapedRecords, parent: Item) -> dict[str, pa.Array]:
    address = shaped.struct(parent, "blockAddress")
    number = shaped.count_of(shaped.member(address, "sequenceNo"))
    return {"strand_id": shaped.text(address, "strandId"), "sequence_no": number}


def verify_block(shaped: ShapedRecords, columns: dict[str, Any], payload: Item) -> None:
    """Fill in the hashes of what blocks have beside their lists."""
    hashing = ShapeHash(shaped.page, shaped.found, shaped.symbols)
    for name in ("transaction", "redaction"):
        if f"{name}Info" in payload.members:
            columns[f"{name}_info_hash"] = binaries(hashing.hashes(payload.members[f"{name}Info"]))


def revision_columns(shaped: ShapedRecords, revision: Item, before: pa.Scalar | pa.Array) -> dict[str, Any]:
    """Return the columns of revisions but the table's; `before` is what each data is read with."""
    metadata = shaped.struct(revision, "metadata")
    shaped.sound(metadata)
    data = _data(revision)
    version = shaped.count_of(shaped.member(metadata, "version"))
    given = revision.members.get("dataHash")
    redacted = given is not None and not given.is_null
    columns = {
        **_address(shaped, revision),
        "hash": shaped.hash_of(shaped.member(revision, "hash")),
        "document_id": shaped.text(metadata, "id"),
        "version": version,
        **shaped.times("tx_time", metadata, "txTime"),
        "tx_id": shaped.text(metadata, "txId"),
        "data": shaped.nulls(pa.binary()),
        "data_hash_given": shaped.hash_of(given) if given and redacted else shaped.nulls(HASH),
    }
    if data is None:
        columns["kind"] = shaped.same("redacted" if redacted else "delete")
    else:
        shaped.sound(data)
        columns["kind"] = pc.if_else(pc.equal(version, 0), "insert", "update")
        low, high = shaped.found.spans[data.span]
        columns["data"] = pc.binary_join_element_wise(before, shaped.page.pieces(low, high), b"")
    for name in REVISION_CHECKS:
        columns[name] = shaped.nulls(REVISIONS_SCHEMA.field(name).type)
    return columns


def _data(revision: Item) -> Item | None:
    data = revision.members.get("data")
    if data is None or data.low == binary.IS_NULL:
        return None
    if data.kind != binary.STRUCT:
        raise NoShapeError
    return data


def verify_revision(shaped: ShapedRecords, columns: dict[str, Any], revision: Item) -> None:
    """Fill in the hashes of the revision at a place of the shape."""
    hashing = ShapeHash(shaped.page, shaped.found, shaped.symbols)
    columns["metadata_hash"] = binaries(hashing.hashes(revision.members["metadata"]))
    if (data := _data(revision)) is not None:
        columns["data_hash_computed"] = binaries(hashing.hashes(data))


class ExportedBlocks(Kind):
    """Blocks of an export: columns of the blocks, of the first revision of each, of the second and so on."""

    def shape_of(self, datum: bytes) -> LearnedShape | None:
        """Return the shape of a block, None where the scalar reader refuses it or it has none."""
        read = read_block(datum, max_depth=self.max_depth)
        if isinstance(read, Refused):
            return None
        value = only_value(datum, max_depth=self.max_depth)
        varying = varying_symbols(read.block, value.symbols)
        shape = shape_of(datum, value.node, value.symbols, varying=varying, noted=_is_noted)
        return LearnedShape("BLOCK", shape, value.symbols)

    def columns(self, shaped: ShapedRecords) -> list[dict[str, Any]]:
        """Return the columns of the blocks and revisions, all but the hashes."""
        top = shaped.is_struct(shaped.shape.root)
        blocks = block_columns(shaped, top)
        noted = shaped.found.spans[top.span][0]
        before = shaped.page.pieces(shaped.starts, noted)
        summaries: list[dict[str, pa.Array]] = []
        revisions: list[dict[str, Any]] = []
        for item in _items(shaped, top):
            document = shaped.nulls(pa.string())
            if _is_of_a_user(shaped.is_struct(item)):
                columns = revision_columns(shaped, item, before)
                document = columns["document_id"]
                revisions.append(columns | _table(shaped, blocks["documents"], document))
            summaries.append({"hash": shaped.hash_of(shaped.member(item, "hash")), "document_id": document})
        blocks["revision_summaries"] = _lists(shaped, "revision_summaries", summaries)
        blocks["stream_arn"] = shaped.nulls(pa.string())
        return [blocks, *revisions]

    def fill_in(self, shaped: ShapedRecords, parts: list[dict[str, Any]]) -> None:
        """Fill in the hashes."""
        top = shaped.shape.root
        verify_block(shaped, parts[0], top)
        for columns, item in zip(parts[1:], filter(_is_of_a_user, _items(shaped, top)), strict=True):
            verify_revision(shaped, columns, item)


def _is_noted(path: tuple[str, ...]) -> bool:
    """Return the containers whose place a shape notes: the block, and the data of its revisions."""
    return not path or (path[0] == "revisions" and path[2:] == ("data",))


def _items(shaped: ShapedRecords, top: Item) -> list[Item]:
    return shaped.items(top, "revisions") if "revisions" in top.members else []


def _is_of_a_user(item: Item) -> bool:
    return "metadata" in item.members


def _table(shaped: ShapedRecords, documents: pa.ListArray, document: pa.Array) -> dict[str, Any]:
    """Name and id of the table that a block's `documents` name for one document of each block."""
    found: dict[str, Any] = dict.fromkeys(("table_name", "table_id"), shaped.nulls(pa.string()))
    flat = documents.flatten()
    width = len(flat) // shaped.count
    for place in range(width):
        one = flat.take(pa.array(np.arange(shaped.count) * width + place))
        same = pc.equal(one.field("document_id"), document)
        found = {name: pc.if_else(same, one.field(name), value) for name, value in found.items()}
    return found | {"stream_arn": shaped.nulls(pa.string())}
