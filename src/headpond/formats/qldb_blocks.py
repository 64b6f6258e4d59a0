"""The payload of a BLOCK_SUMMARY record; an exported block has the same fields, `revisions` aside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.formats.ion import fields, refuse
from headpond.formats.qldb_model import BlockSummary, DocumentInfo, Redaction, RevisionSummary, Statement

if TYPE_CHECKING:
    from headpond.formats.ion import Node
    from headpond.formats.qldb_fields import Reader

BLOCK_FIELDS = frozenset(
    {
        "blockAddress",
        "transactionId",
        "blockTimestamp",
        "blockHash",
        "entriesHash",
        "previousBlockHash",
        "entriesHashList",
        "transactionInfo",
        "redactionInfo",
    }
)
_STATEMENT = frozenset({"statement", "startTime", "statementDigest"})
_DOCUMENT = frozenset({"tableName", "tableId", "statements"})
_REDACTION = frozenset({"blockAddress", "tableId", "documentId", "version"})


def block_summary(reader: Reader, payload: Node, arn: str) -> BlockSummary:
    """Read the payload.

    Raises:
        RefusedIon: `missing_field`, `wrong_type` and so on.
    """
    members = reader.members(payload, "payload", BLOCK_FIELDS | {"revisionSummaries"})
    summaries = members.get("revisionSummaries")
    listed = () if summaries is None else tuple(_summaries(reader, summaries))
    return block(reader, payload, members, arn, listed)


def block(
    reader: Reader,
    parent: Node,
    members: dict[str, Node],
    arn: str | None,
    revision_summaries: tuple[RevisionSummary, ...],
) -> BlockSummary:
    """Read the fields that stream records and exported blocks share."""
    strand_id, sequence_no = reader.block_address(members, parent)
    entries = reader.need(members, "entriesHashList", parent)
    statements: tuple[Statement, ...] = ()
    documents: tuple[DocumentInfo, ...] = ()
    info = None
    if "transactionInfo" in members:
        info = reader.a_struct(members["transactionInfo"], "transactionInfo")
        reader.check_inside(info)
        statements, documents = _transaction_info(reader, info)
    redactions: tuple[Redaction, ...] = ()
    redaction_info = None
    if "redactionInfo" in members:
        redaction_info = reader.a_struct(members["redactionInfo"], "redactionInfo")
        reader.check_inside(redaction_info)
        redactions = _redactions(reader, redaction_info)
    return BlockSummary(
        stream_arn=arn,
        strand_id=strand_id,
        sequence_no=sequence_no,
        transaction_id=reader.text(members, "transactionId", parent),
        block_timestamp=reader.timestamp(members, "blockTimestamp", parent),
        block_hash=reader.hash(members, "blockHash", parent),
        entries_hash=reader.hash(members, "entriesHash", parent),
        previous_block_hash=reader.hash(members, "previousBlockHash", parent, or_empty=True),
        entries_hash_list=tuple(
            reader.hash_of(item, "entriesHashList item") for item in reader.items(entries, "entriesHashList")
        ),
        statements=statements,
        documents=documents,
        redactions=redactions,
        revision_summaries=revision_summaries,
        transaction_info=None if info is None else reader.part(info),
        redaction_info=None if redaction_info is None else reader.part(redaction_info),
    )


def _summaries(reader: Reader, node: Node) -> list[RevisionSummary]:
    found = []
    for item in reader.items(node, "revisionSummaries"):
        reader.a_struct(item, "revisionSummaries item")
        members = reader.members(item, "a revision summary", frozenset({"hash", "documentId"}))
        document = reader.text(members, "documentId", item) if "documentId" in members else None
        found.append(RevisionSummary(reader.hash(members, "hash", item), document))
    return found


def _transaction_info(reader: Reader, info: Node) -> tuple[tuple[Statement, ...], tuple[DocumentInfo, ...]]:
    members = reader.members(info, "transactionInfo", frozenset({"statements", "documents"}))
    statements = []
    for item in reader.items(reader.need(members, "statements", info), "statements"):
        reader.a_struct(item, "statements item")
        facts = reader.members(item, "a statement", _STATEMENT)
        statements.append(
            Statement(
                reader.text(facts, "statement", item),
                reader.timestamp(facts, "startTime", item),
                reader.hash(facts, "statementDigest", item),
            )
        )
    documents: dict[str, DocumentInfo] = {}
    if "documents" in members:
        for sid, item in fields(reader.data, reader.a_struct(members["documents"], "documents")):
            document_id = reader.name(sid, item.start)
            if document_id in documents:
                refuse("wrong_type", item.start, f"documents has the field {document_id} twice")
            facts = reader.members(reader.a_struct(item, "a document"), "a document", _DOCUMENT)
            numbers = reader.items(reader.need(facts, "statements", item), "statements")
            documents[document_id] = DocumentInfo(
                document_id,
                reader.text(facts, "tableName", item),
                reader.text(facts, "tableId", item),
                tuple(reader.count_of(number, "statements item") for number in numbers),
            )
    return tuple(statements), tuple(documents.values())


def _redactions(reader: Reader, info: Node) -> tuple[Redaction, ...]:
    members = reader.members(info, "redactionInfo", frozenset({"revisions"}))
    found = []
    for item in reader.items(reader.need(members, "revisions", info), "redactionInfo.revisions"):
        reader.a_struct(item, "redactionInfo.revisions item")
        facts = reader.members(item, "a redaction", _REDACTION)
        strand_id, sequence_no = reader.block_address(facts, item)
        found.append(
            Redaction(
                document_id=reader.text(facts, "documentId", item),
                version=reader.count(facts, "version", item),
                table_id=reader.text(facts, "tableId", item),
                strand_id=strand_id,
                sequence_no=sequence_no,
            )
        )
    return tuple(found)
