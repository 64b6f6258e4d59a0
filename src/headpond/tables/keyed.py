"""Rows of a table by the keys of a batch: read no more than what may hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headpond.tables.delta import literal, quoted
from headpond.tables.partitions import BUCKET, bucket_of
from headpond.tables.typed import VALUE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headpond.tables.typed import TypedTable

MAX_LISTED_KEYS = 200
"""Up to so many different keys a read names each; beyond that it names their range."""


def rows_of_keys(
    typed: TypedTable, keys: Sequence[str], changes: pa.Table, own: Sequence[str], where: str | None = None
) -> pa.Table:
    """Read own columns of the rows that have a key of a batch.

    Args:
        typed: the table.
        keys: its key columns, as named at the source.
        changes: a typed batch.
        own: Delta columns to read.
        where: more SQL that a row must meet.

    Returns:
        `m:key` (canonical JSON, as in the batch) and the own columns, a row for each row found.
    """
    batch_keys = [VALUE + key for key in keys]
    columns = [typed.column(key) for key in keys]
    wanted = changes.select(["m:key", *batch_keys]).group_by(["m:key", *batch_keys]).aggregate([])
    parts = (_in_buckets(typed, wanted["m:key"]), among(wanted[batch_keys[0]], columns[0]), where)
    conditions = [part for part in parts if part is not None]
    found = _read_near(typed, [*columns, *own], conditions, wanted[batch_keys[0]])
    rows = wanted.join(found, keys=batch_keys, right_keys=columns, join_type="inner")
    return rows.select(["m:key", *own])


def _read_near(
    typed: TypedTable, columns: Sequence[str], conditions: Sequence[str], values: pa.ChunkedArray
) -> pa.Table:
    """Read rows whose first column has one of these values, and perhaps some others.

    What is read is as large as the table where keys lie far apart; it is looked through as it comes.
    """
    where = " AND ".join(f"({part})" for part in conditions) or None
    every = typed.file.schema()
    schema = pa.schema([every.field(name).remove_metadata() for name in columns])
    few = values.unique() if _hashed(values.type) and values.type == schema[0].type else None
    parts = []
    for part in typed.file.parts(columns, where):
        kept = part if few is None else part.filter(pc.is_in(part.column(0), value_set=few))
        if kept.num_rows:
            parts.append(kept)
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _hashed(kind: pa.DataType) -> bool:
    """Say whether values of a type can be looked up in a set."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind))


def _in_buckets(typed: TypedTable, keys: pa.ChunkedArray) -> str | None:
    """Say in SQL which buckets the keys are in, where they are not in all."""
    if not typed.buckets:
        return None
    found = bucket_of(keys, typed.buckets).unique()
    if len(found) >= typed.buckets:
        return None
    return f"{quoted(BUCKET)} IN ({', '.join(map(literal, sorted(found.to_pylist())))})"


def among(values: pa.ChunkedArray, column: str) -> str | None:
    """Say in SQL which rows can have one of these values, so that files without any are not read.

    Null where the type has no order that a literal could name; everything is read then.
    """
    if not (pa.types.is_integer(values.type) or pa.types.is_string(values.type)) or len(values) == 0:
        return None
    if len(different := values.unique()) <= MAX_LISTED_KEYS:
        return f"{quoted(column)} IN ({', '.join(map(literal, different.to_pylist()))})"
    ends = pc.min_max(different)
    return f"{quoted(column)} BETWEEN {literal(ends['min'].as_py())} AND {literal(ends['max'].as_py())}"
