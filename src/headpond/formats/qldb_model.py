"""What QLDB stream records say, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headpond.formats.ion_part import IonPart
    from headpond.formats.ion_timestamps import Timestamp

RecordType = Literal["CONTROL", "BLOCK_SUMMARY", "REVISION_DETAILS"]
Kind = Literal["insert", "update", "delete", "redacted"]

OK = "ok"
VERDICTS = (
    OK, "empty", "not_binary_ion", "truncated", "bad_ion", "unknown_symbol", "no_value", "multiple_values",
    "not_struct", "missing_field", "wrong_type", "unknown_record_type", "too_deep",
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


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """A document a transaction wrote, its table, and by which statements (from 0)."""

    document_id: str
    table_name: str
    table_id: str
    statements: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Redaction:
    """A revision that a block asks to redact."""

    document_id: str
    version: int
    table_id: str
    strand_id: str
    sequence_no: int


@dataclass(frozen=True, slots=True)
class RevisionSummary:
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
    """A datum that is no record: one of `VERDICTS`, what was expected and found, and where."""

    verdict: str
    detail: str
    offset: int
    record_type: str | None = None
