"""QLDB journal exports: whole blocks, with their revisions inside.

::

    { blockAddress, transactionId, …,           the fields of a BLOCK_SUMMARY
      transactionInfo{statements, documents},
      revisions: [ {blockAddress, hash, data | dataHash, metadata},      a revision; its table is the one
                   {hash} ] }                                            transactionInfo.documents names
                                                a system revision
    <strand>.<first>-<last>.ion | .json         an object: blocks one after the other
    <export>.<strand>.completed.manifest        { keys: [ object, … ] }

An object is Ion text, Ion binary or JSON Lines. The last are a down-conversion: types are lost, so hashes of
contents cannot be computed again; hashes of blocks and the chain can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headpond.formats.ion import (
    LIST,
    MARKER,
    MAX_DEPTH,
    STRING,
    STRUCT,
    RefusedIon,
    children,
    fields,
    refuse,
)
from headpond.formats.ion_from_text import text_values
from headpond.formats.ion_scalars import text
from headpond.formats.ion_symbols import only_value
from headpond.formats.qldb import revision
from headpond.formats.qldb_blocks import BLOCK_FIELDS, block
from headpond.formats.qldb_fields import DownConverted, Reader
from headpond.formats.qldb_files import Datum, split_datums
from headpond.formats.qldb_model import BlockSummary, Refused, RevisionDetails, RevisionSummary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.formats.ion import Node
    from headpond.formats.qldb_model import DocumentInfo

_FIELDS = BLOCK_FIELDS | {"revisions"}


class ExportedBlock(NamedTuple):
    """A block of an exported object and its revisions."""

    block: BlockSummary
    revisions: tuple[RevisionDetails, ...]


class Exported(NamedTuple):
    """A value of an exported object: where it lies, and the block or what is wrong with it."""

    start: int
    stop: int
    value: ExportedBlock | Refused


def is_down_converted(data: bytes) -> bool:
    """Is an exported object JSON Lines? They begin with a brace and a quote; Ion text has bare names."""
    start = data[:4096].lstrip()
    return start[:1] == b"{" and start[1:].lstrip()[:1] == b'"'


def split_export(data: bytes, *, max_depth: int = MAX_DEPTH) -> Iterator[Datum | Exported]:
    """Cut an exported object of Ion into blocks, as datums of Ion binary that are not looked at yet.

    Args:
        data: The object, not compressed: Ion binary or Ion text.
        max_depth: Bound of nesting.

    Yields:
        Datums, each with its place in the object; damage of a text with what is wrong.
    """
    if data.startswith(MARKER):
        return split_datums(data, max_depth=max_depth)
    return _split_text(data, max_depth)


def read_export(data: bytes, *, max_depth: int = MAX_DEPTH) -> Iterator[Exported]:
    """Read the blocks of an exported object; never raises, whatever the bytes are.

    Args:
        data: The object, not compressed: Ion binary, Ion text or JSON Lines.
        max_depth: Bound of nesting.
    """
    kind = DownConverted if not data.startswith(MARKER) and is_down_converted(data) else Reader
    for found in split_export(data, max_depth=max_depth):
        if isinstance(found, Exported):
            yield found
        else:
            yield Exported(found.start, found.stop, _read(found.data, kind, max_depth))


def split_text(data: bytes, *, max_depth: int = MAX_DEPTH) -> Iterator[bytes]:
    """Cut an exported object of Ion text into blocks, each as a datum of Ion binary; damage stays text.

    Args:
        data: The object, not compressed.
        max_depth: Bound of nesting.
    """
    for found in _split_text(data, max_depth):
        yield data[found.start : found.stop] if isinstance(found, Exported) else found.data


def read_block(
    data: bytes, *, down_converted: bool = False, max_depth: int = MAX_DEPTH
) -> ExportedBlock | Refused:
    """Read one exported block from a datum of Ion binary; never raises."""
    return _read(data, DownConverted if down_converted else Reader, max_depth)


def _read(data: bytes, kind: type[Reader], max_depth: int) -> ExportedBlock | Refused:
    try:
        value = only_value(data, max_depth=max_depth)
        if value.node.kind != STRUCT or value.node.is_null:
            refuse("not_struct", value.node.start, f"expected a struct, found {value.node.type_name}")
        return _block(kind(data, value.symbols), value.node)
    except RefusedIon as error:
        return Refused(error.reason, error.detail, error.offset)


def _block(reader: Reader, top: Node) -> ExportedBlock:
    members = reader.members(top, "the block", _FIELDS)
    listed: list[RevisionSummary] = []
    nodes: list[Node] = []
    if "revisions" in members:
        for item in reader.items(members["revisions"], "revisions"):
            reader.a_struct(item, "revisions item")
            facts = reader.members(item, "a revision", frozenset({"hash", "metadata"}))
            document_id = None
            if "metadata" in facts:
                metadata = reader.struct(facts, "metadata", item)
                inside = reader.members(metadata, "metadata", frozenset({"id"}))
                document_id = reader.text(inside, "id", metadata)
                nodes.append(item)
            listed.append(RevisionSummary(reader.hash(facts, "hash", item), document_id))
    summary = block(reader, top, members, None, tuple(listed))
    tables = {document.document_id: document for document in summary.documents}
    revisions = []
    for item, document_id in zip(nodes, (one.document_id for one in listed if one.document_id), strict=True):
        revisions.append(revision(reader, item, None, _table(tables.get(document_id))))
    return ExportedBlock(summary, tuple(revisions))


def _table(document: DocumentInfo | None) -> tuple[str, str] | tuple[None, None]:
    return (None, None) if document is None else (document.table_name, document.table_id)


def _split_text(data: bytes, max_depth: int) -> Iterator[Datum | Exported]:
    """Values of a text as datums; damage costs the lines up to the next that begins a value that holds."""
    at = 0
    while at < len(data):
        stop = at
        try:
            for value in text_values(data, at, max_depth=max_depth):
                yield Datum(value.start, value.stop, value.datum)
                stop = value.stop
        except RefusedIon as error:
            at = _next_line(data, max(stop, at), max_depth)
            yield Exported(stop, at, Refused(error.reason, error.detail, error.offset))
        else:
            return


def _next_line(data: bytes, at: int, max_depth: int) -> int:
    """Where the next struct that holds begins at the start of a line; else the end."""
    while True:
        at = data.find(b"\n{", at)
        if at < 0:
            return len(data)
        at += 1
        try:
            if next(text_values(data, at, max_depth=max_depth), None):
                return at
        except RefusedIon:
            pass


def read_manifest(data: bytes) -> list[str]:
    """Object keys that a manifest of an export (`.completed.manifest`) lists, in order.

    Raises:
        RefusedIon: It is no Ion struct with a list `keys` of strings.
    """
    if not data.startswith(MARKER):
        data = next((value.datum for value in text_values(data)), MARKER)
    value = only_value(data)
    reader = Reader(data, value.symbols)
    if value.node.kind == STRUCT and not value.node.is_null:
        for sid, member in fields(data, value.node):
            if reader.name(sid, member.start) == "keys" and member.kind == LIST and not member.is_null:
                items = list(children(data, member))
                if all(item.kind == STRING and not item.is_null for item in items):
                    return [text(data, item) for item in items]
    return refuse(
        "missing_field", value.node.start, "expected a manifest: a struct with a list keys of strings"
    )
