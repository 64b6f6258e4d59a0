"""Objects of a QLDB journal export to the Arrow tables of stream records."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from headpond.formats.ion import MARKER, MAX_DEPTH
from headpond.formats.qldb_export import is_down_converted, read_export
from headpond.formats.qldb_model import OK, Refused
from headpond.formats.qldb_tables import (
    BLOCKS_SCHEMA,
    CONTENT_CHECKS,
    REVISIONS_SCHEMA,
    VERDICTS_SCHEMA,
    block_row,
    revision_row,
)


class DecodedExport(NamedTuple):
    """What an exported object holds; `index` is the place of a block in it."""

    verdicts: pa.Table
    blocks: pa.Table
    revisions: pa.Table
    exact: bool
    """False for JSON Lines: contents lost their types, so their hashes are null."""


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
