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
block has the payload of a BLOCK_SUMMARY, with `revisions` for `revisionSummaries`: revisions as above, whose
table is the one that transactionInfo.documents names, and `{hash}` alone for one of the system.

`read` and `read_block` are the strict scalar reader and the oracle of `batch`.
Source: Amazon QLDB Developer Guide, "QLDB stream records in Kinesis".
"""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, Self

from headpond.ion import binary
from headpond.ion.binary import Node, RefusedIon, children, fields, integer, refuse, text
from headpond.ion.stream import IonPart, check, only_value
from headpond.ion.symbols import Symbols, is_table
from headpond.ion.timestamps import Timestamp, parse_text, read_timestamp

RecordType = Literal["CONTROL", "BLOCK_SUMMARY", "REVISION_DETAILS"]

OK = "ok"
VERDICTS = (
    OK, "empty", "not_binary_ion", "truncated", "bad_ion", "unknown_symbol", "no_value", "multiple_values",
    "not_struct", "missing_field", "wrong_type", "unknown_record_type", "too_deep",
    "too_many_symbols",
)  # fmt: skip
"""What can be said of a datum; all but the first name what is wrong with it."""
RECORD_TYPES: tuple[RecordType, ...] = ("CONTROL", "BLOCK_SUMMARY", "REVISION_DETAILS")


class Record(NamedTuple):
    """A record that was read."""

    type: RecordType
    row: dict[str, Any]
    """Its row of the schema that `schemas` has for its type, without `index` and what verifying adds.

    A control's word is `CREATED`, `COMPLETED`, or another one, kept as it is. `stream_arn` is None in an
    export; a revision's `table_name` and `table_id` only there, where the block does not name the document's
    table. In `revision_summaries`, in the order of the hash tree, one without a document is of the system.
    """
    parts: dict[str, IonPart | None]
    """The values that are hashed whole: `transaction_info`, `redaction_info`; `metadata`, `data`."""


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
        return record_of(reader, top, kind)
    except RefusedIon as error:
        return Refused(error.reason, error.detail, error.offset, kind[0] if kind else None)


def record_of(reader: Reader, top: Node, kind: list[str]) -> Record:
    """Read the struct of a datum; its type is noted in `kind` before anything else can be wrong."""
    record = reader.struct(top, "the record", _TOP)
    record_type = record.text("recordType")
    if record_type not in RECORD_TYPES:
        refuse(
            "unknown_record_type",
            record.need("recordType").start,
            f"recordType: expected one of {', '.join(RECORD_TYPES)}, found {record_type[:80]!r}",
        )
    kind.append(record_type)
    arn = record.text("qldbStreamArn")
    if record_type == "CONTROL":
        word = record.struct("payload", frozenset({"controlRecordType"})).text("controlRecordType")
        return Record("CONTROL", {"stream_arn": arn, "control_record_type": word}, {})
    if record_type == "BLOCK_SUMMARY":
        payload = record.struct("payload", BLOCK_FIELDS | {"revisionSummaries"})
        return block(payload, arn, _summaries(payload))
    payload = record.struct("payload", frozenset({"tableInfo", "revision"}))
    table = payload.struct("tableInfo", frozenset({"tableName", "tableId"}))
    names = table.text("tableName"), table.text("tableId")
    return revision(payload.struct("revision", REVISION_FIELDS), arn, names)


REVISION_FIELDS = frozenset({"blockAddress", "hash", "data", "dataHash", "metadata"})
_METADATA = frozenset({"id", "version", "txTime", "txId"})


def revision(members: Struct, arn: str | None, table: tuple[str, str] | tuple[None, None]) -> Record:
    """Read the struct `revision` of a record, or an element of `revisions` of an exported block."""
    reader = members.reader
    row: dict[str, Any] = {"stream_arn": arn, "table_name": table[0], "table_id": table[1]}
    row |= members.block_address()
    row["hash"] = members.hash("hash")
    metadata = members.struct("metadata", _METADATA, whole=True)
    data = members.get("data")
    if data is not None:
        if data.kind != binary.STRUCT:
            reader.wrong(data, "data", "a struct")
        if is_table(reader.data, data):
            refuse("wrong_type", data.start, "data: expected a struct, found a symbol table")
        reader.check_inside(data)
    data_hash = None if members.get("dataHash") is None else members.hash("dataHash")
    part = None if data is None else reader.part(data)
    row |= {
        "document_id": metadata.text("id"),
        "version": metadata.count("version"),
        **_times("tx_time", metadata.time("txTime")),
        "tx_id": metadata.text("txId"),
        "data": None if part is None else part.raw,
        "data_hash_given": data_hash,
    }
    of_data = "update" if row["version"] else "insert"
    row["kind"] = of_data if part is not None else "delete" if data_hash is None else "redacted"
    return Record("REVISION_DETAILS", row, {"metadata": reader.part(metadata.node), "data": part})


def _times(name: str, time: Timestamp) -> dict[str, Any]:
    """A timestamp as two columns: its text, and nanoseconds since 1970 where they fit 64 bits."""
    ns = time.ns
    return {name: time.text, f"{name}_ns": ns if -(2**63) <= ns < 2**63 else None}


def inspect_view(data: bytes) -> dict[str, Any]:
    """Return what `headpond inspect --as qldb` prints: `verdict`, `record_type`, `identity`, `detail`.

    A block of a journal export is of the type `BLOCK`.
    """
    record = read(data)
    if isinstance(record, Refused) and not isinstance(exported := read_block(data), Refused):
        block = {name: exported.block.row[name] for name in _IDENTITIES["BLOCK_SUMMARY"]}
        identity = block | {"revisions": len(exported.revisions)}
        return {"verdict": OK, "record_type": "BLOCK", "identity": identity, "detail": None}
    if isinstance(record, Refused):
        found = {"verdict": record.verdict, "record_type": record.record_type}
        return found | {"identity": None, "detail": record.detail}
    identity = {name: record.row[name] for name in _IDENTITIES[record.type]}
    return {"verdict": OK, "record_type": record.type, "identity": identity, "detail": None}


_IDENTITIES = {
    "CONTROL": ("stream_arn", "control_record_type"),
    "BLOCK_SUMMARY": ("strand_id", "sequence_no"),
    "REVISION_DETAILS": ("table_name", "table_id", "document_id", "version"),
}


HASH_BYTES = 32
MAX_FIELDS = 10_000
"""Bound on the fields of a struct around a document; those of documents are columns."""
_INT64_MAX = 2**63 - 1


class Reader:
    """Reads values of one checked datum."""

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

    def wrong(self, node: Node, name: str, expected: str) -> NoReturn:
        """Refuse a field of a wrong type."""
        refuse("wrong_type", node.start, f"{name}: expected {expected}, found {node.type_name}")

    def struct(self, node: Node, name: str, wanted: frozenset[str], *, whole: bool = False) -> Struct:
        """Return the struct a node must be; one that is kept or hashed `whole` is checked inside."""
        if node.kind != binary.STRUCT or node.is_null:
            self.wrong(node, name, "a struct")
        if whole:
            self.check_inside(node)
        return Struct(self, node, name, wanted)

    def items(self, node: Node, name: str) -> list[Node]:
        """Return the values of the list a node must be."""
        if node.kind != binary.LIST or node.is_null:
            self.wrong(node, name, "a list")
        return list(children(self.data, node))

    def text(self, node: Node, name: str) -> str:
        """Return the text of the string or symbol a node must be."""
        if node.kind == binary.STRING and not node.is_null:
            return text(self.data, node)
        if node.kind != binary.SYMBOL or node.is_null:
            self.wrong(node, name, "a string")
        found = self.symbols.need(int.from_bytes(self.data[node.body : node.stop]), node.start)
        if found is None:
            refuse("unknown_symbol", node.start, f"{name}: the symbol $0, which has no text")
        return found

    def count(self, node: Node, name: str) -> int:
        """Return the integer a node must be, from 0 to 2⁶³ - 1."""
        if node.kind not in (binary.INT, binary.NEGATIVE_INT) or node.is_null:
            self.wrong(node, name, "an int")
        value = integer(self.data, node)
        if not 0 <= value <= _INT64_MAX:
            found = "a negative one" if value < 0 else "more than 63 bits"
            refuse("wrong_type", node.start, f"{name}: expected an int from 0 to 2^63 - 1, found {found}")
        return value

    def hash(self, node: Node, name: str, *, or_empty: bool = False) -> bytes:
        """Return the 32 bytes a node must have."""
        raw = self._bytes(node, name)
        if len(raw) != HASH_BYTES and (raw or not or_empty):
            refuse("wrong_type", node.start, f"{name}: expected {HASH_BYTES} bytes, found {len(raw)}")
        return raw

    def time(self, node: Node, name: str) -> Timestamp:
        """Return the timestamp a node must be."""
        if node.kind != binary.TIMESTAMP or node.is_null:
            self.wrong(node, name, "a timestamp")
        return read_timestamp(self.data, node)

    def _bytes(self, node: Node, name: str) -> bytes:
        if node.kind != binary.BLOB or node.is_null:
            self.wrong(node, name, f"a blob of {HASH_BYTES} bytes")
        return self.data[node.body : node.stop]


class DownConverted(Reader):
    """Reads values that went through JSON: timestamps and blobs are strings there."""

    __slots__ = ()

    def time(self, node: Node, name: str) -> Timestamp:
        """Return the timestamp that a string says."""
        found = parse_text(self.text(node, name)) if node.kind == binary.STRING else None
        if found is None:
            self.wrong(node, name, "a timestamp as text")
        return found

    def _bytes(self, node: Node, name: str) -> bytes:
        with suppress(binascii.Error):
            if node.kind == binary.STRING:
                return base64.b64decode(self.text(node, name), validate=True)
        return self.wrong(node, name, f"{HASH_BYTES} bytes as base64")


class Struct:
    """A struct of a datum, and those of its fields that are wanted."""

    __slots__ = ("_found", "node", "reader")

    def __init__(self, reader: Reader, node: Node, name: str, wanted: frozenset[str]) -> None:
        self.reader, self.node = reader, node
        self._found: dict[str, Node] = {}
        names, count = reader.symbols.by_id, reader.symbols.known
        for number, (sid, member) in enumerate(fields(reader.data, node)):
            field = (names[sid] if sid < count else None) or reader.name(sid, member.start)
            if number == MAX_FIELDS:
                refuse("wrong_type", member.start, f"{name} has more than {MAX_FIELDS} fields")
            if field in wanted:
                if field in self._found:
                    refuse("wrong_type", member.start, f"{name} has the field {field} twice")
                self._found[field] = member

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def get(self, name: str) -> Node | None:
        """Return a field; None where it is absent or null."""
        found = self._found.get(name)
        return None if found is None or found.is_null else found

    def need(self, name: str) -> Node:
        """Return a field that has to be there."""
        node = self._found.get(name)
        if node is None:
            refuse("missing_field", self.node.start, f"the struct that begins here has no field {name}")
        return node

    def struct(self, name: str, wanted: frozenset[str], *, whole: bool = False) -> Struct:
        """Return a required struct."""
        return self.reader.struct(self.need(name), name, wanted, whole=whole)

    def items(self, name: str) -> list[Node]:
        """Return the values of a required list."""
        return self.reader.items(self.need(name), name)

    def text(self, name: str) -> str:
        """Return a required text."""
        return self.reader.text(self.need(name), name)

    def count(self, name: str) -> int:
        """Return a required integer."""
        return self.reader.count(self.need(name), name)

    def hash(self, name: str, *, or_empty: bool = False) -> bytes:
        """Return a required hash."""
        return self.reader.hash(self.need(name), name, or_empty=or_empty)

    def time(self, name: str) -> Timestamp:
        """Return a required timestamp."""
        return self.reader.time(self.need(name), name)

    def block_address(self) -> dict[str, Any]:
        """Return `strand_id` and `sequence_no` of the required field `blockAddress`."""
        address = self.struct("blockAddress", frozenset({"strandId", "sequenceNo"}))
        return {"strand_id": address.text("strandId"), "sequence_no": address.count("sequenceNo")}


BLOCK_FIELDS = frozenset({
    "blockAddress", "transactionId", "blockTimestamp", "blockHash", "entriesHash", "previousBlockHash",
    "entriesHashList", "transactionInfo", "redactionInfo",
})  # fmt: skip
_STATEMENT = frozenset({"statement", "startTime", "statementDigest"})
_DOCUMENT = frozenset({"tableName", "tableId", "statements"})
_REDACTION = frozenset({"blockAddress", "tableId", "documentId", "version"})


def block(members: Struct, arn: str | None, revision_summaries: list[dict[str, Any]]) -> Record:
    """Read the fields that stream records and exported blocks share."""
    reader = members.reader
    row: dict[str, Any] = {"stream_arn": arn, **members.block_address()}
    row |= {"statements": [], "documents": [], "redactions": []}
    entries = members.need("entriesHashList")
    parts: dict[str, IonPart | None] = {"transaction_info": None, "redaction_info": None}
    if "transactionInfo" in members:
        info = members.struct("transactionInfo", frozenset({"statements", "documents"}), whole=True)
        row |= {"statements": _statements(info), "documents": _documents(info)}
        parts["transaction_info"] = reader.part(info.node)
    if "redactionInfo" in members:
        info = members.struct("redactionInfo", frozenset({"revisions"}), whole=True)
        row["redactions"] = _redactions(info)
        parts["redaction_info"] = reader.part(info.node)
    row |= {
        "transaction_id": members.text("transactionId"),
        **_times("block_timestamp", members.time("blockTimestamp")),
        "block_hash": members.hash("blockHash"),
        "entries_hash": members.hash("entriesHash"),
        "previous_block_hash": members.hash("previousBlockHash", or_empty=True),
        "entries_hash_list": [
            reader.hash(item, "entriesHashList item") for item in reader.items(entries, "entriesHashList")
        ],
        "revision_summaries": revision_summaries,
        **{f"has_{name}": part is not None for name, part in parts.items()},
    }
    return Record("BLOCK_SUMMARY", row, parts)


def _summaries(payload: Struct) -> list[dict[str, Any]]:
    found = []
    for item in payload.items("revisionSummaries") if "revisionSummaries" in payload else ():
        one = payload.reader.struct(item, "revisionSummaries item", frozenset({"hash", "documentId"}))
        document_id = one.text("documentId") if "documentId" in one else None
        found.append({"hash": one.hash("hash"), "document_id": document_id})
    return found


def _statements(info: Struct) -> list[dict[str, Any]]:
    items = (info.reader.struct(item, "statements item", _STATEMENT) for item in info.items("statements"))
    return [
        {
            "statement": one.text("statement"),
            **_times("start_time", one.time("startTime")),
            "statement_digest": one.hash("statementDigest"),
        }
        for one in items
    ]


def _documents(info: Struct) -> list[dict[str, Any]]:
    """The documents that a transaction wrote, their tables, and by which statements (from 0)."""
    reader, found = info.reader, dict[str, dict[str, Any]]()
    if "documents" not in info:
        return []
    for sid, item in fields(reader.data, info.struct("documents", frozenset()).node):
        document_id = reader.name(sid, item.start)
        if document_id in found:
            refuse("wrong_type", item.start, f"documents has the field {document_id} twice")
        one = reader.struct(item, "a document", _DOCUMENT)
        numbers = one.items("statements")
        found[document_id] = {
            "document_id": document_id,
            "table_name": one.text("tableName"),
            "table_id": one.text("tableId"),
            "statements": [reader.count(number, "statements item") for number in numbers],
        }
    return list(found.values())


def _redactions(info: Struct) -> list[dict[str, Any]]:
    items = info.items("revisions")
    named = (info.reader.struct(item, "redactionInfo.revisions item", _REDACTION) for item in items)
    return [
        {
            **one.block_address(),
            "document_id": one.text("documentId"),
            "version": one.count("version"),
            "table_id": one.text("tableId"),
        }
        for one in named
    ]


class ExportedBlock(NamedTuple):
    """A block of an exported object and its revisions."""

    block: Record
    revisions: list[Record]


def read_block(
    data: bytes, kind: type[Reader] = Reader, *, max_depth: int = binary.MAX_DEPTH
) -> ExportedBlock | Refused:
    """Read one block of a journal export (`files`) from a datum of Ion binary; never raises."""
    try:
        reader, top = kind.of(data, max_depth)
        return exported_of(reader, top)
    except RefusedIon as error:
        return Refused(error.reason, error.detail, error.offset)


def exported_of(reader: Reader, top: Node) -> ExportedBlock:
    """Read the struct of an exported block."""
    members = reader.struct(top, "the block", BLOCK_FIELDS | {"revisions"})
    listed: list[dict[str, Any]] = []
    of_users: list[Node] = []
    for item in members.items("revisions") if "revisions" in members else ():
        facts = reader.struct(item, "revisions item", frozenset({"hash", "metadata"}))
        document_id = None
        if "metadata" in facts:
            document_id = facts.struct("metadata", frozenset({"id"})).text("id")
            of_users.append(item)
        listed.append({"hash": facts.hash("hash"), "document_id": document_id})
    summary = block(members, None, listed)
    tables = {one["document_id"]: (one["table_name"], one["table_id"]) for one in summary.row["documents"]}
    ids = (one["document_id"] for one in listed if one["document_id"])
    return ExportedBlock(
        summary,
        [
            revision(reader.struct(item, "revision", REVISION_FIELDS), None, tables.get(each, (None, None)))
            for item, each in zip(of_users, ids, strict=True)
        ],
    )
