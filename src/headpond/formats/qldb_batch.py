"""Many QLDB stream records to Arrow tables.

::

    datums (Arrow binary) ──► verdicts   one row per datum
                          ├─► controls ┐
                          ├─► blocks   │ one row per record, `index` = the datum's place
                          └─► revisions┘

The result is that of `qldb.read` on every datum; that is what the tests compare.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from headpond.errors import UsageError
from headpond.formats.ion import MARKER, MAX_DEPTH
from headpond.formats.qldb import read
from headpond.formats.qldb_export import is_down_converted, read_export
from headpond.formats.qldb_model import OK, BlockSummary, Control, Refused
from headpond.formats.qldb_tables import (
    BLOCKS_SCHEMA,
    CONTENT_CHECKS,
    CONTROLS_SCHEMA,
    REVISIONS_SCHEMA,
    VERDICTS_SCHEMA,
    block_row,
    control_row,
    revision_row,
)


class DecodedExport(NamedTuple):
    """What an exported object holds; `index` is the place of a block in it."""

    verdicts: pa.Table
    blocks: pa.Table
    revisions: pa.Table
    exact: bool
    """False for JSON Lines: contents lost their types, so their hashes are null."""


class DecodedQldb(NamedTuple):
    """What a batch of datums holds; schemas in `qldb_tables`."""

    verdicts: pa.Table
    """One row per datum, in order."""
    controls: pa.Table
    blocks: pa.Table
    revisions: pa.Table


def decode_qldb(blobs: Any, *, verify: bool = True, max_depth: int = MAX_DEPTH) -> DecodedQldb:
    """Read QLDB stream records.

    Args:
        blobs: One datum each: Arrow binary or large binary without nulls, or a chunked array of those.
        verify: Compute the hashes and the columns that compare them; they are null otherwise.
        max_depth: Bound of nesting in a datum.

    Raises:
        UsageError: `blobs` is of another type.
    """
    if not (pa.types.is_binary(blobs.type) or pa.types.is_large_binary(blobs.type)) or blobs.null_count:
        raise UsageError(
            f"QLDB records come as binary without nulls, not as {blobs.type} with {blobs.null_count} nulls.",
            next_step="Cast the column to binary and drop the nulls.",
        )
    verdicts: list[dict[str, Any]] = []
    controls: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    revisions: list[dict[str, Any]] = []
    for index, blob in enumerate(blobs):
        record = read(blob.as_py(), max_depth=max_depth)
        if isinstance(record, Refused):
            verdicts.append(
                {"verdict": record.verdict, "detail": record.detail, "record_type": record.record_type}
            )
            continue
        if isinstance(record, Control):
            record_type = "CONTROL"
            controls.append(control_row(index, record))
        elif isinstance(record, BlockSummary):
            record_type = "BLOCK_SUMMARY"
            blocks.append(block_row(index, record, verify=verify))
        else:
            record_type = "REVISION_DETAILS"
            revisions.append(revision_row(index, record, verify=verify))
        verdicts.append({"verdict": OK, "detail": None, "record_type": record_type})
    return DecodedQldb(
        pa.Table.from_pylist(verdicts, VERDICTS_SCHEMA),
        pa.Table.from_pylist(controls, CONTROLS_SCHEMA),
        pa.Table.from_pylist(blocks, BLOCKS_SCHEMA),
        pa.Table.from_pylist(revisions, REVISIONS_SCHEMA),
    )


def decode_export(data: bytes, *, verify: bool = True, max_depth: int = MAX_DEPTH) -> DecodedExport:
    """Read an object of a journal export: Ion binary, Ion text or JSON Lines, not compressed.

    The tables are those of stream records, without a stream ARN. In JSON Lines the hashes of transactionInfo,
    redactionInfo, metadata and data, and what compares them, are null.
    """
    exact = data.startswith(MARKER) or not is_down_converted(data)
    verdicts: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    revisions: list[dict[str, Any]] = []
    for index, found in enumerate(read_export(data, max_depth=max_depth)):
        if isinstance(found.value, Refused):
            detail = f"bytes {found.start} to {found.stop}, {found.value.detail}"
            verdicts.append({"verdict": found.value.verdict, "detail": detail, "record_type": None})
            continue
        verdicts.append({"verdict": OK, "detail": None, "record_type": "BLOCK"})
        row = block_row(index, found.value.block, verify=verify)
        if not exact:
            row.update(dict.fromkeys(CONTENT_CHECKS))
        blocks.append(row)
        revisions.extend(revision_row(index, one, verify=verify and exact) for one in found.value.revisions)
    return DecodedExport(
        pa.Table.from_pylist(verdicts, VERDICTS_SCHEMA),
        pa.Table.from_pylist(blocks, BLOCKS_SCHEMA),
        pa.Table.from_pylist(revisions, REVISIONS_SCHEMA),
        exact,
    )
