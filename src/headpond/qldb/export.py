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

from collections.abc import Iterator
from typing import NamedTuple

from headpond.ion import binary
from headpond.ion.binary import Node, RefusedIon, children, fields, refuse, text
from headpond.ion.stream import only_value
from headpond.ion.text_reader import text_values
from headpond.qldb.files import split_export
from headpond.qldb.records import (
    BLOCK_FIELDS,
    REVISION_FIELDS,
    BlockSummary,
    DownConverted,
    Reader,
    Refused,
    RevisionDetails,
    RevisionSummary,
    block,
    revision,
)

_FIELDS = BLOCK_FIELDS | {"revisions"}


class ExportedBlock(NamedTuple):
    """A block of an exported object and its revisions."""

    block: BlockSummary
    revisions: tuple[RevisionDetails, ...]


def is_down_converted(data: bytes) -> bool:
    """Return whether an exported object is JSON Lines: these begin with a brace and a quote."""
    start = data[:4096].lstrip()
    return start[:1] == b"{" and start[1:].lstrip()[:1] == b'"'


def read_export(data: bytes, *, max_depth: int = binary.MAX_DEPTH) -> Iterator[ExportedBlock | Refused]:
    """Yield the blocks of an exported object of any kind, not compressed; never raises."""
    kind = DownConverted if is_down_converted(data) else Reader
    for found in split_export(data, max_depth=max_depth):
        yield found.refused or read_block(found.data, kind, max_depth=max_depth)


def read_block(
    data: bytes, kind: type[Reader] = Reader, *, max_depth: int = binary.MAX_DEPTH
) -> ExportedBlock | Refused:
    """Read one exported block from a datum of Ion binary; never raises."""
    try:
        reader, top = kind.of(data, max_depth)
        return _block(reader, top)
    except RefusedIon as error:
        return Refused(error.reason, error.detail, error.offset)


def _block(reader: Reader, top: Node) -> ExportedBlock:
    members = reader.struct(top, "the block", _FIELDS)
    listed: list[RevisionSummary] = []
    nodes: list[Node] = []
    for item in members.items("revisions") if "revisions" in members else ():
        facts = reader.struct(item, "revisions item", frozenset({"hash", "metadata"}))
        document_id = None
        if "metadata" in facts:
            document_id = facts.struct("metadata", frozenset({"id"})).text("id")
            nodes.append(item)
        listed.append(RevisionSummary(facts.hash("hash"), document_id))
    summary = block(members, None, tuple(listed))
    tables = {one.document_id: (one.table_name, one.table_id) for one in summary.documents}
    revisions = [
        revision(
            reader.struct(item, "revision", REVISION_FIELDS), None, tables.get(document_id, (None, None))
        )
        for item, document_id in zip(
            nodes, (one.document_id for one in listed if one.document_id), strict=True
        )
    ]
    return ExportedBlock(summary, tuple(revisions))


def read_manifest(data: bytes) -> list[str]:
    """Return the object keys that a `.completed.manifest` lists; raises `RefusedIon` where it is none."""
    if not data.startswith(binary.MARKER):
        data = next((value.datum for value in text_values(data)), binary.MARKER)
    value = only_value(data)
    reader = Reader(data, value.symbols)
    if value.node.kind == binary.STRUCT and not value.node.is_null:
        for sid, member in fields(data, value.node):
            if reader.name(sid, member.start) == "keys" and member.kind == binary.LIST and not member.is_null:
                items = list(children(data, member))
                if all(item.kind == binary.STRING and not item.is_null for item in items):
                    return [text(data, item) for item in items]
    return refuse(
        "missing_field", value.node.start, "expected a manifest: a struct with a list keys of strings"
    )
