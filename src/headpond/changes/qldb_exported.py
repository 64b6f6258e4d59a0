"""Blocks of a journal export among stream records: told by what they hold, and taken apart alike.

::

    {blockAddress, …, revisions: [{…}]}   ──►   a block summary, and the revisions that it has

A record is one block in Ion binary, a line of JSON, or an object of an export in Ion text.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headpond.formats.qldb_batch import DecodedQldb
from headpond.formats.qldb_export_batch import ExportRows
from headpond.formats.qldb_model import OK

_SIGNS = (b"blockAddress", b"entriesHashList")
_STREAM = b"qldbStreamArn"


def with_exported(
    found: DecodedQldb, data: pa.Array | pa.ChunkedArray, *, verify: bool, max_depth: int
) -> DecodedQldb:
    """Read again, as exported blocks, what is no stream record and looks like one.

    Args:
        found: the records as `decode_qldb` gave them.
        data: their bytes.
        verify: as for `decode_qldb`.
        max_depth: as for `decode_qldb`.
    """
    odd = pc.is_in(found.verdicts["verdict"], value_set=pa.array(["missing_field", "not_binary_ion"]))
    if not pc.any(odd, min_count=0).as_py():
        return found
    verdicts = found.verdicts.to_pylist()
    rows = ExportRows(verify=verify, max_depth=max_depth)
    parts: list[tuple[int, int, int]] = []  # index, and which of the verdicts are its
    for index in pc.indices_nonzero(odd).to_pylist():
        content = data[index].as_py()
        if _STREAM in content or not all(sign in content for sign in _SIGNS):
            continue
        before = len(rows.verdicts)
        rows.add(content, index, step=0)
        parts.append((index, before, len(rows.verdicts)))
    blocks, revisions = rows.tables()
    for index, first, last in parts:
        wrong = [row for row in rows.verdicts[first:last] if row["verdict"] != OK]
        verdicts[index] = wrong[0] if wrong else {"verdict": OK, "detail": None, "record_type": "BLOCK"}
    return DecodedQldb(
        pa.Table.from_pylist(verdicts, found.verdicts.schema),
        found.controls,
        pa.concat_tables([found.blocks, blocks]).combine_chunks(),
        pa.concat_tables([found.revisions, revisions]).combine_chunks(),
    )
