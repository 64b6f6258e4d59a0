"""Rewriting a store's directory in another format while its application is stopped.

::

    <store>              the store
    <store>.migrating    the new one, while it is being written

    in place      the new directory and the old one change names at once, then the old one is removed
    with `out`    the new directory gets its name at the end; the old one is not touched

Until the names change, the old directory is whole. A run that was killed before is begun again by the next
one, and one that was killed later is finished: a mark inside it says which directory is the new one.

The `offsets` column family and every other file of the directory are kept; the task's checkpoint file lies
next to the directory and is not touched. Nobody may have the store open: its locks are held meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headpond.core.errors import UsageError
from headpond.kstreams.bytes.window_values import ValueFormat
from headpond.kstreams.migration.directory import StoreDirectory
from headpond.kstreams.migration.segment_copy import CopiedSegment, copy_segment
from headpond.kstreams.stores.rocks import locked

_MARK = ".headpond-migrated"


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """The result of a migration.

    Attributes:
        store: Its name.
        path: The new directory.
        target: The new format.
        already_done: Whether there was nothing to do.
        segments: How many were written.
        entries: Entries in the new directory.
        saved_bytes: Bytes by which all values together became shorter.
        dropped_timestamps: Timestamps that said something and went.
    """

    store: str
    path: Path
    target: ValueFormat
    already_done: bool = False
    segments: int = 0
    entries: int = 0
    saved_bytes: int = 0
    dropped_timestamps: int = 0


def migrate(
    directory: Path | str,
    *,
    target: ValueFormat = ValueFormat.PLAIN_HEADERS,
    out: Path | str | None = None,
    drop_timestamps: bool = False,
    on_entries: Callable[[int], None] = lambda _count: None,
) -> MigrationReport:
    """Rewrite a store's directory in another format.

    Args:
        directory: The store's directory.
        target: The new format; one with headers, since headers are never dropped.
        out: Where the new directory goes, if the old one is to stay.
        drop_timestamps: Whether values' timestamps that differ from their window start, and are not the -1
            that adapters write, may be dropped.
        on_entries: Called with the number of entries just written, for a progress bar.

    Raises:
        NotAStore: There is no window store.
        StoreLocked: Somebody has it open.
        TimestampsWouldBeLost: Timestamps would be lost and `drop_timestamps` is not set.
        InconsistentStore: The directory contradicts itself, changed meanwhile, or does not read back alike.
        UsageError: The target has no headers, or `out` exists.
    """
    if not target.has_headers:
        raise UsageError(f"A migration never drops headers, and the format {target} has none.")
    migration = _Migration(Path(directory), None if out is None else Path(out), target)
    return migration.run(drop_timestamps=drop_timestamps, on_entries=on_entries)


class _Migration:
    def __init__(self, source: Path, out: Path | None, target: ValueFormat) -> None:
        self.source = source
        self.out = out
        self.final = source if out is None else out
        self.target = target
        self.work = self.final.with_name(self.final.name + ".migrating")

    def run(self, *, drop_timestamps: bool, on_entries: Callable[[int], None]) -> MigrationReport:
        if self.out is None:
            self._finish_change_of_names()
        elif self.out.exists():
            raise UsageError(
                f"{self.out} already exists.",
                next_step="Name a directory that does not exist.",
                path=str(self.out),
            )
        store = StoreDirectory(self.source)
        if self.out is None and store.formats() <= {self.target}:
            return MigrationReport(store.store_name, self.source, self.target, already_done=True)
        with locked(self.source, (each.path for each in store.segments)):
            # What is there was left by a run that was killed.
            shutil.rmtree(self.work, ignore_errors=True)
            self.work.mkdir(parents=True)
            try:
                copied = [
                    copy_segment(
                        segment,
                        self.work / segment.path.name,
                        self.target,
                        drop_timestamps=drop_timestamps,
                        on_entries=on_entries,
                    )
                    for segment in store.segments
                ]
                for segment in store.segments:
                    _sync_files(self.work / segment.path.name)
                for path in self.source.iterdir():
                    if path.is_file():
                        shutil.copy2(path, self.work / path.name)
            except BaseException:
                shutil.rmtree(self.work)
                raise
            self._change_names()
        total = CopiedSegment(*map(sum, zip(*copied, strict=True)))
        return MigrationReport(
            store.store_name, self.final, self.target, segments=len(copied), **total._asdict()
        )

    def _change_names(self) -> None:
        if self.out is not None:
            sync_directory(self.work)
            self.work.rename(self.out)
            sync_directory(self.out.parent)
            return
        (self.work / _MARK).touch()
        sync_directory(self.work)
        if not exchange(self.work, self.source):
            # Two steps; a kill in between leaves no <store>, and the next run finds the mark in the new one.
            self.source.rename(self._old)
            self.work.rename(self.source)
            sync_directory(self.source.parent)
        self._remove_old()

    @property
    def _old(self) -> Path:
        return self.source.with_name(self.source.name + ".before-migration")

    def _finish_change_of_names(self) -> None:
        """Finish a run that was killed while the names changed."""
        if not self.source.exists() and (self.work / _MARK).exists() and self._old.exists():
            self.work.rename(self.source)
            sync_directory(self.source.parent)
        if (self.source / _MARK).exists():
            self._remove_old()

    def _remove_old(self) -> None:
        for old in (self.work, self._old):
            if old.exists():
                shutil.rmtree(old)
        # The mark goes last: as long as it is there, whatever else lies there is the old store.
        (self.source / _MARK).unlink()
        sync_directory(self.source)


def _sync_files(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_directory(folder)


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NOT_THERE = (errno.ENOSYS, errno.EINVAL)  # an older kernel, or a file system that cannot


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two directories of one file system atomically; False where that is not possible."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        sync_directory(one.parent)
        return True
    number = ctypes.get_errno()
    if number in _NOT_THERE:
        return False
    raise OSError(number, os.strerror(number), str(one))


def sync_directory(path: Path) -> None:
    """Bring a directory's list of names to disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
