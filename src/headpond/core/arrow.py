"""Spans of bytes, NumPy arrays and Arrow columns: what every batch reader of a format needs.

A reader works out where its values lie, as arrays of positions in one buffer. `slices` then copies all values
of a column in one call of Arrow's kernel, without a Python object for any of them::

    buffer     ……[value]…[value]……[value]…       starts and ends, ascending
    offsets      s0   e0 s1   e1   s2   e2        an array over the same buffer: value, gap, value, gap …
    taken        0       2         4              its even slots, copied

Arrays go to Arrow by their buffers: `pyarrow.array` of a NumPy array would import pandas, which takes a
second.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.errors import MissingRequirement

OLDEST_PYARROW = 24
"""Before it, `if_else` of part of a binary column gave other bytes than it was given."""

if int(pa.__version__.partition(".")[0]) < OLDEST_PYARROW:  # an executor has what its image brings
    raise MissingRequirement(
        f"headpond needs pyarrow {OLDEST_PYARROW} or newer, and {sys.prefix} has {pa.__version__}, which "
        "would change some values.",
        next_step=f"Install it on every machine of the cluster: pip install 'pyarrow>={OLDEST_PYARROW}'",
        module="pyarrow",
    )

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
S = TypeVar("S", bound=np.generic)

_MAX_VARINT_BYTES = 5
_CONTINUED = 0x80


def offsets_of(values: Any) -> npt.NDArray[Any]:
    """Return the n + 1 offsets of a binary or string array of n values, int64 if its type is a large one."""
    large = pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type)
    width = np.dtype(np.int64 if large else np.int32)
    buffer = values.buffers()[1]
    if buffer is None or not buffer.size:  # writers may leave out the one offset of an empty array
        return np.zeros(1, width)
    return np.frombuffer(buffer, width, len(values) + 1, values.offset * width.itemsize)


def bytes_of(values: Any) -> Bytes:
    """Return the whole buffer that the offsets of a binary or string array point into."""
    buffer = values.buffers()[2]
    return np.frombuffer(buffer, np.uint8) if buffer is not None else np.zeros(0, np.uint8)


def valid(values: Any) -> Bools:
    """Return which values are not null."""
    mask: Bools = pc.is_valid(values).to_numpy(zero_copy_only=False)
    return mask


def mask_of(given: Bools | None) -> Any:
    """Return the validity buffer of an Arrow array; None stands for "no nulls" on both sides."""
    return None if given is None else pa.py_buffer(np.packbits(given, bitorder="little"))


def int64_array(numbers: Ints, given: Bools | None = None) -> Any:
    """Return int64 numbers as an Arrow array without a copy; those not `given` are null."""
    buffer = pa.py_buffer(np.ascontiguousarray(numbers, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(numbers), [mask_of(given), buffer])


def slices(buffer: Any, starts: npt.NDArray[Any], ends: npt.NDArray[Any]) -> Any:
    """Copy spans of a buffer below 2 GiB into a new binary array.

    Args:
        buffer: Arrow buffer, or None where all spans are empty.
        starts: Where each value begins, in bytes.
        ends: Where it ends. Each span begins at or behind the end of the one before; one that would end
            before it begins is empty.
    """
    cuts = np.empty(2 * len(starts), np.int32)
    cuts[::2] = starts
    np.maximum(starts, ends, out=cuts[1::2], casting="unsafe")
    return take_parts(buffer, cuts, np.arange(0, len(cuts), 2, dtype=np.int32))


def take_parts(buffer: Any, cuts: npt.NDArray[Any], parts: npt.NDArray[Any], kind: Any = None) -> Any:
    """Copy some of the parts that ascending cuts divide a buffer into; `slices` takes every second one.

    Args:
        buffer: Arrow buffer, or None where all parts are empty.
        cuts: int32, or int64 for a large kind; part i lies between cuts i and i + 1.
        parts: Numbers of the parts wanted, in any order, int32 or int64.
        kind: Type of the result; `pa.binary()` by default.
    """
    kind = kind or pa.binary()
    if not len(parts):
        return pa.array([], kind)
    data = pa.py_buffer(b"") if buffer is None else buffer
    everything = pa.Array.from_buffers(kind, len(cuts) - 1, [None, pa.py_buffer(cuts), data])
    index_type = pa.int32() if parts.dtype == np.int32 else pa.int64()
    wanted = pa.Array.from_buffers(index_type, len(parts), [None, pa.py_buffer(parts)])
    return pc.take(everything, wanted, boundscheck=False)


def texts(raw: Any) -> tuple[Any, Bools]:
    """Return a binary array as strings, and which of them are UTF-8; one that is not comes out empty."""
    good = np.ones(len(raw), np.bool_)
    try:
        return raw.cast(pa.string()), good
    except pa.ArrowInvalid:
        found = []
        for row, one in enumerate(raw.to_pylist()):
            try:
                found.append(None if one is None else one.decode())
            except UnicodeDecodeError:
                found.append("")
                good[row] = False
        return pa.array(found, pa.string()), good


def taken(rows: Any, at: Ints) -> Any:
    """Return rows of a table by their numbers, which ascend: without putting its chunks together first."""
    parts, first = [rows.slice(0, 0)], 0
    for batch in rows.to_batches():
        begin, end = np.searchsorted(at, (first, first + len(batch)))
        parts.append(pa.Table.from_batches([batch.take(pa.array(at[begin:end] - first))]))
        first += len(batch)
    return pa.concat_tables(parts)


def ranges(starts: Ints, counts: Ints) -> Ints:
    """Return start, start + 1, … (count numbers) of every pair, one after the other."""
    before = np.cumsum(counts) - counts
    numbers: Ints = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return numbers


def distinct(numbers: npt.NDArray[S]) -> npt.NDArray[S]:
    """Return each number once, in order.

    NumPy's own `unique` builds a table of hashes since 2.3, which takes ten to fifty times as long.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    numbers = np.sort(numbers)
    is_first = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=is_first[1:])
    return numbers[is_first]


def zigzag_varints(data: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Bools]:
    """Read the zigzag varint (as Kafka writes 32-bit numbers) that begins at each position.

    Returns the numbers, the positions after them, and which are whole: at most 5 bytes, all before their end.
    Numbers and positions of the others have no meaning.
    """
    whole = starts < ends
    after = starts + 1
    if not len(data):
        return np.zeros(len(starts), np.int64), after, whole
    raw = data[starts if whole.all() else np.where(whole, starts, 0)].astype(np.int64)
    rest = np.flatnonzero(raw >= _CONTINUED)
    raw &= 0x7F
    for group in range(1, _MAX_VARINT_BYTES):
        if not len(rest):
            break
        cut = after[rest] >= ends[rest]
        if cut.any():
            whole[rest[cut]] = False
            rest = rest[~cut]
        byte = data[after[rest]].astype(np.int64)
        raw[rest] |= (byte & 0x7F) << (7 * group)
        after[rest] += 1
        rest = rest[byte >= _CONTINUED]
    whole[rest] = False
    raw &= 0xFFFFFFFF
    return (raw >> 1) ^ -(raw & 1), after, whole
