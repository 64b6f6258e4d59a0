"""A segment on RocksDB, with migration in place where the directory holds an older format.

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
from typing import TYPE_CHECKING

from rocksdict import WriteBatch

from headpond.formats.window_values import ValueFormat, conversion
from headpond.windows.errors import InconsistentStore, StoreClosed
from headpond.windows.layouts import COLUMN_FAMILIES, DEFAULT, OFFSETS, Layout
from headpond.windows.rocks import (
    Database,
    check_families,
    column_families,
    remove_database,
    scan,
    unlogged,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from rocksdict import ColumnFamily, Rdict

_log = logging.getLogger("headpond.windows")
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
            self._old_format = self._find_old()
            if not read_only:
                # Only now: a directory that is refused, or only read, is left as it is.
                self._database.add((layout.data, OFFSETS))
        except BaseException:
            self._database.close()
            raise
        families = self._database.families
        self._new: Rdict | None = self._database.family(layout.data) if layout.data in families else None
        self._read_only = read_only
        self._unlogged = unlogged()
        self._old: Rdict | None = None
        self._handle: ColumnFamily | None = None
        self._old_handle: ColumnFamily | None = None
        self._convert: Callable[[bytes | None], bytes | None] | None = None
        if self._old_format is not None:
            family = COLUMN_FAMILIES[self._old_format]
            self._old = self._database.family(family)
            self._old_handle = self._database.db.get_column_family_handle(family)
            self._convert = conversion(self._old_format, layout.value_format)
        if not read_only:
            self._handle = self._database.db.get_column_family_handle(layout.data)
            assert self._new is not None
            self._new.set_write_options(self._unlogged)
        # In regular mode a put is one call of the binding.
        self._direct = self._new if self._old is None and not read_only else None

    @property
    def upgrading(self) -> ValueFormat | None:
        """The older format that the segment still holds entries of; None in regular mode."""
        return self._old_format

    def _find_old(self) -> ValueFormat | None:
        holding = []
        for each in self.layout.older:
            family = COLUMN_FAMILIES[each]
            if family not in self._database.families:
                continue
            if not self._database.is_empty(family):
                holding.append(each)
            elif family != DEFAULT and not self._database.read_only:
                # What is left of a finished upgrade; `default` must stay, RocksDB wants it.
                self._database.drop(family)
        if len(holding) > 1:
            raise InconsistentStore(
                f"Segment {self.path.name} holds entries of two older formats at once: "
                f"{' and '.join(str(each) for each in holding)}.",
                next_step="Delete the directory and restore the store from its changelog.",
                reason="two_older_formats",
                path=str(self.path),
            )
        return holding[0] if holding else None

    def get(self, key: bytes) -> bytes | None:
        """Read one value; in upgrade mode, move it."""
        value: bytes | None = self._new.get(key) if self._new is not None else None
        if value is not None or self._old is None:
            return value
        old: bytes | None = self._old.get(key)
        if old is None:
            return None
        assert self._convert is not None
        value = self._convert(old)
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
        self._commit(batch)

    def delete_range(self, lower: bytes, upper: bytes) -> None:
        """Remove all keys between the two, the second excluded."""
        self._check_writable()
        batch = WriteBatch(raw_mode=True)
        if self._old_handle is not None:
            batch.delete_range(lower, upper, self._old_handle)
        batch.delete_range(lower, upper, self._handle)
        self._commit(batch)

    def _commit(self, batch: WriteBatch) -> None:
        if self._old is None:
            self._database.db.write(batch, self._unlogged)
        else:
            self._database.db.write(batch)

    def scan(
        self, lower: bytes | None, upper: bytes | None, *, backward: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Read pairs in unsigned byte order of their keys, converted where they are old."""
        if self._old is None:
            return iter(()) if self._new is None else scan(self._new, lower, upper, backward=backward)
        old = self._converted(scan(self._old, lower, upper, backward=backward))
        if self._new is None:
            return old
        return merged(scan(self._new, lower, upper, backward=backward), old, backward=backward)

    def scan_from(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Read pairs from a key on; there may come more after the upper bound, which the caller checks."""
        if self._old is None and self._new is not None:
            return scan(self._new, lower, None)
        return self.scan(lower, upper, backward=False)

    def _converted(self, pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        assert self._convert is not None
        for key, old in pairs:
            value = self._convert(old)
            assert value is not None
            yield key, value

    def keys(self) -> Iterator[bytes]:
        """Read all keys; in upgrade mode the new ones first, and one may come twice."""
        if self._new is not None:
            yield from self._new.keys()
        if self._old is not None:
            yield from self._old.keys()

    def approximate_count(self) -> int:
        """Estimate the number of entries as RocksDB does; in upgrade mode a key may count twice."""
        families = [each for each in (self._new, self._old) if each is not None]
        return sum(each.property_int_value("rocksdb.estimate-num-keys") or 0 for each in families)

    def offsets(self) -> dict[bytes, bytes]:
        """Read the entries of the column family `offsets`."""
        return self._database.offsets()

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
            family = self._database.family(OFFSETS)
            for partition, offset in offsets.items():
                family.put(partition.encode(), _OFFSET.pack(offset), self._unlogged)
            family.flush()

    def close(self) -> None:
        """Flush and let go."""
        if self._database.families and not self._read_only:
            self.flush()
        self._let_go()

    def destroy(self) -> None:
        """Let go and remove the directory."""
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
