"""Putting a finished directory into an old one's place, at once where the system can."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NOT_THERE = (errno.ENOSYS, errno.EINVAL)  # an older kernel, or a file system that cannot


def exchange(one: Path, other: Path) -> bool:
    """Let two directories of one file system change names, atomically; False where that cannot be had."""
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
