"""Folders that may go: temporary ones, which do not outlive even a process that is killed, and the cache.

::

    /tmp/headpond-rows-x1y2z3/
      lock                      held by the process that made the folder, as long as it lives

Whoever makes a folder of a prefix first removes those whose lock nobody holds any more.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
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
    _remove(Path(path))
    lock.close()


def _remove(folder: Path) -> None:
    """Remove a folder; one that somebody still writes to, as Spark's JVM may, keeps a lock to be known by."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # it is gone
        (folder / _LOCK).touch()


def _remove_if_dead(folder: Path) -> None:
    """Remove a folder whose lock nobody holds: its process has ended."""
    try:
        if folder.lstat().st_uid != os.geteuid():
            return  # what another user calls a lock might be a pipe, which nobody ever opens at its other end
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
    except OSError:
        return  # alive, another user's, or gone meanwhile


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder for what can be made again: HEADPOND_CACHE_DIR, else the XDG cache folder."""
    env = os.environ if environ is None else environ
    own = env.get("HEADPOND_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    # The XDG rule: an unset, empty or relative value counts as absent.
    base = env.get("XDG_CACHE_HOME", "")
    if base and Path(base).is_absolute():
        return Path(base) / "headpond"
    try:
        return Path(env.get("HOME") or "~").expanduser() / ".cache" / "headpond"
    except RuntimeError:  # a user without a name or home, as containers may have
        return Path(_homeless().path)


@cache
def _homeless() -> PassingFolder:
    return PassingFolder("headpond-cache-")


def is_private(folder: Path) -> bool:
    """Make a folder that only this user can read, and return whether it is."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        folder.chmod(0o700)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
