"""Sources of one query whose batches end at one arrival time: what their planners tell each other.

::

    orders      can reach 12:04 ─┐
    payments    can reach 12:31 ─┴─►  in this turn both end with what arrived until 12:04

Spark plans each source in a process of its own, one after the other, each once a turn. So each planner tells
at the end of a turn how far its bounds let it go in the next one; the least of that is where all of them end.
Whoever is behind goes on by its own bounds, and the others wait for it. Where a batch ends is in its offset
as ever: what is told here decides how far batches go, and never what is in them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from headpond.core.passing import PassingFolder

APPLICATION = "HEADPOND_APPLICATION"
"""The environment's variable that keeps groups of one name in several applications apart."""
_TOLD = "reach"


class InStep:
    """A planner's place among those of its group.

    Args:
        group: Its name; planners of one application and group go in step.
    """

    def __init__(self, group: str) -> None:
        scope = f"{os.environ.get(APPLICATION, '')}/{group}"
        self._prefix = f"headpond-in-step-{hashlib.sha256(scope.encode()).hexdigest()[:16]}-"
        self._folder = PassingFolder(self._prefix)
        self._turn = 0

    def bound_ms(self, newest_ms: int, own_ms: int) -> int:
        """Return the arrival time, in ms, up to which this turn's batch goes.

        Args:
            newest_ms: What arrived later does not count anyway.
            own_ms: How far the batch may go by its own bounds.
        """
        reached = [newest_ms, own_ms]
        for place in Path(tempfile.gettempdir()).glob(f"{self._prefix}*/{_TOLD}"):
            with contextlib.suppress(OSError):  # its planner may have ended this moment
                is_own = place.parent == Path(self._folder.path)
                if is_own or place.lstat().st_uid != os.geteuid():
                    continue
                turn, this_ms, next_ms = map(int, place.read_text().split())
                # One that has planned this turn has told where it ends; the others, how far they can go.
                reached.append(this_ms if turn == self._turn else next_ms)
        return min(reached)

    def tell(self, bound_ms: int, next_ms: int) -> None:
        """Tell the others where this turn's batch ended, and how far the next one may go."""
        passing, place = (Path(self._folder.path) / name for name in ("passing", _TOLD))
        passing.write_text(f"{self._turn} {bound_ms} {next_ms}")
        passing.replace(place)
        self._turn += 1
