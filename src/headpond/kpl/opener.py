"""The vectorised opener: user records of many aggregates as spans, without a Python object per record.

The messages are followed in lockstep, one field of each per step, since a field says where the next begins::

    message 0   0A len key  0A len key  1A len record  1A len record │ end
    message 1   0A len key  1A len record  1A len record  1A len record │ end
                ^ step 0    ^ step 1    ^ step 2       ^ step 3

A step costs a few array operations however many messages there are. When fewer than a dozen are left, each
is followed alone. Then all fields are judged at once. An aggregate is *proven* if

- its last field ends where the message ends, and each field is a key, an explicit hash key or a record,
- each record is `08 index [10 index] 1A data` and the data ends where the record ends,
- each index lies in its table, each table entry is UTF-8, and the keys, written out, stay within the bound.

Whatever is not proven (tags, unknown fields, an entry of 16 KiB and more, bad input) is left to the strict
reader of `wire`, which judges this one in the property tests. Why there are two: opening 100-byte records to
Arrow takes 0.28 µs of CPU a record, 1.7 times as long as their MD5; through the strict reader alone it takes
4.7 µs. A whole query over such a stream spends 1.5 µs on one (docs/engineering/performance-notes.md), so it
would take four times as much.

All positions are offsets into one array of bytes, in which 16 bytes of MD5 follow each message.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import Bools, Bytes, Ints, Words, slices, texts
from headpond.kpl.wire import MAX_FIELDS

_KEY, _HASH_KEY, _RECORD = 0x0A, 0x12, 0x1A
_INDEX, _HASH_INDEX, _DATA = 0x08, 0x10, 0x1A
_CONTINUED = 0x80
_FEW = 16
"""Messages that are followed alone in less time than a step over all of them takes."""
_STEPS_PER_LOOK = 32
_FAR = 1 << 32
"""Beyond the end of every message: the length has more than two bytes."""
_ONE, _LOW7, _EIGHT, _BYTE = np.uint64(1), np.uint64(0x7F), np.uint64(8), np.uint64(0xFF)


class Opened(NamedTuple):
    """The user records of the aggregates that were proven, one aggregate after the other."""

    proven: Bools
    """For every aggregate that was asked about."""
    counts: Ints
    """User records of each proven aggregate."""
    key: Ints
    """Per user record: the number of its partition key in `keys`."""
    hash_key: Ints
    """The number of its explicit hash key in `hash_keys`, -1: none."""
    data_start: Ints
    data_end: Ints
    keys: Any
    """Arrow strings: the partition key tables, one after the other."""
    hash_keys: Any


def _distances() -> Ints:
    """Tabulate, for the two bytes behind a field's tag, how far it is to the next field."""
    both = np.arange(1 << 16)
    low, high = both & 0xFF, both >> 8
    two = np.where(high < _CONTINUED, 3 + (low & 0x7F | high << 7), _FAR)
    table: Ints = np.where(low < _CONTINUED, 2 + low, two).astype(np.int64)
    return table


_DISTANCES = _distances()


def open_proven(buffer: Any, start: Ints, end: Ints, max_expanded_bytes: int) -> Opened:
    """Open the aggregates whose messages lie at [start, end) of an Arrow buffer, ascending and none empty.

    16 bytes follow each message. `max_expanded_bytes` bounds an aggregate's keys, written out per record.
    """
    if not len(start):
        none, empty = np.zeros(0, np.int64), pa.array([], pa.string())
        return Opened(np.zeros(0, np.bool_), *(none,) * 5, empty, empty)
    data = np.frombuffer(buffer, np.uint8)
    words = np.ndarray((len(data) - 7,), "<u8", buffer=data, strides=(1,))
    position, counts, proven = _follow(data, start, end)
    tags = data[position]
    known = (tags == _RECORD) | (tags == _KEY) | (tags == _HASH_KEY)
    proven[_owners(counts, np.flatnonzero(~known))] = False
    proven &= counts <= MAX_FIELDS
    if not proven.all():
        kept = np.repeat(proven, counts)
        position, tags, counts = position[kept], tags[kept], counts[proven]
        start, end = start[proven], end[proven]
    stops = np.empty_like(position)
    stops[:-1] = position[1:]
    stops[np.cumsum(counts) - 1] = end
    records = np.flatnonzero(tags == _RECORD)
    begins, data_end = position[records], stops[records]
    counts = _within(begins, start, end)
    key, hash_key, data_start, sound = _headers(data, words, begins, data_end)
    good = counts > 0
    longest, fields = 0, 5 * counts  # of each record, at most
    tables = []
    for numbers, tag in ((key, _KEY), (hash_key, _HASH_KEY)):
        mine = np.flatnonzero(tags == tag)
        table, is_text = _table(buffer, words, position[mine], stops[mine])
        tables.append(table)
        if not len(mine):
            sound &= numbers < 0
            continue
        entries = _within(position[mine], start, end)
        fields = fields + entries
        good[_owners(entries, np.flatnonzero(~is_text))] = False
        sound &= numbers < np.repeat(entries, counts)
        longest += pc.max(pc.binary_length(table)).as_py()
        # From a number in its own table to one in those of all messages.
        np.add(numbers, np.repeat(np.cumsum(entries) - entries, counts), out=numbers, where=numbers >= 0)
    good &= (counts * longest <= max_expanded_bytes) & (fields <= MAX_FIELDS)
    good[_owners(counts, np.flatnonzero(~sound))] = False
    if not good.all():
        proven[proven] = good
        kept = np.repeat(good, counts)
        key, hash_key, data_start, data_end = key[kept], hash_key[kept], data_start[kept], data_end[kept]
        counts = counts[good]
    return Opened(proven, counts, key, hash_key, data_start, data_end, *tables)


def _within(position: Ints, start: Ints, end: Ints) -> Ints:
    """Return how many of the ascending positions lie in each message."""
    counts: Ints = np.searchsorted(position, end) - np.searchsorted(position, start)
    return counts


def _owners(counts: Ints, items: Ints) -> Ints:
    """Return which message each item belongs to, of items that lie one message after the other."""
    owners: Ints = np.searchsorted(np.cumsum(counts), items, side="right")
    return owners


def _follow(data: Bytes, start: Ints, end: Ints) -> tuple[Ints, Ints, Bools]:
    """Follow all messages from field to field.

    Returns:
        Where fields begin, ascending; how many there are of each message; and for which messages the last
        one ends where the message does. Those of other messages have no meaning.
    """
    lengths = np.ndarray((len(data) - 2,), "<u2", buffer=data, offset=1, strides=(1,))
    distance = _DISTANCES.take
    found = [np.zeros(0, np.int64)]
    here, stop = start, end
    while len(here) >= _FEW:
        # Until fewer than half of these messages go on: then the arrays are made again for the rest.
        looks = []
        while np.count_nonzero(here < stop) * 2 >= len(stop):
            look = np.empty((_STEPS_PER_LOOK + 1, len(stop)), np.int64)
            look[0] = here
            for now, following in pairwise(look):
                np.add(now, distance(lengths[now]), out=following)
                np.minimum(following, stop, out=following)
            here = look[-1]
            looks.append(look[:-1])
        by_message = np.concatenate(looks).T
        found.append(by_message[by_message < stop[:, np.newaxis]])
        going = here < stop
        here, stop = here[going], stop[going]
    for at, last in zip(here.tolist(), stop.tolist(), strict=True):
        found.append(_follow_alone(data, at, last))
    position = np.concatenate(found)
    position.sort(kind="stable")  # sorted pieces: this merges them
    counts = _within(position, start, end)
    final = position[np.cumsum(counts) - 1]
    return position, counts, final + distance(lengths[final]) == end


def _follow_alone(data: Bytes, at: int, end: int) -> Ints:
    """Return where the fields of one message begin, one more than there may be at most."""
    view = data.data
    found = array("q")
    for _ in range(MAX_FIELDS + 1):
        if at >= end:
            break
        found.append(at)
        low = view[at + 1]
        if low < _CONTINUED:
            at += 2 + low
        else:
            high = view[at + 2]
            at += 3 + (low & 0x7F | high << 7) if high < _CONTINUED else _FAR
    return np.array(found, np.int64)


def _table(buffer: Any, words: Words, position: Ints, stops: Ints) -> tuple[Any, Bools]:
    """Read table entries: as Arrow strings, and which of them are UTF-8."""
    if not len(position):
        return pa.array([], pa.string()), np.zeros(0, np.bool_)
    _, size, _ = _varints(words[position + 1])
    return texts(slices(buffer, position + 1 + size.view(np.int64), stops))


def _headers(data: Bytes, words: Words, position: Ints, end: Ints) -> tuple[Ints, Ints, Ints, Bools]:
    """Read the records that lie at [position, end).

    Returns:
        Each one's partition key index, explicit hash key index (-1: none) and begin of the data; and whether
        it is sound: fields in the usual order, numbers of at most three bytes, data up to the end.
    """
    word = words[position]
    # 1A length 08 index 1A length, each number below 128: so are most records, if they are short.
    sound = (word & np.uint64(0x80FF80FF80FF)) == np.uint64(0x001A0008001A)
    index = (word >> np.uint64(24) & _LOW7).view(np.int64)
    data_start = position + 6
    word >>= np.uint64(40)
    word &= _LOW7
    sound &= data_start + word.view(np.int64) == end
    hash_index = np.full(len(position), -1, np.int64)
    rest = np.flatnonzero(~sound)
    if len(rest):
        columns = index, hash_index, data_start, sound
        for column, values in zip(
            columns, _long_headers(data, words, position[rest], end[rest]), strict=True
        ):
            column[rest] = values
    return index, hash_index, data_start, sound


def _long_headers(data: Bytes, words: Words, position: Ints, end: Ints) -> tuple[Ints, Ints, Ints, Bools]:
    """Read records of any size below 16 KiB, with and without an explicit hash key index."""
    at = position + 2 + (data[position + 1] >= _CONTINUED)
    word = words[at]
    sound = (word & _BYTE) == _INDEX
    index, size, complete = _varints(word >> _EIGHT)
    sound &= complete
    at += 1 + size.view(np.int64)
    word = words[at]
    hash_index = np.full(len(position), -1, np.int64)
    hashed = (word & _BYTE) == _HASH_INDEX
    if hashed.any():
        number, size, complete = _varints(word >> _EIGHT)
        hash_index[hashed] = number[hashed]
        sound &= complete | ~hashed
        at[hashed] += 1 + size.view(np.int64)[hashed]
        word = words[np.minimum(at, end)]  # one that is not sound may have run beyond the array
    sound &= (word & _BYTE) == _DATA
    length, size, complete = _varints(word >> _EIGHT)
    sound &= complete
    at += 1 + size.view(np.int64)
    sound &= at + length.view(np.int64) == end
    return index.view(np.int64), hash_index, at, sound


def _varints(words: Words) -> tuple[Words, Words, Bools]:
    """Read the varint of one to three bytes at the low end of each word: value, bytes, whether it is one."""
    more = (words >> np.uint64(7)) & _ONE
    value = words & _LOW7
    if not more.any():
        return value, np.ones_like(value), np.ones(len(words), np.bool_)
    value |= (((words >> _EIGHT) & _LOW7) * more) << np.uint64(7)
    again = (words >> np.uint64(15)) & more
    size = _ONE + more + again
    if not again.any():
        return value, size, np.ones(len(words), np.bool_)
    value |= (((words >> np.uint64(16)) & _LOW7) * again) << np.uint64(14)
    return value, size, np.logical_not((words >> np.uint64(23)) & again)
