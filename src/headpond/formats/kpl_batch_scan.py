"""Finding the records of many aggregates at once, and proving that what was found is all there is.

No loop over records: a record begins with a signature that can be searched for in all bytes at once.

::

    1A len(1-3) 08 ………                     candidate: 1A here, and 08 two, three or four bytes on
    1A len 08 index [10 index] 1A len data  header: read for all candidates in a few array operations
    └──────────────── len ─────────────┘    sound: the data ends where the record ends
    tables │ record │ record │ … │ end      proof: each record ends where the next one begins, the last
                                            one where the message ends; the same for table entries

User data may hold the signature by chance (an aggregate inside an aggregate does). Then the chain
breaks and that aggregate is walked length by length instead; the same proof follows. Where it fails
again (tags, unknown fields, tables after records, lengths of 2 MiB and more, bad input) the
aggregate is left to the strict parser of `kpl_wire`.

All positions are offsets into one array of bytes. Each message is followed by 16 bytes of MD5, so
reading the two words after a position inside it never leaves the array.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

_CHUNK_BYTES = 1 << 19
"""Searched at a time: the intermediate arrays stay in a core's cache."""
_RECORD = 0x1A
_ONE, _LOW7, _EIGHT, _BYTE = np.uint64(1), np.uint64(0x7F), np.uint64(8), np.uint64(0xFF)


class Headers(NamedTuple):
    """Record headers, by position."""

    position: Ints
    partition_key_index: Ints
    explicit_hash_key_index: Ints
    """-1: none."""
    data_start: Ints
    data_end: Ints

    def pick(self, rows: Ints | Flags) -> Headers:
        """Keep some, given by number or by mask."""
        return Headers(*(column[rows] for column in self))


class Records(NamedTuple):
    """The records of several aggregates."""

    proven: Flags
    """For every aggregate that was asked about: its records follow each other exactly."""
    counts: Ints
    """Records of each proven aggregate."""
    headers: Headers
    """Of the proven aggregates, one after the other."""


def ranges(starts: Ints, counts: Ints) -> Ints:
    """Write out start, start + 1, … (count numbers) of every pair, one after the other."""
    before = np.cumsum(counts) - counts
    numbers: Ints = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return numbers


def any_given(index: Ints) -> bool:
    """Tell whether any index is not -1; of one number spread over all rows one is looked at."""
    return bool((index[: None if index.strides[0] else 1] >= 0).any())


def search(data: Bytes, start: int, end: int) -> Ints:
    """List the positions in [start, end) where a record might begin, ascending."""
    # Made once: fresh arrays of this size cost more than the comparisons.
    indices, tags = np.empty(_CHUNK_BYTES + 4, np.bool_), np.empty(_CHUNK_BYTES, np.bool_)
    marks = np.empty(_CHUNK_BYTES, np.bool_)
    found: list[Ints] = []
    marked: list[Words] = []
    for low in range(start, end, _CHUNK_BYTES):
        size = min(_CHUNK_BYTES, end - low)
        chunk = data[low : low + size + 4]
        here = marks[:size]
        np.equal(chunk, 0x08, out=indices[: size + 4])  # tag of a record's first field
        np.logical_or(indices[2 : size + 2], indices[3 : size + 3], out=here)
        np.logical_or(here, indices[4 : size + 4], out=here)
        np.equal(chunk[:size], _RECORD, out=tags[:size])
        np.logical_and(here, tags[:size], out=here)
        marks[size:] = False
        # Marks are rare: eight of them are looked at as one word.
        eights = marks.view("<u8")
        at = np.flatnonzero(eights != 0)
        marked.append(eights[at])
        at *= 8
        at += low
        found.append(at)
    return _positions(np.concatenate(found), np.concatenate(marked))


def _positions(base: Ints, words: Words) -> Ints:
    """List the positions of the bytes that are set (to 1) in words at `base`, ascending."""
    lowest = words & (~words + _ONE)
    several = np.flatnonzero(lowest != words)
    # The number of the only byte set, moved to the top byte by a multiplication.
    lowest *= np.uint64(0x0001020304050607)
    lowest >>= np.uint64(56)
    position = lowest.view(np.int64)
    if len(several):
        rest = words[several]
        rest &= rest - _ONE  # without the lowest
        rows, columns = np.nonzero(rest.view(np.uint8).reshape(-1, 8))
        position += base
        return np.insert(position, several[rows] + 1, base[several[rows]] + columns)
    position += base
    return position


def sound_headers(data: Bytes, position: Ints) -> Headers:
    """Read record headers at ascending positions and keep those that are sound.

    Sound: tag, length, index, optional hash key index, data, in this order, and the data ends where
    the record ends. Numbers have one to three bytes; in most records all have one.
    """
    words = np.ndarray((max(len(data) - 7, 0),), "<u8", buffer=data, strides=(1,))
    word = words[position]
    # 1A length 08 index 1A length, each number below 128
    short = (word & np.uint64(0x80FF80FF80FF)) == np.uint64(0x001A0008001A)
    # The record's length is its data's and 4: bytes 1 and 5 of the word, brought above each other.
    differs = word >> np.uint64(32)
    differs += np.uint64(4 << 8)
    differs ^= word
    differs &= np.uint64(0xFF00)
    exact = differs == 0
    exact &= short
    if exact.all():
        return _short_headers(position, word)
    others = np.flatnonzero(~short)
    if len(others):
        long = _long_headers(words, position[others])
        if len(long.position) < len(others):
            others = others[np.searchsorted(position[others], long.position)]
        if len(others) == len(position):
            return long
        exact[others] = True
    if not exact.all():
        kept = np.flatnonzero(exact)
        position, word = position[kept], word[kept]
        others = np.searchsorted(kept, others)
    found = _short_headers(position, word)
    if not len(others):
        return found
    hash_index = np.full(len(position), -1, np.int64)
    found = found._replace(explicit_hash_key_index=hash_index)
    for column, values in zip(found[1:], long[1:], strict=True):
        column[others] = values
    return found


def _short_headers(position: Ints, word: Words) -> Headers:
    """Read headers of six bytes."""
    index = word >> np.uint64(24)
    index &= _LOW7
    data_start = position + 6
    length = word >> np.uint64(40)
    length &= _LOW7
    data_end = length.view(np.int64)
    data_end += data_start
    none = np.broadcast_to(np.int64(-1), len(position))
    return Headers(position, index.view(np.int64), none, data_start, data_end)


def _long_headers(words: Words, position: Ints) -> Headers:
    """Read headers with numbers of one to three bytes, with or without a hash key index; keep the sound."""
    here = words[position + 1]
    length, length_bytes, sound = _varints(here)
    rest = here >> (length_bytes * _EIGHT)
    sound &= (rest & _BYTE) == 0x08  # noqa: PLR2004 - tag of the partition key index
    if not sound.all():
        # Most candidates end here; the others are few, or all of them are records.
        position, here, length = position[sound], here[sound], length[sound]
        length_bytes, rest = length_bytes[sound], rest[sound]
    index, index_bytes, sound = _varints(rest >> _EIGHT)
    used = length_bytes + index_bytes + _ONE
    rest = here >> (used * _EIGHT)
    hashed = (rest & _BYTE) == 0x10  # noqa: PLR2004 - tag of the explicit hash key index
    any_hashed = bool(hashed.any())
    if any_hashed or int(used.max(initial=0)) > 4:  # noqa: PLR2004 - a tag and three bytes of length remain
        rest = words[position + 1 + used.astype(np.int64)]
    hash_index = np.full(len(position), -1, np.int64)
    if any_hashed:
        number, number_bytes, complete = _varints(rest >> _EIGHT)
        hash_index[hashed] = number[hashed]
        sound &= complete | ~hashed
        skip = np.where(hashed, number_bytes + _ONE, np.uint64(0))
        used += skip
        rest = rest >> (skip * _EIGHT)
    sound &= (rest & _BYTE) == _RECORD  # the tag of data has the same value: field 3, bytes
    data_length, data_bytes, complete = _varints(rest >> _EIGHT)
    sound &= complete
    data_start = position + (used + data_bytes + np.uint64(2)).astype(np.int64)
    data_end = data_start + data_length.astype(np.int64)
    sound &= data_end == position + (length + length_bytes + _ONE).astype(np.int64)
    found = Headers(position, index.astype(np.int64), hash_index, data_start, data_end)
    return found if sound.all() else found.pick(sound)


def _varints(words: Words) -> tuple[Words, Words, Flags]:
    """Read the varint of one to three bytes at the low end of each word: value, bytes, is it one."""
    more = (words >> np.uint64(7)) & _ONE
    value = words & _LOW7
    if not more.any():
        return value, np.ones_like(value), np.ones(len(words), np.bool_)
    value |= (((words >> _EIGHT) & _LOW7) * more) << np.uint64(7)
    again = (words >> np.uint64(15)) & more
    length = _ONE + more + again
    if not again.any():
        return value, length, np.ones(len(words), np.bool_)
    value |= (((words >> np.uint64(16)) & _LOW7) * again) << np.uint64(14)
    return value, length, np.logical_not((words >> np.uint64(23)) & again)


def prove(headers: Headers, start: Ints, end: Ints) -> Records:
    """Keep the aggregates in which each record ends where the next begins, the last one at `end`.

    Args:
        headers: Sound headers, ascending; anywhere.
        start: Where each aggregate's records may begin at the earliest, ascending.
        end: Where each aggregate's last record must end.
    """
    lows = np.searchsorted(headers.position, start)
    counts = np.searchsorted(headers.position, end) - lows
    if int(counts.sum()) != len(headers.position):  # some lie outside, in plain records between
        headers = headers.pick(ranges(lows, counts))
    stops = np.cumsum(counts)
    proven = counts > 0
    expected = np.empty_like(headers.position)
    expected[:-1] = headers.position[1:]
    expected[stops[proven] - 1] = end[proven]
    follows = headers.data_end == expected
    if not follows.all():
        proven[np.searchsorted(stops, np.flatnonzero(~follows), side="right")] = False
        headers = headers.pick(np.repeat(proven, counts))
    return Records(proven, counts[proven], headers)
