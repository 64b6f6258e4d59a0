"""A token bucket with the time passed in, used by the local service and by the producer's limiter."""

from __future__ import annotations

__all__ = ["Bucket"]


class Bucket:
    """Fills at `per_second` tokens a second up to `capacity`; starts full.

    Args:
        per_second: Tokens gained a second; more than 0.
        capacity: Most tokens it holds; `per_second` unless told.
        now_ms: The time it starts at.
    """

    __slots__ = ("_level", "_seen_ms", "capacity", "per_second")

    def __init__(self, per_second: float, *, capacity: float | None = None, now_ms: float = 0) -> None:
        self.per_second = per_second
        self.capacity = per_second if capacity is None else capacity
        self._level = self.capacity
        self._seen_ms = now_ms

    def level(self, now_ms: float) -> float:
        """Tokens at this time; below 0 after an overdraft. A clock that steps back adds nothing."""
        if now_ms > self._seen_ms:
            gained = (now_ms - self._seen_ms) * self.per_second / 1000
            self._level = min(self.capacity, self._level + gained)
            self._seen_ms = now_ms
        return self._level

    def take(self, tokens: float) -> None:
        """Remove tokens at the time last seen, into overdraft if need be."""
        self._level -= tokens

    def wait_ms(self, tokens: float, now_ms: float) -> float:
        """Milliseconds from now until so many tokens (at most the capacity) are there."""
        missing = min(tokens, self.capacity) - self.level(now_ms)
        return max(0.0, missing * 1000 / self.per_second)
