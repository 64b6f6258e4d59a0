"""Many Kinesis records to Arrow batches of user records, without a Python object per user record.

::

    blobs (Arrow binary) ─ magic, length ─► MD5 ─► opener: user records as spans ─► filter ─► columns
                              │              │         └ not proven ─► wire, one by one
                              └ plain        └ plain, kpl_checksum_mismatch  └ malformed: one row

The rows are those of `decoder.decode` for every blob; that is what the tests compare. While aggregates are
opened nothing is copied: a row is a span of the blobs' bytes and numbers of keys, and each column is cut out
at the end in one call. Memory: the input, the output, and a working set for `max_batch_bytes` of input.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import Bools, Ints, mask_of, offsets_of, slices
from headpond.core.errors import UsageError
from headpond.core.schemas import TAGS_TYPE
from headpond.kpl.decoder import kept_by_place
from headpond.kpl.hash_keys import FULL_RANGE, HashKeyRange, effective_hash_key
from headpond.kpl.model import (
    CHECKSUM_BYTES,
    FRAMING_BYTES,
    MAGIC,
    HashRangeFilter,
    Malformed,
    MalformedAggregate,
    MalformedReason,
    OnMalformed,
)
from headpond.kpl.opener import Opened as Proven
from headpond.kpl.opener import open_proven
from headpond.kpl.wire import MAX_EXPANDED_BYTES, MAX_GROUP_DEPTH, ParsedAggregate, WireError, parse_aggregate

DEFAULT_MAX_BATCH_BYTES = 32 * 1024 * 1024
"""Input opened at a time. Tiny records need up to 20 times their bytes while they are opened."""
MAX_OUTPUT_BYTES = 1024 * 1024 * 1024
"""Text and data of one batch that is yielded; its offsets have 32 bits."""
REASONS = ("checksum_mismatch", *get_args(MalformedReason))
"""Every reason a row can carry in `problem`, there with the prefix `kpl_`."""

_KEPT_BYTES = 24 * 1024 * 1024
"""What the C library may keep of the freed arrays instead of returning it after every call."""
_MAX_BLOB_BYTES = 2**31 - 64
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
    """Return the columns of an opened batch; `tags` adds the last one."""
    return pa.schema([*_COLUMNS, pa.field("tags", TAGS_TYPE)] if tags else _COLUMNS)


@dataclass(slots=True)
class OpenCounters:
    """What was found. Rows yielded = user_records + plain + those malformed."""

    kinesis_records: int = 0
    aggregates: int = 0
    user_records: int = 0
    """Rows that came out of aggregates, after the filter."""
    plain: int = 0
    """Including `checksum_mismatch`."""
    checksum_mismatch: int = 0
    malformed: Counter[str] = field(default_factory=Counter)
    """By reason."""
    empty_aggregates: int = 0
    range_filtered: int = 0

    def add(self, other: OpenCounters) -> None:
        """Add the other's counts to these."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class Opened(NamedTuple):
    """A batch of user records (columns: `opened_schema`) and what was counted on the way."""

    batch: Any
    counters: OpenCounters


class _Piece(NamedTuple):
    """Some Kinesis records: their blobs, one after the other, and their keys as Arrow strings."""

    first: int
    """Number of the first one among all."""
    buffer: Any
    """Arrow buffer."""
    offsets: Ints
    """Where each blob begins, and where the last one ends."""
    partition_keys: Any


class _Rows(NamedTuple):
    """User records and unopened Kinesis records as numbers; all arrays have one item per row."""

    origin: Ints
    """Number of its Kinesis record in the piece."""
    sub_sequence_number: Ints
    key: Ints
    """Number of its partition key."""
    hash_key: Ints
    """Number of its explicit hash key, -1: none."""
    data_start: Ints
    data_end: Ints
    tags: Ints
    """Number of its tags, -1: none."""

    def pick(self, rows: Any) -> _Rows:
        """Return the given rows (numbers, a mask or a slice)."""
        return _Rows(*(column[rows] for column in self))


class _Found(NamedTuple):
    rows: _Rows
    keys: Any
    """The partition keys that rows have numbers of: Arrow strings."""
    hash_keys: Any
    tags: list[tuple[tuple[str, str | None], ...]]
    aggregate: Bools
    """Per Kinesis record: whether it was opened."""
    problem: Ints
    """Per Kinesis record: -1, or its place in `REASONS`."""
    malformed: dict[int, Malformed]
    """By Kinesis record."""
    empty_aggregates: int


def open_batch(data: Any, partition_keys: Any = None, **options: Any) -> Opened:
    """Open Kinesis records whose user records fit one Arrow batch; arguments as `open_batches`.

    Raises:
        UsageError: They exceed the 2 GiB that one batch can address.
    """
    counters = OpenCounters()
    batches = []
    for opened in open_batches(data, partition_keys, **options):
        batches.append(opened.batch)
        counters.add(opened.counters)
    if len(batches) == 1:
        return Opened(batches[0], counters)
    if sum(batch.nbytes for batch in batches) > _MAX_BLOB_BYTES:
        raise UsageError(
            "The user records of these Kinesis records exceed the 2 GiB of one Arrow batch.",
            next_step="Use open_batches, which yields several.",
        )
    if not batches:
        schema = opened_schema(tags=bool(options.get("tags")))
        return Opened(pa.RecordBatch.from_pylist([], schema), counters)
    return Opened(pa.concat_batches(batches), counters)


def open_batches(
    data: Any,
    partition_keys: Any = None,
    *,
    on_malformed: OnMalformed = "passthrough",
    tags: bool = False,
    hash_range_filter: HashRangeFilter = "off",
    hash_keys: HashKeyRange = FULL_RANGE,
    where: Callable[[int], Mapping[str, Any]] | None = None,
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
    max_group_depth: int = MAX_GROUP_DEPTH,
    max_expanded_bytes: int = MAX_EXPANDED_BYTES,
) -> Iterator[Opened]:
    """Open Kinesis records, in order, in as many batches as it takes.

    Args:
        data: The records' data: Arrow binary or large binary array, or a chunked array of those.
        partition_keys: Their partition keys, of the same length; plain records keep theirs.
        on_malformed: `passthrough` makes the untouched blob a row with its reason in `problem`;
            `fail` raises.
        tags: Add the column `tags`.
        hash_range_filter: See `kept_by_range`; records that are not aggregates are never filtered.
        hash_keys: The hash keys of the shard that the records are of, for the filter.
        where: Facts about a Kinesis record (shard, sequence number) for the error of `fail`.
        max_batch_bytes: Input opened at a time.
        max_output_bytes: Greatest size of text and data in one batch yielded.
        max_group_depth: Bound of nesting in unknown fields.
        max_expanded_bytes: Bound of the keys of one aggregate when written out per record.

    Raises:
        MalformedAggregate: With `on_malformed="fail"`; `facts` have reason, offset, origin and `where`.
        UsageError: The arguments do not fit each other.
    """
    _check(data, partition_keys, on_malformed, hash_range_filter)
    # glibc returns freed memory beyond twice the largest block freed so far; the arrays of a megabyte made
    # below would be mapped, touched and returned again and again, a sixth of the time. A block that is never
    # touched costs nothing and raises that bound; other C libraries are not affected.
    np.empty(_KEPT_BYTES, np.uint8)
    bounds = {"max_group_depth": max_group_depth, "max_expanded_bytes": max_expanded_bytes}
    for piece in _pieces(data, partition_keys, max_batch_bytes):
        found = _open_piece(piece, tags=tags, **bounds)
        if found.malformed and on_malformed == "fail":
            origin = min(found.malformed)
            raise _failure(found.malformed[origin], piece.first + origin, where)
        rows = found.rows
        if hash_range_filter != "off":
            rows = rows.pick(_kept(found, hash_keys, hash_range_filter))
        counters = _count(found, len(rows.origin))
        for part in _parts(rows, found, max_output_bytes):
            yield Opened(_record_batch(part, found, piece, tags=tags), counters)
            counters = OpenCounters()


def _check(data: Any, partition_keys: Any, on_malformed: str, hash_range_filter: str) -> None:
    for name, given, known in (
        ("onMalformed", on_malformed, get_args(OnMalformed)),
        ("hashRangeFilter", hash_range_filter, get_args(HashRangeFilter)),
    ):
        if given not in known:
            raise UsageError(
                f"{name} is {given!r}; it is one of {', '.join(known)}.", next_step="Choose one of these."
            )
    if not (pa.types.is_binary(data.type) or pa.types.is_large_binary(data.type)) or data.null_count:
        raise UsageError(
            f"Kinesis records come as binary without nulls, not as {data.type} with {data.null_count} nulls.",
            next_step="Cast the column to binary and drop the nulls.",
        )
    if partition_keys is not None and len(partition_keys) != len(data):
        raise UsageError(
            f"partition_keys has {len(partition_keys)} items for {len(data)} Kinesis records.",
            next_step="Give one for each.",
        )


def _pieces(data: Any, partition_keys: Any, max_batch_bytes: int) -> Iterator[_Piece]:
    """Cut the input into pieces of at most this many bytes, or of one Kinesis record."""
    first = 0
    for chunk in data.chunks if isinstance(data, pa.ChunkedArray) else [data]:
        offsets = offsets_of(chunk)
        buffer = chunk.buffers()[2] if chunk.buffers()[2] is not None else pa.py_buffer(b"")
        low = 0
        while low < len(chunk):
            # Offsets ascend: the last one within reach, but at least one record.
            reach = np.searchsorted(offsets, offsets[low].astype(np.int64) + max_batch_bytes, side="right")
            high = max(int(reach) - 1, low + 1)
            start, end = int(offsets[low]), int(offsets[high])
            if end - start > _MAX_BLOB_BYTES:
                raise UsageError(
                    f"{high - low} Kinesis records from number {first + low} on have {end - start} bytes,"
                    " more than one Arrow batch can address.",
                    next_step="Lower max_batch_bytes; a Kinesis record has at most 10 MiB.",
                )
            yield _Piece(
                first + low,
                buffer.slice(start, end - start),
                offsets[low : high + 1].astype(np.int64) - start,
                _texts(partition_keys, first + low, high - low),
            )
            low = high
        first += len(chunk)


def _texts(keys: Any, first: int, count: int) -> Any:
    if keys is None:
        return pa.nulls(count, pa.string())
    part = pc.cast(keys.slice(first, count), pa.string())
    return part.combine_chunks() if isinstance(part, pa.ChunkedArray) else part


def _open_piece(piece: _Piece, *, tags: bool, max_group_depth: int, max_expanded_bytes: int) -> _Found:
    """Open the aggregates of a piece.

    Rows come from three sides: aggregates that the opener proved, aggregates that the strict parser opened,
    and single records (plain or malformed). Keys are numbered in that order, too.
    """
    view = memoryview(piece.buffer).cast("B")
    aggregate, mismatched = _check_framing(view, piece.offsets)
    origins = np.flatnonzero(aggregate)
    start, end = piece.offsets[origins] + len(MAGIC), piece.offsets[origins + 1] - CHECKSUM_BYTES
    proven = _proven(piece.buffer, start, end, max_expanded_bytes)
    strict = _Strict(len(proven.keys), len(proven.hash_keys))
    malformed: dict[int, Malformed] = {}
    for origin in origins[~proven.proven].tolist():
        first, stop = int(piece.offsets[origin]), int(piece.offsets[origin + 1])
        blob = bytes(view[first:stop])
        try:
            parsed = parse_aggregate(
                blob, tags=tags, max_group_depth=max_group_depth, max_expanded_bytes=max_expanded_bytes
            )
        except WireError as error:
            malformed[origin] = error.malformed
        except (MemoryError, OSError):
            raise
        except Exception as fault:  # noqa: BLE001 - whatever a record does, the others go on
            malformed[origin] = Malformed("internal_error", 0, f"{type(fault).__name__}: {fault}")
        else:
            strict.add(origin, first, blob, parsed, tags=tags)
    aggregate[list(malformed)] = False
    singles = np.flatnonzero(~aggregate)
    none = np.full(len(proven.key), -1, np.int64)
    rows = _in_order(
        _Rows(
            np.repeat(origins[proven.proven], proven.counts),
            np.arange(len(proven.key)) - np.repeat(np.cumsum(proven.counts) - proven.counts, proven.counts),
            *(proven.key, proven.hash_key, proven.data_start, proven.data_end, none),
        ),
        strict.rows(),
        _Rows(
            singles,
            np.zeros(len(singles), np.int64),
            len(proven.keys) + len(strict.keys) + singles,
            np.full(len(singles), -1, np.int64),
            piece.offsets[singles],
            piece.offsets[singles + 1],
            np.full(len(singles), -1, np.int64),
        ),
    )
    problem = np.where(mismatched, REASONS.index("checksum_mismatch"), -1)
    for origin, one in malformed.items():
        problem[origin] = REASONS.index(one.reason)
    return _Found(
        rows,
        _joined(proven.keys, strict.keys, piece.partition_keys if len(singles) else None),
        _joined(proven.hash_keys, strict.hash_keys),
        strict.tags,
        aggregate,
        problem,
        malformed,
        strict.empty_aggregates,
    )


def _proven(buffer: Any, start: Ints, end: Ints, max_expanded_bytes: int) -> Proven:
    """Open what can be proven; nothing where that fails, which is a defect: then the strict parser judges."""
    try:
        return open_proven(buffer, start, end, max_expanded_bytes)
    except (MemoryError, OSError):
        raise
    except Exception:  # noqa: BLE001 - whatever a record does, the others go on
        nothing = open_proven(buffer, start[:0], end[:0], max_expanded_bytes)
        return nothing._replace(proven=np.zeros(len(start), np.bool_))


def _joined(proven: Any, strict: list[str], single: Any = None) -> Any:
    parts = [proven, *([pa.array(strict)] if strict else []), *([] if single is None else [single])]
    return pa.concat_arrays(parts) if len(parts) > 1 else proven


def _check_framing(view: memoryview, offsets: Ints) -> tuple[Bools, Bools]:
    """Return which blobs are aggregates, and which have the magic but a wrong checksum."""
    count = len(offsets) - 1
    sound, mismatched = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    long_enough = np.flatnonzero(np.diff(offsets) > FRAMING_BYTES)
    if len(long_enough):
        words = np.ndarray((len(view) - 3,), "<u4", buffer=view, strides=(1,))
        candidates = long_enough[words[offsets[long_enough]] == np.frombuffer(MAGIC, "<u4")[0]]
        md5 = hashlib.md5
        verdicts = []
        for start, end in zip(offsets[candidates].tolist(), offsets[candidates + 1].tolist(), strict=True):
            stop = end - CHECKSUM_BYTES
            verdicts.append(md5(view[start + 4 : stop], usedforsecurity=False).digest() == view[stop:end])
        sound[candidates] = verdicts
        mismatched[candidates] = ~sound[candidates]
    return sound, mismatched


class _Strict:
    """What the strict parser found, collected as lists."""

    def __init__(self, key_count: int, hash_key_count: int) -> None:
        self.keys: list[str] = []
        self.hash_keys: list[str] = []
        self.tags: list[tuple[tuple[str, str | None], ...]] = []
        self.empty_aggregates = 0
        self._first_key, self._first_hash_key = key_count, hash_key_count
        self._rows: list[tuple[int, ...]] = []

    def add(self, origin: int, start: int, blob: bytes, parsed: ParsedAggregate, *, tags: bool) -> None:
        """Add the records of one aggregate whose blob begins at `start` of the piece."""

        def text(span: tuple[int, int]) -> str:
            return blob[span[0] : span[1]].decode()

        self.empty_aggregates += not parsed.records
        # Only entries in use are known to be UTF-8.
        keys: dict[int, int] = {}
        hash_keys: dict[int, int] = {-1: -1}
        for position, (key, hash_key, data_start, data_end, its_tags) in enumerate(parsed.records):
            if key not in keys:
                keys[key] = self._first_key + len(self.keys)
                self.keys.append(text(parsed.partition_keys[key]))
            if hash_key not in hash_keys:
                hash_keys[hash_key] = self._first_hash_key + len(self.hash_keys)
                self.hash_keys.append(text(parsed.explicit_hash_keys[hash_key]))
            tagged = -1
            if tags and its_tags:
                tagged = len(self.tags)
                self.tags.append(
                    tuple((text(name), None if value is None else text(value)) for name, value in its_tags)
                )
            numbers = keys[key], hash_keys[hash_key], start + data_start, start + data_end, tagged
            self._rows.append((origin, position, *numbers))

    def rows(self) -> _Rows:
        return _Rows(*np.array(self._rows, np.int64).reshape(-1, len(_Rows._fields)).T.copy())


def _in_order(*parts: _Rows) -> _Rows:
    """Join parts, each ordered by origin and of different origins, in the order of origins."""
    filled = [part for part in parts if len(part.origin)] or parts[:1]
    if len(filled) == 1:
        return filled[0]
    joined = _Rows(*(np.concatenate(columns) for columns in zip(*filled, strict=True)))
    return joined.pick(np.argsort(joined.origin, kind="stable"))


def _failure(
    malformed: Malformed, origin: int, where: Callable[[int], Mapping[str, Any]] | None
) -> MalformedAggregate:
    facts = dict(where(origin)) if where is not None else {}
    place = ", ".join(f"{name} {value}" for name, value in facts.items())
    return MalformedAggregate(
        f"Kinesis record {origin} of the batch{f' ({place})' if place else ''} is an aggregate that cannot be"
        f" opened, {malformed.reason}: {malformed.message}",
        next_step="Set onMalformed to passthrough to keep such records aside as they are.",
        reason=f"kpl_{malformed.reason}",
        offset=malformed.offset,
        origin=origin,
        **facts,
    )


def _kept(found: _Found, hash_keys: HashKeyRange, mode: HashRangeFilter) -> Bools:
    """Return which rows the filter keeps."""
    rows = found.rows
    keep = np.ones(len(rows.origin), np.bool_)
    opened = np.flatnonzero(found.aggregate[rows.origin])
    # Each pair of keys is placed once.
    pairs = rows.key[opened] * (len(found.hash_keys) + 1) + rows.hash_key[opened] + 1
    distinct, which = np.unique(pairs, return_inverse=True)
    keys, given_keys = np.divmod(distinct, len(found.hash_keys) + 1)
    places = [
        effective_hash_key(found.keys[key].as_py(), found.hash_keys[given - 1].as_py() if given else None)
        for key, given in zip(keys.tolist(), given_keys.tolist(), strict=True)
    ]
    cuts = np.flatnonzero(np.diff(rows.origin[opened])) + 1
    for mine, its_pairs in zip(np.split(opened, cuts), np.split(which, cuts), strict=True):
        if len(mine):
            kept = kept_by_place([places[at] for at in its_pairs.tolist()], hash_keys, mode)
            keep[mine] = False
            keep[mine[kept]] = True
    return keep


def _count(found: _Found, kept: int) -> OpenCounters:
    aggregates = int(np.count_nonzero(found.aggregate))
    plain = len(found.aggregate) - aggregates - len(found.malformed)
    return OpenCounters(
        kinesis_records=len(found.aggregate),
        aggregates=aggregates,
        user_records=kept - plain - len(found.malformed),
        plain=plain,
        checksum_mismatch=int(np.count_nonzero(found.problem == REASONS.index("checksum_mismatch"))),
        malformed=Counter(one.reason for one in found.malformed.values()),
        empty_aggregates=found.empty_aggregates,
        range_filtered=len(found.rows.origin) - kept,
    )


def _parts(rows: _Rows, found: _Found, max_output_bytes: int) -> Iterator[_Rows]:
    """Cut rows so that the columns of each part stay below the limit, or are of one row."""
    keys, hash_keys = _lengths(found.keys), _lengths(found.hash_keys)
    count = len(rows.origin)
    greatest = int(keys.max(initial=0)) + int(hash_keys.max(initial=0))
    data_bytes = int((rows.data_end - rows.data_start).sum())
    if count * greatest + data_bytes <= max_output_bytes or not count:
        yield rows
        return
    sizes = rows.data_end - rows.data_start + keys[rows.key]
    hashed = rows.hash_key >= 0
    sizes[hashed] += hash_keys[rows.hash_key[hashed]]
    total = np.cumsum(sizes)
    low = 0
    while low < count:
        before = int(total[low - 1]) if low else 0
        high = max(int(np.searchsorted(total, before + max_output_bytes, side="right")), low + 1)
        yield rows.pick(slice(low, high))
        low = high


def _lengths(texts: Any) -> Ints:
    """Return the bytes of every text; 0 for null."""
    found = pc.fill_null(pc.binary_length(texts), 0)
    return np.asarray(found.to_numpy(zero_copy_only=False)).astype(np.int64)


def _record_batch(rows: _Rows, found: _Found, piece: _Piece, *, tags: bool) -> Any:
    columns = [
        pa.array(rows.origin + piece.first),
        pa.array(rows.sub_sequence_number),
        found.keys.take(pa.array(rows.key)),
        _optional(found.hash_keys, rows.hash_key),
        slices(piece.buffer, rows.data_start, rows.data_end),
        pa.Array.from_buffers(pa.bool_(), len(rows.origin), [None, mask_of(found.aggregate[rows.origin])]),
        _optional(pa.array([f"kpl_{reason}" for reason in REASONS]), found.problem[rows.origin]),
    ]
    if tags:
        columns.append(_tags(rows.tags, found.tags))
    return pa.RecordBatch.from_arrays(columns, schema=opened_schema(tags=tags))


def _optional(values: Any, index: Any) -> Any:
    """Return values by number; -1 is null."""
    absent = index < 0
    if absent.all():
        return pa.nulls(len(index), pa.string())
    return values.take(pa.array(index, mask=absent))


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
