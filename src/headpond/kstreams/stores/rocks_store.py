"""Segments on RocksDB, with migration in place where a directory holds an older format.

A segment is in *regular mode*: one column family; or, as long as an older format's column family holds
entries, in *upgrade mode*: two of them. In upgrade mode

- a read of one key looks into the new column family, then into the old one; what it finds there it
  converts, writes to the new one and deletes from the old one (a segment opened for reading only converts);
- every write deletes in the old column family and writes (or deletes) in the new one, as one batch;
- a scan merges both by unsigned byte order, converts old values on the way and moves nothing; a key in
  both comes once, from the new one.

Those batches go through RocksDB's write-ahead log, unlike writes in regular mode: between two column
families nothing may be lost halfway. Source: spec "window store", section 6.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from rocksdict import WriteBatch

from headpond.kstreams.bytes.window_values import ValueFormat
from headpond.kstreams.stores.contract import InconsistentStore, StoreClosed
from headpond.kstreams.stores.rocks import (
    DEFAULT,
    FORMATS,
    LAYOUTS,
    OFFSETS,
    Database,
    Layout,
    check_families,
    column_families,
    is_database,
    remove_database,
    scan,
    unlogged,
)
from headpond.kstreams.stores.segments import (
    StoreSettings,
    check_start,
    parse_segment_name,
    segment_id,
    segment_interval_ms,
    segment_name,
)

if TYPE_CHECKING:
    from rocksdict import ColumnFamily, Rdict

_log = logging.getLogger("headpond.kstreams")
_OFFSET = struct.Struct(">q")


class RocksSegment:
    """One segment's database.

    Raises:
        StoreFormatMismatch: The directory was written in a newer format.
        InconsistentStore: Two older formats hold entries at once, or RocksDB cannot read it.
        StoreLocked: Somebody has it open.
    """

    def __init__(self, path: Path, layout: Layout, *, read_only: bool = False) -> None:
        self.path = path
        self.layout = layout
        found = column_families(path)
        check_families(found, layout, path)
        self._database = Database(path, found or [DEFAULT], read_only=read_only)
        try:
            self._old_family = self._find_old()
            if not read_only:
                # Only now: a directory that is refused, or only read, is left as it is.
                self._database.add((layout.data, OFFSETS))
        except BaseException:
            self._database.close()
            raise
        self._new: Rdict | None = self._database.families.get(layout.data)
        self._read_only = read_only
        self._unlogged = unlogged()
        self._old: Rdict | None = None
        self._handle: ColumnFamily | None = None
        self._old_handle: ColumnFamily | None = None
        if self._old_family is not None:
            self._old = self._database.families[self._old_family]
            self._old_handle = self._database.db.get_column_family_handle(self._old_family)
        if not read_only:
            self._handle = self._database.db.get_column_family_handle(layout.data)
            assert self._new is not None
            self._new.set_write_options(self._unlogged)
        # In regular mode a put is one call of the binding.
        self._direct = self._new if self._old is None and not read_only else None

    @property
    def upgrading(self) -> ValueFormat | None:
        """The older format that the segment still holds entries of; None in regular mode."""
        return None if self._old_family is None else FORMATS[self._old_family]

    def _find_old(self) -> str | None:
        holding = []
        for family in self.layout.older:
            if family not in self._database.families:
                continue
            if not self._database.is_empty(family):
                holding.append(family)
            elif family != DEFAULT and not self._database.read_only:
                # What is left of a finished upgrade; `default` must stay, RocksDB wants it.
                self._database.drop(family)
        if len(holding) > 1:
            raise two_older_formats(self.path, [FORMATS[each] for each in holding])
        return holding[0] if holding else None

    def get(self, key: bytes) -> bytes | None:
        """Read one value; in upgrade mode, move it."""
        value: bytes | None = self._new.get(key) if self._new is not None else None
        if value is not None or self._old is None:
            return value
        old: bytes | None = self._old.get(key)
        if old is None:
            return None
        value = self._converted(old)
        if not self._read_only:
            self.write([(key, value)])
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Write one value."""
        if self._direct is not None:
            self._direct[key] = value
        else:
            self.write([(key, value)])

    def delete(self, key: bytes) -> None:
        """Remove one value, if it is there."""
        self.write([(key, None)])

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write and remove (None) many, all or nothing."""
        self._check_writable()
        batch = WriteBatch(raw_mode=True)
        for key, value in changes:
            if self._old_handle is not None:
                batch.delete(key, self._old_handle)
            if value is None:
                batch.delete(key, self._handle)
            else:
                batch.put(key, value, self._handle)
        if self._old is None:
            self._database.db.write(batch, self._unlogged)
        else:
            self._database.db.write(batch)

    def scan(
        self, lower: bytes | None = None, upper: bytes | None = None, *, backward: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Read pairs in unsigned byte order of their keys, converted where they are old.

        New ones past the far end follow: the caller, who looks at each, stops sooner than a filter here.
        """
        start = upper if backward else lower
        if self._old is None:
            return iter(()) if self._new is None else scan(self._new, start, backward=backward)
        pairs = takewhile(
            lambda pair: (lower is None or pair[0] >= lower) and (upper is None or pair[0] <= upper),
            scan(self._old, start, backward=backward),
        )
        old = ((key, self._converted(value)) for key, value in pairs)
        if self._new is None:
            return old
        return merged(scan(self._new, start, backward=backward), old, backward=backward)

    def _converted(self, old: bytes) -> bytes:
        assert self._old_family is not None
        value = self.layout.older[self._old_family](old)
        assert value is not None
        return value

    def keys(self) -> Iterator[bytes]:
        """Read all keys; in upgrade mode the new ones first, and one may come twice."""
        if self._new is not None:
            yield from self._new.keys()
        if self._old is not None:
            yield from self._old.keys()

    def flush(self, offsets: Mapping[str, int] | None = None) -> None:
        """Bring everything to disk, then the changelog offsets.

        Entries go before offsets: a kill between the two only makes the application restore twice. New
        entries go before the deletions of old ones: a kill between the two leaves a key in both, and then
        the new one wins.
        """
        self._check_writable()
        assert self._new is not None
        self._new.flush()
        if self._old is not None:
            self._old.flush()
        if offsets:
            family = self._database.families[OFFSETS]
            for partition, offset in offsets.items():
                family.put(partition.encode(), _OFFSET.pack(offset), self._unlogged)
            family.flush()

    def close(self) -> None:
        """Flush and close."""
        if self._database.families and not self._read_only:
            self.flush()
        self._let_go()

    def destroy(self) -> None:
        """Close, and remove the directory."""
        self._let_go()
        remove_database(self.path)

    def _let_go(self) -> None:
        # The binding keeps a database open, and locked, as long as one handle lives.
        self._new = self._old = self._direct = None
        self._handle = self._old_handle = None
        self._database.close()

    def _check_writable(self) -> None:
        if self._read_only or self._handle is None:
            raise StoreClosed(
                f"Segment {self.path.name} {'is open for reading only' if self._read_only else 'is closed'}.",
                path=str(self.path),
            )


def two_older_formats(path: Path, formats: list[ValueFormat]) -> InconsistentStore:
    """Return the error for a segment whose entries are of more formats than an upgrade explains."""
    return InconsistentStore(
        f"Segment {path.name} holds entries of {len(formats)} formats at once: {' and '.join(formats)}.",
        next_step="Delete the directory and restore the store from its changelog.",
        reason="two_older_formats",
        path=str(path),
    )


def merged(
    first: Iterator[tuple[bytes, bytes]], second: Iterator[tuple[bytes, bytes]], *, backward: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Merge two ordered scans; of a key in both, only the first one's pair comes."""
    left, right = next(first, None), next(second, None)
    while left is not None and right is not None:
        if left[0] == right[0]:
            yield left
            left, right = next(first, None), next(second, None)
        elif (left[0] < right[0]) is not backward:
            yield left
            left = next(first, None)
        else:
            yield right
            right = next(second, None)
    if left is not None:
        yield left
        yield from first
    if right is not None:
        yield right
        yield from second


class RocksSegments:
    """Opens and makes the segments of one store's directory.

    Args:
        directory: The store's directory, `<task>/<store>`; made if it is not there.
        settings: The store's settings; the name is the segments' prefix.
        value_format: The format of the values.
        read_only: Open what is there for reading and make nothing.
    """

    def __init__(
        self, directory: Path, settings: StoreSettings, value_format: ValueFormat, *, read_only: bool = False
    ) -> None:
        self.directory = directory
        self._settings = settings
        self._interval_ms = segment_interval_ms(settings.retention_ms)
        self._layout = LAYOUTS[value_format]
        self._read_only = read_only
        if not read_only:
            directory.mkdir(parents=True, exist_ok=True)

    def existing(self) -> dict[int, RocksSegment]:
        """Open the segments that are there, renaming those of older names.

        Raises:
            StoreFormatMismatch: The store was written with another retention.
            InconsistentStore: Two directories are the same segment.
        """
        opened: dict[int, RocksSegment] = {}
        try:
            for path in sorted(self.directory.iterdir()):
                parsed = parse_segment_name(path.name, self._settings.name)
                if parsed is None or not path.is_dir():
                    continue
                if is_database(path):
                    if not parsed.legacy:
                        check_start(path, parsed.start_ms, self._settings.retention_ms)
                    number = segment_id(parsed.start_ms, self._interval_ms)
                    opened[number] = RocksSegment(
                        self._renamed(path, number), self._layout, read_only=self._read_only
                    )
                elif not self._read_only:
                    # What a kill left of a segment that was being made or removed.
                    remove_database(path)
        except BaseException:
            for segment in opened.values():
                segment.close()
            raise
        return opened

    def _renamed(self, path: Path, number: int) -> Path:
        wanted = self.path_of(number)
        if path == wanted or self._read_only:
            return path
        if wanted.exists():
            raise InconsistentStore(
                f"Segments {path.name} and {wanted.name} cover the same time.",
                next_step="Open the store with the retention that it was written with.",
                reason="segments_overlap",
                path=str(path),
            )
        _log.info("Store %s: segment %s becomes %s.", self._settings.name, path.name, wanted.name)
        return path.rename(wanted)

    def create(self, number: int) -> RocksSegment:
        """Make the segment of that number."""
        return RocksSegment(self.path_of(number), self._layout, read_only=self._read_only)

    def path_of(self, number: int) -> Path:
        """Return the directory of a segment."""
        return self.directory / segment_name(self._settings.name, number, self._interval_ms)
