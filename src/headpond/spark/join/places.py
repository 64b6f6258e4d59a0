"""Where records stand in their sources, on the way into a join task.

::

    rows of a Spark partition
      partition columns ─► source partition, by its values      ┐ by these rows are sorted
      position columns  ─► integers, or numbers as decimal text ┘
        └─► pieces: records of one source partition, one after the other

    blob      Arrow IPC stream: a task's share of the records, and for each its `_ts`, `_head`, `_piece`
    progress  JSON for every task: side, name, and per piece its partition, first position and greatest time

Spark shuffles, so the order of arrival comes from places in the sources. A source gives each Spark partition
ranges of its own partitions; what the records before a range came to, the other pieces tell
(`kstreams.join.alignment`). Where rows went to Spark partitions one by one (`repartition`), ranges
overlap, and each is in order by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import int64_array
from headpond.core.errors import UsageError
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.alignment import Delivered, Piece
from headpond.kstreams.join.pairs import Int64
from headpond.spark.join.columns import PLACE, SideColumns
from headpond.spark.sources.cells import pack, unpack

TIME, HEAD, PIECE = "_ts", "_head", "_piece"
"""Columns of a packed record: timestamp (ms), the greatest one of its piece so far, the piece's number."""
MAX_PIECES = 256
"""Files give pieces with gaps between them; with more of them only source partitions are kept apart."""
_SIDE, _NAME, _NUMBER = b"side", b"name", b"number"


@dataclass(frozen=True)
class Placed:
    """Records of one side by source partition and position."""

    records: pa.RecordBatch
    pieces: list[Piece]
    dropped: int = 0  # records without a time, that are not among them

    @property
    def name(self) -> str:
        """Tell these pieces from others: no two begin at the same places."""
        return hashlib.sha256(json.dumps(self.pieces).encode()).hexdigest()[:16]

    def progress(self, side: Side) -> bytes:
        """Write what all tasks learn."""
        document = {"side": side.name, "name": self.name, "pieces": self.pieces, "dropped": self.dropped}
        return json.dumps(document).encode()


def in_place(records: pa.RecordBatch, columns: SideColumns, dropped: int = 0) -> Placed:
    """Sort records and cut them into pieces.

    Args:
        records: with the columns of `columns.schema`, and their time.
        columns: say what their places are.
        dropped: how many records without a time were left out.

    Raises:
        UsageError: a record's place in its source is null.
    """
    ranks, names = _partitions(records, columns.partition_columns)
    keys, texts = [ranks], []
    for name in columns.position_columns:
        column = records.column(name)
        if column.null_count:
            raise UsageError(
                f"A record's {name} is null: its place in its source is not known.",
                next_step="Keep the columns that the source gives; the results of a join have their own "
                f"{' and '.join(PLACE)}.",
                column=name,
            )
        texts.append(column)
        if pa.types.is_integer(column.type):
            keys.append(column.cast(pa.int64()).to_numpy())
        else:
            # Sequence numbers are decimal text beyond 64 bits: the longer is the greater.
            text = pc.utf8_ltrim(column.cast(pa.string()), characters="0")
            keys += [pc.utf8_length(text).to_numpy(), np.asarray(pc.rank(text, tiebreaker="dense"))]
    if not _ascending(keys):
        order = np.lexsort([np.asarray(key, np.int64) for key in keys[::-1]])
        taken = int64_array(order)
        records, keys = records.take(taken), [key[order] for key in keys]
        texts = [column.take(taken) for column in texts]
    starts = _starts(keys)
    ts = records.column(TIME).to_numpy()
    counts = np.diff(np.append(starts, len(ts)))
    heads = np.empty_like(ts)
    pieces = []
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        np.maximum.accumulate(ts[start : start + count], out=heads[start : start + count])
        first = tuple(int(column[start].as_py()) for column in texts)
        pieces.append(Piece(names[int(keys[0][start])], first, int(heads[start + count - 1])))
    number = pa.array(np.repeat(np.arange(len(starts), dtype=np.int32), counts))
    return Placed(
        records.append_column(HEAD, int64_array(heads)).append_column(PIECE, number), pieces, dropped
    )


def _starts(keys: list[Any]) -> Int64:
    """Return where pieces begin: at source partitions and, where positions are numbers, behind gaps."""
    partition, *numbers = keys
    fresh = np.diff(partition, prepend=-1) != 0
    if len(numbers) == 1:
        gaps = fresh | (np.diff(numbers[0], prepend=numbers[0][:1]) != 1)
        if gaps.sum() <= MAX_PIECES:
            return np.flatnonzero(gaps)
    return np.flatnonzero(fresh)


def _partitions(records: pa.RecordBatch, columns: list[str]) -> tuple[Int64, list[tuple[Any, ...]]]:
    """Return the rank of each row's source partition, and their names by rank."""
    codes = np.zeros(records.num_rows, np.int64)
    encoded = [records.column(name).dictionary_encode() for name in columns]
    for each in encoded:
        codes = codes * (len(each.dictionary) + 1) + pc.fill_null(each.indices, -1).to_numpy() + 1
    distinct, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    names = [tuple(_plain(records.column(name)[int(row)]) for name in columns) for row in first]
    by_value = sorted(range(len(distinct)), key=lambda code: [(n is None, n or 0) for n in names[code]])
    ranks = np.empty(len(distinct), np.int64)
    ranks[by_value] = np.arange(len(distinct))
    return ranks[inverse.reshape(-1)], [names[code] for code in by_value]


def _plain(value: pa.Scalar) -> str | int | None:
    found = value.as_py()
    return found if found is None or isinstance(found, int) else str(found)


def _ascending(keys: list[Any]) -> bool:
    """Return whether rows are in order already, as those of one source partition mostly are."""
    before = np.zeros(max(0, len(keys[0]) - 1), np.bool_)
    equal = np.ones_like(before)
    for key in keys:
        before |= equal & (key[:-1] < key[1:])
        equal &= key[:-1] == key[1:]
    return bool((before | equal).all())


def to_blob(records: pa.RecordBatch, side: Side, name: str, number: int) -> bytes:
    """Write some of a task's records as one Arrow IPC stream; `number` counts those of one name."""
    facts = {_SIDE: side.name, _NAME: name, _NUMBER: str(number)}
    return pack(records.replace_schema_metadata(facts))


def dropped_in(blobs: Iterable[bytes]) -> int:
    """Return how many records were dropped for their times."""
    return sum(json.loads(blob)["dropped"] for blob in blobs if blob[:1] == b"{")


def delivered(blobs: Iterable[bytes], columns: tuple[SideColumns, ...]) -> dict[Side, list[Delivered]]:
    """Read a task's blobs; an empty one says nothing."""
    pieces: dict[tuple[Side, str], list[Piece]] = {}
    tables: dict[tuple[Side, str], list[tuple[int, pa.Table]]] = {}
    for blob in blobs:
        if blob[:1] == b"{":
            document = json.loads(blob)
            pieces[Side[document["side"]], document["name"]] = [
                Piece(tuple(partition), tuple(first), head) for partition, first, head in document["pieces"]
            ]
        elif blob:
            table = unpack(pa.py_buffer(blob))
            facts = table.schema.metadata
            at = Side[facts[_SIDE].decode()], facts[_NAME].decode()
            tables.setdefault(at, []).append((int(facts[_NUMBER]), table))
    schemas = {each.side: each.schema for each in columns}
    found: dict[Side, list[Delivered]] = {side: [] for side in schemas}
    for (side, name), told_pieces in pieces.items():
        parts = [table for _, table in sorted(tables.get((side, name), ()), key=lambda each: each[0])]
        if not parts:
            none = np.empty(0, np.int64)
            empty = pa.RecordBatch.from_pylist([], schemas[side])
            found[side].append(Delivered(empty, none, none, none, told_pieces))
            continue
        (batch,) = pa.concat_tables(parts).combine_chunks().to_batches()
        ts, head, piece = (batch.column(each).to_numpy() for each in (TIME, HEAD, PIECE))
        bare = batch.select(schemas[side].names).replace_schema_metadata(None)
        found[side].append(Delivered(bare, ts, head, piece, told_pieces))
    return found
