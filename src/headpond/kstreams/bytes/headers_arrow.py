"""Record headers by the batch: Arrow lists of (key, value) ⇄ headersBytes.

The bytes of many records lie behind each other in one buffer, and so do their parts::

    buffer   count | key length | key | value length | value | key length | … | count | …
    parts    0     | 1          | 2   | 3            | 4     | 5          |   | …

Reading finds where the parts start, round by round over the headers of all records at once, and names the
keys and values by their place in the buffer. Writing joins whole columns. What is unusual (a damaged block,
bytes after the last header, ill-formed UTF-8) goes through `kstreams.bytes.headers`, whose results and errors
these functions share.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import Bytes, Ints, bytes_of, offsets_of, slices, take_parts, zigzag_varints
from headpond.core.errors import UsageError
from headpond.kstreams.bytes.headers import (
    Header,
    SerializationError,
    decode_headers,
    encode_varint,
    prefix_bounds,
)

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
"""Headers as Spark's Kafka source gives them."""

_EMPTY = pa.scalar(b"", pa.binary())
_SMALL = 1024
_FEW = 64


@cache
def _small_varints() -> pa.Array:
    """Varints of -1 to _SMALL - 2."""
    return pa.array([encode_varint(number) for number in range(-1, _SMALL - 1)], pa.binary())


def varints(numbers: Ints) -> pa.Array:
    """Encode numbers as zigzag varints; few different ones are expected."""
    if len(numbers) > _FEW and numbers.min() >= -1 and numbers.max() < _SMALL - 1:
        # Sizes and counts mostly are: looked up, with nothing sorted.
        return _small_varints().take(pa.array(numbers + 1))
    distinct, which = np.unique(numbers, return_inverse=True)
    encoded = pa.array([encode_varint(int(each)) for each in distinct], pa.binary())
    return encoded.take(pa.array(which.reshape(-1)))


def encode_headers_column(headers: pa.Array) -> pa.Array:
    """Encode a column of lists of (key, value) as headersBytes; null and empty lists are no bytes.

    Raises:
        UsageError: The key of a header is null.
    """
    count = len(headers)
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    if headers.null_count:
        headers = pc.fill_null(headers, pa.scalar([], headers.type)) if count else headers
    listed = headers.flatten()
    if len(listed) == 0:
        return pa.repeat(_EMPTY, count)
    keys = listed.field(0)
    values = listed.field(1).cast(pa.binary())
    if keys.null_count or listed.null_count:
        raise UsageError(
            "The key of a header is null.",
            next_step="Filter such headers out before the join: Kafka has none of them.",
        )
    keys = keys.cast(pa.binary())
    key_sizes = _numbers(pc.binary_length(keys))
    value_sizes = _numbers(pc.fill_null(pc.binary_length(values), -1))
    pieces = pc.binary_join_element_wise(
        varints(key_sizes), keys, varints(value_sizes), pc.fill_null(values, _EMPTY), _EMPTY
    )
    sizes = _numbers(pc.list_value_length(headers))
    # The pieces of a record lie behind each other: its block is one stretch of their buffer.
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    bounds = pa.py_buffer(np.ascontiguousarray(offsets_of(pieces)[ends], np.int32))
    bodies = pa.Array.from_buffers(pa.binary(), count, [None, bounds, pieces.buffers()[2]])
    counts = varints(sizes)
    if not sizes.all():
        counts = pc.if_else(pa.array(sizes > 0), counts, _EMPTY)
    return pc.binary_join_element_wise(counts, bodies, _EMPTY)


def decode_headers_column(blocks: pa.Array) -> pa.Array:
    """Decode a column of headersBytes without nulls into lists of (key, value).

    Raises:
        SerializationError: A block is damaged; `facts["row"]` is the first such row.
    """
    if isinstance(blocks, pa.ChunkedArray):
        blocks = blocks.combine_chunks()
    found = _walk(offsets_of(blocks), bytes_of(blocks))
    if found is None:
        return _decode_each(blocks)
    counts, rows, starts = found
    # starts: per header where its key begins and ends, where its value begins and ends
    starts = starts[np.argsort(rows, kind="stable")]
    buffer = blocks.buffers()[2]
    keys = slices(buffer, starts[:, 0], starts[:, 1])
    values = slices(buffer, starts[:, 2], starts[:, 3])
    null = starts[:, 2] > starts[:, 3]
    if null.any():
        values = pc.if_else(pa.array(~null), values, pa.scalar(None, pa.binary()))
    try:
        names = keys.cast(pa.string())
    except pa.ArrowInvalid:
        return _decode_each(blocks)
    lists = np.zeros(len(blocks) + 1, np.int32)
    np.cumsum(counts, out=lists[1:])
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
    return pa.ListArray.from_arrays(pa.array(lists), pairs).cast(HEADERS_TYPE)


def merge_headers_columns(first: pa.Array, second: pa.Array) -> pa.Array:
    """Put the headers of the second column behind those of the first, block by block.

    Raises:
        SerializationError: A block is damaged.
    """
    counts, rest = zip(*(_count_and_rest(each) for each in (first, second)), strict=True)
    total = counts[0] + counts[1]
    head = varints(total)
    if not total.all():
        head = pc.if_else(pa.array(total > 0), head, _EMPTY)
    return pc.binary_join_element_wise(head, rest[0], rest[1], _EMPTY)


def canonical_headers(blocks: pa.Array) -> pa.Array:
    """Rewrite headersBytes that a lenient reader accepts in the one form that the writer makes.

    Raises:
        SerializationError: A block is damaged; `facts["row"]` is the first such row.
    """
    return encode_headers_column(decode_headers_column(blocks))


def join_prefix(blocks: pa.Array, values: pa.Array) -> pa.Array:
    """Put headersBytes and values together as plain+headers: headersSize, headersBytes, value."""
    return pc.binary_join_element_wise(varints(_numbers(pc.binary_length(blocks))), blocks, values, _EMPTY)


def split_prefix(payloads: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Split plain+headers bytes without nulls into headersBytes and values.

    Raises:
        SerializationError: A size is damaged; `facts["row"]` is the first such row.
    """
    offsets = offsets_of(payloads).astype(np.int64)
    starts, ends = offsets[:-1], offsets[1:]
    sizes, at, whole = zigzag_varints(bytes_of(payloads), starts, ends)
    middle = at + sizes
    if not whole.all() or (sizes < 0).any() or (middle > ends).any():
        _raise_first_bad_prefix(payloads)
    bounds = np.empty(3 * len(starts) + 1, np.int32)
    bounds[0:-1:3], bounds[1::3], bounds[2::3] = starts, at, middle
    bounds[-1] = ends[-1] if len(ends) else 0
    places = np.arange(len(starts)) * 3
    buffer = payloads.buffers()[2]
    return take_parts(buffer, bounds, places + 1), take_parts(buffer, bounds, places + 2)


def _raise_first_bad_prefix(payloads: pa.Array) -> None:
    for row, payload in enumerate(payloads.to_pylist()):
        try:
            prefix_bounds(payload)
        except SerializationError as error:
            raise SerializationError(
                f"Row {row}: {error.message}", next_step=error.next_step, **error.facts, row=row
            ) from error
    raise AssertionError("the batch check and the scalar check disagree")


def _count_and_rest(blocks: pa.Array) -> tuple[Ints, pa.Array]:
    blocks = canonical_headers(blocks)
    offsets = offsets_of(blocks).astype(np.int64)
    starts, ends = offsets[:-1], offsets[1:]
    present = ends > starts
    counts = np.zeros(len(starts), np.int64)
    at = starts.copy()
    numbers, after, _ = zigzag_varints(bytes_of(blocks), starts[present], ends[present])
    counts[present], at[present] = numbers, after
    return counts, slices(blocks.buffers()[2], at, ends)


def _walk(offsets: Ints, data: Bytes) -> tuple[Ints, Ints, Ints] | None:
    """Find all headers of all blocks; None when a block is not one that the writer makes."""
    at, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    counts = np.zeros(len(at), np.int64)
    live = np.flatnonzero(ends > at)
    numbers, cursor, whole = zigzag_varints(data, at[live], ends[live])
    if not whole.all() or (numbers <= 0).any():
        return None
    counts[live] = numbers
    rows: list[Ints] = []
    starts: list[Ints] = []
    left = numbers
    limit = ends[live]
    while len(live):
        key_sizes, key_at, whole = zigzag_varints(data, cursor, limit)
        key_end = key_at + key_sizes
        if not whole.all() or (key_sizes < 0).any() or (key_end > limit).any():
            return None
        value_sizes, value_at, whole = zigzag_varints(data, key_end, limit)
        value_end = value_at + value_sizes
        if not whole.all() or (value_sizes < -1).any() or (value_end > limit).any():
            return None
        rows.append(live)
        starts.append(np.column_stack((key_at, key_end, value_at, value_end)))
        cursor = np.maximum(value_end, value_at)
        left = left - 1
        more = left > 0
        if (cursor[~more] != limit[~more]).any():
            return None  # bytes after the last header
        live, cursor, limit, left = live[more], cursor[more], limit[more], left[more]
    if not rows:
        return counts, np.empty(0, np.int64), np.empty((0, 4), np.int64)
    return counts, np.concatenate(rows), np.concatenate(starts)


def _decode_each(blocks: pa.Array) -> pa.Array:
    lists: list[list[Header]] = []
    for row, block in enumerate(blocks.to_pylist()):
        try:
            lists.append(decode_headers(block))
        except SerializationError as error:
            raise SerializationError(
                f"Row {row}: {error.message}", next_step=error.next_step, **error.facts, row=row
            ) from error
    return pa.array([[{"key": k, "value": v} for k, v in each] for each in lists], HEADERS_TYPE)


def _numbers(column: pa.Array) -> Ints:
    numbers: Ints = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers
