"""When a consumer may subscribe to a shard again: 5 seconds after the last time, whoever it was.

Spark gives the batches of one shard to different worker processes, one after the other. What they must know
of each other, the time of the last subscription, lies in a file per consumer and shard in the user's folder
of temporary files, and holds for this machine. Between machines the service itself refuses who comes too
soon, and the refused waits.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SPACING_MS", "Turns", "turns_folder"]

SPACING_MS = 5_000
"""Source: the documentation of SubscribeToShard."""

_MARGIN_MS = 100  # clocks of two processes, and the way of a request that was not answered


def turns_folder() -> Path:
    """Return the folder that all processes of this user on this machine share."""
    return Path(tempfile.gettempdir()) / f"headpond-{os.getuid()}" / "subscriptions"


class Turns:
    """The turns of all consumers.

    Args:
        folder: Where processes leave word for each other; None: this process is alone.
        spacing_ms: Time between two subscriptions of one consumer to one shard.
        clock: Milliseconds since 1970.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        spacing_ms: int = SPACING_MS + _MARGIN_MS,
        clock: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self._folder, self._spacing_ms, self._clock = folder, spacing_ms, clock
        self._own: dict[str, float] = {}

    def wait_s(self, consumer_arn: str, shard_id: str) -> float:
        """Take the next turn and say in how many seconds it is; nobody else gets one at that time."""
        name, now_ms = _name(consumer_arn, shard_id), self._clock()
        turn_ms = self._next(self._own.get(name), now_ms)
        # Where no such folder can be had, the service refuses who comes too soon.
        with suppress(OSError):
            turn_ms = self._shared(name, turn_ms, now_ms)
        self._own[name] = turn_ms
        return max(0.0, turn_ms - now_ms) / 1000

    def answered(self, consumer_arn: str, shard_id: str) -> None:
        """Note that a subscription was given just now: the service counts from then, however long it took."""
        name, now_ms = _name(consumer_arn, shard_id), self._clock()
        with suppress(OSError):
            self._shared(name, now_ms, now_ms, is_past=True)
        self._own[name] = max(now_ms, self._own.get(name, now_ms))

    def _shared(self, name: str, turn_ms: float, now_ms: float, *, is_past: bool = False) -> float:
        """Agree on a turn with the other processes, or tell them of one that was taken."""
        if self._folder is None:
            return turn_ms
        for folder in (self._folder.parent, self._folder):
            _make_ours(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self._folder / name, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = os.read(file, 32)
            last_ms = float(text) if text.isdigit() else None
            if not is_past:
                turn_ms = max(turn_ms, self._next(last_ms, now_ms))
            elif last_ms is not None and now_ms < last_ms <= now_ms + self._spacing_ms * 10:
                turn_ms = last_ms  # somebody took the next turn meanwhile
            os.ftruncate(file, 0)
            os.pwrite(file, b"%d" % turn_ms, 0)
        finally:
            os.close(file)
        return turn_ms

    def _next(self, last_ms: float | None, now_ms: float) -> float:
        """Return the first moment from now on that keeps the distance."""
        if last_ms is None:
            return now_ms
        # A clock that was set back must not make anybody wait for ever; turns already taken may lie ahead.
        ahead_ms = last_ms - now_ms
        if ahead_ms > self._spacing_ms * 10:
            return now_ms
        return max(now_ms, last_ms + self._spacing_ms)


def _make_ours(folder: Path) -> None:
    """Make a folder that only this user can write into.

    Raises:
        OSError: There is one that others made or can write into: what lies in it may be a trap.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "others may write into it", str(folder))


def _name(consumer_arn: str, shard_id: str) -> str:
    return hashlib.sha256(f"{consumer_arn} {shard_id}".encode()).hexdigest()[:40]
