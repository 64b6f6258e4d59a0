"""Many Kinesis records to one Arrow batch of user records, without a Python object per user record.

::

    blobs (Arrow binary) ─ magic, length ─► MD5 ─► tables ─► records found and proven ─► rows as spans
                              │              │        └─ not in the usual shape ─► kpl_wire, one by one
                              └ plain        └ plain, kpl_checksum_mismatch        └ malformed: one row
    rows as spans ─ filter by hash range ─► columns, each cut out in one call

The result is that of `kpl_decode.decode` on every blob; that is what the tests compare. Memory: the
input, the output, and a working set for one piece of `max_batch_bytes` of input.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headpond.errors import UsageError
from headpond.formats.kpl_batch_filter import RangeFilter
from headpond.formats.kpl_batch_open import Bounds, Found, Piece, open_piece
from headpond.formats.kpl_batch_rows import REASONS, Gathered, Rows, opened_schema, record_batch
from headpond.formats.kpl_model import Malformed, MalformedAggregate
from headpond.formats.kpl_wire import MAX_EXPANDED_BYTES, MAX_GROUP_DEPTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headpond.formats.hash_keys import HashKeyRange
    from headpond.formats.kpl_batch_scan import Ints
    from headpond.formats.kpl_model import HashRangeFilter, OnMalformed

DEFAULT_MAX_BATCH_BYTES = 32 * 1024 * 1024
"""Input taken at a time. Tiny records need up to 20 times their bytes while they are opened."""
MAX_OUTPUT_BYTES = 1024 * 1024 * 1024
"""Text and data of one batch that is given out; its offsets have 32 bits."""
_KEPT_BYTES = 24 * 1024 * 1024
"""What the C library may keep of the freed arrays instead of giving it back after every call."""
_MAX_BLOB_BYTES = 2**31 - 64


@dataclass(slots=True)
class OpenCounters:
    """What was found. Rows given out = user_records + plain + those malformed."""

    kinesis_records: int = 0
    aggregates: int = 0
    user_records: int = 0
    """Rows that came out of aggregates, after the filter."""
    plain: int = 0
    """Including `checksum_mismatch`."""
    checksum_mismatch: int = 0
    malformed: dict[str, int] = field(default_factory=dict)
    """By reason."""
    empty_aggregates: int = 0
    range_filtered: int = 0

    def add(self, other: OpenCounters) -> None:
        """Count the other's findings in."""
        for name, value in asdict(other).items():
            if name == "malformed":
                for reason, count in value.items():
                    self.malformed[reason] = self.malformed.get(reason, 0) + count
            else:
                setattr(self, name, getattr(self, name) + value)


class Opened(NamedTuple):
    """A batch of user records (columns: `opened_schema`) and what was counted on the way."""

    batch: Any
    counters: OpenCounters


def open_batch(
    data: Any, partition_keys: Any = None, explicit_hash_keys: Any = None, **options: Any
) -> Opened:
    """Open Kinesis records whose user records fit one Arrow batch; arguments as `open_batches`.

    Raises:
        UsageError: They exceed the 2 GiB that one batch can address.
    """
    counters = OpenCounters()
    batches = []
    for opened in open_batches(data, partition_keys, explicit_hash_keys, **options):
        batches.append(opened.batch)
        counters.add(opened.counters)
    if len(batches) == 1:
        return Opened(batches[0], counters)
    if sum(batch.nbytes for batch in batches) > _MAX_BLOB_BYTES:
        raise UsageError(
            "The user records of these Kinesis records exceed the 2 GiB of one Arrow batch.",
            next_step="Use open_batches, which gives out several.",
        )
    if not batches:
        schema = opened_schema(tags=bool(options.get("tags")))
        return Opened(pa.RecordBatch.from_pylist([], schema), counters)
    return Opened(pa.concat_batches(batches), counters)


def open_batches(
    data: Any,
    partition_keys: Any = None,
    explicit_hash_keys: Any = None,
    *,
    on_malformed: OnMalformed = "passthrough",
    tags: bool = False,
    hash_range_filter: HashRangeFilter = "off",
    hash_key_ranges: Sequence[HashKeyRange] = (),
    range_of: Ints | None = None,
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
        explicit_hash_keys: Their explicit hash keys, where known.
        on_malformed: `passthrough` gives the untouched blob as a row with its reason in `problem`;
            `fail` raises.
        tags: Add the column `tags`.
        hash_range_filter: See `kept_by_range`; records that are not aggregates are never filtered.
        hash_key_ranges: Ranges of the shards, needed by the filter.
        range_of: For every Kinesis record the number of its range; default: the first.
        where: Facts about a Kinesis record (shard, sequence number) for the error of `fail`.
        max_batch_bytes: Input opened at a time.
        max_output_bytes: Greatest size of text and data in one batch given out.
        max_group_depth: Bound of nesting in unknown fields.
        max_expanded_bytes: Bound of the keys of one aggregate when written out per record.

    Raises:
        MalformedAggregate: With `on_malformed="fail"`; `facts` have reason, offset, origin and `where`.
        UsageError: The arguments do not fit each other.
    """
    ranges = RangeFilter.of(hash_range_filter, hash_key_ranges, range_of, len(data))
    _check(data, partition_keys, explicit_hash_keys, on_malformed)
    # glibc gives freed memory back beyond twice the largest block freed so far; the arrays of a megabyte
    # made below would be mapped, touched and returned again and again, a sixth of the time. A block that
    # is never touched costs nothing and raises that bound; other C libraries are not affected.
    np.empty(_KEPT_BYTES, np.uint8)
    for first, blobs in _pieces(data, max_batch_bytes):
        count = len(blobs.offsets) - 1
        found = open_piece(
            blobs,
            _texts(partition_keys, first, count),
            _texts(explicit_hash_keys, first, count),
            Bounds(max_group_depth, max_expanded_bytes),
            tags=tags,
        )
        if found.malformed and on_malformed == "fail":
            at = min(found.malformed)
            raise _failure(found.malformed[at], first + at, where)
        keep = ranges.keep(found.rows, found.source, first)
        rows = found.rows if keep is None else found.rows.pick(keep)
        counters = _count(found, rows)
        for part in _parts(rows, found.source, max_output_bytes):
            yield Opened(record_batch(part, found.source, first, tags=tags), counters)
            counters = OpenCounters()


def _check(data: Any, partition_keys: Any, explicit_hash_keys: Any, on_malformed: str) -> None:
    if on_malformed not in ("passthrough", "fail"):
        raise UsageError(
            f"onMalformed is {on_malformed!r}; it is passthrough or fail.", next_step="Choose one of the two."
        )
    if not (pa.types.is_binary(data.type) or pa.types.is_large_binary(data.type)) or data.null_count:
        raise UsageError(
            f"Kinesis records come as binary without nulls, not as {data.type} with {data.null_count} nulls.",
            next_step="Cast the column to binary and drop the nulls.",
        )
    for name, keys in (("partition_keys", partition_keys), ("explicit_hash_keys", explicit_hash_keys)):
        if keys is not None and len(keys) != len(data):
            raise UsageError(
                f"{name} has {len(keys)} items for {len(data)} Kinesis records.",
                next_step="Give one for each.",
            )


def _pieces(data: Any, max_batch_bytes: int) -> Iterator[tuple[int, Piece]]:
    """Cut the input into pieces of at most so many bytes, or of one Kinesis record: first origin, piece."""
    first = 0
    for chunk in data.chunks if isinstance(data, pa.ChunkedArray) else [data]:
        width = np.int64 if pa.types.is_large_binary(chunk.type) else np.int32
        _, offset_buffer, buffer = chunk.buffers()
        if len(chunk) == 0:
            continue
        offsets = np.frombuffer(offset_buffer, width, len(chunk) + 1, chunk.offset * width().itemsize)
        buffer = buffer if buffer is not None else pa.py_buffer(b"")
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
            positions = offsets[low : high + 1].astype(np.int64) - start
            yield first + low, Piece(buffer.slice(start, end - start), positions)
            low = high
        first += len(chunk)


def _texts(keys: Any, first: int, count: int) -> Any:
    if keys is None:
        return pa.nulls(count, pa.string())
    part = pc.cast(keys.slice(first, count), pa.string())
    return part.combine_chunks() if isinstance(part, pa.ChunkedArray) else part


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


def _count(found: Found, rows: Rows) -> OpenCounters:
    source = found.source
    malformed: dict[str, int] = {}
    for one in found.malformed.values():
        malformed[one.reason] = malformed.get(one.reason, 0) + 1
    aggregates = int(np.count_nonzero(source.aggregate))
    kinesis_records = len(source.aggregate)
    plain = kinesis_records - aggregates - len(found.malformed)
    mismatched = 0
    if source.problem_of is not None:
        mismatched = int(np.count_nonzero(source.problem_of == 1 + REASONS.index("checksum_mismatch")))
    singles = plain + len(found.malformed)
    return OpenCounters(
        kinesis_records=kinesis_records,
        aggregates=aggregates,
        user_records=len(rows) - singles,
        plain=plain,
        checksum_mismatch=mismatched,
        malformed=malformed,
        empty_aggregates=found.empty_aggregates,
        range_filtered=len(found.rows) - len(rows),
    )


def _parts(rows: Rows, source: Gathered, max_output_bytes: int) -> Iterator[Rows]:
    """Cut rows so that the columns of each part stay below the limit, or are of one row."""
    lengths = source.keys.lengths(), source.hash_keys.lengths()
    greatest = sum(int(some.max(initial=0)) for some in lengths)
    if len(rows) * greatest + source.buffer.size <= max_output_bytes:  # spans of data do not overlap
        yield rows
        return
    sizes: npt.NDArray[np.int64] = rows.data_end - rows.data_start + lengths[0][rows.key]
    hashed = rows.hash_key >= 0
    sizes[hashed] += lengths[1][rows.hash_key[hashed]]
    total = np.cumsum(sizes)
    low = 0
    while low < len(rows):
        before = int(total[low - 1]) if low else 0
        high = max(int(np.searchsorted(total, before + max_output_bytes, side="right")), low + 1)
        yield rows.pick(slice(low, high))
        low = high
    if not len(rows):
        yield rows
