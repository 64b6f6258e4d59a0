"""A store's segments: how time is cut, how directories are named; and those in memory.

::

    segment interval   max(retention / 2, 60 s)
    segment id         window start / interval, truncated towards zero
    directory          <store>/<store>.<id * interval>         since Kafka 2.x
                       <store>/<store>:<milliseconds>          before; renamed on open
                       <store>/<store>-yyyyMMddHHmm  (UTC)     long before; renamed on open

A segment, here or on RocksDB, is an ordered map of bytes; bounds are inclusive, None: no bound. It goes as a
whole once nothing in it can be live.
Source: spec "window store", section 4.3.
"""

from __future__ import annotations

import datetime as dt
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headpond.core.errors import UsageError
from headpond.kstreams.stores.contract import MAX_SPAN_MS, StoreFormatMismatch, milliseconds

MIN_SEGMENT_INTERVAL_MS = 60_000
_NAMED = re.compile(r"(?P<store>.+)(?P<mark>[.:-])(?P<number>-?\d+)", re.DOTALL)
_MINUTES_DIGITS = 12


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What a window store is, whatever it is kept in; times are milliseconds, or timedeltas.

    Raises:
        UsageError: The name is not a directory's, or times are negative or contradict each other.
    """

    name: str
    retention_ms: int
    window_size_ms: int
    retain_duplicates: bool = False

    def __post_init__(self) -> None:
        for each in ("retention_ms", "window_size_ms"):
            object.__setattr__(self, each, milliseconds(each, getattr(self, each), 3 * MAX_SPAN_MS))
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


def segment_interval_ms(retention_ms: int) -> int:
    """Return the time that one segment of a store covers."""
    return max(retention_ms // 2, MIN_SEGMENT_INTERVAL_MS)


def segment_id(timestamp: int, interval_ms: int) -> int:
    """Return the number of the segment that a window start (ms) falls into."""
    return timestamp // interval_ms if timestamp >= 0 else -(-timestamp // interval_ms)


def segment_name(store: str, number: int, interval_ms: int) -> str:
    """Return the directory name of a segment."""
    return f"{store}.{number * interval_ms}"


def check_start(path: Path, start_ms: int, retention_ms: int) -> None:
    """Raise if a segment does not start where a store of this retention cuts time.

    Raises:
        StoreFormatMismatch: The store was written with another retention.
    """
    interval_ms = segment_interval_ms(retention_ms)
    if start_ms % interval_ms:
        raise StoreFormatMismatch(
            f"Segment {path.name} does not start at a multiple of the {interval_ms} ms that a retention of "
            f"{retention_ms} ms makes of a segment.",
            next_step="Open the store with the retention that it was written with; a join's is its windows "
            "and its grace period together.",
            path=str(path),
            retention_ms=retention_ms,
        )


class SegmentName(NamedTuple):
    """A segment directory's name, parsed; `legacy` if it is of one of the older forms."""

    store: str
    start_ms: int
    legacy: bool


def parse_segment_name(name: str, store: str | None = None) -> SegmentName | None:
    """Parse a directory's name; None if it is not a segment's (of that store)."""
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


class OrderedBytes:
    """Bytes by their keys in memory: a dictionary, and its keys in order."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        """Read one value."""
        return self._values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Write one value."""
        if key not in self._values:
            insort(self._keys, key)
        self._values[key] = value

    def delete(self, key: bytes) -> None:
        """Remove one value, if it is there."""
        if self._values.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def close(self) -> None:
        """Forget everything."""
        self._values, self._keys = {}, []


class MemorySegment(OrderedBytes):
    """A segment in memory."""

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write and remove many."""
        for key, value in changes:
            if value is None:
                self.delete(key)
            else:
                self.put(key, value)

    def scan(
        self, lower: bytes | None, upper: bytes | None, *, backward: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Read pairs as they are now; later changes do not show."""
        first = 0 if lower is None else bisect_left(self._keys, lower)
        end = len(self._keys) if upper is None else bisect_right(self._keys, upper)
        keys = self._keys[first:end]
        if backward:
            keys.reverse()
        return iter([(key, self._values[key]) for key in keys])

    def keys(self) -> Iterator[bytes]:
        """Read all keys."""
        return iter(list(self._keys))

    def flush(self, offsets: Mapping[str, int] | None) -> None:
        """Do nothing: memory is all there is."""

    destroy = OrderedBytes.close
