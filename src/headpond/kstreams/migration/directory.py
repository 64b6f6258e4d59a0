"""A window store's directory as it lies on disk, read without its application and without changing it.

No settings are needed: names of segments and column families tell what is there. Retention is not known
here, so everything that is on disk shows, entries that the store itself would hide included. Entries come
in the order of the store's `all()`: by segment, then in byte order; a segment in the middle of a migration
in place gives each key once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headpond.kstreams.bytes.headers import Header, SerializationError
from headpond.kstreams.bytes.window_keys import WindowKey, decode_store_key
from headpond.kstreams.bytes.window_values import ValueFormat, decode_value
from headpond.kstreams.stores.contract import NotAStore
from headpond.kstreams.stores.rocks import (
    COLUMN_FAMILIES,
    LAYOUTS,
    Database,
    check_families,
    column_families,
    is_database,
    require_directory,
    scan,
)
from headpond.kstreams.stores.rocks_store import merged, two_older_formats
from headpond.kstreams.stores.segments import SegmentName, parse_segment_name

# What a value is larger by than its plain+headers form, if it has no headers: a timestamp, a size byte.
_MORE_BYTES = {
    ValueFormat.PLAIN: -1,
    ValueFormat.TIMESTAMPED: 7,
    ValueFormat.TIMESTAMPED_HEADERS: 8,
    ValueFormat.PLAIN_HEADERS: 0,
}


class StoredEntry(NamedTuple):
    """An entry as it lies on disk; `timestamp` (ms) is the value's own, None where its format has none."""

    key: WindowKey
    value: bytes
    timestamp: int | None
    headers: list[Header]
    value_format: ValueFormat


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """A segment's directory."""

    path: Path
    name: SegmentName

    def open(self) -> Database:
        """Open the database for reading."""
        found = column_families(self.path)
        check_families(found, LAYOUTS[ValueFormat.PLAIN_HEADERS], self.path)
        return Database(self.path, found, read_only=True)


class FormatStats(NamedTuple):
    """Entries of one format: how many, and the bytes of their keys and of their values."""

    entries: int
    key_bytes: int
    value_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentStats:
    """What is in one segment."""

    segment: str
    start_ms: int
    disk_bytes: int
    formats: dict[ValueFormat, FormatStats]

    @property
    def entries(self) -> int:
        """Entries of all formats."""
        return sum(each.entries for each in self.formats.values())

    @property
    def saved_bytes(self) -> int:
        """Bytes that migrating to plain+headers would save; negative where values have no header size yet."""
        return sum(each.entries * _MORE_BYTES[name] for name, each in self.formats.items())


class StoreDirectory:
    """A window store's directory.

    Args:
        path: `<state directory>/<application>/<task>/<store>`, or a copy of it under any name.

    Raises:
        NotAStore: There are no segments, or those of several stores.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        require_directory(self.path)
        found = [
            SegmentFiles(each, name)
            for each in self.path.iterdir()
            if each.is_dir() and is_database(each) and (name := parse_segment_name(each.name)) is not None
        ]
        self.segments = sorted(found, key=lambda each: (each.name.start_ms, each.path.name))
        names = sorted({each.name.store for each in found})
        if len(names) != 1:
            raise NotAStore(
                f"{self.path} holds segments of {len(names)} stores: {', '.join(names)}."
                if names
                else f"{self.path} holds no segment of a window store.",
                next_step="Name the directory that holds <store>.<number> directories; those of key-value "
                "stores, under rocksdb/, have no segments.",
                path=str(self.path),
            )
        self.store_name = names[0]

    def formats(self) -> set[ValueFormat]:
        """Return the formats that entries are stored in."""
        found: set[ValueFormat] = set()
        for segment in self.segments:
            with segment.open() as database:
                found.update(held_formats(database))
        return found

    def approximate_count(self) -> int:
        """Estimate the number of entries without reading them; one in two formats may count twice."""
        count = 0
        for segment in self.segments:
            with segment.open() as database:
                for value_format in held_formats(database):
                    family = database.families[COLUMN_FAMILIES[value_format]]
                    count += family.property_int_value("rocksdb.estimate-num-keys") or 0
        return count

    def entries(
        self,
        *,
        key: bytes | None = None,
        key_from: bytes | None = None,
        key_to: bytes | None = None,
        time_from: int | None = None,
        time_to: int | None = None,
    ) -> Iterator[StoredEntry]:
        """Read entries of one key, of a range of keys or of all, between two window starts (ms).

        All bounds are included; keys are compared by their bytes.

        Raises:
            SerializationError: A key or value is damaged.
            InconsistentStore: RocksDB cannot read a segment.
        """
        for segment in self.segments:
            if time_to is not None and segment.name.start_ms > time_to:
                continue
            with segment.open() as database:
                for stored, value, value_format in pairs_of(database):
                    found = decode_store_key(stored)
                    if (
                        (key is None or found.key == key)
                        and (key_from is None or found.key >= key_from)
                        and (key_to is None or found.key <= key_to)
                        and (time_from is None or found.timestamp >= time_from)
                        and (time_to is None or found.timestamp <= time_to)
                    ):
                        try:
                            decoded = decode_value(value, value_format)
                        except SerializationError as error:
                            raise damaged_entry(error, segment.path, stored) from error
                        yield StoredEntry(found, *decoded, value_format)

    def stats(self) -> Iterator[SegmentStats]:
        """Count entries and bytes, segment by segment."""
        for segment in self.segments:
            with segment.open() as database:
                formats = {}
                for value_format in held_formats(database):
                    entries = key_bytes = value_bytes = 0
                    for stored, value in scan(database.families[COLUMN_FAMILIES[value_format]]):
                        entries += 1
                        key_bytes += len(stored)
                        value_bytes += len(value)
                    formats[value_format] = FormatStats(entries, key_bytes, value_bytes)
            disk_bytes = sum(each.stat().st_size for each in segment.path.iterdir() if each.suffix == ".sst")
            yield SegmentStats(segment.path.name, segment.name.start_ms, disk_bytes, formats)


def damaged_entry(error: SerializationError, segment: Path, stored: bytes) -> SerializationError:
    """Return the error with the entry that it is about."""
    key = decode_store_key(stored)
    return SerializationError(
        f"Segment {segment.name}, key {key.key.hex()}, window start {key.timestamp}: {error.message}",
        next_step=error.next_step,
        **{**error.facts, "segment": segment.name, "key": key.key.hex(), "window_start": key.timestamp},
    )


def held_formats(database: Database) -> list[ValueFormat]:
    """Return the formats that a segment holds entries of, oldest first."""
    return [
        value_format
        for value_format, family in COLUMN_FAMILIES.items()
        if family in database.families and not database.is_empty(family)
    ]


def pairs_of(database: Database) -> Iterator[tuple[bytes, bytes, ValueFormat]]:
    """Read a segment's pairs in byte order, each with its format; of a key in two formats the newer counts.

    Raises:
        InconsistentStore: The segment has entries of two older formats.
    """
    formats = held_formats(database)
    if formats[2:]:  # an old one and a new one may be there
        raise two_older_formats(database.path, formats)
    if not formats:
        return
    newest = formats[-1]
    new = scan(database.families[COLUMN_FAMILIES[newest]])
    if len(formats) == 1:
        for key, value in new:
            yield key, value, newest
        return
    # The merge hands bytes on; a byte before each value remembers which format it is of.
    old = ((key, b"\x00" + value) for key, value in scan(database.families[COLUMN_FAMILIES[formats[0]]]))
    both = merged(((key, b"\x01" + value) for key, value in new), old, backward=False)
    for key, value in both:
        yield key, value[1:], formats[value[0]]
