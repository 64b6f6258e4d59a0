"""Shard iterators and paging tokens: opaque text that carries its own meaning and its time of issue."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

import orjson

from headpond.kinesis.local.refusal import ServiceRefusalError

__all__ = ["PageToken", "Position", "open_iterator", "open_page", "seal_iterator", "seal_page"]


class Position(NamedTuple):
    """A place in a shard: everything above the number `after` comes next."""

    stream: str
    created_ms: int
    shard_id: str
    after: int


class PageToken(NamedTuple):
    """Where a listing goes on: after this shard, under the filter it began with."""

    stream: str
    created_ms: int
    after_shard_id: str
    filter_type: str | None
    filter_value: str | int | None


def _seal(kind: str, values: tuple[object, ...], now_ms: int) -> str:
    return urlsafe_b64encode(orjson.dumps([kind, now_ms, *values])).decode()


def _open(kind: str, token: str) -> tuple[int, list[object]] | None:
    try:
        found_kind, issued_ms, *values = orjson.loads(urlsafe_b64decode(token))
    except (ValueError, TypeError, binascii.Error):
        return None
    return (issued_ms, values) if found_kind == kind and isinstance(issued_ms, int) else None


def seal_iterator(position: Position, now_ms: int) -> str:
    """Make a shard iterator that was issued now."""
    # JSON has no 56-digit integers that every reader keeps, so the number travels as text.
    return _seal("iterator", (*position[:3], str(position.after)), now_ms)


def open_iterator(token: str, now_ms: int, lifetime_ms: int) -> Position:
    """Read a shard iterator; refuses broken and expired ones."""
    opened = _open("iterator", token)
    if opened is None:
        raise ServiceRefusalError("InvalidArgumentException", "Invalid ShardIterator.")
    issued_ms, (stream, created_ms, shard_id, after) = opened
    if now_ms - issued_ms > lifetime_ms:
        raise ServiceRefusalError(
            "ExpiredIteratorException",
            f"Iterator expired. The iterator was created {now_ms - issued_ms} ms ago, "
            f"the allowed time is {lifetime_ms} ms.",
        )
    return Position(str(stream), int(str(created_ms)), str(shard_id), int(str(after)))


def seal_page(page: PageToken, now_ms: int) -> str:
    """Make a paging token that was issued now."""
    return _seal("page", tuple(page), now_ms)


def open_page(token: str, now_ms: int, lifetime_ms: int) -> PageToken:
    """Read a paging token; refuses broken and expired ones."""
    opened = _open("page", token)
    if opened is None:
        raise ServiceRefusalError("InvalidArgumentException", "Invalid NextToken.")
    issued_ms, values = opened
    if now_ms - issued_ms > lifetime_ms:
        raise ServiceRefusalError(
            "ExpiredNextTokenException",
            f"NextToken expired: issued {now_ms - issued_ms} ms ago, allowed {lifetime_ms} ms.",
        )
    return PageToken(*values)  # type: ignore[arg-type]
