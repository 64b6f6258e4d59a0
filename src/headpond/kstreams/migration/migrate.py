"""Rewriting a store's directory in another format while its application is stopped.

::

    <store>                      the store
    <store>.migrating/           the new one, segment by segment; <segment>.part while one is being written
    <store>.migrating.json       the journal: which segments are done, with counts and checksums

    in place      the new directory and the old one change names at once, then the old one is removed
    with `out`    the new directory gets its name at the end; the old one is not touched

Until the names change, the old directory is whole. A run that was killed at any point is continued by the
next one: finished segments are not written again unless their source changed, and a journal of a finished
copy leads straight to the change of names. A mark inside it says which directory is the new one.

The `offsets` column family and every other file of the directory are kept; the task's checkpoint file lies
next to the directory and is not touched. Nobody may have the store open: its locks are held meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from headpond.core.errors import UsageError
from headpond.kstreams.bytes.window_values import ValueFormat
from headpond.kstreams.migration.directory import StoreDirectory
from headpond.kstreams.migration.segment_copy import CopiedSegment, copy_segment
from headpond.kstreams.stores.contract import InconsistentStore, TimestampsWouldBeLost
from headpond.kstreams.stores.rocks import locked

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.kstreams.migration.directory import SegmentFiles

JOURNAL_VERSION = 1
_MARK = ".headpond-migrated"
_PART = ".part"
_NOT_CONTENT = ("LOCK", "LOG")


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What a migration came to."""

    store: str
    path: Path
    target: ValueFormat
    segments: dict[str, CopiedSegment] = field(default_factory=dict)
    resumed_segments: int = 0
    already_done: bool = False

    @property
    def entries(self) -> int:
        """Entries in the new directory."""
        return sum(each.entries for each in self.segments.values())

    @property
    def saved_bytes(self) -> int:
        """Bytes by which all values together became shorter."""
        return sum(each.bytes_before - each.bytes_after for each in self.segments.values())

    @property
    def dropped_timestamps(self) -> int:
        """Timestamps that said something and went."""
        return sum(each.dropped_timestamps for each in self.segments.values())


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
        self.journal_path = self.final.with_name(self.final.name + ".migrating.json")

    def run(self, *, drop_timestamps: bool, on_entries: Callable[[int], None]) -> MigrationReport:
        if self.out is None:
            self._finish_change_of_names()
        elif self.out.exists() and self.journal_path.exists() and not self.work.exists():
            # Killed after its last step but one.
            self.journal_path.unlink()
            return MigrationReport(
                StoreDirectory(self.out).store_name, self.out, self.target, already_done=True
            )
        elif self.out.exists():
            raise UsageError(
                f"{self.out} already exists.",
                next_step="Name a directory that does not exist.",
                path=str(self.out),
            )
        store = StoreDirectory(self.source)
        if self.out is None and not self.journal_path.exists() and store.formats() <= {self.target}:
            return MigrationReport(store.store_name, self.source, self.target, already_done=True)
        with locked(self.source, (each.path for each in store.segments)):
            try:
                done, resumed = self._copy(store, drop_timestamps=drop_timestamps, on_entries=on_entries)
            except TimestampsWouldBeLost:
                # It was refused, not interrupted: nothing is left to take up.
                shutil.rmtree(self.work)
                self.journal_path.unlink(missing_ok=True)
                raise
            self._copy_other_files(store)
            for segment in store.segments:
                if _fingerprint(segment.path) != done[segment.path.name]["fingerprint"]:
                    raise InconsistentStore(
                        f"Segment {segment.path.name} changed while it was copied.",
                        next_step="Stop whatever writes to the store and run the migration again.",
                        reason="source_changed",
                        path=str(segment.path),
                    )
            (self.work / _MARK).touch()
            sync_directory(self.work)
            self._change_names()
        copied = {name: CopiedSegment(**each["copied"]) for name, each in done.items()}
        return MigrationReport(store.store_name, self.final, self.target, copied, resumed)

    def _copy(
        self, store: StoreDirectory, *, drop_timestamps: bool, on_entries: Callable[[int], None]
    ) -> tuple[dict[str, Any], int]:
        """Copy what the journal does not have yet; gives its lines, and how many were there."""
        done = self._read_journal()
        self.work.mkdir(parents=True, exist_ok=True)
        lines: dict[str, Any] = {}
        for segment in store.segments:
            name = segment.path.name
            line = done.get(name)
            if self._is_done(segment, line, drop_timestamps=drop_timestamps):
                lines[name] = line
        for path in self.work.iterdir():
            if path.is_dir() and path.name not in lines:
                shutil.rmtree(path)
        resumed = len(lines)
        for segment in store.segments:
            name = segment.path.name
            if name in lines:
                on_entries(lines[name]["copied"]["entries"])
                continue
            fingerprint = _fingerprint(segment.path)
            part = self.work / (name + _PART)
            part.mkdir()
            copied = copy_segment(
                segment, part, self.target, drop_timestamps=drop_timestamps, on_entries=on_entries
            )
            _sync_files(part)
            part.rename(self.work / name)
            sync_directory(self.work)
            lines[name] = {"fingerprint": fingerprint, "copied": copied.as_document()}
            self._write_journal(lines)
        return lines, resumed

    def _is_done(self, segment: SegmentFiles, line: Any, *, drop_timestamps: bool) -> bool:
        return (
            line is not None
            and (self.work / segment.path.name).is_dir()
            and line["fingerprint"] == _fingerprint(segment.path)
            # Timestamps that an earlier run was allowed to drop are not ours to drop.
            and (drop_timestamps or not line["copied"]["dropped_timestamps"])
        )

    def _copy_other_files(self, store: StoreDirectory) -> None:
        segments = {each.path.name for each in store.segments}
        for path in self.source.iterdir():
            if path.is_file() and path.name not in segments:
                shutil.copy2(path, self.work / path.name)

    def _change_names(self) -> None:
        if self.out is not None:
            (self.work / _MARK).unlink()
            self.work.rename(self.out)
            sync_directory(self.out.parent)
            self.journal_path.unlink(missing_ok=True)
            return
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
        self.journal_path.unlink(missing_ok=True)
        # The mark goes last: as long as it is there, whatever else lies there is the old store.
        (self.source / _MARK).unlink()
        sync_directory(self.source)

    def _read_journal(self) -> dict[str, Any]:
        try:
            document = orjson.loads(self.journal_path.read_bytes())
        except FileNotFoundError:
            return {}
        expected = self._journal_head()
        if {name: document.get(name) for name in expected} != expected:
            raise UsageError(
                f"{self.journal_path} belongs to another migration.",
                next_step=f"Remove it and {self.work} to start again.",
                path=str(self.journal_path),
            )
        segments: dict[str, Any] = document["segments"]
        return segments

    def _write_journal(self, segments: dict[str, Any]) -> None:
        written = self.journal_path.with_name(self.journal_path.name + ".new")
        with written.open("wb") as file:
            file.write(orjson.dumps({**self._journal_head(), "segments": segments}))
            file.flush()
            os.fsync(file.fileno())
        written.replace(self.journal_path)
        sync_directory(self.journal_path.parent)

    def _journal_head(self) -> dict[str, Any]:
        return {
            "format_version": JOURNAL_VERSION,
            "source": str(self.source.resolve()),
            "target": str(self.target),
        }


def _fingerprint(segment: Path) -> str:
    """Describe a segment's files by name, size and time of change; locks and logs are no content."""
    found = sorted(
        (each.name, each.stat().st_size, each.stat().st_mtime_ns)
        for each in segment.iterdir()
        if not each.name.startswith(_NOT_CONTENT)
    )
    return ";".join(f"{name}:{size}:{changed}" for name, size, changed in found)


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
