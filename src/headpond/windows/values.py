"""What a typed window store holds: a value with its headers, its timestamp, both, or neither.

KIP-1300's `ValueAndHeaders`, and the wrappers of the two formats with timestamps that exist already.
A wrapper is a value of its own: two are equal if all they carry is equal, order of headers included.
Null headers and no headers are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from headpond.formats.headers import Header, Headers

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class ValueAndHeaders(Generic[V]):
    """A value and its headers, in order."""

    value: V | None
    headers: tuple[Header, ...] = ()

    @classmethod
    def make(cls, value: V | None, headers: Headers | None = None) -> ValueAndHeaders[V] | None:
        """Wrap a value; a null value gives a null wrapper."""
        return None if value is None else cls(value, tuple(headers or ()))

    @classmethod
    def make_allow_nullable(cls, value: V | None, headers: Headers | None = None) -> ValueAndHeaders[V]:
        """Wrap a value that may be null; stored, a null value is a tombstone all the same."""
        return cls(value, tuple(headers or ()))

    @staticmethod
    def get_value_or_null(wrapper: ValueAndHeaders[V] | None) -> V | None:
        """Give the value of a wrapper that may be null."""
        return None if wrapper is None else wrapper.value


@dataclass(frozen=True, slots=True)
class ValueAndTimestamp(Generic[V]):
    """A value and its timestamp (ms)."""

    value: V | None
    timestamp: int

    @classmethod
    def make(cls, value: V | None, timestamp: int) -> ValueAndTimestamp[V] | None:
        """Wrap a value; a null value gives a null wrapper."""
        return None if value is None else cls(value, timestamp)


@dataclass(frozen=True, slots=True)
class ValueTimestampHeaders(Generic[V]):
    """A value, its timestamp (ms) and its headers, in order."""

    value: V | None
    timestamp: int
    headers: tuple[Header, ...] = ()

    @classmethod
    def make(
        cls, value: V | None, timestamp: int, headers: Headers | None = None
    ) -> ValueTimestampHeaders[V] | None:
        """Wrap a value; a null value gives a null wrapper."""
        return None if value is None else cls(value, timestamp, tuple(headers or ()))
