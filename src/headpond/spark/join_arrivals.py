"""The records that Spark gives a join task, put into their order of arrival.

Spark shuffles, so nothing is said by the order in which they come. What is, are places in their sources::

    partition columns ─► rank of the partition, by its values
    position columns  ─► rank in the partition: integers, or sequence numbers as decimal text
                           └─► order of arrival over both sides (`windows.join_arrival`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.errors import UsageError
from headpond.spark.join_pack import TIME, from_blob
from headpond.windows.join_arrival import arrival_order
from headpond.windows.join_batch_arranged import Arrivals

if TYPE_CHECKING:
    from headpond.formats.outer_join_buffer import Side
    from headpond.spark.join_columns import SideColumns
    from headpond.windows.join_batch_runs import Int64


def arrivals_of(blobs: list[bytes], columns: tuple[SideColumns, ...]) -> dict[Side, Arrivals]:
    """Put packed records into their order of arrival.

    Args:
        blobs: what Spark grouped for a task (`join_pack`), in any order.
        columns: per side.

    Raises:
        UsageError: a record's place in its source is null.
    """
    tables: dict[Side, list[pa.Table]] = {each.side: [] for each in columns}
    for blob in blobs:
        side, table = from_blob(blob)
        tables[side].append(table)
    by_position: list[tuple[SideColumns, pa.RecordBatch, Int64]] = []
    sides: list[tuple[Int64, Int64]] = []
    for each in columns:
        if not tables[each.side]:
            continue
        table = pa.concat_tables(tables[each.side]).combine_chunks()
        order, ranks = _by_position(table, each)
        batch = table.to_batches()[0]
        ts = batch.column(TIME).to_numpy()
        by_position.append((each, batch, order))
        sides.append((ts[order], ranks))
    found = {}
    for (each, batch, order), (rows, places) in zip(by_position, arrival_order(sides), strict=True):
        chosen = order[rows]
        taken = batch if _is_identity(chosen) else batch.take(pa.array(chosen))
        ts = taken.column(TIME).to_numpy()
        found[each.side] = Arrivals(taken.select(each.schema.names), ts, places)
    return found


def _by_position(table: pa.Table, columns: SideColumns) -> tuple[Int64, Int64]:
    """Give the order by source partition and position, and in it the rank of each row's partition."""
    partition = _partition_ranks(table, columns.partition_columns)
    keys = [partition]
    for name in columns.position_columns:
        column = table.column(name).combine_chunks()
        if column.null_count:
            raise UsageError(f"A record's {name} is null: its place in its source is not known.", column=name)
        if pa.types.is_integer(column.type):
            keys.append(column.cast(pa.int64()).to_numpy())
        else:
            # Sequence numbers are decimal text beyond 64 bits: the longer is the greater.
            text = pc.utf8_ltrim(column.cast(pa.string()), characters="0")
            keys += [pc.utf8_length(text).to_numpy(), np.asarray(pc.rank(text, tiebreaker="dense"))]
    keys = [np.asarray(key, np.int64) for key in keys]
    if _ascending(keys):
        return np.arange(len(table)), keys[0]
    order = np.lexsort(keys[::-1])
    return order, keys[0][order]


def _partition_ranks(table: pa.Table, names: list[str]) -> Int64:
    ranks = np.zeros(len(table), np.int64)
    for name in names:
        column = table.column(name).combine_chunks()
        distinct = column.unique()
        if len(distinct) > 1:
            # By the values, not by their order of appearance.
            by_value = distinct.take(pc.sort_indices(distinct))
            rank = pc.index_in(column, by_value).to_numpy().astype(np.int64)
            ranks = ranks * len(distinct) + rank
    return ranks


def _ascending(keys: list[Int64]) -> bool:
    """Whether rows are in order already, as those of one source partition mostly are."""
    before = np.zeros(max(0, len(keys[0]) - 1), np.bool_)
    equal = np.ones_like(before)
    for key in keys:
        before |= equal & (key[:-1] < key[1:])
        equal &= key[:-1] == key[1:]
    return bool((before | equal).all())


def _is_identity(order: Int64) -> bool:
    return bool((order == np.arange(len(order))).all())
