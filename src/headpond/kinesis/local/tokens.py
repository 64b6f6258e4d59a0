"""Shard iterators and paging tokens: opaque text that carries its own meaning and its time of issue."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec

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


class _Sealed(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What a token holds, as a JSON list."""


class _Iterator(_Sealed):
    kind: Literal["iterator"]
    issued_ms: int
    stream: str
    created_ms: int
    shard_id: str
    # JSON has no 56-digit integers that every reader keeps, so the number travels as text.
    after: Annotated[str, msgspec.Meta(pattern=r"^\d{1,128}$")]


class _Page(_Sealed):
    kind: Literal["page"]
    issued_ms: int
    page: PageToken


_S = TypeVar("_S", bound=_Sealed)
_ITERATOR, _PAGE = msgspec.json.Decoder(_Iterator), msgspec.json.Decoder(_Page)


def seal_iterator(position: Position, now_ms: int) -> str:
    """Make a shard iterator that was issued now."""
    return _seal(_Iterator("iterator", now_ms, *position[:3], str(position.after)))


def open_iterator(token: str, now_ms: int, lifetime_ms: int) -> Position:
    """Read a shard iterator; refuses broken and expired ones."""
    opened = _open(_ITERATOR, token)
    if opened is None:
        raise ServiceRefusalError("InvalidArgumentException", "Invalid ShardIterator.")
    if now_ms - opened.issued_ms > lifetime_ms:
        raise ServiceRefusalError(
            "ExpiredIteratorException",
            f"Iterator expired. The iterator was created {now_ms - opened.issued_ms} ms ago, "
            f"the allowed time is {lifetime_ms} ms.",
        )
    return Position(opened.stream, opened.created_ms, opened.shard_id, int(opened.after))


def seal_page(page: PageToken, now_ms: int) -> str:
    """Make a paging token that was issued now."""
    return _seal(_Page("page", now_ms, page))


def open_page(token: str, now_ms: int, lifetime_ms: int) -> PageToken:
    """Read a paging token; refuses broken and expired ones."""
    opened = _open(_PAGE, token)
    if opened is None:
        raise ServiceRefusalError("InvalidArgumentException", "Invalid NextToken.")
    if now_ms - opened.issued_ms > lifetime_ms:
        raise ServiceRefusalError(
            "ExpiredNextTokenException",
            f"NextToken expired: issued {now_ms - opened.issued_ms} ms ago, allowed {lifetime_ms} ms.",
        )
    return opened.page


def _seal(sealed: _Sealed) -> str:
    return urlsafe_b64encode(msgspec.json.encode(sealed)).decode()


def _open(decoder: msgspec.json.Decoder[_S], token: str) -> _S | None:
    """The content of a token; None if this server cannot have made it."""
    try:
        return decoder.decode(urlsafe_b64decode(token))
    except (ValueError, TypeError, binascii.Error):
        return None
