"""REVISION_DETAILS records of one shape to columns of `REVISIONS_SCHEMA`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.formats.ion import IS_NULL, MARKER, STRUCT
from headpond.formats.ion_shape_compile import NoShapeError
from headpond.formats.ion_shape_hash import ShapeHash
from headpond.formats.qldb_hash import revision_hash_ok
from headpond.formats.qldb_quick import Quick, binaries
from headpond.formats.qldb_tables import HASH, REVISION_CHECKS, REVISIONS_SCHEMA

if TYPE_CHECKING:
    from headpond.formats.ion_shape import Item


def data_is_noted(path: tuple[str, ...]) -> bool:
    """The container whose place a shape notes."""
    return path == ("payload", "revision", "data")


def quick_revisions(quick: Quick) -> dict[str, Any]:
    """Columns of the records, all but the hashes, of good and other rows.

    Raises:
        NoShapeError: The shape is not one that is read here.
    """
    top = quick.is_struct(quick.shape.root)
    quick.is_text(top, "recordType", "REVISION_DETAILS")
    payload = quick.struct(top, "payload")
    table = quick.struct(payload, "tableInfo")
    columns = {
        "stream_arn": quick.text(top, "qldbStreamArn"),
        "table_name": quick.text(table, "tableName"),
        "table_id": quick.text(table, "tableId"),
    }
    before = pa.scalar(MARKER + quick.shape.table, pa.binary())
    return columns | revision_columns(quick, quick.struct(payload, "revision"), before)


def revision_columns(quick: Quick, revision: Item, before: pa.Scalar | pa.Array) -> dict[str, Any]:
    """Columns of revisions, all but those of the table.

    Args:
        quick: The records.
        revision: Where the revision is in their shape.
        before: Marker and symbol table of each record, which its data is to be read with.

    Raises:
        NoShapeError: The shape is not one that is read here.
    """
    address = quick.struct(revision, "blockAddress")
    metadata = quick.struct(revision, "metadata")
    quick.sound(metadata)
    data = _data(revision)
    version = quick.count_of(quick.member(metadata, "version"))
    tx_time, tx_time_ns = quick.timestamp(metadata, "txTime")
    given = revision.members.get("dataHash")
    given_hash = quick.nulls(HASH)
    if given is not None and given.low != IS_NULL:
        given_hash = quick.hash_of(given)
    columns = {
        "strand_id": quick.text(address, "strandId"),
        "sequence_no": quick.count_of(quick.member(address, "sequenceNo")),
        "hash": quick.hash_of(quick.member(revision, "hash")),
        "document_id": quick.text(metadata, "id"),
        "version": version,
        "tx_time": tx_time,
        "tx_time_ns": tx_time_ns,
        "tx_id": quick.text(metadata, "txId"),
        "data": quick.nulls(pa.binary()),
        "data_hash_given": given_hash,
    }
    if data is None:
        columns["kind"] = quick.same("delete" if given is None or given.low == IS_NULL else "redacted")
    else:
        quick.sound(data)
        columns["kind"] = pc.if_else(pc.equal(version, 0), "insert", "update")
        low, high = quick.found.spans[data.span]
        columns["data"] = pc.binary_join_element_wise(before, quick.page.pieces(low, high), b"")
    for name in REVISION_CHECKS:
        columns[name] = quick.nulls(REVISIONS_SCHEMA.field(name).type)
    return columns


def _data(revision: Item) -> Item | None:
    data = revision.members.get("data")
    if data is None or data.low == IS_NULL:
        return None
    if data.kind != STRUCT:
        raise NoShapeError
    return data


def verify_revisions(quick: Quick, columns: dict[str, Any]) -> None:
    """Fill in the hashes; every row must be good."""
    verify_revision(quick, columns, quick.shape.root.members["payload"].members["revision"])


def verify_revision(quick: Quick, columns: dict[str, Any], revision: Item) -> None:
    """Fill in the hashes of the revision at a place of the shape."""
    hashing = ShapeHash(quick.page, quick.found, quick.symbols)
    metadata = hashing.hashes(revision.members["metadata"])
    item = _data(revision)
    data: list[Any] = [None] * quick.count if item is None else hashing.hashes(item)
    given, given_data = columns["hash"].to_pylist(), columns["data_hash_given"].to_pylist()
    columns["metadata_hash"] = binaries(metadata)
    if item is not None:
        columns["data_hash_computed"] = binaries(data)
    columns["revision_hash_ok"] = pa.array(
        np.fromiter(map(revision_hash_ok, given, metadata, data, given_data), np.bool_, quick.count)
    )
