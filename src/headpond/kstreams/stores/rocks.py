"""RocksDB as Kafka Streams uses it: one database a segment, its column families, options, and locks.

::

    store                  its column family                  older formats that it upgrades from
    plain                  default                            —
    timestamped            keyValueWithTimestamp              default (plain)
    timestamped+headers    keyValueWithTimestampAndHeaders    default, keyValueWithTimestamp
    plain+headers          windowKeyValueWithHeaders          default, keyValueWithTimestamp,
                                                              keyValueWithTimestampAndHeaders

`default` always exists too, even if empty, and `offsets` holds changelog offsets and the store's position.

For reading, the database is opened through a folder of links in the temporary directory: RocksDB and its
binding leave files in the folder that they open, and a directory that belongs to somebody else, or lies on
a read-only disk, or is in use, must not change. The write-ahead log is read too.

Writes skip RocksDB's write-ahead log as Kafka Streams' do: what counts after a crash is the last flush,
and the changelog has the rest. A flush covers all column families together (`atomic_flush`) when RocksDB
starts it by itself; who starts one by hand flushes them in the order in which a crash between two does no
harm. Source: spec "window store", section 4.5.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    WriteOptions,
)

from headpond.core.passing import PassingFolder
from headpond.kstreams.bytes.window_values import ValueFormat, conversion
from headpond.kstreams.stores.contract import InconsistentStore, NotAStore, StoreFormatMismatch, StoreLocked

DEFAULT = "default"
OFFSETS = "offsets"
PLAIN_HEADERS_COLUMN_FAMILY = "windowKeyValueWithHeaders"
"""KIP-1300 does not name it; upstream's source notes intend this one. Kafka Streams' *time-ordered* window
stores use the name today with timestamped+headers bytes and other keys: never open those as window stores."""
COLUMN_FAMILIES = {
    ValueFormat.PLAIN: DEFAULT,
    ValueFormat.TIMESTAMPED: "keyValueWithTimestamp",
    ValueFormat.TIMESTAMPED_HEADERS: "keyValueWithTimestampAndHeaders",
    ValueFormat.PLAIN_HEADERS: PLAIN_HEADERS_COLUMN_FAMILY,
}
FORMATS = {family: value_format for value_format, family in COLUMN_FAMILIES.items()}
"""Column family → format of its values."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The column families of one kind of store.

    Attributes:
        name: What its values are called in messages.
        data: The column family of the store's own format.
        older: Those of older formats, each with the conversion of its values.
    """

    name: str
    data: str
    older: Mapping[str, Callable[[bytes], bytes | None]]

    @property
    def known(self) -> set[str]:
        """Every column family that a directory of this store may have."""
        return {DEFAULT, OFFSETS, self.data, *self.older}


LAYOUTS = {
    new: Layout(
        new,
        COLUMN_FAMILIES[new],
        {COLUMN_FAMILIES[old]: conversion(old, new) for old in list(ValueFormat)[:number]},
    )
    for number, new in enumerate(ValueFormat)
}
"""Format → its layout; each upgrades from all before it."""

WRITE_BUFFER_BYTES = 16 * 1024 * 1024
BLOCK_CACHE_BYTES = 50 * 1024 * 1024
BLOCK_BYTES = 4096
BLOOM_BITS_PER_KEY = 10
MAX_WRITE_BUFFERS = 3
OPEN_ATTEMPTS = 3
"""Times that opening for reading is tried: a process that has the store open may remove a file meanwhile."""
_CURRENT = "CURRENT"
_NOT_OURS_TO_KEEP = "rocksdict-config.json"
_LINKED_NEVER = ("LOG", "LOCK", _NOT_OURS_TO_KEEP)
_LOCK = "LOCK"
_STREAMS_LOCK = ".lock"

# One cache for all segments of the process: Kafka Streams' default is one of this size for each.
_cache: list[Cache] = []
_open_here: set[str] = set()


def database_options() -> Options:
    """Return the options that Kafka Streams sets, for a database and each of its column families."""
    if not _cache:
        _cache.append(Cache(BLOCK_CACHE_BYTES))
    table = BlockBasedOptions()
    table.set_block_cache(_cache[0])
    table.set_block_size(BLOCK_BYTES)
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, block_based=False)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(MAX_WRITE_BUFFERS)
    options.set_compression_type(DBCompressionType.none())
    options.set_compaction_style(DBCompactionStyle.universal())
    options.create_if_missing(create_if_missing=True)
    options.create_missing_column_families(create_missing_cfs=True)
    options.set_atomic_flush(True)
    options.set_keep_log_file_num(1)
    options.set_max_background_jobs(2)
    return options


def unlogged() -> WriteOptions:
    """Return options for writes that skip the write-ahead log."""
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign, assignment] # the stub says it is a method
    return options


def scan(
    family: Rdict, start: bytes | None = None, *, backward: bool = False
) -> Iterator[tuple[bytes, bytes]]:
    """Read pairs from a key on, itself included, in unsigned byte order of their keys.

    Whoever reads stops: RocksDB's own iterator bounds live in an object of the binding that the iterator does
    not keep alive.
    """
    return cast("Iterator[tuple[bytes, bytes]]", family.items(backwards=backward, from_key=start))


def is_database(path: Path) -> bool:
    """Return whether a RocksDB lies there."""
    return (path / _CURRENT).is_file()


def column_families(path: Path) -> list[str]:
    """Return the names of a database's column families; none if there is no database.

    Raises:
        InconsistentStore: RocksDB cannot read it.
    """
    if not is_database(path):
        return []
    try:
        return list(Rdict.list_cf(str(path)))
    except Exception as error:
        raise _as_store_error(error, path) from error


def check_families(found: Iterable[str], layout: Layout, path: Path) -> None:
    """Raise if a directory has column families that a store of this layout does not know.

    Raises:
        StoreFormatMismatch: It was written in a newer format; nothing was changed.
    """
    unknown = sorted(set(found) - layout.known)
    if not unknown:
        return
    newer = [str(FORMATS[family]) for family in unknown if family in FORMATS]
    held = " and ".join(newer) or f"unknown column families ({', '.join(unknown)})"
    raise StoreFormatMismatch(
        f"Segment {path.name} holds {held}, which a {layout.name} store cannot read.",
        next_step="Open it with the store of that format; going back to an older one means deleting the "
        "directory and restoring it from its changelog.",
        path=str(path),
        column_families=unknown,
    )


class Database:
    """An open segment's RocksDB: `db` itself, for batches, and `families`, each a map.

    Raises:
        StoreLocked: Somebody has it open.
        InconsistentStore: RocksDB cannot read it.
    """

    def __init__(self, path: Path, families: Iterable[str], *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._view: PassingFolder | None = None
        names = list(dict.fromkeys(families))
        if read_only:
            self.db = self._open_view(names)
        else:
            self._key = os.path.realpath(path)
            if self._key in _open_here:
                raise _locked(f"Segment {path.name}", "this process", path)
            path.mkdir(parents=True, exist_ok=True)
            self.db = _open(path, names, path)
            _open_here.add(self._key)
        self.families = {name: self.db.get_column_family(name) for name in names}

    def _open_view(self, names: list[str]) -> Rdict:
        for attempt in range(OPEN_ATTEMPTS):
            view = PassingFolder("headpond-store-")
            links = Path(view.path, "links")
            links.mkdir()
            try:
                for file in self.path.resolve().iterdir():
                    if not file.name.startswith(_LINKED_NEVER):
                        (links / file.name).symlink_to(file)
                db = _open(links, names, self.path, read_only=True)
            except InconsistentStore:
                if attempt == OPEN_ATTEMPTS - 1:
                    raise
            else:
                self._view = view
                return db
        raise AssertionError("the last attempt returns or raises")

    def is_empty(self, name: str) -> bool:
        """Return whether a column family holds nothing."""
        return next(iter(self.families[name].keys()), None) is None

    def add(self, names: Iterable[str]) -> None:
        """Make the column families that are not there yet."""
        for name in names:
            if name not in self.families:
                self.families[name] = self.db.create_column_family(name, database_options())

    def drop(self, name: str) -> None:
        """Remove an empty column family."""
        self.families.pop(name).close()
        self.db.drop_column_family(name)

    def offsets(self) -> dict[bytes, bytes]:
        """Read the entries of `offsets`: changelog offsets, position, status."""
        return dict(scan(self.families[OFFSETS])) if OFFSETS in self.families else {}

    def close(self) -> None:
        """Close every handle; what was put and not flushed goes to disk first. Closing twice is fine."""
        if not self.families:
            return
        for family in self.families.values():
            family.close()
        self.families = {}
        self.db.close()
        if self.read_only:
            self._view = None
        else:
            (self.path / _NOT_OURS_TO_KEEP).unlink(missing_ok=True)
            _open_here.discard(self._key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_database(path: Path) -> None:
    """Remove a segment's directory; what a kill leaves of it is not a database and never taken for one."""
    (path / _CURRENT).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def require_directory(path: Path) -> None:
    """Raise if a path is not a directory.

    Raises:
        NotAStore: There is nothing, or a file.
    """
    if not path.is_dir():
        raise NotAStore(
            f"There is no directory at {path}.",
            next_step="Name the store's directory: <state directory>/<application>/<task>/<store>.",
            path=str(path),
        )


def _open(path: Path, names: list[str], shown: Path, *, read_only: bool = False) -> Rdict:
    access = AccessType.read_only(error_if_log_file_exist=False) if read_only else AccessType.read_write()
    try:
        return Rdict(
            str(path),
            options=database_options(),
            column_families={name: database_options() for name in names},
            access_type=access,
        )
    except Exception as error:
        with suppress(OSError):
            (path / _NOT_OURS_TO_KEEP).unlink()
        raise _as_store_error(error, shown) from error


def _as_store_error(error: Exception, path: Path) -> Exception:
    """Return our error for the binding's plain Exception."""
    text = str(error)
    if "lock" in text.lower() and "LOCK" in text:
        by = "this process" if "current process" in text else "another process"
        return _locked(f"Segment {path.name}", by, path)
    return InconsistentStore(
        f"RocksDB cannot open segment {path.name}: {text}",
        next_step="Restore the store from its changelog, or from a copy.",
        reason="rocksdb",
        path=str(path),
    )


def _locked(what: str, by: str, path: Path) -> StoreLocked:
    return StoreLocked(
        f"{what} is in use by {by}.",
        next_step="Stop the application that uses the store, or work on a copy of the directory.",
        path=str(path),
    )


@contextmanager
def locked(directory: Path, segments: Iterable[Path]) -> Iterator[None]:
    """Hold the locks of a store's segments and of the application above it.

    Raises:
        StoreLocked: Somebody holds one of them.
    """
    with ExitStack() as stack:
        above = directory.resolve().parents[:2]
        for lock in (each / _STREAMS_LOCK for each in above):
            if lock.is_file():
                stack.enter_context(_held(lock, f"The application of {directory.name}"))
        for segment in segments:
            if os.path.realpath(segment) in _open_here:
                raise _locked(f"Segment {segment.name}", "this process", segment)
            stack.enter_context(_held(segment / _LOCK, f"Segment {segment.name}"))
        yield


@contextmanager
def _held(lock: Path, what: str) -> Iterator[None]:
    made = not lock.exists()
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        # Nobody can have a store open for writing on a disk that is read-only.
        yield
        return
    try:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _locked(what, "another process", lock) from error
        yield
    finally:
        # The directory may have been replaced meanwhile; only the file that was made here goes.
        if made and lock.exists() and lock.stat().st_ino == os.fstat(handle).st_ino:
            lock.unlink()
        os.close(handle)
