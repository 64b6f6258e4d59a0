"""One piece of Kinesis records, below 2 GiB, to rows as spans: the middle of `kpl_batch`.

Rows come from three sides, each in the order of origins: aggregates proven regular, aggregates that
the strict parser opened, and single records (plain or malformed). Partition keys are numbered in
that order, too: table entries of the first, used entries of the second, keys of the Kinesis records.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from headpond.formats.kpl_batch_find import Entries, Parts, find_parts
from headpond.formats.kpl_batch_rows import REASONS, Gathered, Rows, Texts, cut
from headpond.formats.kpl_batch_scan import Flags, Ints, any_given
from headpond.formats.kpl_model import CHECKSUM_BYTES, FRAMING_BYTES, MAGIC, Malformed
from headpond.formats.kpl_wire import ParsedAggregate, WireError, parse_aggregate

if TYPE_CHECKING:
    from headpond.formats.kpl_batch_scan import Bytes

_MAGIC_WORD = np.frombuffer(MAGIC, "<u4")[0]
_MISMATCH = 1 + REASONS.index("checksum_mismatch")
_NONE = np.zeros(0, np.int64)


class Piece(NamedTuple):
    """Blobs one after the other."""

    buffer: Any
    """Arrow buffer."""
    offsets: Ints
    """Where each begins, and where the last one ends."""


class Bounds(NamedTuple):
    """What one aggregate may make of itself; see `kpl_wire`."""

    max_group_depth: int
    max_expanded_bytes: int


class Found(NamedTuple):
    """What a piece holds."""

    rows: Rows
    source: Gathered
    malformed: dict[int, Malformed]
    """By origin."""
    empty_aggregates: int


class _Regular(NamedTuple):
    """The aggregates that were proven regular, and those left over."""

    rows: Rows
    keys: Any
    hash_keys: Any
    rest: Ints
    """Origins of aggregates for the strict parser."""


def open_piece(
    piece: Piece, partition_keys: Any, explicit_hash_keys: Any, bounds: Bounds, *, tags: bool
) -> Found:
    """Open the aggregates of a piece; keys are Arrow string arrays with an item per blob."""
    count = len(piece.offsets) - 1
    view = memoryview(piece.buffer).cast("B")
    data = np.frombuffer(view, np.uint8)
    sound, mismatched = _check_framing(data, view, piece.offsets)
    regular = _open_regular(data, view, piece, np.flatnonzero(sound), bounds.max_expanded_bytes)
    odd = _Irregular(len(regular.keys), len(regular.hash_keys))
    for origin in regular.rest.tolist():
        start, end = int(piece.offsets[origin]), int(piece.offsets[origin + 1])
        blob = bytes(view[start:end])
        try:
            odd.take_in(origin, start, blob, parse_aggregate(blob, tags=tags, **bounds._asdict()), tags=tags)
        except WireError as error:
            odd.malformed[origin] = error.malformed
    aggregate = sound.copy()
    aggregate[list(odd.malformed)] = False
    singles = np.flatnonzero(~aggregate)
    api_key, api_hash_key = odd.key_count, odd.hash_key_count
    own_hash_key = np.full(len(singles), -1, np.int64)
    if explicit_hash_keys.null_count < count:
        given = ~np.asarray(explicit_hash_keys.is_null().to_numpy(zero_copy_only=False))[singles]
        own_hash_key[given] = api_hash_key + singles[given]
    single_rows = Rows(
        origin=singles,
        sub_sequence_number=np.zeros(len(singles), np.int64),
        key=api_key + singles,
        hash_key=own_hash_key,
        data_start=piece.offsets[singles],
        data_end=piece.offsets[singles + 1],
        tagged=np.full(len(singles), -1, np.int64),
    )
    problem_of = None
    if mismatched.any() or odd.malformed:
        problem_of = np.where(mismatched, _MISMATCH, 0).astype(np.int8)
        for origin, malformed in odd.malformed.items():
            problem_of[origin] = 1 + REASONS.index(malformed.reason)
    source = Gathered(
        piece.buffer,
        _joined([regular.keys, pa.array(odd.keys, pa.string()), partition_keys]),
        _joined([regular.hash_keys, pa.array(odd.hash_keys, pa.string()), explicit_hash_keys]),
        problem_of,
        aggregate,
        odd.tags,
    )
    rows = Rows.by_origin([regular.rows, odd.rows(), single_rows])
    return Found(rows, source, odd.malformed, odd.empty_aggregates)


def _joined(parts: list[Any]) -> Texts:
    parts = [part for part in parts if len(part)] or parts[:1]
    return Texts(parts[0] if len(parts) == 1 else pa.concat_arrays(parts))


def _check_framing(data: Bytes, view: memoryview, offsets: Ints) -> tuple[Flags, Flags]:
    """Mark the blobs that are aggregates, and those with magic whose checksum is wrong."""
    count = len(offsets) - 1
    sound, mismatched = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    long_enough = np.flatnonzero(np.diff(offsets) > FRAMING_BYTES)
    if not len(long_enough):
        return sound, mismatched
    words = np.ndarray((len(data) - 3,), "<u4", buffer=data, strides=(1,))
    candidates = long_enough[words[offsets[long_enough]] == _MAGIC_WORD]
    md5 = hashlib.md5
    verdicts = []
    for start, end in zip(offsets[candidates].tolist(), offsets[candidates + 1].tolist(), strict=True):
        stop = end - CHECKSUM_BYTES
        verdicts.append(md5(view[start + 4 : stop], usedforsecurity=False).digest() == view[stop:end])
    sound[candidates] = verdicts
    mismatched[candidates] = ~sound[candidates]
    return sound, mismatched


def _open_regular(
    data: Bytes, view: memoryview, piece: Piece, origins: Ints, max_expanded_bytes: int
) -> _Regular:
    """Open what is in the usual shape."""
    start = piece.offsets[origins] + len(MAGIC)
    end = piece.offsets[origins + 1] - CHECKSUM_BYTES
    parts = find_parts(data, view, start, end)
    good = _in_range(parts)
    if len(good) and max_expanded_bytes < _longest(parts):
        good &= _expanded(parts) <= max_expanded_bytes
    keys, valid_keys = _texts(piece.buffer, view, parts.keys)
    hash_keys, valid_hash_keys = _texts(piece.buffer, view, parts.hash_keys)
    good &= valid_keys & valid_hash_keys
    owners = np.flatnonzero(parts.proven)
    rows = _rows(parts, origins[owners])
    if good.all():
        return _Regular(rows, keys, hash_keys, origins[~parts.proven])
    regular = parts.proven.copy()
    regular[owners] = good
    return _Regular(rows.pick(np.repeat(good, parts.counts)), keys, hash_keys, origins[~regular])


def _in_range(parts: Parts) -> Flags:
    """Mark the aggregates whose records all point into their tables."""
    counts, headers = parts.counts, parts.headers
    inside = headers.partition_key_index < np.repeat(parts.keys.counts, counts)
    if any_given(headers.explicit_hash_key_index):
        inside &= headers.explicit_hash_key_index < np.repeat(parts.hash_keys.counts, counts)
    good = np.ones(len(counts), np.bool_)
    if not inside.all():
        good[np.searchsorted(np.cumsum(counts), np.flatnonzero(~inside), side="right")] = False
    return good


def _longest(parts: Parts) -> int:
    """Bound the size of any aggregate's keys when written out per record."""
    entries = sum(int((some.ends - some.starts).max(initial=0)) for some in (parts.keys, parts.hash_keys))
    return entries * int(parts.counts.max(initial=0))


def _expanded(parts: Parts) -> Ints:
    """Add up each aggregate's keys, once per record that uses them; indices out of range count nothing."""
    sizes = np.zeros(len(parts.headers.position), np.int64)
    for entries, index in (
        (parts.keys, parts.headers.partition_key_index),
        (parts.hash_keys, parts.headers.explicit_hash_key_index),
    ):
        inside = (index >= 0) & (index < np.repeat(entries.counts, parts.counts))
        entry = index + np.repeat(np.cumsum(entries.counts) - entries.counts, parts.counts)
        sizes[inside] += (entries.ends - entries.starts)[entry[inside]]
    return np.add.reduceat(sizes, np.cumsum(parts.counts) - parts.counts)


def _texts(buffer: Any, view: memoryview, entries: Entries) -> tuple[Any, Flags]:
    """Cut out table entries as text, and mark the aggregates whose entries are all UTF-8.

    Entries that are not come out empty; a record that uses one is for the strict parser to find.
    """
    valid = np.ones(len(entries.counts), np.bool_)
    try:
        return cut(buffer, entries.starts, entries.ends).cast(pa.string()), valid
    except pa.ArrowInvalid:
        ends = entries.ends.copy()
        owner = np.repeat(np.arange(len(entries.counts)), entries.counts)
        for entry, (start, end) in enumerate(zip(entries.starts.tolist(), ends.tolist(), strict=True)):
            try:
                str(view[start:end], "utf-8")
            except UnicodeDecodeError:
                valid[owner[entry]] = False
                ends[entry] = start
        return cut(buffer, entries.starts, ends).cast(pa.string()), valid


def _rows(parts: Parts, origins: Ints) -> Rows:
    """Turn records into rows; `origins` has one item per aggregate."""
    counts, headers = parts.counts, parts.headers
    begins = np.cumsum(counts) - counts
    key_begins = np.cumsum(parts.keys.counts) - parts.keys.counts
    hash_key = headers.explicit_hash_key_index
    if any_given(hash_key):
        hashed = hash_key >= 0
        hash_key_begins = np.cumsum(parts.hash_keys.counts) - parts.hash_keys.counts
        hash_key = np.where(hashed, hash_key + np.repeat(hash_key_begins, counts), -1)
    return Rows(
        origin=np.repeat(origins, counts),
        sub_sequence_number=np.arange(len(hash_key)) - np.repeat(begins, counts),
        key=headers.partition_key_index + np.repeat(key_begins, counts),
        hash_key=hash_key,
        data_start=headers.data_start,
        data_end=headers.data_end,
        tagged=np.broadcast_to(np.int64(-1), len(hash_key)),
    )


class _Irregular:
    """What the strict parser found, collected as lists."""

    def __init__(self, key_count: int, hash_key_count: int) -> None:
        self.keys: list[str] = []
        self.hash_keys: list[str] = []
        self.tags: list[tuple[tuple[str, str | None], ...]] = []
        self.malformed: dict[int, Malformed] = {}
        self.empty_aggregates = 0
        self._first_key = key_count
        self._first_hash_key = hash_key_count
        self._rows: list[tuple[int, int, int, int, int, int, int]] = []

    @property
    def key_count(self) -> int:
        return self._first_key + len(self.keys)

    @property
    def hash_key_count(self) -> int:
        return self._first_hash_key + len(self.hash_keys)

    def take_in(self, origin: int, start: int, blob: bytes, parsed: ParsedAggregate, *, tags: bool) -> None:
        """Add the records of one aggregate whose blob begins at `start` of the piece."""
        self.empty_aggregates += not parsed.records
        key_numbers: dict[int, int] = {-1: -1}
        hash_key_numbers: dict[int, int] = {-1: -1}
        for position, record in enumerate(parsed.records):
            key, hash_key = record.partition_key_index, record.explicit_hash_key_index
            if key not in key_numbers:
                key_numbers[key] = self.key_count
                self.keys.append(_text(blob, parsed.partition_keys[key]))
            if hash_key not in hash_key_numbers:
                hash_key_numbers[hash_key] = self.hash_key_count
                self.hash_keys.append(_text(blob, parsed.explicit_hash_keys[hash_key]))
            tagged = -1
            if tags and record.tags:
                tagged = len(self.tags)
                self.tags.append(
                    tuple(
                        (_text(blob, name), None if value is None else _text(blob, value))
                        for name, value in record.tags
                    )
                )
            self._rows.append(
                (
                    origin,
                    position,
                    key_numbers[key],
                    hash_key_numbers[hash_key],
                    start + record.data_start,
                    start + record.data_end,
                    tagged,
                )
            )

    def rows(self) -> Rows:
        if not self._rows:
            return Rows(*(_NONE,) * 7)
        return Rows(*np.array(self._rows, np.int64).T.copy())


def _text(blob: bytes, span: tuple[int, int]) -> str:
    return blob[span[0] : span[1]].decode()
