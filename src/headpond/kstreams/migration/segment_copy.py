"""Rewriting one segment in another format: read in order, convert by the batch, write sorted files, check.

Entries come out of a segment in the byte order of their keys, which a conversion does not change, so the
new segment is written as finished RocksDB files instead of entry by entry. What was written is then read
back and compared: numbers of entries and bytes, and a CRC-32C each over all keys and all values.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from crc32c import crc32c
from rocksdict import IngestExternalFileOptions, SstFileWriter

from headpond.kstreams.bytes.headers import SerializationError
from headpond.kstreams.bytes.window_keys import decode_store_key
from headpond.kstreams.bytes.window_values import NO_TIMESTAMP, ValueFormat, conversion, timestamp_of
from headpond.kstreams.bytes.window_values_arrow import (
    bytes_of,
    column_of,
    convert_values,
    numbers_of,
    value_timestamps,
    window_starts,
)
from headpond.kstreams.migration.directory import check_formats, damaged_entry, held_formats, pairs_of
from headpond.kstreams.stores.contract import InconsistentStore, TimestampsWouldBeLost
from headpond.kstreams.stores.rocks import (
    COLUMN_FAMILIES,
    DEFAULT,
    OFFSETS,
    Database,
    column_families,
    database_options,
    scan,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from headpond.kstreams.migration.directory import SegmentFiles

BATCH_ENTRIES = 4096
"""Entries converted together: few enough to stay in the processor's cache."""
MAX_FILE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CopiedSegment:
    """What a segment's copy came to; all of it is kept in the migration's journal."""

    entries: int
    checksum: int
    bytes_before: int
    bytes_after: int
    dropped_timestamps: int

    def as_document(self) -> dict[str, Any]:
        """Return its fields as plain values."""
        return asdict(self)


class _Sum:
    """Running numbers of entries and bytes, and a CRC-32C each over all keys and all values."""

    def __init__(self) -> None:
        self.entries = self.key_bytes = self.value_bytes = self.key_crc = self.value_crc = 0

    def add(self, entries: int, keys: bytes, values: bytes | memoryview) -> None:
        """Add a batch: how many entries, and the bytes of their keys and values, one behind the other."""
        self.entries += entries
        self.key_bytes += len(keys)
        self.value_bytes += len(values)
        self.key_crc = crc32c(keys, self.key_crc)
        self.value_crc = crc32c(values, self.value_crc)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Sum) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment] # it runs on

    @property
    def checksum(self) -> int:
        """One number of both."""
        return self.key_crc << 32 | self.value_crc


def copy_segment(
    source: SegmentFiles,
    to: Path,
    target: ValueFormat,
    *,
    drop_timestamps: bool,
    on_entries: Callable[[int], None],
) -> CopiedSegment:
    """Write a segment's entries, converted, and its offsets into a new database at `to`.

    Args:
        source: The segment; it is only read.
        to: An empty directory.
        target: The new format.
        drop_timestamps: Whether values' own timestamps may go where they say something.
        on_entries: Called with the number of entries just written.

    Raises:
        TimestampsWouldBeLost: A value's timestamp is neither its window start nor -1.
        SerializationError: A value is damaged.
        InconsistentStore: The segment holds two older formats, or the copy does not read back alike.
    """
    written = _Sum()
    before = dropped = 0
    files: list[Path] = []
    with source.open() as database:
        check_formats(source.path, held_formats(database))
        writer = _SortedFiles(to, files)
        for batch in _converted(database, target):
            if batch.lost is not None:
                if not drop_timestamps:
                    raise _would_be_lost(source.path.name, *batch.lost[1:])
                dropped += batch.lost[0]
            before += batch.bytes_before
            writer.write(batch.keys, batch.values.to_pylist())
            written.add(len(batch.keys), b"".join(batch.keys), bytes_of(batch.values))
            on_entries(len(batch.keys))
        writer.finish()
        offsets = database.offsets()
    with Database(to, [DEFAULT]) as made:
        made.add((COLUMN_FAMILIES[target], OFFSETS))
        family = made.family(COLUMN_FAMILIES[target])
        if files:
            options = IngestExternalFileOptions()
            options.set_move_files(True)
            family.ingest_external_file([str(each) for each in files], options)
        kept = made.family(OFFSETS)
        for name, value in offsets.items():
            kept[name] = value
        kept.flush()
    # Opened again for reading: what is compared comes from the files.
    read = _Sum()
    with Database(to, column_families(to), read_only=True) as made:
        for keys, values in _batches(scan(made.family(COLUMN_FAMILIES[target]), None, None)):
            read.add(len(keys), b"".join(keys), b"".join(values))
        if read != written or made.offsets() != offsets:
            raise InconsistentStore(
                f"Segment {source.path.name}: {written.entries} entries were written and {read.entries} read "
                f"back, with checksums {written.checksum:016x} and {read.checksum:016x}.",
                next_step="Check the disk and run the migration again; the old directory is as it was.",
                reason="copy_differs",
                path=str(to),
            )
    return CopiedSegment(written.entries, written.checksum, before, written.value_bytes, dropped)


_Lost = tuple[int, bytes, int, int]  # how many in the batch; the first one's key, window start, timestamp


class _ConvertedBatch(NamedTuple):
    keys: list[bytes]
    values: pa.Array
    bytes_before: int
    lost: _Lost | None


def _converted(database: Database, target: ValueFormat) -> Iterator[_ConvertedBatch]:
    """Convert a segment's entries in the order of their keys."""
    formats = held_formats(database)
    if len(formats) == 1:
        value_format = formats[0]
        for keys, values in _batches(scan(database.family(COLUMN_FAMILIES[value_format]), None, None)):
            column = column_of(values)
            lost = None
            try:
                if value_format.has_timestamp and not target.has_timestamp:
                    lost = _lost(keys, column, value_format)
                converted = convert_values(column, value_format, target)
            except SerializationError as error:
                key = decode_store_key(keys[error.facts["row"]])
                raise damaged_entry(error, database.path, key) from error
            yield _ConvertedBatch(keys, converted, len(bytes_of(column)), lost)
        return
    # A segment in the middle of a migration in place: entries of two formats alternate.
    mixed = pairs_of(database)
    while chunk := list(islice(mixed, BATCH_ENTRIES)):
        keys = [key for key, _, _ in chunk]
        found = [conversion(each, target)(value) for _, value, each in chunk]
        size = sum(len(value) for _, value, _ in chunk)
        converted = column_of([each for each in found if each is not None])
        yield _ConvertedBatch(keys, converted, size, _lost_of(chunk, target))


def _lost(keys: list[bytes], values: pa.Array, value_format: ValueFormat) -> _Lost | None:
    timestamps = value_timestamps(values, value_format)
    starts = window_starts(column_of(keys))
    own, windows = numbers_of(timestamps), numbers_of(starts)
    rows = np.flatnonzero((own != windows) & (own != NO_TIMESTAMP))
    if not len(rows):
        return None
    first = int(rows[0])
    return len(rows), keys[first], int(windows[first]), int(own[first])


def _lost_of(chunk: list[tuple[bytes, bytes, ValueFormat]], target: ValueFormat) -> _Lost | None:
    lost: list[tuple[bytes, int, int]] = []
    for key, value, value_format in chunk:
        own = None if target.has_timestamp else timestamp_of(value, value_format)
        start = decode_store_key(key).timestamp
        if own is not None and own not in (NO_TIMESTAMP, start):
            lost.append((key, start, own))
    return (len(lost), *lost[0]) if lost else None


def _would_be_lost(segment: str, key: bytes, start: int, timestamp: int) -> TimestampsWouldBeLost:
    return TimestampsWouldBeLost(
        f"Segment {segment}: the value under key {key[:-12].hex()} has the timestamp {timestamp}, its window "
        f"starts at {start}, and the new format has no place for a timestamp.",
        next_step="Run it with --drop-timestamps if nobody reads these timestamps; headers are kept anyway.",
        segment=segment,
        key=key.hex(),
        window_start=start,
        timestamp=timestamp,
    )


def _batches(pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Split pairs into keys and values, batch by batch; keeping pairs would be work for the collector."""
    while flat := list(chain.from_iterable(islice(pairs, BATCH_ENTRIES))):
        yield flat[::2], flat[1::2]


class _SortedFiles:
    """Writes pairs that come in order into RocksDB files of a bounded size."""

    def __init__(self, folder: Path, files: list[Path]) -> None:
        self._folder = folder
        self._files = files
        self._writer: SstFileWriter | None = None

    def write(self, keys: list[bytes], values: list[bytes]) -> None:
        if self._writer is None:
            path = self._folder / f"copy-{len(self._files):06d}.sst"
            self._writer = SstFileWriter(database_options())
            self._writer.open(str(path))
            self._files.append(path)
        writer = self._writer
        for key, value in zip(keys, values, strict=True):
            writer[key] = value
        if writer.file_size() > MAX_FILE_BYTES:
            self.finish()

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.finish()
            self._writer = None
