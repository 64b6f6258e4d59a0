"""Record headers by the batch: Arrow lists of (key, value) ⇄ headersBytes.

The bytes of many records lie behind each other in one buffer, and so do their parts::

    buffer   count | key length | key | value length | value | key length | … | count | …
    parts    0     | 1          | 2   | 3            | 4     | 5          |   | …

Reading finds where the parts start, round by round over the headers of all records at once, and names the
keys and values by their place in the buffer. Writing joins whole columns. What is unusual (a damaged block,
bytes after the last header, ill-formed UTF-8) goes through `headpond.formats.headers`, whose results and
errors these functions share.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headpond.errors import UsageError
from headpond.formats.headers import (
    Header,
    SerializationError,
    decode_headers,
    encode_varint,
    prefix_bounds,
)

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
"""Headers as Spark's Kafka source gives them."""

_Int = npt.NDArray[np.int64]
_MORE = 0x80
_MAX_VARINT_BYTES = 5
_EMPTY = pa.scalar(b"", pa.binary())


_SMALL = 1024


@cache
def _small_varints() -> pa.Array:
    """Varints of -1 to _SMALL - 2."""
    return pa.array([encode_varint(number) for number in range(-1, _SMALL - 1)], pa.binary())


def varints(numbers: _Int) -> pa.Array:
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
        return pa.array([b""] * count, pa.binary()) if count < _FEW else _repeated_empty(count)
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
    offsets, data = _binary_buffers(pieces)
    bodies = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(np.ascontiguousarray(offsets[ends], np.int32)), data]
    )
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
    offsets, buffer = _binary_buffers(blocks)
    data = np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(0, np.uint8)
    found = _walk(offsets, data)
    if found is None:
        return _decode_each(blocks)
    counts, rows, starts = found
    # starts: per header where its key length, key, value length, value begin and where the value ends
    order = np.argsort(rows, kind="stable")
    starts = starts[order]
    bounds = np.ascontiguousarray(starts[:, :4].reshape(-1), np.int32)
    headers = len(starts)
    ends = np.append(bounds, starts[-1, 4] if headers else 0).astype(np.int32)
    parts = pa.Array.from_buffers(pa.binary(), 4 * headers, [None, pa.py_buffer(ends), buffer])
    places = np.arange(headers, dtype=np.int64) * 4
    # A part ends where the next one starts, except the value: the count of the next record may follow it.
    keys = parts.take(pa.array(places + 1))
    values = _slices(buffer, starts[:, 3], starts[:, 4])
    null = starts[:, 3] > starts[:, 4]
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
    """Take plain+headers bytes without nulls apart into headersBytes and values.

    Raises:
        SerializationError: A size is damaged; `facts["row"]` is the first such row.
    """
    offsets, buffer = _binary_buffers(payloads)
    data = np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(0, np.uint8)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    sizes, at, sound = _read_varints(data, starts, ends)
    middle = at + sizes
    if not sound or (sizes < 0).any() or (middle > ends).any():
        _raise_first_bad_prefix(payloads)
    bounds = np.empty(3 * len(starts) + 1, np.int32)
    bounds[0:-1:3], bounds[1::3], bounds[2::3] = starts, at, middle
    bounds[-1] = ends[-1] if len(ends) else 0
    parts = pa.Array.from_buffers(pa.binary(), 3 * len(starts), [None, pa.py_buffer(bounds), buffer])
    places = np.arange(len(starts), dtype=np.int64) * 3
    return parts.take(pa.array(places + 1)), parts.take(pa.array(places + 2))


def _raise_first_bad_prefix(payloads: pa.Array) -> None:
    for row, payload in enumerate(payloads.to_pylist()):
        try:
            prefix_bounds(payload)
        except SerializationError as error:
            raise SerializationError(
                f"Row {row}: {error.message}", next_step=error.next_step, **error.facts, row=row
            ) from error
    raise AssertionError("the batch check and the scalar check disagree")


def _count_and_rest(blocks: pa.Array) -> tuple[_Int, pa.Array]:
    blocks = canonical_headers(blocks)
    offsets, buffer = _binary_buffers(blocks)
    data = np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(0, np.uint8)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    present = ends > starts
    counts = np.zeros(len(starts), np.int64)
    at = starts.copy()
    numbers, after, _ = _read_varints(data, starts[present], ends[present])
    counts[present], at[present] = numbers, after
    return counts, _slices(buffer, at, ends)


def _walk(offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> tuple[_Int, _Int, _Int] | None:
    """Find all headers of all blocks; None when a block is not one that the writer makes."""
    at, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    counts = np.zeros(len(at), np.int64)
    live = np.flatnonzero(ends > at)
    numbers, cursor, sound = _read_varints(data, at[live], ends[live])
    if not sound or (numbers <= 0).any():
        return None
    counts[live] = numbers
    rows: list[_Int] = []
    starts: list[_Int] = []
    left = numbers
    limit = ends[live]
    while len(live):
        key_sizes, key_at, sound = _read_varints(data, cursor, limit)
        key_end = key_at + key_sizes
        if not sound or (key_sizes < 0).any() or (key_end > limit).any():
            return None
        value_sizes, value_at, sound = _read_varints(data, key_end, limit)
        value_end = value_at + value_sizes
        if not sound or (value_sizes < -1).any() or (value_end > limit).any():
            return None
        rows.append(live)
        starts.append(np.column_stack((cursor, key_at, key_end, value_at, value_end)))
        cursor = np.maximum(value_end, value_at)
        left = left - 1
        more = left > 0
        if (cursor[~more] != limit[~more]).any():
            return None  # bytes after the last header
        live, cursor, limit, left = live[more], cursor[more], limit[more], left[more]
    if not rows:
        return counts, np.empty(0, np.int64), np.empty((0, 5), np.int64)
    return counts, np.concatenate(rows), np.concatenate(starts)


def _read_varints(data: npt.NDArray[np.uint8], at: _Int, ends: _Int) -> tuple[_Int, _Int, bool]:
    """Read a varint at each place: the numbers, the places behind them, and whether all are whole."""
    if not len(at):
        return at, at, True
    if (at >= ends).any():
        return at, at, False
    byte = data[at].astype(np.int64)
    raw = byte & 0x7F
    after = at + 1
    rest = np.flatnonzero(byte >= _MORE)
    for group in range(1, _MAX_VARINT_BYTES):
        if not len(rest):
            break
        if (after[rest] >= ends[rest]).any():
            return at, at, False
        byte = data[after[rest]].astype(np.int64)
        raw[rest] |= (byte & 0x7F) << (7 * group)
        after[rest] += 1
        rest = rest[byte >= _MORE]
    if len(rest):
        return at, at, False
    raw &= 0xFFFFFFFF
    return (raw >> 1) ^ -(raw & 1), after, True


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


_FEW = 64


def _repeated_empty(count: int) -> pa.Array:
    zeros = pa.py_buffer(np.zeros(count + 1, np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [None, zeros, pa.py_buffer(b"")])


def _binary_buffers(values: pa.Array) -> tuple[npt.NDArray[np.int32], pa.Buffer | None]:
    _, offsets, data = values.buffers()
    every = np.frombuffer(offsets, np.int32) if offsets is not None else np.zeros(1, np.int32)
    return every[values.offset : values.offset + len(values) + 1], data


def _slices(buffer: pa.Buffer | None, starts: _Int, ends: _Int) -> pa.Array:
    """Copy stretches of a buffer, in its order, into a column; one that ends before it starts is empty."""
    count = len(starts)
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2] = starts
    bounds[1::2] = np.maximum(starts, ends)
    bounds[-1] = bounds[-2] if count else 0
    gaps = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), buffer])
    return gaps.take(pa.array(np.arange(count, dtype=np.int64) * 2))


def _numbers(column: pa.Array) -> _Int:
    numbers: _Int = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers
