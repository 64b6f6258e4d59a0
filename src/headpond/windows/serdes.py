"""How typed keys and values become bytes and come back.

A serde gets the record's headers with every call, since formats exist that keep a schema's id in them; a
serializer may also change them before they are stored, which is why they come as a list. A serializer
that gives None makes the value a tombstone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import orjson

if TYPE_CHECKING:
    from headpond.formats.headers import Header

T = TypeVar("T")


class Serde(Protocol[T]):
    """Turns values into bytes and back."""

    def serialize(self, value: T, headers: list[Header]) -> bytes | None:
        """Give the bytes; `headers` may be read and changed."""

    def deserialize(self, data: bytes, headers: list[Header]) -> T:
        """Give the value."""


class BytesSerde:
    """Bytes as they are."""

    def serialize(self, value: bytes, headers: list[Header]) -> bytes:
        """Give the bytes."""
        del headers
        return value

    def deserialize(self, data: bytes, headers: list[Header]) -> bytes:
        """Give the bytes."""
        del headers
        return data


class StringSerde:
    """Text as UTF-8."""

    def serialize(self, value: str, headers: list[Header]) -> bytes:
        """Encode."""
        del headers
        return value.encode()

    def deserialize(self, data: bytes, headers: list[Header]) -> str:
        """Decode; raises UnicodeDecodeError for what is no UTF-8."""
        del headers
        return data.decode()


class JsonSerde:
    """JSON documents; text must be well formed, numbers are 64 bits."""

    def serialize(self, value: Any, headers: list[Header]) -> bytes:
        """Encode."""
        del headers
        return orjson.dumps(value)

    def deserialize(self, data: bytes, headers: list[Header]) -> Any:
        """Decode; raises orjson.JSONDecodeError for what is no JSON."""
        del headers
        return orjson.loads(data)
