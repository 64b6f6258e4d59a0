"""Making sure that nobody else uses a store's directory, with the locks that RocksDB and Kafka Streams take.

Both lock files with POSIX record locks: RocksDB `LOCK` in each segment, Kafka Streams `.lock` in its state
directory (older versions: in the task's). Such a lock belongs to a process; whether *this* process has the
segment open is asked of the registry of open databases, before any of its lock files is touched: closing a
second handle would silently release the first one's lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from headpond.windows.errors import StoreLocked
from headpond.windows.rocks import is_open_here

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_LOCK = "LOCK"
_STREAMS_LOCK = ".lock"


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
            if is_open_here(segment):
                raise _in_use(f"Segment {segment.name}", "this process", segment)
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
            raise _in_use(what, "another process", lock) from error
        yield
    finally:
        # The directory may have been replaced meanwhile; only the file that was made here goes.
        if made and lock.exists() and lock.stat().st_ino == os.fstat(handle).st_ino:
            lock.unlink()
        os.close(handle)


def _in_use(what: str, by: str, path: Path) -> StoreLocked:
    return StoreLocked(
        f"{what} is in use by {by}.",
        next_step="Stop the application that uses the store, or work on a copy of the directory.",
        path=str(path),
    )
