"""What every answer needs at hand: the engine, the faults in force, tokens, and how shards are written.

Shard iterators and paging tokens are opaque text that carries its own meaning and its time of issue.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
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


class _Iterator(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    kind: Literal["iterator"]
    issued_ms: int
    stream: str
    created_ms: int
    shard_id: str
    # JSON has no 56-digit integers that every reader keeps, so the number travels as text.
    after: Annotated[str, msgspec.Meta(pattern=r"^\d{1,128}$")]


class _Page(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    kind: Literal["page"]
    issued_ms: int
    page: PageToken


_T = TypeVar("_T", _Iterator, _Page)
_ITERATOR, _PAGE = msgspec.json.Decoder(_Iterator), msgspec.json.Decoder(_Page)


def seal_iterator(position: Position, now_ms: int) -> str:
    """Make a shard iterator that was issued now."""
    return _seal(_Iterator("iterator", now_ms, *position[:3], str(position.after)))


def open_iterator(token: str, now_ms: int, lifetime_ms: int) -> Position:
    """Read a shard iterator; refuses broken and expired ones."""
    opened = _open(_ITERATOR, token)
    if opened is None:
        raise invalid_argument("Invalid ShardIterator.")
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
        raise invalid_argument("Invalid NextToken.")
    if now_ms - opened.issued_ms > lifetime_ms:
        raise ServiceRefusalError(
            "ExpiredNextTokenException",
            f"NextToken expired: issued {now_ms - opened.issued_ms} ms ago, allowed {lifetime_ms} ms.",
        )
    return opened.page


def _seal(sealed: _Iterator | _Page) -> str:
    return urlsafe_b64encode(msgspec.json.encode(sealed)).decode()


def _open(decoder: msgspec.json.Decoder[_T], token: str) -> _T | None:
    """Return the content of a token; None if this server cannot have made it."""
    try:
        return decoder.decode(urlsafe_b64decode(token))
    except (ValueError, TypeError, binascii.Error):
        return None


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
