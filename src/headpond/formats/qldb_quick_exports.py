"""Exported blocks of one shape to columns of `BLOCKS_SCHEMA` and `REVISIONS_SCHEMA`.

Blocks have a shape in common where they have as many statements, revisions and documents, and revisions of
the same shapes in the same places. The result is that of `qldb_export.read_block`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.formats.ion import RefusedIon
from headpond.formats.ion_shape_compile import NoShapeError, compile_shape
from headpond.formats.ion_symbols import only_value
from headpond.formats.qldb_export import read_block
from headpond.formats.qldb_groups import grouped
from headpond.formats.qldb_model import Refused
from headpond.formats.qldb_quick import Quick
from headpond.formats.qldb_quick_blocks import block_columns, listed, varying_symbols, verify_block
from headpond.formats.qldb_quick_revisions import revision_columns, verify_revision

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.formats.ion_page import Ints, Page
    from headpond.formats.ion_shape import Item, Shape
    from headpond.formats.ion_symbols import Symbols

MIN_ALIKE = 32
"""Blocks that are followed together rather than read one by one: a shape costs as much as some twenty."""
_MISSES = 3
"""Shapes that few blocks have, after which the rest of a group is read one by one."""


class BlocksAlike(NamedTuple):
    """Blocks of one shape."""

    rows: Ints
    """Their places in the page."""
    blocks: dict[str, Any]
    revisions: list[dict[str, Any]]
    """Columns of the first revision of each block, of the second, …"""


class _Known(NamedTuple):
    shape: Shape
    symbols: Symbols


def exported_alike(
    page: Page, starts: Ints, ends: Ints, *, verify: bool, max_depth: int
) -> Iterator[BlocksAlike]:
    """Take the blocks of a page, shape after shape, as long as enough are of one.

    Args:
        page: Datums of Ion binary, a block each.
        starts: Where each begins, ascending.
        ends: Where each ends.
        verify: Compute the hashes and what compares them.
        max_depth: Bound of nesting.
    """
    for group in grouped(page, starts, ends):
        rows, misses = group.rows, 0
        while len(rows) >= MIN_ALIKE and misses < _MISSES:
            row = int(rows[0])
            known = _shape_of(page.raw[int(starts[row]) : int(ends[row])], max_depth)
            found = None if known is None else _followed(page, starts[rows], ends[rows], known, verify=verify)
            if found is None or len(found.rows) < MIN_ALIKE:
                misses += 1
            if found is not None:
                yield found._replace(rows=rows[found.rows])
                rows = np.delete(rows, found.rows)
            if len(rows) and int(rows[0]) == row:  # it is left to be read by itself
                rows = rows[1:]


def _shape_of(datum: bytes, max_depth: int) -> _Known | None:
    read = read_block(datum, max_depth=max_depth)
    if isinstance(read, Refused):
        return None
    try:
        value = only_value(datum, max_depth=max_depth)
        varying = varying_symbols(read.block, value.symbols)
        shape = compile_shape(datum, value.node, value.symbols, varying=varying, noted=_is_noted)
    except (NoShapeError, RefusedIon):
        return None
    return _Known(shape, value.symbols)


def _is_noted(path: tuple[str, ...]) -> bool:
    """The containers whose place a shape notes: the block, and the data of its revisions."""
    return not path or (path[0] == "revisions" and path[2:] == ("data",))


def _followed(page: Page, starts: Ints, ends: Ints, known: _Known, *, verify: bool) -> BlocksAlike | None:
    found = known.shape.match(page, starts, ends)
    if not len(found.rows):
        return None
    quick = Quick(page, known.shape, known.symbols, found)
    try:
        blocks, revisions = _columns(quick, starts[found.rows])
    except NoShapeError:
        return None
    if not quick.good.all():
        keep = pa.array(np.flatnonzero(quick.good))
        if not len(keep):
            return None
        blocks, *revisions = (
            {name: column.take(keep) for name, column in columns.items()} for columns in (blocks, *revisions)
        )
        quick = Quick(page, known.shape, known.symbols, found.pick(keep.to_numpy()))
    if verify:
        top = known.shape.root
        verify_block(quick, blocks, top, len(_items(quick, top)))
        for columns, item in zip(revisions, filter(_is_of_a_user, _items(quick, top)), strict=True):
            verify_revision(quick, columns, item)
    return BlocksAlike(quick.found.rows, blocks, revisions)


def _columns(quick: Quick, starts: Ints) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    top = quick.is_struct(quick.shape.root)
    blocks = block_columns(quick, top)
    before = quick.page.pieces(starts, quick.found.spans[top.span][0])
    summaries: list[dict[str, pa.Array]] = []
    revisions: list[dict[str, Any]] = []
    for item in _items(quick, top):
        document = quick.nulls(pa.string())
        if _is_of_a_user(quick.is_struct(item)):
            columns = revision_columns(quick, item, before)
            document = columns["document_id"]
            revisions.append(columns | _table(quick, blocks["documents"], document))
        summaries.append({"hash": quick.hash_of(quick.member(item, "hash")), "document_id": document})
    blocks["revision_summaries"] = listed(quick, summaries)
    blocks["stream_arn"] = quick.nulls(pa.string())
    return blocks, revisions


def _items(quick: Quick, top: Item) -> list[Item]:
    return quick.items(top, "revisions") if "revisions" in top.members else []


def _is_of_a_user(item: Item) -> bool:
    return "metadata" in item.members


def _table(quick: Quick, documents: pa.ListArray, document: pa.Array) -> dict[str, Any]:
    """Name and id of the table that a block's `documents` name for one document of each block."""
    found: dict[str, Any] = dict.fromkeys(("table_name", "table_id"), quick.nulls(pa.string()))
    flat = documents.flatten()
    width = len(flat) // quick.count
    for place in range(width):
        one = flat.take(pa.array(np.arange(quick.count) * width + place))
        same = pc.equal(one.field("document_id"), document)
        found = {name: pc.if_else(same, one.field(name), value) for name, value in found.items()}
    return found | {"stream_arn": quick.nulls(pa.string())}
