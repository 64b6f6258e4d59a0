"""The buffer of a left or outer join on RocksDB, in the directory of a Kafka Streams key-value store.

::

    <task>/rocksdb/<buffer>/
        default                       lists as Kafka Streams writes them, without headers
        outerJoinBufferWithHeaders    lists whose elements have headers
        offsets                       changelog offsets, as in every store

A buffer with headers opened on a directory without them reads the old entries as having none. They stay
where they are until they leave, or until their list gets another element: then it moves as a whole. The
other way round is refused. Writes skip the write-ahead log, as a window store's do.
Source: spec "window store", section 8.2.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rocksdict import WriteBatch

from headpond.formats.outer_join_buffer import BufferFormat, plain_list_to_headers
from headpond.windows.errors import InconsistentStore, StoreClosed, StoreFormatMismatch
from headpond.windows.layouts import DEFAULT, OFFSETS
from headpond.windows.rocks import Database, column_families, scan, unlogged
from headpond.windows.rocks_segment import merged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocksdict import Rdict

BUFFER_WITH_HEADERS_COLUMN_FAMILY = "outerJoinBufferWithHeaders"
"""Kafka's change that gives the buffer headers is open and names no column family; this one is ours."""


class RocksPairs:
    """A buffer's bytes on RocksDB, in the directory of a Kafka Streams key-value store.

    Args:
        directory: The buffer's directory, `<task>/rocksdb/<buffer>`; made if it is not there.
        buffer_format: Without headers the directory stays one that Kafka Streams reads.
        read_only: Open for reading; the directory is not touched.

    Raises:
        StoreFormatMismatch: The directory has headers and `buffer_format` has none, or it is another store's.
        InconsistentStore: RocksDB cannot read it.
        StoreLocked: Somebody has it open.
    """

    def __init__(
        self,
        directory: Path | str,
        buffer_format: BufferFormat = BufferFormat.HEADERS,
        *,
        read_only: bool = False,
    ) -> None:
        self.directory = Path(directory)
        self.format = buffer_format
        found = column_families(self.directory)
        self._check(found)
        if read_only and not found:
            raise InconsistentStore(
                f"{self.directory} holds no RocksDB.",
                next_step="Give the buffer's directory: <task>/rocksdb/<buffer>.",
                reason="no_database",
                path=str(self.directory),
            )
        self._database = Database(self.directory, found or [DEFAULT], read_only=read_only)
        own = BUFFER_WITH_HEADERS_COLUMN_FAMILY if buffer_format is BufferFormat.HEADERS else DEFAULT
        if not read_only:
            self._database.add((own, OFFSETS))
        self._read_only = read_only
        self._own_name = own
        self._own = self._database.family(own) if own in self._database.families else None
        self._old: Rdict | None = None
        if own != DEFAULT and not self._database.is_empty(DEFAULT):
            self._old = self._database.family(DEFAULT)
        self._unlogged = unlogged()

    def _check(self, found: list[str]) -> None:
        unknown = sorted(set(found) - {DEFAULT, OFFSETS, BUFFER_WITH_HEADERS_COLUMN_FAMILY})
        if unknown:
            raise StoreFormatMismatch(
                f"{self.directory.name} has column families of no join buffer: {', '.join(unknown)}.",
                next_step="Give the directory of the join's shared store: <task>/rocksdb/<buffer>.",
                path=str(self.directory),
                column_families=unknown,
            )
        if self.format is BufferFormat.PLAIN and BUFFER_WITH_HEADERS_COLUMN_FAMILY in found:
            raise StoreFormatMismatch(
                f"{self.directory.name} keeps headers, which a buffer without them cannot read.",
                next_step="Open it with headers.",
                path=str(self.directory),
            )

    def get(self, key: bytes) -> bytes | None:
        """Read one list, from the older format if it is still there."""
        own: bytes | None = None if self._own is None else self._own.get(key)
        if own is not None or self._old is None:
            return own
        old: bytes | None = self._old.get(key)
        return None if old is None else plain_list_to_headers(old)

    def put(self, key: bytes, value: bytes) -> None:
        """Write one list."""
        self._write(key, value)

    def delete(self, key: bytes) -> None:
        """Remove one list, if it is there."""
        self._write(key, None)

    def _write(self, key: bytes, value: bytes | None) -> None:
        if self._own is None or self._read_only:
            raise StoreClosed(
                f"{self.directory.name} is {'open for reading only' if self._read_only else 'closed'}.",
                path=str(self.directory),
            )
        batch = WriteBatch(raw_mode=True)
        handle = self._database.db.get_column_family_handle(self._own_name)
        if value is None:
            batch.delete(key, handle)
        else:
            batch.put(key, value, handle)
        if self._old is None:
            self._database.db.write(batch, self._unlogged)
            return
        # Between two column families nothing may be lost halfway: this batch is logged.
        batch.delete(key, self._database.db.get_column_family_handle(DEFAULT))
        self._database.db.write(batch)

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Read all in order, as they were when the scan began."""
        own = iter(()) if self._own is None else scan(self._own, None, None)
        if self._old is None:
            return own
        old = ((key, plain_list_to_headers(value)) for key, value in scan(self._old, None, None))
        return merged(own, old, backward=False)

    def close(self) -> None:
        """Bring everything to disk and let go; closing twice is fine."""
        if not self._database.families:
            return
        if not self._read_only:
            for each in (self._own, self._old):
                if each is not None:
                    each.flush()
        self._own = self._old = None
        self._database.close()
