"""End a query so that the batch in flight ends with it, within a grace time.

::

    asked to stop ─► no batch is applied ─────────────────────────► the query ends at once: what was only
                  │                                                 planned or read is done at the next start
                  └► batch 7 is being applied ─► it is committed ─► the query ends
                                              └► grace is over ───► batch 7 is left to the next start

Spark begins the next batch as soon as one is committed; the gate refuses it, before it has written anything.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger(__name__)

GRACE_S = 20.0
"""With what comes after it, shorter than the 30 seconds after which Kubernetes kills."""
CHECK_S = 0.05
SPARK_STOP_S = 10.0
"""How long Spark is waited for once nothing is being applied."""


class StopAsked(Exception):
    """A batch was not begun, because the run is to end."""


class Gate:
    """What every batch passes on its way: `begin` before its first write, `end` after its last."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self.busy: int | None = None
        """The batch that is being applied."""
        self.done: int | None = None
        """The last batch that was applied; Spark may not have committed it yet."""
        self.refused: int | None = None
        """A batch that came after the stop."""

    def begin(self, batch_id: int) -> None:
        """Begin a batch.

        Raises:
            StopAsked: the run is to end; nothing of the batch may be written.
        """
        with self._lock:
            if self._stop.is_set():
                self.refused = batch_id
                raise StopAsked(f"Batch {batch_id} is left to the next start.")
            self.busy = batch_id

    def end(self, batch_id: int) -> None:
        """Record that everything of a batch is written."""
        with self._lock:
            self.busy, self.done = None, batch_id


def end_query(query: Any, gate: Gate, grace_s: float = GRACE_S) -> int | None:
    """End a query after the batch in flight.

    Returns:
        The number of a batch that was being applied when the grace was over, if any.
    """
    until = time.monotonic() + grace_s

    def waiting_for(unfinished: Callable[[], bool]) -> None:
        while unfinished() and time.monotonic() < until and query.isActive:
            time.sleep(CHECK_S)

    waiting_for(lambda: gate.busy is not None)
    if gate.busy is None and gate.done is not None:
        done = gate.done
        waiting_for(lambda: gate.refused is None and not _committed(query, done))
    bounded(query.stop, SPARK_STOP_S if gate.busy is None else 0.0)
    return gate.busy


def bounded(call: Callable[[], object], wait_s: float | None) -> bool:
    """Call something that may hang, and return whether it came back in time; what it raises is logged."""

    def quietly() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the run ends, whatever Spark raises
            # A JVM that is gone, by the signal that ends this run, say, cannot be stopped any more.
            level = logging.INFO if _is_gone(error) else logging.WARNING
            logger.log(level, "Spark did not end well: %s: %s", type(error).__name__, error)

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(wait_s)
    return not thread.is_alive()


def _is_gone(error: Exception) -> bool:
    from py4j.protocol import Py4JNetworkError

    return isinstance(error, (OSError, Py4JNetworkError))


def _committed(query: Any, batch_id: int) -> bool:
    progress = query.lastProgress
    return progress is not None and progress["batchId"] >= batch_id


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[Callable[[], None]]:
    """Set `stop` at SIGINT and SIGTERM; a second one ends the process as usual.

    Signals are for the main thread: in another one nothing is claimed.

    Yields:
        A function that claims the signals again: Spark takes SIGINT for itself when it starts.
    """
    is_main = threading.current_thread() is threading.main_thread()
    wanted = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before: dict[int, Any] = {number: signal.getsignal(number) for number in wanted}

    def once(number: int, frame: Any) -> None:
        del frame
        stop.set()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    def claim() -> None:
        if not stop.is_set():
            for number in wanted:
                signal.signal(number, once)

    claim()
    try:
        yield claim
    finally:
        for number in wanted:
            signal.signal(number, before[number])
