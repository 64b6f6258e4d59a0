"""A batch of change records → one Arrow row each, with the same verdicts as the scalar reader.

::

    Data bytes ──► many records of one shape ──► spans, all at once ───────┐
               └─► few of a shape ──► quick reader, one by one ────────────┼─► columns
                                  └─► anything unusual ──► dsql.parse ─────┘

The first two only take what they can prove to be read alike by the third, which is the oracle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.formats.dsql import Chunked, ChunkRef, Fragment, Full, Refused, Source, parse
from headpond.formats.dsql_columns import offsets_of
from headpond.formats.dsql_match import Bools, Ints, Matched, match_shape
from headpond.formats.dsql_quick import quick_parse
from headpond.formats.dsql_shape import Shape, shape_of
from headpond.formats.dsql_text import BatchText, Room
from headpond.formats.json_strict import MAX_DEPTH

if TYPE_CHECKING:
    from headpond.formats.dsql_spans import Spans

DECODED_SCHEMA = pa.schema(
    [
        pa.field("verdict", pa.string(), nullable=False),  # full | chunked | fragment | quarantine
        pa.field("reason", pa.string()),  # of a quarantine
        pa.field("detail", pa.string()),
        pa.field("op", pa.string()),
        pa.field("schema", pa.string()),
        pa.field("table", pa.string()),
        pa.field("cluster", pa.string()),
        pa.field("version", pa.string()),
        pa.field("ts_ns", pa.int64()),
        pa.field("tx_id", pa.string()),
        pa.field("before", pa.string()),  # raw JSON text of an object
        pa.field("after", pa.string()),
        pa.field("before_chunk_id", pa.string()),  # of a main record
        pa.field("before_total_fragments", pa.int64()),
        pa.field("before_crc32c", pa.uint32()),
        pa.field("after_chunk_id", pa.string()),
        pa.field("after_total_fragments", pa.int64()),
        pa.field("after_crc32c", pa.uint32()),
        pa.field("chunk_id", pa.string()),  # of a fragment
        pa.field("fragment_index", pa.int64()),
        pa.field("fragment_data", pa.string()),
    ]
)
"""What `decode_batch` gives: one row per record, in order."""


MIN_SHAPE_ROWS = 48
"""Records of one shape below which looking for the shape costs more than it saves."""
MAX_SHAPES = 64
"""Shapes kept per number of quotes; what has none of them goes record by record."""
MAX_KEPT = 1024
"""Shapes kept from batch to batch in all; beyond that they are learnt anew."""


BLOCK_BYTES = 8 << 20
"""Text looked at together: bounds the working set, and lets shapes be learnt from enough records."""


class Shapes:
    """What batches of one stream have in common, kept from one to the next; not for several threads.

    A shape that many records had is tried first. Where there is no room for more, those that no record of the
    last batch had give way.

    Args:
        max_depth: as for `decode_batch`.
    """

    def __init__(self, max_depth: int = MAX_DEPTH) -> None:
        self.max_depth = max_depth
        self.room = Room()
        self._by_quotes: dict[int, list[_Known]] = {}

    def begin(self) -> None:
        """Make ready for a batch."""
        if sum(map(len, self._by_quotes.values())) > MAX_KEPT:
            self._by_quotes.clear()
        for count, shapes in self._by_quotes.items():
            kept = [shape for shape in shapes if shape.records or len(shapes) < MAX_SHAPES]
            kept.sort(key=lambda shape: -shape.records)
            self._by_quotes[count] = kept
            for shape in kept:
                shape.records = 0

    def of(self, quotes: int) -> list[_Known]:
        """The shapes with so many quotes."""
        return self._by_quotes.setdefault(quotes, [])


def decode_batch(
    data: pa.Array,
    *,
    max_depth: int = MAX_DEPTH,
    spans: Spans | None = None,
    shapes: Shapes | None = None,
) -> pa.RecordBatch:
    """Decode Data bytes.

    Args:
        data: binary array without nulls.
        max_depth: as in `dsql.parse`.
        spans: takes where the values of regular records lie; made of the same `data`.
        shapes: what was learnt from earlier batches, of the same `max_depth`; null: nothing.

    Returns:
        A batch of `DECODED_SCHEMA`, row i from record i. Rows refused for a reason that ranks below routing
        (`dsql.CHECKED_AFTER_ROUTING`) still tell op, schema, table and cluster.
    """
    if shapes is None or shapes.max_depth != max_depth:
        shapes = Shapes(max_depth)
    shapes.begin()
    offsets = offsets_of(data)
    blocks, start = [], 0
    while start < len(data):
        end = int(np.searchsorted(offsets, offsets[start] + BLOCK_BYTES))
        end = min(max(end, start + 1), len(data))
        block = data.slice(start, end - start)
        columns = _Columns(BatchText(block, shapes.room))
        _take_shapes(columns, shapes)
        blocks.append(columns.batch(block, max_depth))
        if spans is not None:
            for matched, rows in columns.parts:
                spans.add(matched, rows + start, int(offsets[start]))
        start = end
    if len(blocks) == 1:
        return blocks[0]
    return pa.concat_batches(blocks) if blocks else _rows_to_batch([])


@dataclass(slots=True)
class _Known:
    """A shape, with what the example it was taken from says of all records that have it."""

    shape: Shape
    source: Source
    is_delete: bool
    records: int = 0  # of this batch


def _take_shapes(columns: _Columns, known: Shapes) -> None:
    text = columns.text
    for count, group in text.by_quotes():
        rows = group
        shapes = known.of(count)
        for shape in shapes:
            rows = _take_shape(text, rows, columns, shape)
        while len(rows) >= MIN_SHAPE_ROWS and len(shapes) < MAX_SHAPES:
            found = _learn(text, int(rows[0]), count, known.max_depth)
            before = len(rows)
            if found is not None:
                shapes.append(found)
                rows = _take_shape(text, rows, columns, found)
            if len(rows) == before:
                rows = rows[1:]  # no use as an example: left to the one by one reader


def _learn(text: BatchText, row: int, count: int, max_depth: int) -> _Known | None:
    record = text.record(row)
    example = parse(record, max_depth=max_depth)
    if not isinstance(example, Full):
        return None
    first = text.first_quote[row]
    shape = shape_of(record, (text.quotes[first : first + count] - text.starts[row]).tolist())
    if shape is None or not _SLOTS.keys() <= set(shape.paths) or _TS_NS not in shape.digits:
        return None
    return _Known(shape, example.source, example.op == "d")


def _take_shape(text: BatchText, rows: Ints, columns: _Columns, known: _Known) -> Ints:
    """Take the records of one shape; give those that are left."""
    if not len(rows):
        return rows
    matched = match_shape(
        known.shape, text.view, text.quotes, text.first_quote[rows], text.starts[rows], text.ends[rows]
    )
    good = text.all_plain(matched.plain(), len(matched.rows))
    good &= columns.fits(matched, rows, is_delete=known.is_delete)
    if not good.all():
        matched = matched.only(good)
    known.records += len(matched.rows)
    columns.take(matched, rows[matched.rows], known.source)
    rest = np.ones(len(rows), bool)
    rest[matched.rows] = False
    return rows[rest]


_SLOTS = {("op",): "op", ("source", "txId"): "tx_id"}
"""Slots a shape must have, and the columns they fill."""
_TS_NS = ("source", "ts_ns")
_TS_NS_DIGITS = 19  # of 2^63


class _Columns:
    """Spans of each column in the text, filled shape by shape."""

    def __init__(self, text: BatchText) -> None:
        self.text = text
        count = len(text.starts)
        names = (*_SLOTS.values(), "ts_ns", "before", "after")
        self.starts = {name: text.starts.copy() for name in names}
        self.ends = {name: text.starts.copy() for name in names}
        self.there = {name: np.zeros(count, bool) for name in ("before", "after")}
        self.done = np.zeros(count, bool)
        self.parts: list[tuple[Matched, Ints]] = []
        self.sources: list[Source] = []
        self.source_codes = np.zeros(count, np.int32)

    def fits(self, matched: Matched, rows: Ints, *, is_delete: bool) -> Bools:
        """Whether op and ts_ns are as in the shape's example, and the texts we cut out hold no escape."""
        start, end = matched.slot(("op",))
        good = end > start
        good &= self.text.is_literal(rows[matched.rows], start, end)
        op_is_d = (end - start == 1) & (self.text.bytes[start] == ord("d"))
        good &= op_is_d == is_delete
        start, end = matched.digits(_TS_NS)
        if len(start) and end[0] - start[0] >= _TS_NS_DIGITS:
            # Digits of this length that do not begin with a nine are below 2^63.
            good &= (end - start == _TS_NS_DIGITS) & (self.text.bytes[start] < ord("9"))
        good &= self.text.is_literal(rows[matched.rows], *matched.slot(("source", "txId")))
        return good

    def take(self, matched: Matched, rows: Ints, source: Source) -> None:
        """Note the spans of matched records; `rows` are their numbers in the block."""
        if not len(rows):
            return
        self.parts.append((matched, rows))
        self.done[rows] = True
        self.source_codes[rows] = len(self.sources)
        self.sources.append(source)
        spans = {name: matched.slot(path) for path, name in _SLOTS.items()}
        spans["ts_ns"] = matched.digits(_TS_NS)
        spans |= {name: (matched.place(a), matched.place(b)) for name, (a, b) in matched.shape.images.items()}
        for name, (start, end) in spans.items():
            self.starts[name][rows] = start
            self.ends[name][rows] = end
            if name in self.there:
                self.there[name][rows] = True

    def batch(self, data: pa.Array, max_depth: int) -> pa.RecordBatch:
        """All rows: from the spans, and the rest one by one."""
        rest = np.flatnonzero(~self.done)
        if len(rest) == len(data):
            return _rows_to_batch([quick_row(record.as_py(), max_depth) for record in data])
        found = {name: self.text.cut(self.starts[name], self.ends[name]) for name in self.starts}
        for name, there in self.there.items():
            if not there.all():
                found[name] = pc.if_else(pa.array(there), found[name], pa.scalar(None, pa.string()))
        if len(rest):
            numbers = pc.if_else(pa.array(self.done), found["ts_ns"], pa.scalar(None, pa.string()))
        else:
            numbers = found["ts_ns"]
        found["ts_ns"] = numbers.cast(pa.int64())
        found["verdict"] = pa.repeat(pa.scalar("full"), len(data))
        for name in ("version", "schema", "table", "cluster"):
            values = pa.array([getattr(source, name) for source in self.sources], pa.string())
            found[name] = values.take(pa.array(self.source_codes))
        arrays = [found.get(field.name) for field in DECODED_SCHEMA]
        arrays = [
            pa.nulls(len(data), field.type) if array is None else array
            for array, field in zip(arrays, DECODED_SCHEMA, strict=True)
        ]
        fast = pa.RecordBatch.from_arrays(arrays, schema=DECODED_SCHEMA)
        if not len(rest):
            return fast
        slow = _rows_to_batch([quick_row(data[row].as_py(), max_depth) for row in rest.tolist()])
        at = np.arange(len(data))
        at[rest] = len(data) + np.arange(len(rest))
        return pa.concat_batches([fast, slow]).take(pa.array(at))


def quick_row(data: bytes, max_depth: int) -> dict[str, Any]:
    """The row of one record, by a fast reader where that proves the record regular, else by the oracle."""
    record = quick_parse(data, max_depth)
    return scalar_row(data, max_depth=max_depth) if record is None else record


def scalar_row(data: bytes, *, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """The row of one record as the oracle sees it; columns that are null are left out."""
    record = parse(data, max_depth=max_depth)
    if isinstance(record, Fragment):
        return {
            "verdict": "fragment",
            "chunk_id": record.chunk_id,
            "fragment_index": record.index,
            "fragment_data": record.data,
        }
    row: dict[str, Any] = {"verdict": "quarantine", "op": record.op}
    if record.source is not None:
        source = record.source
        row |= {"schema": source.schema, "table": source.table, "cluster": source.cluster}
        row |= {"version": source.version, "ts_ns": source.ts_ns, "tx_id": source.tx_id}
    if isinstance(record, Refused):
        return row | {"reason": record.reason, "detail": record.detail}
    row |= {"verdict": "full", "before": record.before, "after": record.after}
    if isinstance(record, Chunked):
        row |= {
            "verdict": "chunked",
            **_chunk("before", record.before_chunk),
            **_chunk("after", record.after_chunk),
        }
    return row


def _chunk(image: str, chunk: ChunkRef | None) -> dict[str, Any]:
    if chunk is None:
        return {}
    return {
        f"{image}_chunk_id": chunk.chunk_id,
        f"{image}_total_fragments": chunk.total_fragments,
        f"{image}_crc32c": chunk.crc32c,
    }


def _rows_to_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=DECODED_SCHEMA)
