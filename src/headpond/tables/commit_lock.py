"""One commit at a time to a table that Spark writes in a plain folder.

deltalake makes the file of a commit only where none is; Delta for Spark looks and then renames, safe within
one JVM alone. So the engine on Spark leaves a lock file beside the commits, and whoever finds it commits
under it, from the look at the table's newest version to the commit::

    lake/public.orders/_delta_log/.headpond.lock      locked with `flock`

Readers need no lock. Nothing is locked where only deltalake writes, nor in object stores.
"""

from __future__ import annotations

import fcntl
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.errors import EnvironmentLacks, ServiceFailure
from headpond.tables.remote import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

LOCK = ".headpond.lock"
PATIENCE_S = 1800.0
"""How long a commit waits for another's, which may be a merge into a large table."""
_PAUSE_S = 0.05


@contextmanager
def commit_lock(uri: str, *, leave: bool = False) -> Iterator[None]:
    """Hold the right to commit to a table.

    Args:
        uri: the table's folder; nothing is locked for a URL of an object store.
        leave: make the lock file, so that others see that it is needed; else it is used where there is one.

    Raises:
        ServiceFailure: another process kept the lock for `PATIENCE_S`.
        EnvironmentLacks: the folder's file system has no locks.
    """
    place = Path(uri) / "_delta_log" / LOCK
    if is_remote(uri) or not (leave or place.exists()):
        yield
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("ab") as opened:  # closing it, or the process's end, lets go
        _take(opened, uri)
        yield


def _take(opened: IO[bytes], uri: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise ServiceFailure(
                    f"Another process has kept the lock of the Delta table at {uri} for {PATIENCE_S:.0f} s.",
                    next_step=f"Look for who has {opened.name} open and stop it; the lock goes with it.",
                    table=uri,
                ) from None
            time.sleep(_PAUSE_S)
        except OSError as error:
            raise EnvironmentLacks(
                f"The Delta table at {uri} cannot be locked: {error.strerror or error}.",
                next_step="Keep the lake on a file system with locks, or in an object store.",
                table=uri,
            ) from error
        else:
            return
