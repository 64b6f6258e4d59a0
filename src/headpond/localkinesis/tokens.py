"""Shard iterators and paging tokens: opaque text that carries its own meaning and its time of issue."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import msgspec

from headpond.localkinesis.model import Position, ShardFilter
from headpond.localkinesis.settings import ServiceRefusalError, invalid_argument

if TYPE_CHECKING:
    from headpond.localkinesis.engine import Engine


class Page(NamedTuple):
    """Where a listing goes on: after this name, under the filter it began with."""

    stream: str
    created_ms: int
    after: str
    chosen: ShardFilter | None = None


class _Iterator(NamedTuple):
    stream: str
    created_ms: int
    shard_id: str
    # JSON has no 56-digit integers that every reader keeps, so the number travels as text.
    after: Annotated[str, msgspec.Meta(pattern=r"^\d{1,128}$")]


_PAGE = msgspec.json.Decoder(tuple[int, Page])
_ITERATOR = msgspec.json.Decoder(tuple[int, _Iterator])
T = TypeVar("T")


def seal_page(engine: Engine, page: Page) -> str:
    """Make a paging token that is issued now."""
    return _seal(engine, page)


def open_page(engine: Engine, token: str) -> Page:
    """Read a paging token; refuses broken and expired ones."""
    return _opened(engine, _PAGE.decode, token, "NextToken")


def seal_iterator(engine: Engine, position: Position) -> str:
    """Make a shard iterator that is issued now."""
    return _seal(engine, (*position[:3], str(position.after)))


def open_iterator(engine: Engine, token: str) -> Position:
    """Read a shard iterator; refuses broken and expired ones."""
    found = _opened(engine, _ITERATOR.decode, token, "ShardIterator")
    return Position(*found[:3], int(found.after))


def _seal(engine: Engine, value: object) -> str:
    return urlsafe_b64encode(msgspec.json.encode((engine.clock(), value))).decode()


def _opened(engine: Engine, decode: Callable[[bytes], tuple[int, T]], token: str, name: str) -> T:
    try:
        issued_ms, found = decode(urlsafe_b64decode(token))
    except (ValueError, TypeError, binascii.Error):  # this server cannot have made it
        raise invalid_argument(f"Invalid {name}.") from None
    age_ms, lifetime_ms = engine.clock() - issued_ms, engine.settings.iterator_lifetime_ms
    if age_ms > lifetime_ms:
        raise ServiceRefusalError(
            f"Expired{name.removeprefix('Shard')}Exception",
            f"{name} expired. It was created {age_ms} ms ago, the allowed time is {lifetime_ms} ms.",
        )
    return found
