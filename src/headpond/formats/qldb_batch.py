"""Many QLDB stream records to Arrow tables.

::

    datums (Arrow binary) ─► groups by symbol table ─► a shape from the first of each ─► followed together
                                    │                                        └ not of the shape: next shape
                                    └ few of a kind: `qldb.read`, one by one
                          ─► verdicts   one row per datum
                          ├─► controls ┐
                          ├─► blocks   │ one row per record, `index` = the datum's place
                          └─► revisions┘

The result is that of `qldb.read` on every datum; that is what the tests compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from headpond.errors import UsageError
from headpond.formats.ion import MAX_DEPTH
from headpond.formats.ion_page import Page
from headpond.formats.qldb import read
from headpond.formats.qldb_groups import MIN_GROUP, follow, grouped
from headpond.formats.qldb_model import OK, BlockSummary, Control, Refused
from headpond.formats.qldb_tables import (
    BLOCKS_SCHEMA,
    CONTROLS_SCHEMA,
    REVISIONS_SCHEMA,
    VERDICTS_SCHEMA,
    block_row,
    control_row,
    revision_row,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.formats.ion_page import Ints
    from headpond.formats.qldb_model import Record

DEFAULT_MAX_BATCH_BYTES = 32 * 1024 * 1024
"""Input that is followed together."""
_SCHEMAS = {"CONTROL": CONTROLS_SCHEMA, "BLOCK_SUMMARY": BLOCKS_SCHEMA, "REVISION_DETAILS": REVISIONS_SCHEMA}


class DecodedQldb(NamedTuple):
    """What a batch of datums holds; schemas in `qldb_tables`."""

    verdicts: pa.Table
    """One row per datum, in order."""
    controls: pa.Table
    blocks: pa.Table
    revisions: pa.Table


def decode_qldb(
    blobs: Any,
    *,
    verify: bool = True,
    max_depth: int = MAX_DEPTH,
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
) -> DecodedQldb:
    """Read QLDB stream records.

    Args:
        blobs: One datum each: Arrow binary or large binary without nulls, or a chunked array of those.
        verify: Compute the hashes and the columns that compare them; they are null otherwise.
        max_depth: Bound of nesting in a datum.
        max_batch_bytes: Input worked on at a time.

    Raises:
        UsageError: `blobs` is of another type.
    """
    if not (pa.types.is_binary(blobs.type) or pa.types.is_large_binary(blobs.type)) or blobs.null_count:
        raise UsageError(
            f"QLDB records come as binary without nulls, not as {blobs.type} with {blobs.null_count} nulls.",
            next_step="Cast the column to binary and drop the nulls.",
        )
    gathered = Gathered(len(blobs), verify=verify, max_depth=max_depth)
    for first, raw, offsets in pages(blobs, max_batch_bytes):
        _decode(gathered, first, raw, offsets)
    return gathered.result()


class Gathered:
    """Rows and tables of the records, as they are found."""

    def __init__(self, count: int, *, verify: bool, max_depth: int) -> None:
        self.verify = verify
        self.max_depth = max_depth
        self.tables: dict[str, list[pa.Table]] = {name: [] for name in _SCHEMAS}
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _SCHEMAS}
        self.record_type = np.full(count, -1, np.int8)
        self.refused: dict[int, Refused] = {}

    def one(self, index: int, record: Record | Refused) -> None:
        """Take a record that was read by itself."""
        if isinstance(record, Refused):
            self.refused[index] = record
        elif isinstance(record, Control):
            self._row("CONTROL", index, control_row(index, record))
        elif isinstance(record, BlockSummary):
            self._row("BLOCK_SUMMARY", index, block_row(index, record, verify=self.verify))
        else:
            self._row("REVISION_DETAILS", index, revision_row(index, record, verify=self.verify))

    def _row(self, record_type: str, index: int, row: dict[str, Any]) -> None:
        self.rows[record_type].append(row)
        self.record_type[index] = _TYPE_NUMBERS[record_type]

    def many(self, record_type: str, indexes: Ints, columns: dict[str, pa.Array]) -> None:
        """Take columns of records that were read together."""
        schema = _SCHEMAS[record_type]
        arrays = [pa.array(indexes), *(columns[name] for name in schema.names[1:])]
        self.tables[record_type].append(pa.Table.from_arrays(arrays, schema=schema))
        self.record_type[indexes] = _TYPE_NUMBERS[record_type]

    def result(self) -> DecodedQldb:
        """All of it, in order."""
        return DecodedQldb(self._verdicts(), *(self._table(name) for name in _SCHEMAS))

    def _table(self, record_type: str) -> pa.Table:
        parts = list(self.tables[record_type])
        if self.rows[record_type] or not parts:
            parts.append(pa.Table.from_pylist(self.rows[record_type], _SCHEMAS[record_type]))
        table = pa.concat_tables(parts).combine_chunks()
        index = table["index"].to_numpy()
        if (np.diff(index) < 0).any():
            table = table.take(pa.array(np.argsort(index)))
        return table

    def _verdicts(self) -> pa.Table:
        count = len(self.record_type)
        types = pa.array([*_SCHEMAS, None], pa.string()).take(
            pa.array(self.record_type % (len(_SCHEMAS) + 1))
        )
        if not self.refused:
            ok = pa.array([OK]).take(pa.array(np.zeros(count, np.int64)))
            return pa.Table.from_arrays([ok, pa.nulls(count, pa.string()), types], schema=VERDICTS_SCHEMA)
        verdicts: list[str] = [OK] * count
        details: list[str | None] = [None] * count
        shown = types.to_pylist()
        for index, refused in self.refused.items():
            verdicts[index], details[index] = refused.verdict, refused.detail
            shown[index] = refused.record_type
        return pa.Table.from_arrays(
            [pa.array(verdicts), pa.array(details, pa.string()), pa.array(shown, pa.string())],
            schema=VERDICTS_SCHEMA,
        )


_TYPE_NUMBERS = {name: number for number, name in enumerate(_SCHEMAS)}


def pages(blobs: Any, max_batch_bytes: int) -> Iterator[tuple[int, memoryview, Ints]]:
    """Cut the input into pieces of at most so many bytes, or of one datum: first index, bytes, offsets."""
    first = 0
    for chunk in blobs.chunks if isinstance(blobs, pa.ChunkedArray) else [blobs]:
        if len(chunk) == 0:
            continue
        width = np.int64 if pa.types.is_large_binary(chunk.type) else np.int32
        _, offset_buffer, buffer = chunk.buffers()
        offsets = np.frombuffer(offset_buffer, width, len(chunk) + 1, chunk.offset * np.dtype(width).itemsize)
        raw = memoryview(buffer) if buffer is not None else memoryview(b"")
        low = 0
        while low < len(chunk):
            reach = np.searchsorted(offsets, offsets[low].astype(np.int64) + max_batch_bytes, side="right")
            high = min(max(int(reach) - 1, low + 1), len(chunk))
            start, end = int(offsets[low]), int(offsets[high])
            yield first + low, raw[start:end], offsets[low : high + 1].astype(np.int64) - start
            low = high
        first += len(chunk)


def _decode(gathered: Gathered, first: int, raw: memoryview, offsets: Ints) -> None:
    """Read one page: groups first, then what is left."""
    starts, ends = offsets[:-1], offsets[1:]
    left = np.ones(len(starts), np.bool_)
    if len(starts) >= MIN_GROUP:
        page = Page.of(raw)
        for group in grouped(page, starts, ends):
            for quick in follow(page, starts, ends, group, gathered.max_depth):
                gathered.many(quick.record_type, quick.rows + first, quick.columns(verify=gathered.verify))
                left[quick.rows] = False
    for row in np.flatnonzero(left).tolist():
        datum = bytes(raw[int(starts[row]) : int(ends[row])])
        gathered.one(first + row, read(datum, max_depth=gathered.max_depth))
