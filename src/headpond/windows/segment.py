"""One segment of a store: an ordered map of bytes. Here the contract, and the one that lives in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class Segment(Protocol):
    """An ordered map of bytes; bounds are inclusive, None is no bound."""

    def get(self, key: bytes) -> bytes | None:
        """Read one value."""

    def put(self, key: bytes, value: bytes) -> None:
        """Write one value."""

    def delete(self, key: bytes) -> None:
        """Remove one value, if it is there."""

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write and remove (None) many, all or nothing."""

    def delete_range(self, lower: bytes, upper: bytes) -> None:
        """Remove all keys between the two, the second excluded."""

    def scan(
        self, lower: bytes | None, upper: bytes | None, *, backward: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Read pairs in unsigned byte order of their keys."""

    def scan_from(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Read pairs from a key on; there may come more after the upper bound, which the caller checks."""

    def keys(self) -> Iterator[bytes]:
        """Read all keys, in any order; one may come twice."""

    def approximate_count(self) -> int:
        """Estimate the number of entries."""

    def flush(self, offsets: Mapping[str, int] | None) -> None:
        """Bring everything to disk, then the changelog offsets."""

    def close(self) -> None:
        """Flush and let go."""

    def destroy(self) -> None:
        """Let go and remove everything."""


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

    def delete_range(self, lower: bytes, upper: bytes) -> None:
        """Remove all keys between the two, the second excluded."""
        first, end = bisect_left(self._keys, lower), bisect_left(self._keys, upper)
        for key in self._keys[first:end]:
            del self._values[key]
        del self._keys[first:end]

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

    def scan_from(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Read pairs between the two keys."""
        return self.scan(lower, upper, backward=False)

    def keys(self) -> Iterator[bytes]:
        """Read all keys."""
        return iter(list(self._keys))

    def approximate_count(self) -> int:
        """Count the entries."""
        return len(self._keys)

    def flush(self, offsets: Mapping[str, int] | None) -> None:
        """Do nothing: memory is all there is."""

    def destroy(self) -> None:
        """Forget everything."""
        self.close()


class MemorySegments:
    """Makes segments in memory; there are none at first."""

    persistent = False

    def existing(self) -> dict[int, Segment]:
        """Give the segments that are there already: none."""
        return {}

    def create(self, number: int) -> Segment:
        """Make a segment."""
        del number
        return MemorySegment()
