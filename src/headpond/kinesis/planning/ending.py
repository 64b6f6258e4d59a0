"""Where reading ends that has an end: before the first record of a moment, in each shard.

::

    … records ────────────────────┤T├──────────────► a reader with AT_TIMESTAMP T begins here
          arrived before T: read       not read

While T has not come by the service's clock, a plan holds what surely arrived before it; once it has, the
ends of all shards are fixed. So it does not matter whether a query began long before T or after it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headpond.kinesis.reading.positions import refuse_far_future

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.kinesis.api.calls import ServiceCalls
    from headpond.kinesis.reading.positions import Offset

_CLOCK_ERROR_MS = 1_000  # the server's clock is known from below, to a second
_CHECK_S = 0.1


def has_come(calls: ServiceCalls, end_ms: int, lag_ms: int) -> bool:
    """Return whether whatever arrived before a moment can be seen by now; `lag_ms` is the margin for that."""
    return calls.now_ms() >= end_ms + lag_ms


def await_end(
    calls: ServiceCalls, end_ms: int, lag_ms: int, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait for a moment that is a little ahead, as another clock may have it.

    Raises:
        ConfigurationError: It lies further ahead than clocks differ.
    """
    refuse_far_future(end_ms, calls.now_ms(), "endingPosition")
    while not has_come(calls, end_ms, lag_ms):
        sleep(_CHECK_S)


def is_before(calls: ServiceCalls, planned: Offset, end_ms: int) -> bool:
    """Return whether all that was planned just now surely arrived before a moment."""
    newest_ms = max((at.time_ms or 0 for at in planned.shards.values() if at.kind == "SEQ"), default=0)
    return newest_ms < end_ms and calls.now_ms() + _CLOCK_ERROR_MS < end_ms
