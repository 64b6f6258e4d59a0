"""The parts of aggregates, tables and records, for those that are in the usual order.

::

    0A len key …  12 len hash key …  │ 1A record …      tables first, entries shorter than 128 bytes

Tables are found as records are: an entry's successor must begin with one of the three tags, and the
entries must lead from the start of the message exactly to the first record. Aggregates for which
that fails are walked, entry by entry and record by record, and tried once more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headpond.formats.kpl_batch_abreast import walk_abreast
from headpond.formats.kpl_batch_scan import (
    Bytes,
    Flags,
    Headers,
    Ints,
    Records,
    prove,
    ranges,
    search,
    sound_headers,
)

_MIN_DENSITY = 4
"""All bytes are searched if at least one in so many belongs to aggregates."""
_KEY, _HASH_KEY, _RECORD = 0x0A, 0x12, 0x1A
_CONTINUED = 0x80


class Entries(NamedTuple):
    """Entries of one kind of table, of several aggregates one after the other."""

    counts: Ints
    """Entries of each aggregate."""
    starts: Ints
    ends: Ints


class Parts(NamedTuple):
    """Tables and records of those aggregates that were proven regular, one after the other."""

    proven: Flags
    """For every aggregate that was asked about."""
    counts: Ints
    """Records of each proven aggregate."""
    headers: Headers
    keys: Entries
    hash_keys: Entries


def find_parts(data: Bytes, view: memoryview, start: Ints, end: Ints) -> Parts:
    """Find the parts of aggregates whose messages lie at [start, end), ascending."""
    if not len(start):
        return _walk(data, view, start, end)
    walked = walk_abreast(data, start, end)
    if walked is not None:
        records = prove(sound_headers(data, walked.records), start, end)
        found = _with_tables(data, records, start, walked.entries)
    elif int((end - start).sum()) * _MIN_DENSITY < int(end[-1] - start[0]):
        return _walk(data, view, start, end)
    else:
        records = prove(sound_headers(data, search(data, int(start[0]), int(end[-1]))), start, end)
        found = _with_tables(data, records, start, None)
    if found.proven.all():
        return found
    rest = ~found.proven
    return _merge(found, rest, _walk(data, view, start[rest], end[rest]))


def _with_tables(data: Bytes, records: Records, start: Ints, position: Ints | None) -> Parts:
    """Read the tables between the start of each proven aggregate and its first record.

    Args:
        data: All bytes.
        records: Of the proven aggregates.
        start: Where the messages begin, of all aggregates.
        position: Where table entries seem to begin, ascending; None: they are searched for.
    """
    start = start[records.proven]
    first = records.headers.position[np.cumsum(records.counts) - records.counts]
    if position is None:
        position = _search_entries(data, start, first)
    lows = np.searchsorted(position, start)
    stops = np.searchsorted(position, first)
    if int((stops - lows).sum()) != len(position):  # some lie in aggregates that were not proven
        position = position[ranges(lows, stops - lows)]
        stops = np.cumsum(stops - lows)
        lows = np.concatenate(([0], stops[:-1]))
    ends = position + 2 + data[position + 1]
    filled = stops > lows
    good = filled.copy()
    good[filled] = position[lows[filled]] == start[filled]
    expected = np.empty_like(position)
    expected[:-1] = position[1:]
    expected[stops[filled] - 1] = first[filled]
    follows = (ends == expected) & (data[position + 1] < _CONTINUED)
    if not follows.all():
        good[np.searchsorted(stops, np.flatnonzero(~follows), side="right")] = False
    counts, headers = records.counts, records.headers
    proven = records.proven
    if not good.all():
        inside_good = np.repeat(good, stops - lows)
        position, ends = position[inside_good], ends[inside_good]
        headers = headers.pick(np.repeat(good, counts))
        counts = counts[good]
        lows, stops = lows[good], stops[good]
        proven = proven.copy()
        proven[proven] = good
    entries = stops - lows
    is_key = data[position] == _KEY
    owners = np.repeat(np.arange(len(entries)), entries)
    keys, hash_keys = (
        Entries(
            np.bincount(owners[kind], minlength=len(entries)).astype(np.int64),
            position[kind] + 2,
            ends[kind],
        )
        for kind in (is_key, ~is_key)
    )
    return Parts(proven, counts, headers, keys, hash_keys)


def _search_entries(data: Bytes, start: Ints, first: Ints) -> Ints:
    """List the positions in each [start, first) where a table entry might begin, ascending."""
    inside = ranges(start, first - start)
    tags = data[inside]
    position = inside[(tags == _KEY) | (tags == _HASH_KEY)]
    ends = position + 2 + data[position + 1]
    # An entry is followed by a tag and begins where another ends; bytes of keys rarely do both.
    after = data[np.minimum(ends, len(data) - 1)]
    likely = (after == _KEY) | (after == _HASH_KEY) | (after == _RECORD)
    position, ends = position[likely], ends[likely]
    begins = np.concatenate((start, ends))
    begins.sort()
    at = np.searchsorted(begins, position)
    found: Ints = position[begins[np.minimum(at, len(begins) - 1)] == position]
    return found


def _walk(data: Bytes, view: memoryview, start: Ints, end: Ints) -> Parts:
    """Find tables and records length by length."""
    firsts: list[int] = []
    positions: list[int] = []
    keys: list[tuple[int, int]] = []
    hash_keys: list[tuple[int, int]] = []
    key_counts: list[int] = []
    hash_key_counts: list[int] = []
    for low, high in zip(start.tolist(), end.tolist(), strict=True):
        before = len(keys), len(hash_keys)
        at = _walk_entries(view, _KEY, low, high, keys)
        at = _walk_entries(view, _HASH_KEY, at, high, hash_keys)
        firsts.append(at)
        key_counts.append(len(keys) - before[0])
        hash_key_counts.append(len(hash_keys) - before[1])
        while at < high and view[at] == _RECORD:
            positions.append(at)
            length, content = _length(view, at + 1, high)
            at = content + length
    first = np.array(firsts, np.int64)
    records = prove(sound_headers(data, np.array(positions, np.int64)), first, end)
    # The walk stops at the first record only if the tables end there, and the chain begins there
    # only if that record is sound.
    proven = records.proven.copy()
    begins = np.cumsum(records.counts) - records.counts
    good = records.headers.position[begins] == first[proven]
    proven[proven] = good
    return Parts(
        proven,
        records.counts[good],
        records.headers.pick(np.repeat(good, records.counts)),
        _entries(keys, key_counts, proven),
        _entries(hash_keys, hash_key_counts, proven),
    )


def _walk_entries(view: memoryview, tag: int, at: int, end: int, spans: list[tuple[int, int]]) -> int:
    """Collect entries while they follow each other; give the position after them."""
    while at < end and view[at] == tag:
        length, content = _length(view, at + 1, end)
        if content + length > end:
            break
        at = content + length
        spans.append((content, at))
    return at


def _length(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """Read a varint of up to three bytes; one that is longer or cut off comes out as beyond `end`."""
    length = shift = 0
    for position in range(at, min(at + 3, end)):
        byte = view[position]
        length |= (byte & 0x7F) << shift
        if byte < _CONTINUED:
            return length, position + 1
        shift += 7
    return end, end + 1


def _entries(spans: list[tuple[int, int]], counts: list[int], proven: Flags) -> Entries:
    count = np.array(counts, np.int64)
    flat = np.array(spans, np.int64).reshape(-1, 2)[np.repeat(proven, count)]
    return Entries(count[proven], flat[:, 0], flat[:, 1])


def _merge(found: Parts, rest: Flags, more: Parts) -> Parts:
    """Put the aggregates that a second attempt has proven among those of the first."""
    again = np.flatnonzero(rest)[more.proven]
    if not len(again):
        return found
    proven = found.proven.copy()
    proven[again] = True
    place = np.concatenate((np.flatnonzero(found.proven), again))
    order = np.argsort(place, kind="stable")

    def joined(mine: tuple[Ints, ...], theirs: tuple[Ints, ...]) -> list[Ints]:
        """Join columns whose first says how many rows of the others belong to each aggregate."""
        counts, *columns = (np.concatenate(both) for both in zip(mine, theirs, strict=True))
        rows = ranges((np.cumsum(counts) - counts)[order], counts[order])
        return [counts[order], *(column[rows] for column in columns)]

    counts, *headers = joined((found.counts, *found.headers), (more.counts, *more.headers))
    return Parts(
        proven,
        counts,
        Headers(*headers),
        Entries(*joined(found.keys, more.keys)),
        Entries(*joined(found.hash_keys, more.hash_keys)),
    )
