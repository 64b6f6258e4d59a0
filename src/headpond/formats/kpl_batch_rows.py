"""User records as positions, and their gathering into Arrow columns.

While aggregates are opened nothing is copied: a row is a span of the blobs' bytes plus numbers of
entries in two lists of keys. At the end every column is cut out in one call:

::

    blobs   ……[data]…[data]……[data]…            rows as spans, ascending
    offsets    s0  e0 s1  e1   s2  e2           a binary array over the same bytes: data, gap, data, gap …
    take       0      2        4                its even slots, copied by Arrow
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.formats.kpl_batch_scan import any_given
from headpond.formats.rows import TAGS_TYPE

if TYPE_CHECKING:
    from headpond.formats.kpl_batch_scan import Ints

REASONS = (
    "checksum_mismatch",
    "protobuf_error",
    "missing_required",
    "index_out_of_range",
    "invalid_utf8",
    "expansion_limit",
)
"""Every reason a row can carry in `problem`, there with the prefix `kpl_`."""

_COLUMNS = [
    pa.field("origin", pa.int64(), nullable=False),
    pa.field("sub_sequence_number", pa.int64(), nullable=False),
    pa.field("partition_key", pa.string()),
    pa.field("explicit_hash_key", pa.string()),
    pa.field("data", pa.binary(), nullable=False),
    pa.field("aggregated", pa.bool_(), nullable=False),
    pa.field("problem", pa.string()),
]


def opened_schema(*, tags: bool) -> Any:
    """Name the columns of an opened batch; `tags` adds the last one."""
    return pa.schema([*_COLUMNS, pa.field("tags", TAGS_TYPE)] if tags else _COLUMNS)


@dataclass(slots=True)
class Rows:
    """Rows as positions; all arrays have one item per row."""

    origin: Ints
    sub_sequence_number: Ints
    key: Ints
    """Number of its partition key."""
    hash_key: Ints
    """Number of its explicit hash key, -1: none."""
    data_start: Ints
    data_end: Ints
    tagged: Ints
    """Number of its tags, -1: none."""

    def __len__(self) -> int:
        return len(self.origin)

    def arrays(self) -> tuple[Ints, ...]:
        """List the columns in the order of construction."""
        return (
            self.origin,
            self.sub_sequence_number,
            self.key,
            self.hash_key,
            self.data_start,
            self.data_end,
            self.tagged,
        )

    def pick(self, rows: Any) -> Rows:
        """Keep the given rows (numbers, a mask or a slice)."""
        return Rows(*(column[rows] for column in self.arrays()))

    @staticmethod
    def by_origin(parts: list[Rows]) -> Rows:
        """Join parts, each ordered by origin and of different origins, in the order of origins."""
        parts = [part for part in parts if len(part)] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        joined = Rows(
            *(np.concatenate(columns) for columns in zip(*(p.arrays() for p in parts), strict=True))
        )
        return joined.pick(np.argsort(joined.origin, kind="stable"))


@dataclass(slots=True)
class Texts:
    """A list of keys that rows point into."""

    values: Any
    """Arrow string array."""

    def lengths(self) -> Ints:
        """Bytes of every entry; 0 for null."""
        found = pc.fill_null(pc.binary_length(self.values), 0)
        return np.asarray(found.to_numpy(zero_copy_only=False)).astype(np.int64)


@dataclass(slots=True)
class Gathered:
    """What the columns of one piece are cut from."""

    buffer: Any
    """Arrow buffer with the blobs' bytes, that spans are relative to."""
    keys: Texts
    hash_keys: Texts
    problem_of: Any
    """int8 per origin: 0, or 1 + position in REASONS; None if no origin has one."""
    aggregate: Any
    """bool per origin: was opened."""
    tags: list[tuple[tuple[str, str | None], ...]] = field(default_factory=list)


def cut(buffer: Any, starts: Ints, ends: Ints) -> Any:
    """Copy ascending spans of a buffer (below 2 GiB) into a binary array."""
    if not len(starts):
        return pa.array([], pa.binary())
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[::2] = starts
    offsets[1::2] = ends
    everything = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), buffer])
    even = pa.array(np.arange(0, len(offsets), 2, dtype=np.int32))
    return pc.take(everything, even, boundscheck=False)


def record_batch(rows: Rows, source: Gathered, first_origin: int, *, tags: bool) -> Any:
    """Cut out the columns of these rows."""
    schema = opened_schema(tags=tags)
    columns = [
        pa.array(rows.origin + first_origin),
        pa.array(rows.sub_sequence_number),
        source.keys.values.take(pa.array(rows.key)),
        _optional(source.hash_keys.values, rows.hash_key),
        cut(source.buffer, rows.data_start, rows.data_end),
        _flags(source.aggregate, rows.origin),
        _problems(source.problem_of, rows.origin),
    ]
    if tags:
        columns.append(_tags(rows.tagged, source.tags))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _flags(aggregate: Any, origin: Ints) -> Any:
    if aggregate.all():  # as on every stream that one kind of producer feeds
        ones = pa.py_buffer(np.full((len(origin) + 7) // 8, 0xFF, np.uint8))
        return pa.Array.from_buffers(pa.bool_(), len(origin), [None, ones], 0)
    return pa.array(aggregate[origin])


def _optional(values: Any, index: Ints) -> Any:
    if not any_given(index):
        return pa.nulls(len(index), pa.string())
    return values.take(pa.array(index, mask=index < 0))


def _problems(problem_of: Any, origin: Ints) -> Any:
    if problem_of is None:
        return pa.nulls(len(origin), pa.string())
    return _optional(
        pa.array([f"kpl_{reason}" for reason in REASONS]), problem_of[origin].astype(np.int64) - 1
    )


def _tags(tagged: Ints, tags: list[tuple[tuple[str, str | None], ...]]) -> Any:
    """Build the list column; rows without tags have an empty list."""
    lengths = np.zeros(len(tagged) + 1, np.int32)
    flat: list[tuple[str, str | None]] = []
    for row in np.flatnonzero(tagged >= 0).tolist():
        some = tags[tagged[row]]
        lengths[row + 1] = len(some)
        flat += some
    values = pa.array([{"key": key, "value": value} for key, value in flat], TAGS_TYPE.value_type)
    return pa.ListArray.from_arrays(pa.array(np.cumsum(lengths, dtype=np.int32)), values, type=TAGS_TYPE)
