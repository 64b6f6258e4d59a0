"""Many QLDB records to Arrow tables: stream records, and blocks of a journal export.

::

    records (Arrow binary) ─┬─ of one shape: together, `shapes`    ─┬─► verdicts   one row per record
                            └─ others: one by one, `records.read`   ├─► controls ┐
                                                                    ├─► blocks   │ one row each; `index`
                                                                    └─► revisions┘ is the record's place

The result is that of `records.read` and `records.read_block` on every record, which the tests compare.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.errors import UsageError
from headpond.ion.binary import MAX_DEPTH
from headpond.qldb import shapes
from headpond.qldb.files import Datum, is_down_converted, split_export
from headpond.qldb.hash import checked_blocks, checked_revisions
from headpond.qldb.records import OK, DownConverted, Reader, Record, Refused, read, read_block
from headpond.qldb.schemas import (
    BLOCKS_SCHEMA,
    CONTROLS_SCHEMA,
    REVISIONS_SCHEMA,
    VERDICTS_SCHEMA,
)

_SCHEMAS = {"CONTROL": CONTROLS_SCHEMA, "BLOCK_SUMMARY": BLOCKS_SCHEMA, "REVISION_DETAILS": REVISIONS_SCHEMA}
_TYPE_NUMBERS = {name: number for number, name in enumerate(_SCHEMAS)}
_SIGNS = (b"blockAddress", b"entriesHashList")
"""Names that every exported block has, in Ion and in JSON."""
_OF_A_STREAM = b"qldbStreamArn"


class DecodedQldb(NamedTuple):
    """What a batch of records, or an object of an export, holds; schemas in `schemas`."""

    verdicts: pa.Table
    """One row per record, in order."""
    controls: pa.Table
    blocks: pa.Table
    revisions: pa.Table
    exact: bool = True
    """False for JSON Lines: contents lost their types, so their hashes are null."""


def decode_qldb(
    blobs: Any,
    *,
    verify: bool = True,
    max_depth: int = MAX_DEPTH,
    max_batch_bytes: int = shapes.PAGE_BYTES,
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
    tables = {name: _Ordered(schema) for name, schema in _SCHEMAS.items()}
    types = np.full(len(blobs), -1, np.int8)
    refused: dict[int, Refused] = {}
    for found in shapes.records(blobs, verify=verify, max_depth=max_depth, page_bytes=max_batch_bytes):
        tables[found.record_type].many(found.rows, found.rows, found.parts[0])
        types[found.rows] = _TYPE_NUMBERS[found.record_type]
    for index in np.flatnonzero(types < 0).tolist():
        record = read(blobs[index].as_py(), max_depth=max_depth)
        if isinstance(record, Refused):
            refused[index] = record
            continue
        tables[record.type].one(index, _row(record, index, verify=verify))
        types[index] = _TYPE_NUMBERS[record.type]
    controls, blocks, revisions = (table.result() for table in tables.values())
    return DecodedQldb(_verdicts(types, refused), controls, *_checked(blocks, revisions, verify=verify))


def _row(record: Record, index: int, *, verify: bool) -> dict[str, Any]:
    row = {**record.row, "index": index}
    for name, part in record.parts.items() if verify else ():
        row["data_hash_computed" if name == "data" else f"{name}_hash"] = part and part.ion_hash()
    return row


def _checked(blocks: pa.Table, revisions: pa.Table, *, verify: bool) -> tuple[pa.Table, pa.Table]:
    return (checked_blocks(blocks), checked_revisions(revisions)) if verify else (blocks, revisions)


def _verdicts(types: np.ndarray[Any, np.dtype[np.int8]], refused: dict[int, Refused]) -> pa.Table:
    count = len(types)
    names = pa.array([*_SCHEMAS, None], pa.string()).take(pa.array(types % (len(_SCHEMAS) + 1)))
    if not refused:
        return pa.Table.from_arrays(
            [pa.repeat(OK, count), pa.nulls(count, pa.string()), names], schema=VERDICTS_SCHEMA
        )
    verdicts: list[str] = [OK] * count
    details: list[str | None] = [None] * count
    shown = names.to_pylist()
    for index, one in refused.items():
        verdicts[index], details[index], shown[index] = one.verdict, one.detail, one.record_type
    columns = [pa.array(column, pa.string()) for column in (verdicts, details, shown)]
    return pa.Table.from_arrays(columns, schema=VERDICTS_SCHEMA)


class _Ordered:
    """Rows of one schema, found in any order: each has its record's number and its place in the record."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.parts: list[pa.Table] = []
        self.rows: list[dict[str, Any]] = []
        self.order: list[Any] = []
        self.order_of_rows: list[tuple[int, int]] = []

    def one(self, number: int, row: dict[str, Any], place: int = 0) -> None:
        """Add a row of a record that was read by itself."""
        self.rows.append(row)
        self.order_of_rows.append((number, place))

    def many(self, numbers: Any, indexes: Any, columns: dict[str, Any], place: int = 0) -> None:
        """Add a row of each of some records that were read together."""
        arrays = [pa.array(indexes), *(columns[name] for name in self.schema.names[1:])]
        self.parts.append(pa.Table.from_arrays(arrays, schema=self.schema))
        self.order.append(np.stack([numbers, np.full(len(numbers), place)]))

    def result(self) -> pa.Table:
        """Return all rows by number and place."""
        parts = list(self.parts)
        if self.rows or not parts:
            parts.append(pa.Table.from_pylist(self.rows, self.schema))
        table = pa.concat_tables(parts).combine_chunks()
        of_rows = np.array(self.order_of_rows, np.int64).reshape(-1, 2).T
        number, place = np.concatenate([*self.order, of_rows], axis=1)
        order = np.lexsort((place, number))
        return table if (np.diff(order) > 0).all() else table.take(pa.array(order))


class ExportRows:
    """Blocks of exported objects, and rows of them."""

    def __init__(self, *, verify: bool = True, max_depth: int = MAX_DEPTH) -> None:
        self.verify, self.max_depth = verify, max_depth
        self.verdicts: list[dict[str, Any]] = []
        """One per block, in the order of `add`; complete after `tables`."""
        self._indexes: list[int] = []
        self._datums: dict[int, Datum] = {}
        self._blocks, self._revisions = _Ordered(BLOCKS_SCHEMA), _Ordered(REVISIONS_SCHEMA)

    def add(self, data: bytes, index: int, *, step: int) -> bool:
        """Add the blocks of an object, indexes by `step`; return whether contents kept their types."""
        exact = not is_down_converted(data)
        for datum in split_export(data, max_depth=self.max_depth):
            number = len(self._indexes)
            self._indexes.append(index)
            self.verdicts.append({"verdict": OK, "detail": None, "record_type": "BLOCK"})
            if exact and datum.refused is None:
                self._datums[number] = datum
            else:
                self._one(number, datum, DownConverted)
            index += step
        return exact

    def _one(self, number: int, datum: Datum, kind: type[Reader]) -> None:
        """Add a block that is read by itself."""
        found = datum.refused or read_block(datum.data, kind, max_depth=self.max_depth)
        if isinstance(found, Refused):
            detail = f"bytes {datum.start} to {datum.stop}, {found.detail}"
            self.verdicts[number] = {"verdict": found.verdict, "detail": detail, "record_type": None}
            return
        index, hashes = self._indexes[number], self.verify and kind is Reader
        self._blocks.one(number, _row(found.block, index, verify=hashes))
        for place, one in enumerate(found.revisions):
            self._revisions.one(number, _row(one, index, verify=hashes), place)

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """Read what is left, and return blocks and revisions in the order of `add`."""
        all_numbers = np.array(list(self._datums), np.int64)
        data = pa.array([datum.data for datum in self._datums.values()], pa.large_binary())
        left = np.ones(len(all_numbers), np.bool_)
        for found in shapes.exported_blocks(data, verify=self.verify, max_depth=self.max_depth):
            left[found.rows] = False
            numbers = all_numbers[found.rows]
            indexes = np.array([self._indexes[number] for number in numbers.tolist()], np.int64)
            self._blocks.many(numbers, indexes, found.parts[0])
            for place, columns in enumerate(found.parts[1:]):
                self._revisions.many(numbers, indexes, columns, place)
        for number in all_numbers[left].tolist():
            self._one(number, self._datums[number], Reader)
        self._datums.clear()
        return _checked(self._blocks.result(), self._revisions.result(), verify=self.verify)


def decode_export(data: bytes) -> DecodedQldb:
    """Read an object of a journal export: Ion binary, Ion text or JSON Lines, not compressed.

    `index` is the place of a block in it. In JSON Lines the hashes of contents, and what compares them, are
    null.
    """
    rows = ExportRows()
    exact = rows.add(data, 0, step=1)
    blocks, revisions = rows.tables()
    verdicts = pa.Table.from_pylist(rows.verdicts, VERDICTS_SCHEMA)
    return DecodedQldb(verdicts, CONTROLS_SCHEMA.empty_table(), blocks, revisions, exact)


def decode_user_data(
    data: pa.Array | pa.ChunkedArray, *, verify: bool, max_depth: int = MAX_DEPTH
) -> DecodedQldb:
    """Read the data of user records: `decode_qldb`, and exported blocks among them.

    Such a record is one block in Ion binary, a line of JSON, or an object of an export in Ion text.
    """
    found = decode_qldb(data, verify=verify, max_depth=max_depth)
    odd = pc.is_in(found.verdicts["verdict"], value_set=pa.array(["missing_field", "not_binary_ion"]))
    if not pc.any(odd, min_count=0).as_py():
        return found
    verdicts = found.verdicts.to_pylist()
    rows = ExportRows(verify=verify, max_depth=max_depth)
    parts: list[tuple[int, int, int]] = []  # index, and which of the verdicts are its
    for index in pc.indices_nonzero(odd).to_pylist():
        content = data[index].as_py()
        if _OF_A_STREAM in content or not all(sign in content for sign in _SIGNS):
            continue
        before = len(rows.verdicts)
        rows.add(content, index, step=0)
        parts.append((index, before, len(rows.verdicts)))
    blocks, revisions = rows.tables()
    for index, first, last in parts:
        wrong = [row for row in rows.verdicts[first:last] if row["verdict"] != OK]
        verdicts[index] = wrong[0] if wrong else {"verdict": OK, "detail": None, "record_type": "BLOCK"}
    return found._replace(
        verdicts=pa.Table.from_pylist(verdicts, VERDICTS_SCHEMA),
        blocks=pa.concat_tables([found.blocks, blocks]).combine_chunks(),
        revisions=pa.concat_tables([found.revisions, revisions]).combine_chunks(),
    )
