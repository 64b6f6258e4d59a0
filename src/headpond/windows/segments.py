"""How a window store is cut into segments by time, and how their directories are called.

::

    segment interval   max(retention / 2, 60 s)
    segment id         window start / interval, truncated towards zero
    directory          <store>/<store>.<id * interval>         since Kafka 2.x
                       <store>/<store>:<milliseconds>          before; renamed on open
                       <store>/<store>-yyyyMMddHHmm  (UTC)     long before; renamed on open

A segment goes as a whole once nothing in it can be live. Source: spec "window store", section 4.3.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import NamedTuple

from headpond.errors import UsageError

MIN_SEGMENT_INTERVAL_MS = 60_000
_NAMED = re.compile(r"(?P<store>.+)(?P<mark>[.:-])(?P<number>-?\d+)", re.DOTALL)
_MINUTES_DIGITS = 12


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What a window store is, whatever it is kept in; times in milliseconds.

    Raises:
        UsageError: The name is no directory name, or times are negative or contradict each other.
    """

    name: str
    retention_ms: int
    window_size_ms: int
    retain_duplicates: bool = False

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise UsageError(
                f"A store's name is a directory's name, which {self.name!r} is not.", name=self.name
            )
        if self.retention_ms < 0 or self.window_size_ms < 0:
            raise UsageError(
                f"Store {self.name}: retention ({self.retention_ms} ms) and window size "
                f"({self.window_size_ms} ms) are not negative.",
                name=self.name,
            )
        if self.retention_ms < self.window_size_ms:
            raise UsageError(
                f"Store {self.name}: a retention of {self.retention_ms} ms is shorter than the windows of "
                f"{self.window_size_ms} ms, so windows would vanish before they end.",
                next_step="Make the retention at least the window size plus the grace period.",
                name=self.name,
            )

    @property
    def segment_interval_ms(self) -> int:
        """Time that one segment covers."""
        return max(self.retention_ms // 2, MIN_SEGMENT_INTERVAL_MS)


def segment_id(timestamp: int, interval_ms: int) -> int:
    """Number the segment that a window start (ms) falls into."""
    return timestamp // interval_ms if timestamp >= 0 else -(-timestamp // interval_ms)


def segment_name(store: str, number: int, interval_ms: int) -> str:
    """Give the directory name of a segment."""
    return f"{store}.{number * interval_ms}"


class SegmentName(NamedTuple):
    """A segment directory's name, taken apart; `legacy` if it is of one of the older forms."""

    store: str
    start_ms: int
    legacy: bool


def parse_segment_name(name: str, store: str | None = None) -> SegmentName | None:
    """Take a directory's name apart; None if it is no segment (of that store)."""
    found = _NAMED.fullmatch(name)
    if found is None or (store is not None and found["store"] != store):
        return None
    mark, number = found["mark"], found["number"]
    if mark == "-":
        if len(number) != _MINUTES_DIGITS:
            return None
        try:
            minute = dt.datetime.strptime(number, "%Y%m%d%H%M").replace(tzinfo=dt.UTC)
        except ValueError:
            return None
        return SegmentName(found["store"], int(minute.timestamp()) * 1000, legacy=True)
    return SegmentName(found["store"], int(number), legacy=mark == ":")
