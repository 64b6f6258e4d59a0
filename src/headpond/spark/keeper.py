"""Work that is done now and then beside a query, in a thread of its own, for as long as the query goes on."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Round:
    """Something that is done now and then.

    Attributes:
        what: in words, for the log.
        every_s: how long after the last time.
        call: does it; what it raises is logged, and it is called again.
        at_once: whether the first time is at the start.
    """

    what: str
    every_s: float
    call: Callable[[], object]
    at_once: bool = False


class Keeper:
    """Does the rounds.

    Args:
        is_active: whether the query goes on; the thread ends when it does not, or cannot be asked.
        rounds: what is done.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        is_active: Callable[[], bool],
        rounds: Sequence[Round],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_active, self._rounds, self._clock = is_active, rounds, clock
        now = clock()
        self._due = [now + (0.0 if each.at_once else each.every_s) for each in rounds]

    def start(self) -> None:
        """Begin in a thread that does not hold up the end of the process."""
        threading.Thread(target=self._work, name="headpond-keeper", daemon=True).start()

    def do_due(self) -> float:
        """Do what is due, and say in how many seconds something is again."""
        for number, each in enumerate(self._rounds):
            if self._clock() < self._due[number]:
                continue
            try:
                each.call()
            except Exception as error:  # noqa: BLE001 - it is tried again, whatever it met
                logger.warning("%s failed and is tried again: %s", each.what, error)
            self._due[number] = self._clock() + each.every_s
        return max(0.0, min(self._due) - self._clock())

    def _work(self) -> None:
        pause = threading.Event()
        while self._goes_on():
            pause.wait(self.do_due())

    def _goes_on(self) -> bool:
        with suppress(Exception):  # Spark is gone
            return self._is_active()
        return False
