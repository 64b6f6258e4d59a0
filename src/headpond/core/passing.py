"""Temporary folders that do not outlive their process, not even one that was killed.

::

    /tmp/headpond-rows-x1y2z3/
      lock                      held by the process that made the folder, as long as it lives

Whoever makes a folder of a prefix first removes those whose lock nobody holds any more.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import IO

_LOCK = "lock"


class PassingFolder:
    """A new folder, gone when this object is, or the process ends; after a kill, at the next start."""

    def __init__(self, prefix: str) -> None:
        for left in Path(tempfile.gettempdir()).glob(prefix + "*"):
            _remove_if_dead(left)
        self.path, lock = _made(prefix)
        weakref.finalize(self, _end, self.path, lock)


def _made(prefix: str) -> tuple[str, IO[bytes]]:
    """Return a new folder and its lock, held."""
    while True:
        path = tempfile.mkdtemp(prefix=prefix)
        place = Path(path) / _LOCK
        lock = place.open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.exists():
            return path, lock
        lock.close()  # another process took it for a dead one's before it was locked


def _end(path: str, lock: IO[bytes]) -> None:
    shutil.rmtree(path, ignore_errors=True)
    lock.close()


def _remove_if_dead(folder: Path) -> None:
    """Remove a folder whose lock nobody holds: its process has ended."""
    try:
        if folder.lstat().st_uid != os.geteuid():
            return  # what another user calls a lock might be a pipe, which nobody ever opens at its other end
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return  # alive, another user's, or gone meanwhile
