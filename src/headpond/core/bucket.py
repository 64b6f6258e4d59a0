"""A bucket of tokens: how fast something may go on, and how much of it at once.

::

    capacity ──────╮ take(n) may       level: fills again, `per_second`, up to the capacity
                   ╰── go below 0 ··   wait_ms(n): until n are there

The clock is the caller's: every call is told the time, in milliseconds.
"""

from __future__ import annotations


class Bucket:
    """Fills at `per_second` (more than 0) tokens a second up to `capacity`; starts full at `now_ms`."""

    __slots__ = ("_level", "_seen_ms", "capacity", "per_second")

    def __init__(self, per_second: float, *, capacity: float | None = None, now_ms: float = 0) -> None:
        self.per_second = per_second
        self.capacity = per_second if capacity is None else capacity
        self._level = self.capacity
        self._seen_ms = now_ms

    def level(self, now_ms: float) -> float:
        """Return the tokens now, below 0 after an overdraft; a clock that steps back adds nothing."""
        if now_ms > self._seen_ms:
            gained = (now_ms - self._seen_ms) * self.per_second / 1000
            self._level = min(self.capacity, self._level + gained)
            self._seen_ms = now_ms
        return self._level

    def take(self, tokens: float) -> None:
        """Remove tokens at the time last seen, into overdraft if need be."""
        self._level -= tokens

    def wait_ms(self, tokens: float, now_ms: float) -> float:
        """Return the milliseconds from now until this many tokens (at most the capacity) are there."""
        missing = min(tokens, self.capacity) - self.level(now_ms)
        return max(0.0, missing * 1000 / self.per_second)
