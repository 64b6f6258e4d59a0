"""Records of one shape, read together: a second way to read QLDB, for verification and archives. Frozen.

::

    caller ─► records · exported_blocks · fields · json_texts      the door: import nothing else from outside
                  │
                  ▼
              groups      rows with one symbol table; a shape from the first; the shape tried on the others
                ├ page      the bytes of many datums in one buffer; scalars of all of them at once
                ├ shape     what stays of a datum when only lengths and scalars change; following it
                ├ hash      Ion hashes of one value in many datums
                └ blocks, columns      what becomes of them

**What it is.** Datums of one shape differ in lengths and scalars alone, so one pass of NumPy reads a field of
all of them. Whatever is unusual in a datum is left out, and the caller reads that one by the scalar reader.

**When it is taken.** By `qldb.batch` and `qldb.columns`, wherever a batch has `LEAST` records that may be of
one shape. What is not yielded here is not judged here: no verdict comes from this room.

**What proves it.** The scalar reader is the judge: `test_batch.py`, `test_files.py` and `test_columns.py` of
`tests/qldb` compare every row with the record read by itself, on all vectors and on records that were cut,
changed and mixed at random.

**What it costs and gives.** Some 1,700 lines. CPU µs a record with it and without (2026-11-23, 6,000 records
of `bench/qldb/journal.py`, a third of them blocks): decoding 12 and 220; verifying 37 and 330; an archive to
typed columns with the facts of the proof 34 and 300. Without `fields` the last takes 70, with `_json` kept 22
and, without `fields` and `json_texts`, 123.

**Frozen.** QLDB ended in 2025 and its records change no more. Repair what the judge finds wrong; add nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headpond.ion.column_types import IonType
from headpond.qldb.shapes.blocks import ExportedBlocks, StreamRecords
from headpond.qldb.shapes.columns import ColumnPart, Fields, Texts, column_of
from headpond.qldb.shapes.groups import LEAST, PAGE_BYTES, Together, together

__all__ = [
    "LEAST", "PAGE_BYTES", "ColumnPart", "column_of", "exported_blocks", "fields", "json_texts", "records",
]  # fmt: skip


def records(blobs: Any, *, verify: bool, max_depth: int, page_bytes: int = PAGE_BYTES) -> Iterator[Together]:
    """Yield stream records of one shape: columns of `BLOCKS_SCHEMA` or `REVISIONS_SCHEMA` but `index`."""
    return together(blobs, StreamRecords(verify=verify, max_depth=max_depth), page_bytes)


def exported_blocks(blobs: Any, *, verify: bool, max_depth: int) -> Iterator[Together]:
    """Yield exported blocks: columns of blocks, of the first revision of each, of the second, and so on."""
    return together(blobs, ExportedBlocks(verify=verify, max_depth=max_depth))


def fields(blobs: Any, types: Mapping[str, IonType], *, most: int | None) -> Iterator[Together]:
    """Yield structs of one shape: a `ColumnPart` for each field, canonical JSON for those not in `types`."""
    return together(blobs, Fields(types, most=most))


def json_texts(blobs: Any) -> Iterator[Together]:
    """Yield values of one shape: the column `json` has each as canonical JSON."""
    return together(blobs, Texts())
