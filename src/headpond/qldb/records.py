"""QLDB stream records: one Ion binary datum in the Data of one user record.

::

    { qldbStreamArn, recordType, payload }
      CONTROL           { controlRecordType }
      BLOCK_SUMMARY     { blockAddress{strandId, sequenceNo}, transactionId, blockTimestamp, blockHash,
                          entriesHash, previousBlockHash, entriesHashList,
                          transactionInfo{statements, documents}, redactionInfo,
                          revisionSummaries[{hash, documentId}] }
      REVISION_DETAILS  { tableInfo{tableName, tableId},
                          revision{blockAddress, hash, data | dataHash, metadata{id, version, txTime, txId}} }

Field order is free, unknown fields are left alone, annotations are ignored, a symbol is text, a repeated name
is `wrong_type`. A field whose name cannot be read may be any of these, so the record is rejected. An exported
block has the payload of a BLOCK_SUMMARY, with `revisions` for `revisionSummaries`.

`read` is the strict scalar reader and the oracle of `batch`.
Source: Amazon QLDB Developer Guide, "QLDB stream records in Kinesis".
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, Self

from headpond.ion import binary
from headpond.ion.binary import Node, RefusedIon, children, fields, integer, refuse, text
from headpond.ion.stream import IonPart, check, only_value
from headpond.ion.symbols import Symbols, is_table
from headpond.ion.timestamps import Timestamp, parse_text, read_timestamp

RecordType = Literal["CONTROL", "BLOCK_SUMMARY", "REVISION_DETAILS"]
Kind = Literal["insert", "update", "delete", "redacted"]

OK = "ok"
VERDICTS = (
    OK, "empty", "not_binary_ion", "truncated", "bad_ion", "unknown_symbol", "no_value", "multiple_values",
    "not_struct", "missing_field", "wrong_type", "unknown_record_type", "too_deep",
    "too_many_symbols",
)  # fmt: skip
"""What can be said of a datum; all but the first name what is wrong with it."""
RECORD_TYPES: tuple[RecordType, ...] = ("CONTROL", "BLOCK_SUMMARY", "REVISION_DETAILS")


@dataclass(frozen=True, slots=True)
class Control:
    """A stream began or ended: `CREATED`, `COMPLETED`, or another word, kept as it is."""

    stream_arn: str
    control_record_type: str


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a block's transaction."""

    statement: str
    start_time: Timestamp
    statement_digest: bytes


class DocumentInfo(NamedTuple):
    """A document a transaction wrote, its table, and by which statements (from 0)."""

    document_id: str
    table_name: str
    table_id: str
    statements: tuple[int, ...]


class Redaction(NamedTuple):
    """A revision that a block asks to redact."""

    document_id: str
    version: int
    table_id: str
    strand_id: str
    sequence_no: int


class RevisionSummary(NamedTuple):
    """A revision of a block; one without a document id is a system revision."""

    hash: bytes
    document_id: str | None


@dataclass(frozen=True, slots=True)
class BlockSummary:
    """A block of the journal: one transaction. Hashes have 32 bytes; `previous_block_hash` 32 or none."""

    stream_arn: str | None
    """None where it comes from a journal export."""
    strand_id: str
    sequence_no: int
    transaction_id: str
    block_timestamp: Timestamp
    block_hash: bytes
    entries_hash: bytes
    previous_block_hash: bytes
    entries_hash_list: tuple[bytes, ...]
    statements: tuple[Statement, ...]
    documents: tuple[DocumentInfo, ...]
    redactions: tuple[Redaction, ...]
    revision_summaries: tuple[RevisionSummary, ...]
    """In the order of the hash tree."""
    transaction_info: IonPart | None
    redaction_info: IonPart | None


@dataclass(frozen=True, slots=True)
class RevisionDetails:
    """A revision of a document."""

    stream_arn: str | None
    table_name: str | None
    """None, as is `table_id`, only in a journal export whose block does not name the document's table."""
    table_id: str | None
    strand_id: str
    sequence_no: int
    hash: bytes
    document_id: str
    version: int
    tx_time: Timestamp
    tx_id: str
    metadata: IonPart
    data: IonPart | None
    data_hash: bytes | None

    @property
    def kind(self) -> Kind:
        """What the revision did to the document."""
        if self.data is not None:
            return "update" if self.version else "insert"
        return "delete" if self.data_hash is None else "redacted"


Record = Control | BlockSummary | RevisionDetails


@dataclass(frozen=True, slots=True)
class Refused:
    """A datum that is not a record: one of `VERDICTS`, what was expected and found, and where."""

    verdict: str
    detail: str
    offset: int
    record_type: str | None = None


_TOP = frozenset({"qldbStreamArn", "recordType", "payload"})


def read(data: bytes, *, max_depth: int = binary.MAX_DEPTH) -> Record | Refused:
    """Read one record; never raises, whatever the bytes are."""
    kind: list[str] = []
    try:
        reader, top = Reader.of(data, max_depth)
        return _record(reader, top, kind)
    except RefusedIon as error:
        return Refused(error.reason, error.detail, error.offset, kind[0] if kind else None)


def _record(reader: Reader, top: Node, kind: list[str]) -> Record:
    members = reader.members(top, "the record", _TOP)
    record_type = reader.text(members, "recordType", top)
    if record_type not in RECORD_TYPES:
        refuse(
            "unknown_record_type",
            members["recordType"].start,
            f"recordType: expected one of {', '.join(RECORD_TYPES)}, found {record_type[:80]!r}",
        )
    kind.append(record_type)
    arn = reader.text(members, "qldbStreamArn", top)
    payload = reader.struct(members, "payload", top)
    if record_type == "CONTROL":
        control = reader.members(payload, "payload", frozenset({"controlRecordType"}))
        return Control(arn, reader.text(control, "controlRecordType", payload))
    if record_type == "BLOCK_SUMMARY":
        return block_summary(reader, payload, arn)
    return _revision_details(reader, payload, arn)


def _revision_details(reader: Reader, payload: Node, arn: str) -> RevisionDetails:
    members = reader.members(payload, "payload", frozenset({"tableInfo", "revision"}))
    table = reader.struct(members, "tableInfo", payload)
    table_members = reader.members(table, "tableInfo", frozenset({"tableName", "tableId"}))
    name, table_id = (reader.text(table_members, field, table) for field in ("tableName", "tableId"))
    return revision(reader, reader.struct(members, "revision", payload), arn, (name, table_id))


_REVISION = frozenset({"blockAddress", "hash", "data", "dataHash", "metadata"})
_METADATA = frozenset({"id", "version", "txTime", "txId"})


def revision(
    reader: Reader, node: Node, arn: str | None, table: tuple[str, str] | tuple[None, None]
) -> RevisionDetails:
    """Read the struct `revision` of a record, or an element of `revisions` of an exported block."""
    members = reader.members(node, "revision", _REVISION)
    strand_id, sequence_no = reader.block_address(members, node)
    revision_hash = reader.hash(members, "hash", node)
    metadata = reader.struct(members, "metadata", node)
    reader.check_inside(metadata)
    facts = reader.members(metadata, "metadata", _METADATA)
    data = members.get("data")
    if data is not None and not data.is_null and data.kind != binary.STRUCT:
        reader.wrong(data, "data", "a struct")
    if data is not None and data.is_null:
        data = None
    if data is not None:
        if is_table(reader.data, data):
            refuse("wrong_type", data.start, "data: expected a struct, found a symbol table")
        reader.check_inside(data)
    given = members.get("dataHash")
    data_hash = None if given is None or given.is_null else reader.hash(members, "dataHash", node)
    return RevisionDetails(
        stream_arn=arn,
        table_name=table[0],
        table_id=table[1],
        strand_id=strand_id,
        sequence_no=sequence_no,
        hash=revision_hash,
        document_id=reader.text(facts, "id", metadata),
        version=reader.count(facts, "version", metadata),
        tx_time=reader.timestamp(facts, "txTime", metadata),
        tx_id=reader.text(facts, "txId", metadata),
        metadata=reader.part(metadata),
        data=None if data is None else reader.part(data),
        data_hash=data_hash,
    )


def inspect_view(data: bytes, *, max_depth: int = binary.MAX_DEPTH) -> dict[str, Any]:
    """Return what `headpond inspect --as qldb` prints: `verdict`, `record_type`, `identity`, `detail`."""
    record = read(data, max_depth=max_depth)
    view = {"verdict": OK, "record_type": None, "identity": None, "detail": None}
    if isinstance(record, Refused):
        return view | {
            "verdict": record.verdict, "record_type": record.record_type, "detail": record.detail
        }  # fmt: skip
    name, members = _IDENTITIES[type(record)]
    return view | {"record_type": name, "identity": {each: getattr(record, each) for each in members}}


_IDENTITIES = {
    Control: ("CONTROL", ("stream_arn", "control_record_type")),
    BlockSummary: ("BLOCK_SUMMARY", ("strand_id", "sequence_no")),
    RevisionDetails: ("REVISION_DETAILS", ("table_name", "table_id", "document_id", "version")),
}


HASH_BYTES = 32
_INT64_MAX = 2**63 - 1


class Reader:
    """Reads fields of one checked datum."""

    __slots__ = ("data", "symbols")

    def __init__(self, data: bytes, symbols: Symbols) -> None:
        self.data = data
        self.symbols = symbols

    @classmethod
    def of(cls, data: bytes, max_depth: int) -> tuple[Self, Node]:
        """Return a reader of a datum and its struct; raises `RefusedIon` where it is not one struct."""
        value = only_value(data, max_depth=max_depth)
        if value.node.kind != binary.STRUCT or value.node.is_null:
            refuse("not_struct", value.node.start, f"expected a struct, found {value.node.type_name}")
        return cls(data, value.symbols), value.node

    def part(self, node: Node) -> IonPart:
        """Return a value to be taken out of the datum."""
        return IonPart(self.data, node, self.symbols)

    def check_inside(self, node: Node) -> None:
        """Look at every scalar in a value that is kept or hashed whole."""
        check(self.data, node.start, node.stop, max_depth=len(self.data), symbols=self.symbols)

    def name(self, sid: int, offset: int) -> str:
        """Return a field's name; raises `RefusedIon` (`unknown_symbol`)."""
        name = self.symbols.need(sid, offset)
        if name is None:
            refuse("unknown_symbol", offset, "a field called $0, which has no text")
        return name

    def members(self, node: Node, where: str, wanted: frozenset[str]) -> dict[str, Node]:
        """Return the wanted fields of a struct that are there, by name."""
        found: dict[str, Node] = {}
        names, count = self.symbols.by_id, self.symbols.known
        for sid, member in fields(self.data, node):
            name = (names[sid] if sid < count else None) or self.name(sid, member.start)
            if name in wanted:
                if name in found:
                    refuse("wrong_type", member.start, f"{where} has the field {name} twice")
                found[name] = member
        return found

    def wrong(self, node: Node, name: str, expected: str) -> NoReturn:
        """Refuse a field of a wrong type."""
        refuse("wrong_type", node.start, f"{name}: expected {expected}, found {node.type_name}")

    def need(self, members: dict[str, Node], name: str, parent: Node) -> Node:
        """Return a required field."""
        node = members.get(name)
        if node is None:
            refuse("missing_field", parent.start, f"the struct that begins here has no field {name}")
        return node

    def text(self, members: dict[str, Node], name: str, parent: Node) -> str:
        """Return a required text."""
        return self.text_of(self.need(members, name, parent), name)

    def text_of(self, node: Node, name: str) -> str:
        """Text of a string or symbol."""
        if node.kind == binary.STRING and not node.is_null:
            return text(self.data, node)
        if node.kind != binary.SYMBOL or node.is_null:
            self.wrong(node, name, "a string")
        found = self.symbols.need(int.from_bytes(self.data[node.body : node.stop]), node.start)
        if found is None:
            refuse("unknown_symbol", node.start, f"{name}: the symbol $0, which has no text")
        return found

    def struct(self, members: dict[str, Node], name: str, parent: Node) -> Node:
        """Return a required struct."""
        return self.a_struct(self.need(members, name, parent), name)

    def a_struct(self, node: Node, name: str) -> Node:
        """Return the struct a node must be."""
        if node.kind != binary.STRUCT or node.is_null:
            self.wrong(node, name, "a struct")
        return node

    def items(self, node: Node, name: str) -> list[Node]:
        """Return the values of a list."""
        if node.kind != binary.LIST or node.is_null:
            self.wrong(node, name, "a list")
        return list(children(self.data, node))

    def count(self, members: dict[str, Node], name: str, parent: Node) -> int:
        """Return a required integer from 0 to 2⁶³ - 1."""
        return self.count_of(self.need(members, name, parent), name)

    def count_of(self, node: Node, name: str) -> int:
        """Return the integer a node must be, from 0 to 2⁶³ - 1."""
        if node.kind not in (binary.INT, binary.NEGATIVE_INT) or node.is_null:
            self.wrong(node, name, "an int")
        value = integer(self.data, node)
        if not 0 <= value <= _INT64_MAX:
            found = "a negative one" if value < 0 else "more than 63 bits"
            refuse("wrong_type", node.start, f"{name}: expected an int from 0 to 2^63 - 1, found {found}")
        return value

    def hash(self, members: dict[str, Node], name: str, parent: Node, *, or_empty: bool = False) -> bytes:
        """Return a required hash."""
        return self.hash_of(self.need(members, name, parent), name, or_empty=or_empty)

    def hash_of(self, node: Node, name: str, *, or_empty: bool = False) -> bytes:
        """Return the blob of 32 bytes a node must be."""
        if node.kind != binary.BLOB or node.is_null:
            self.wrong(node, name, f"a blob of {HASH_BYTES} bytes")
        raw = self.data[node.body : node.stop]
        if len(raw) != HASH_BYTES and (raw or not or_empty):
            refuse("wrong_type", node.start, f"{name}: expected {HASH_BYTES} bytes, found {len(raw)}")
        return raw

    def timestamp(self, members: dict[str, Node], name: str, parent: Node) -> Timestamp:
        """Return a required timestamp."""
        node = self.need(members, name, parent)
        if node.kind != binary.TIMESTAMP or node.is_null:
            self.wrong(node, name, "a timestamp")
        return read_timestamp(self.data, node)

    def block_address(self, members: dict[str, Node], parent: Node) -> tuple[str, int]:
        """Strand and sequence number of the required field `blockAddress`."""
        address = self.struct(members, "blockAddress", parent)
        inside = self.members(address, "blockAddress", _ADDRESS)
        return self.text(inside, "strandId", address), self.count(inside, "sequenceNo", address)


_ADDRESS = frozenset({"strandId", "sequenceNo"})


class DownConverted(Reader):
    """Reads fields that went through JSON: timestamps and blobs are strings there."""

    __slots__ = ()

    def hash_of(self, node: Node, name: str, *, or_empty: bool = False) -> bytes:
        """Return the 32 bytes that a string has as base64."""
        raw = self._base64(self.text_of(node, name)) if node.kind == binary.STRING else None
        if raw is None:
            self.wrong(node, name, f"{HASH_BYTES} bytes as base64")
        if len(raw) != HASH_BYTES and (raw or not or_empty):
            refuse("wrong_type", node.start, f"{name}: expected {HASH_BYTES} bytes, found {len(raw)}")
        return raw

    def timestamp(self, members: dict[str, Node], name: str, parent: Node) -> Timestamp:
        """Return a required timestamp, as text."""
        node = self.need(members, name, parent)
        found = parse_text(self.text_of(node, name)) if node.kind == binary.STRING else None
        if found is None:
            self.wrong(node, name, "a timestamp as text")
        return found

    @staticmethod
    def _base64(text: str) -> bytes | None:
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            return None


BLOCK_FIELDS = frozenset({
    "blockAddress", "transactionId", "blockTimestamp", "blockHash", "entriesHash", "previousBlockHash",
    "entriesHashList", "transactionInfo", "redactionInfo",
})  # fmt: skip
_STATEMENT = frozenset({"statement", "startTime", "statementDigest"})
_DOCUMENT = frozenset({"tableName", "tableId", "statements"})
_REDACTION = frozenset({"blockAddress", "tableId", "documentId", "version"})


def block_summary(reader: Reader, payload: Node, arn: str) -> BlockSummary:
    """Read the payload of a BLOCK_SUMMARY."""
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
