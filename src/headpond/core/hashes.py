"""Hashes of bytes, a batch at a time: one that finds equal keys, one that finds the join task of a record.

::

    hash_keys   64 bits, ours: equal keys are looked for among equal hashes, and compared before they join
    murmur2     32 bits, Kafka's: a key's partition is its non-negative murmur2 modulo the partitions

With as many tasks as a topic has partitions, keys fall together as they do in a Kafka Streams application
that reads topics written by Kafka's own partitioner; a task's stream time is then the same. Source: Kafka's
`Utils.murmur2` and `BuiltInPartitioner.partitionForKey`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headpond.core.arrow import bytes_of, offsets_of

if TYPE_CHECKING:
    import pyarrow as pa

_U64 = npt.NDArray[np.uint64]
_U32 = npt.NDArray[np.uint32]
_Int = npt.NDArray[np.int64]

_MIX = np.uint64(0x9E3779B97F4A7C15)
_FOLD = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_MURMUR = np.uint32(0x5BD1E995)
_MURMUR_SEED = np.uint32(0x9747B28C)
HASH_VERSION = 1
"""Goes up when `hash_keys` changes: hashes lie in no state, but in the files of a worker's cache."""


def hash_keys(keys: pa.Array) -> _U64:
    """Hash the keys of a `binary` column; null keys hash like empty ones."""
    starts, sizes, data = _layout(keys)
    hashes: _U64 = (sizes.astype(np.uint64) + _HALF) * _FOLD
    for word, rows in _words(starts, sizes, data, 8, np.dtype("<u8")):
        part = hashes[rows] ^ (word * _MIX)
        part ^= part >> _HALF
        part *= _FOLD
        part ^= part >> _HALF
        hashes[rows] = part
    return hashes


def murmur2(keys: pa.Array) -> _U32:
    """Hash the keys of a `binary` column as Kafka's partitioner does; null keys hash like empty ones."""
    starts, sizes, data = _layout(keys)
    hashes: _U32 = _MURMUR_SEED ^ sizes.astype(np.uint32)
    whole = sizes & ~3
    for word, rows in _words(starts, whole, data, 4, np.dtype("<u4")):
        part = word * _MURMUR
        part ^= part >> np.uint32(24)
        part *= _MURMUR
        hashes[rows] = hashes[rows] * _MURMUR ^ part
    rest = sizes & 3
    for word, rows in _words(starts + whole, rest, data, 4, np.dtype("<u4")):
        hashes[rows] = (hashes[rows] ^ word) * _MURMUR
    hashes ^= hashes >> np.uint32(13)
    hashes *= _MURMUR
    hashes ^= hashes >> np.uint32(15)
    return hashes


def task_of(keys: pa.Array, tasks: int) -> _Int:
    """Return the join task of each key: the partition that Kafka's partitioner would choose."""
    return ((murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(tasks)).astype(np.int64)


def _layout(keys: pa.Array) -> tuple[_Int, _Int, npt.NDArray[np.uint8]]:
    """Where keys start, how long they are, and the bytes, with room for one whole word behind the last."""
    every = offsets_of(keys).astype(np.int64)
    first, last = int(every[0]), int(every[-1])
    data = np.zeros(last - first + 8, np.uint8)
    data[: last - first] = bytes_of(keys)[first:last]
    return every[:-1] - first, np.diff(every), data


def _words(
    starts: _Int, sizes: _Int, data: npt.NDArray[np.uint8], width: int, kind: np.dtype[np.unsignedinteger]
) -> list[tuple[npt.NDArray[np.unsignedinteger], _Int]]:
    """The words of all keys, round by round: the first of each, the second …; the last is padded with 0."""
    windows = np.lib.stride_tricks.sliding_window_view(data, width)
    rounds = []
    rows = np.flatnonzero(sizes > 0)
    at = 0
    while len(rows):
        words = windows[starts[rows] + at].copy().view(kind).reshape(-1)
        left = sizes[rows] - at
        short = np.flatnonzero(left < width)
        if len(short):
            # Shifted up and down again: what belongs to the next key falls out.
            spare = ((width - left[short]) * 8).astype(kind)
            words[short] = (words[short] << spare) >> spare
        rounds.append((words, rows))
        at += width
        rows = rows[left > width]
    return rounds
