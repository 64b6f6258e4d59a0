"""What every answer needs at hand: the engine, the faults in force, tokens, and how shards are written.

Shard iterators and paging tokens are opaque text that carries its own meaning and its time of issue.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from headpond.localkinesis.model import Position, Shard, ShardFilter
from headpond.localkinesis.settings import ServiceRefusalError, invalid_argument

if TYPE_CHECKING:
    from headpond.localkinesis.engine import Engine
    from headpond.localkinesis.faults import Faults


class PageToken(NamedTuple):
    """Where a listing goes on: after this shard, under the filter it began with."""

    stream: str
    created_ms: int
    after_shard_id: str
    chosen: ShardFilter | None = None


class _Iterator(NamedTuple):
    stream: str
    created_ms: int
    shard_id: str
    # JSON has no 56-digit integers that every reader keeps, so the number travels as text.
    after: Annotated[str, msgspec.Meta(pattern=r"^\d{1,128}$")]


_T = TypeVar("_T", _Iterator, PageToken)
# A token has its kind, its time of issue, and what it stands for.
_ITERATOR = msgspec.json.Decoder(tuple[Literal["iterator"], int, _Iterator])
_PAGE = msgspec.json.Decoder(tuple[Literal["page"], int, PageToken])


def seal_page(page: PageToken, now_ms: int) -> str:
    """Make a paging token that was issued now."""
    return _seal("page", now_ms, page)


def open_page(token: str, now_ms: int, lifetime_ms: int) -> PageToken:
    """Read a paging token; refuses broken and expired ones."""
    return _opened(_PAGE.decode, token, "NextToken", now_ms, lifetime_ms)


def seal_iterator(position: Position, now_ms: int) -> str:
    """Make a shard iterator that was issued now."""
    return _seal("iterator", now_ms, _Iterator(*position[:3], str(position.after)))


def open_iterator(token: str, now_ms: int, lifetime_ms: int) -> Position:
    """Read a shard iterator; refuses broken and expired ones."""
    found = _opened(_ITERATOR.decode, token, "ShardIterator", now_ms, lifetime_ms)
    return Position(*found[:3], int(found.after))


def _seal(*sealed: object) -> str:
    return urlsafe_b64encode(msgspec.json.encode(sealed)).decode()


def _opened(
    decode: Callable[[bytes], tuple[str, int, _T]], token: str, name: str, now_ms: int, lifetime_ms: int
) -> _T:
    try:
        _, issued_ms, found = decode(urlsafe_b64decode(token))
    except (ValueError, TypeError, binascii.Error):  # this server cannot have made it
        raise invalid_argument(f"Invalid {name}.") from None
    if now_ms - issued_ms > lifetime_ms:
        raise ServiceRefusalError(
            f"Expired{name.removeprefix('Shard')}Exception",
            f"{name} expired. It was created {now_ms - issued_ms} ms ago, the allowed time is "
            f"{lifetime_ms} ms.",
        )
    return found


class Pieces(list[bytes]):
    """A reply in pieces, which go out one by one where they are large: stored records are not copied."""

    @property
    def size_bytes(self) -> int:
        """Length of the whole."""
        return sum(map(len, self))


@dataclass(frozen=True, slots=True)
class Desk:
    """Where calls are answered."""

    engine: Engine
    faults: Faults

    @property
    def now_ms(self) -> int:
        """The service's time."""
        return self.engine.clock()

    @property
    def lifetime_ms(self) -> int:
        """Age at which iterators and paging tokens expire."""
        return self.engine.settings.iterator_lifetime_ms


def shard_json(shard: Shard) -> dict[str, Any]:
    """Return a shard as ListShards and DescribeStream write it."""
    numbers = {"StartingSequenceNumber": str(shard.starting_sequence_number)}
    if shard.closed_ms is not None:
        numbers["EndingSequenceNumber"] = str(shard.ending_sequence_number)
    described: dict[str, Any] = {
        "ShardId": shard.shard_id,
        "HashKeyRange": range_json(shard),
        "SequenceNumberRange": numbers,
    }
    # One parent after a split, two after a merge.
    described.update(zip(("ParentShardId", "AdjacentParentShardId"), shard.parents, strict=False))
    return described


def range_json(shard: Shard) -> dict[str, str]:
    """Return a shard's hash keys, both ends inclusive, as decimal text."""
    return {"StartingHashKey": str(shard.low), "EndingHashKey": str(shard.high)}
