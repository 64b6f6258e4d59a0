"""Window stores on RocksDB, one class a format, and the segments' directories under a store's directory."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from headpond.formats.window_values import ValueFormat
from headpond.windows.errors import InconsistentStore, StoreFormatMismatch
from headpond.windows.layouts import LAYOUTS
from headpond.windows.rocks import is_database, remove_database
from headpond.windows.rocks_segment import RocksSegment
from headpond.windows.segmented import SegmentedWindowStore
from headpond.windows.segments import parse_segment_name, segment_id, segment_name

if TYPE_CHECKING:
    from headpond.windows.layouts import Layout
    from headpond.windows.segment import Segment
    from headpond.windows.segments import SegmentName, StoreSettings

_log = logging.getLogger("headpond.windows")


class RocksSegments:
    """Opens and makes the segments of one store's directory.

    Args:
        directory: The store's directory, `<task>/<store>`; made if it is not there.
        settings: The store's settings; the name is the segments' prefix.
        layout: The column families.
        read_only: Open what is there for reading and make nothing.
    """

    persistent = True

    def __init__(
        self, directory: Path, settings: StoreSettings, layout: Layout, *, read_only: bool = False
    ) -> None:
        self.directory = directory
        self._settings = settings
        self._layout = layout
        self._read_only = read_only
        if not read_only:
            directory.mkdir(parents=True, exist_ok=True)

    def existing(self) -> dict[int, Segment]:
        """Open the segments that are there, renaming those of older names.

        Raises:
            StoreFormatMismatch: The store was written with another retention.
            InconsistentStore: Two directories are the same segment.
        """
        opened: dict[int, Segment] = {}
        try:
            for path in sorted(self.directory.iterdir()):
                parsed = parse_segment_name(path.name, self._settings.name)
                if parsed is None or not path.is_dir():
                    continue
                if is_database(path):
                    number = self._number_of(path, parsed)
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

    def _number_of(self, path: Path, parsed: SegmentName) -> int:
        interval_ms = self._settings.segment_interval_ms
        number = segment_id(parsed.start_ms, interval_ms)
        if not parsed.legacy and number * interval_ms != parsed.start_ms:
            raise StoreFormatMismatch(
                f"Segment {path.name} does not start at a multiple of the {interval_ms} ms that a retention "
                f"of {self._settings.retention_ms} ms gives a segment.",
                next_step="Open the store with the retention that it was written with.",
                path=str(path),
                retention_ms=self._settings.retention_ms,
            )
        return number

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

    def create(self, number: int) -> Segment:
        """Make the segment of that number."""
        return RocksSegment(self.path_of(number), self._layout, read_only=self._read_only)

    def path_of(self, number: int) -> Path:
        """Give the directory of a segment."""
        return self.directory / segment_name(self._settings.name, number, self._settings.segment_interval_ms)


class RocksDBWindowStore(SegmentedWindowStore):
    """A plain window store on RocksDB; its subclasses are the other formats.

    Args:
        directory: The store's directory.
        settings: Name, retention, window size, duplicates.
        read_only: Open for reading; the directory is not touched, even while somebody uses it.
        seed_counter: See `SegmentedWindowStore`.
        recover_stream_time: See `SegmentedWindowStore`.

    Raises:
        StoreFormatMismatch: The directory was written in a newer format.
        InconsistentStore: The directory contradicts itself, or RocksDB cannot read it.
        StoreLocked: Somebody has it open.
    """

    FORMAT: ClassVar[ValueFormat] = ValueFormat.PLAIN

    def __init__(
        self,
        directory: Path | str,
        settings: StoreSettings,
        *,
        read_only: bool = False,
        seed_counter: bool = True,
        recover_stream_time: bool = False,
    ) -> None:
        self.directory = Path(directory)
        layout = LAYOUTS[self.FORMAT]
        super().__init__(
            settings,
            RocksSegments(self.directory, settings, layout, read_only=read_only),
            self.FORMAT,
            seed_counter=seed_counter,
            recover_stream_time=recover_stream_time,
        )


class RocksDBTimestampedWindowStore(RocksDBWindowStore):
    """A timestamped window store; upgrades a plain one in place."""

    FORMAT = ValueFormat.TIMESTAMPED


class RocksDBTimestampedWindowStoreWithHeaders(RocksDBWindowStore):
    """A timestamped window store with headers; upgrades a plain or a timestamped one in place."""

    FORMAT = ValueFormat.TIMESTAMPED_HEADERS


class RocksDBWindowStoreWithHeaders(RocksDBWindowStore):
    """KIP-1300's window store with headers and no timestamp; upgrades each of the others in place."""

    FORMAT = ValueFormat.PLAIN_HEADERS


ROCKSDB_STORES = {
    each.FORMAT: each
    for each in (
        RocksDBWindowStore,
        RocksDBTimestampedWindowStore,
        RocksDBTimestampedWindowStoreWithHeaders,
        RocksDBWindowStoreWithHeaders,
    )
}
"""Format → its class."""
