"""Objects of a QLDB journal export to the Arrow tables of stream records.

Blocks in Ion are followed together where they are alike (`qldb_quick_exports`), and read one by one
elsewhere; blocks in JSON Lines are read one by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headpond.formats.ion import MARKER, MAX_DEPTH
from headpond.formats.ion_page import Page
from headpond.formats.qldb_batch import DEFAULT_MAX_BATCH_BYTES, pages
from headpond.formats.qldb_export import (
    Exported,
    is_down_converted,
    read_block,
    read_export,
    split_export,
)
from headpond.formats.qldb_model import OK, Refused
from headpond.formats.qldb_quick_exports import MIN_ALIKE, BlocksAlike, exported_alike
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


class ExportRows:
    """Blocks of exported objects, and rows of them.

    Args:
        verify: compute the hashes and what compares them.
        max_depth: bound of nesting.
    """

    def __init__(self, *, verify: bool = True, max_depth: int = MAX_DEPTH) -> None:
        self.verify, self.max_depth = verify, max_depth
        self.verdicts: list[dict[str, Any]] = []
        """One per block, in the order of `add`; complete after `tables`."""
        self._indexes: list[int] = []
        self._datums: dict[int, tuple[int, int, bytes]] = {}
        self._rows: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
        self._parts: tuple[list[pa.Table], list[pa.Table]] = ([], [])
        self._places: tuple[list[int], list[tuple[int, int]]] = ([], [])  # of rows: block, and place in it
        self._part_places: tuple[list[Any], list[Any]] = ([], [])

    def add(self, data: bytes, index: int, *, step: int) -> bool:
        """Take the blocks of an object.

        Args:
            data: Ion binary, Ion text or JSON Lines, not compressed.
            index: the `index` of its first block.
            step: what the next block's is greater by.

        Returns:
            Whether contents kept their types.
        """
        exact = data.startswith(MARKER) or not is_down_converted(data)
        found = split_export(data, max_depth=self.max_depth) if exact else self._read(data)
        for one in found:
            number = len(self._indexes)
            self._indexes.append(index)
            self.verdicts.append({"verdict": OK, "detail": None, "record_type": "BLOCK"})
            if isinstance(one, Exported):
                self._one(number, one, exact=exact)
            else:
                self._datums[number] = one
            index += step
        return exact

    def _read(self, data: bytes) -> Any:
        return read_export(data, max_depth=self.max_depth)

    def _one(self, number: int, found: Exported, *, exact: bool) -> None:
        """Take a block that was read by itself."""
        if isinstance(found.value, Refused):
            detail = f"bytes {found.start} to {found.stop}, {found.value.detail}"
            self.verdicts[number] = {"verdict": found.value.verdict, "detail": detail, "record_type": None}
            return
        index, (blocks, revisions) = self._indexes[number], self._rows
        row = block_row(index, found.value.block, verify=self.verify)
        if not exact:
            row.update(dict.fromkeys(CONTENT_CHECKS))
        blocks.append(row)
        self._places[0].append(number)
        for place, one in enumerate(found.value.revisions):
            revisions.append(revision_row(index, one, verify=self.verify and exact))
            self._places[1].append((number, place))

    def _many(self, found: BlocksAlike, numbers: np.ndarray[Any, Any]) -> None:
        """Take blocks that were read together."""
        indexes = pa.array([self._indexes[number] for number in numbers.tolist()], pa.int64())
        for schema, kind, place, columns in (
            (BLOCKS_SCHEMA, 0, 0, found.blocks),
            *((REVISIONS_SCHEMA, 1, place, each) for place, each in enumerate(found.revisions)),
        ):
            arrays = [indexes, *(columns[name] for name in schema.names[1:])]
            self._parts[kind].append(pa.Table.from_arrays(arrays, schema=schema))
            self._part_places[kind].append(np.stack([numbers, np.full(len(numbers), place)]))

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """Read what is left, and give blocks and revisions in the order of `add`."""
        numbers = np.array(list(self._datums), np.int64)
        data = pa.array([datum for _, _, datum in self._datums.values()], pa.large_binary())
        for first, raw, offsets in pages(data, DEFAULT_MAX_BATCH_BYTES):
            starts, ends = offsets[:-1], offsets[1:]
            left = np.ones(len(starts), np.bool_)
            if len(starts) >= MIN_ALIKE:
                page = Page.of(raw)
                for found in exported_alike(page, starts, ends, verify=self.verify, max_depth=self.max_depth):
                    self._many(found, numbers[first + found.rows])
                    left[found.rows] = False
            for row in np.flatnonzero(left).tolist():
                number = int(numbers[first + row])
                start, stop, datum = self._datums[number]
                value = read_block(datum, max_depth=self.max_depth)
                self._one(number, Exported(start, stop, value), exact=True)
        self._datums.clear()
        blocks = np.array([self._places[0], [0] * len(self._places[0])], np.int64).reshape(2, -1)
        revisions = np.array(self._places[1], np.int64).reshape(-1, 2).T
        return (
            _in_order(self._parts[0], self._part_places[0], self._rows[0], blocks, BLOCKS_SCHEMA),
            _in_order(self._parts[1], self._part_places[1], self._rows[1], revisions, REVISIONS_SCHEMA),
        )


def _in_order(
    parts: list[pa.Table], places: list[Any], rows: list[dict[str, Any]], row_places: Any, schema: pa.Schema
) -> pa.Table:
    """Rows by block, and by their place in it."""
    table = pa.concat_tables([*parts, pa.Table.from_pylist(rows, schema)]).combine_chunks()
    number, place = np.concatenate([*places, row_places], axis=1)
    return table.take(pa.array(np.lexsort((place, number))))


def decode_export(data: bytes, *, verify: bool = True, max_depth: int = MAX_DEPTH) -> DecodedExport:
    """Read an object of a journal export: Ion binary, Ion text or JSON Lines, not compressed.

    The tables are those of stream records, without a stream ARN. In JSON Lines the hashes of transactionInfo,
    redactionInfo, metadata and data, and what compares them, are null.
    """
    rows = ExportRows(verify=verify, max_depth=max_depth)
    exact = rows.add(data, 0, step=1)
    blocks, revisions = rows.tables()
    return DecodedExport(pa.Table.from_pylist(rows.verdicts, VERDICTS_SCHEMA), blocks, revisions, exact)
