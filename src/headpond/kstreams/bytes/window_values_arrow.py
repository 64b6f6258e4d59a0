"""Conversions of window-store values by the batch: an Arrow array of bytes in, one out.

A conversion never looks at single bytes. The values of an array lie behind each other in one buffer, so a
second array over the same buffer can name *parts* of them without copying::

    buffer      head₀ timestamp₀ value₀ head₁ timestamp₁ value₁ …
    parts       0     1          2      3     4          5      …    (head = headersSize and headersBytes)

Taking parts 0, 2, 3, 5, … copies what stays in one pass of Arrow's kernel; the result's offsets are every
second one of the parts taken. A constant that is put in is one more part at the end of the buffer.
The result equals that of `headpond.kstreams.bytes.window_values`, value by value, errors included.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headpond.core import arrow
from headpond.core.arrow import Bools, Ints
from headpond.core.errors import UsageError
from headpond.kstreams.bytes.headers import SerializationError
from headpond.kstreams.bytes.window_values import TIMESTAMP_BYTES, ValueFormat, conversion

_NO_TIMESTAMP_BYTES = b"\xff" * TIMESTAMP_BYTES
_INT32_MAX = (1 << 31) - 1


def convert_values(values: pa.Array, source: ValueFormat, target: ValueFormat) -> pa.Array:
    """Convert an array of `binary` or `large_binary` from one value format to another; nulls stay null.

    Raises:
        SerializationError: A value is damaged; `facts["row"]` is the first such row.
        UsageError: The array is of another type.
    """
    if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
        raise UsageError(f"Values are binary or large_binary, not {values.type}.", type=str(values.type))
    if source is target or len(values) == 0:
        return values
    layout = _Layout(values)
    kept = layout.parts(layout.heads(source, target), TIMESTAMP_BYTES if source.has_timestamp else 0)
    constant = b"\x00" if target.has_headers and not source.has_headers else b""
    if target.has_timestamp and not source.has_timestamp:
        constant += _NO_TIMESTAMP_BYTES
    # parts of a value: 0 its head, 1 its timestamp (if any), 2 the rest; None is the constant
    order: list[int | None] = [0] if source.has_headers and target.has_headers else []
    order += [None] if constant else []
    order += [1, 2] if source.has_timestamp and target.has_timestamp else [2]
    return layout.arranged(kept, order, constant)


def column_of(values: list[bytes]) -> pa.Array:
    """Put a list of bytes without nulls into a `large_binary` array, faster than Arrow's own builder."""
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    data = pa.py_buffer(b"".join(values))
    return pa.Array.from_buffers(pa.large_binary(), len(values), [None, pa.py_buffer(offsets), data])


def bytes_of(values: pa.Array) -> memoryview:
    """Return all bytes of an array without nulls, one value behind the other, without copying."""
    layout = _Layout(values)
    return layout.data.data[int(layout.offsets[0]) : int(layout.offsets[-1])]


def numbers_of(column: pa.Array) -> Ints:
    """View an int64 array without nulls as NumPy's; pyarrow's own way imports pandas for it."""
    data = np.frombuffer(column.buffers()[1], dtype=np.int64)
    return data[column.offset : column.offset + len(column)]


def value_timestamps(values: pa.Array, value_format: ValueFormat) -> pa.Array:
    """Read the timestamps (ms) inside the values, as int64; null where a value is.

    Raises:
        SerializationError: A value is damaged; `facts["row"]` is the first such row.
        UsageError: The format has no timestamp.
    """
    if not value_format.has_timestamp:
        raise UsageError(f"Values of the format {value_format} hold no timestamp.", format=str(value_format))
    layout = _Layout(values)
    at = layout.starts + layout.heads(value_format, ValueFormat.PLAIN)
    return layout.numbers(at)


def window_starts(keys: pa.Array) -> pa.Array:
    """Read the window starts (ms) out of store keys without nulls, as int64.

    Raises:
        SerializationError: A key has fewer than 12 bytes.
    """
    layout = _Layout(keys)
    short = layout.sizes_below(TIMESTAMP_BYTES + 4)
    if short.any():
        row = int(np.flatnonzero(short)[0])
        raise SerializationError(
            f"A store key ends in 12 bytes; that of row {row} is shorter.", reason="key_too_short", row=row
        )
    return layout.numbers(layout.ends - (TIMESTAMP_BYTES + 4))


class _Layout:
    """Where the values of an array lie in its buffer; a null lies nowhere and has no bytes."""

    def __init__(self, values: pa.Array) -> None:
        self.values = values
        self.offsets: Ints = arrow.offsets_of(values).astype(np.int64)
        self.data = arrow.bytes_of(values)
        self.valid = arrow.valid(values) if values.null_count else None
        self.starts = self.offsets[:-1]
        self.ends = self.offsets[1:]

    def sizes_below(self, size: int) -> Bools:
        """Return which values are shorter than `size`; nulls are not."""
        short: Bools = (self.ends - self.starts) < size
        return short if self.valid is None else short & self.valid

    def heads(self, source: ValueFormat, target: ValueFormat) -> Ints:
        """Return the size of each value's headersSize and headersBytes together; 0 for a null, or without.

        Raises:
            SerializationError: A size is damaged, or less follows than the source format needs.
        """
        heads: Ints = np.zeros(len(self.starts), np.int64)
        bad: Bools = np.zeros(len(heads), np.bool_)
        if source.has_headers:
            block, after, whole = arrow.zigzag_varints(self.data, self.starts, self.ends)
            heads, bad = after - self.starts + block, ~whole | (block < 0)
        bad |= heads + (TIMESTAMP_BYTES if source.has_timestamp else 0) > self.ends - self.starts
        if self.valid is not None:
            bad &= self.valid
            heads = np.where(self.valid, heads, 0)
        if bad.any():
            self.raise_first(source, target, int(np.flatnonzero(bad)[0]))
        return heads

    def raise_first(self, source: ValueFormat, target: ValueFormat, row: int) -> None:
        """Raise the scalar conversion's error for the first value from `row` on that has one."""
        check = conversion(source, target)
        for number in range(row, len(self.values)):
            try:
                check(self.values[number].as_py())
            except SerializationError as error:
                raise SerializationError(
                    f"Row {number}: {error.message}", next_step=error.next_step, **error.facts, row=number
                ) from error
        raise AssertionError("the batch check and the scalar check disagree")

    def parts(self, heads: Ints, timestamp_bytes: int) -> Ints:
        """Return the offsets of three parts for each value: head, timestamp, rest."""
        offsets = np.empty(3 * len(heads) + 1, dtype=np.int64)
        offsets[0:-1:3] = self.starts
        offsets[1::3] = self.starts + heads
        cut = self.starts + heads + timestamp_bytes
        offsets[2::3] = cut if self.valid is None else np.where(self.valid, cut, self.starts)
        offsets[-1] = self.ends[-1]
        return offsets

    def arranged(self, offsets: Ints, order: list[int | None], constant: bytes) -> pa.Array:
        """Copy parts in the given order (None: the constant) into a new array."""
        count = len(self.values)
        large = len(self.data) + count * len(constant) > _INT32_MAX or pa.types.is_large_binary(
            self.values.type
        )
        kind, width = (pa.large_binary(), np.int64) if large else (pa.binary(), np.int32)
        data = pa.py_buffer(self.data)
        if constant:
            data = pa.py_buffer(np.concatenate((self.data, np.frombuffer(constant, dtype=np.uint8))))
            # The part between the last value and the constant is named so that parts stay contiguous.
            end = len(self.data)
            offsets = np.concatenate((offsets, np.array([end, end + len(constant)], dtype=np.int64)))
        per_value = len(order)
        indices = np.empty(count * per_value, dtype=np.int64)
        for place, part in enumerate(order):
            if part is None:
                indices[place::per_value] = len(offsets) - 2
            else:
                indices[place::per_value] = np.arange(part, 3 * count, 3)
        if self.valid is not None:
            self._empty_nulls(indices, per_value)
        taken = arrow.take_parts(data, offsets.astype(width), indices, kind)
        _, taken_offsets, taken_data = taken.buffers()
        found = np.frombuffer(taken_offsets, dtype=width)[: count * per_value + 1]
        bounds = pa.py_buffer(np.ascontiguousarray(found[::per_value]))
        result = pa.Array.from_buffers(kind, count, [arrow.mask_of(self.valid), bounds, taken_data])
        return result if result.type == self.values.type else _fitting(result, self.values.type)

    def _empty_nulls(self, indices: Ints, per_value: int) -> None:
        """Make every part of a null an empty one: the first part of that null is."""
        assert self.valid is not None
        nulls = np.flatnonzero(~self.valid)
        for place in range(per_value):
            indices[nulls * per_value + place] = nulls * 3

    def numbers(self, at: Ints) -> pa.Array:
        """Read the big-endian 64-bit numbers at these places; null where the value is."""
        safe = at if self.valid is None else np.where(self.valid, at, 0)
        if len(self.data) < TIMESTAMP_BYTES:
            return pa.nulls(len(at), pa.int64())
        windows = np.lib.stride_tricks.sliding_window_view(self.data, TIMESTAMP_BYTES)
        numbers = windows[safe].copy().view(">i8").reshape(-1).astype(np.int64)
        return arrow.int64_array(numbers, self.valid)


def _fitting(result: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bring a result back to the type that went in; a batch beyond 2 GiB cannot be."""
    try:
        return result.cast(kind)
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"The converted values take {result.nbytes} bytes, more than one array of {kind} holds.",
            next_step="Convert smaller batches, or pass large_binary.",
        ) from error
