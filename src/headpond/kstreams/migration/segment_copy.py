"""Rewriting one segment in another format: read in order, convert by the batch, write sorted files, check.

Entries come out of a segment in the byte order of their keys, which a conversion does not change, so the
new segment is written as finished RocksDB files instead of entry by entry. What was written is then read
back and compared: numbers of entries and bytes, and a CRC-32C each over all keys and all values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from crc32c import crc32c
from rocksdict import IngestExternalFileOptions, SstFileWriter

from headpond.core.arrow import Ints
from headpond.kstreams.bytes.headers import SerializationError
from headpond.kstreams.bytes.window_keys import decode_store_key
from headpond.kstreams.bytes.window_values import NO_TIMESTAMP, ValueFormat, timestamp_of
from headpond.kstreams.bytes.window_values_arrow import (
    bytes_of,
    column_of,
    convert_values,
    numbers_of,
    value_timestamps,
    window_starts,
)
from headpond.kstreams.migration.directory import SegmentFiles, damaged_entry, held_formats, pairs_of
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
    import pyarrow as pa

BATCH_ENTRIES = 4096
"""Entries converted together: few enough to stay in the processor's cache."""
MAX_FILE_BYTES = 64 * 1024 * 1024


class CopiedSegment(NamedTuple):
    """The totals of copied segments."""

    entries: int = 0
    saved_bytes: int = 0
    dropped_timestamps: int = 0


@dataclass
class _Sum:
    """Running numbers of entries and bytes, and a CRC-32C each over all keys and all values."""

    entries: int = 0
    value_bytes: int = 0
    key_crc: int = 0
    value_crc: int = 0

    def add(self, keys: list[bytes], values: bytes | memoryview) -> None:
        """Add a batch: its keys, and the bytes of its values, one after the other."""
        self.entries += len(keys)
        self.value_bytes += len(values)
        self.key_crc = crc32c(b"".join(keys), self.key_crc)
        self.value_crc = crc32c(values, self.value_crc)


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
        to: The new segment's directory, which is made.
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
    to.mkdir()
    with source.open() as database:
        writer = _SortedFiles(to, files)
        for keys, values, value_format in _read(database):
            column = column_of(values)
            try:
                lost = _lost(keys, column, value_format, target)
                converted = convert_values(column, value_format, target)
            except SerializationError as error:
                raise damaged_entry(error, database.path, keys[error.facts["row"]]) from error
            if len(lost) and not drop_timestamps:
                row = int(lost[0])
                raise _would_be_lost(source.path.name, keys[row], timestamp_of(values[row], value_format))
            dropped += len(lost)
            before += len(bytes_of(column))
            writer.write(keys, converted.to_pylist())
            written.add(keys, bytes_of(converted))
            on_entries(len(keys))
        writer.finish()
        offsets = database.offsets()
    with Database(to, [DEFAULT]) as made:
        made.add((COLUMN_FAMILIES[target], OFFSETS))
        family = made.families[COLUMN_FAMILIES[target]]
        if files:
            options = IngestExternalFileOptions()
            options.set_move_files(True)
            family.ingest_external_file([str(each) for each in files], options)
        kept = made.families[OFFSETS]
        for name, value in offsets.items():
            kept[name] = value
        kept.flush()
    # Opened again for reading: what is compared comes from the files.
    read = _Sum()
    with Database(to, column_families(to), read_only=True) as made:
        for keys, values in _batches(scan(made.families[COLUMN_FAMILIES[target]])):
            read.add(keys, b"".join(values))
        if read != written or made.offsets() != offsets:
            raise InconsistentStore(
                f"Segment {source.path.name}: {written} was written, and {read} was read back.",
                next_step="Check the disk and run the migration again; the old directory is as it was.",
                reason="copy_differs",
                path=str(to),
            )
    return CopiedSegment(written.entries, before - written.value_bytes, dropped)


def _read(database: Database) -> Iterator[tuple[list[bytes], list[bytes], ValueFormat]]:
    """Read a segment's keys and values in the order of the keys, by batches of one format."""
    formats = held_formats(database)
    if len(formats) == 1:
        for keys, values in _batches(scan(database.families[COLUMN_FAMILIES[formats[0]]])):
            yield keys, values, formats[0]
        return
    # In the middle of a migration in place entries of two formats alternate.
    for value_format, run in groupby(pairs_of(database), itemgetter(2)):
        while chunk := list(islice(run, BATCH_ENTRIES)):
            yield [key for key, _, _ in chunk], [value for _, value, _ in chunk], value_format


def _lost(keys: list[bytes], values: pa.Array, value_format: ValueFormat, target: ValueFormat) -> Ints:
    """Return the rows whose timestamp says something and has no place in the new format."""
    if target.has_timestamp or not value_format.has_timestamp:
        return np.empty(0, np.int64)
    own = numbers_of(value_timestamps(values, value_format))
    return np.flatnonzero((own != numbers_of(window_starts(column_of(keys)))) & (own != NO_TIMESTAMP))


def _would_be_lost(segment: str, stored_key: bytes, timestamp: int | None) -> TimestampsWouldBeLost:
    key = decode_store_key(stored_key)
    return TimestampsWouldBeLost(
        f"Segment {segment}: the value under key {key.key.hex()} has the timestamp {timestamp}, its window "
        f"starts at {key.timestamp}, and the new format has no place for a timestamp.",
        next_step="Run it with --drop-timestamps if nobody reads these timestamps; headers are kept anyway.",
        segment=segment,
        key=key.key.hex(),
        window_start=key.timestamp,
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
