"""The events of a subscription to a shard, read without botocore's own parser; framing stays botocore's.

::

    event stream ─ botocore's frames ─► event      ─► JSON into `Record`s, as in `replies` ─► Event
                                        exception  ─► EventFailed(code)
                 ─ cut, timed out, damaged         ─► EventFailed(code)

A payload in an unusual shape is left to botocore's parser, as is the whole stream should botocore change
inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from botocore.eventstream import ParserError
from botocore.exceptions import BotoCoreError, EventStreamError
from urllib3.exceptions import HTTPError

from headpond.kinesis.replies import Record, records_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["CUT", "Event", "EventFailed", "read_events"]

CUT = (HTTPError, OSError, ParserError)
"""What reading an event stream raises when the connection breaks or what comes is damaged."""

_EVENT = "SubscribeToShardEvent"


class Event(NamedTuple):
    """One event; without a continuation it is the last one of a closed shard."""

    records: list[Record]
    continuation: str | None
    behind_ms: int


class EventFailed(Exception):
    """The subscription ended otherwise than by its time; `code` is the service's, or the client's error."""

    def __init__(self, code: str, *, told: bool) -> None:
        super().__init__(code)
        self.code = code
        self.told = told  # by the service itself


class _Payload(msgspec.Struct, gc=False):
    records: list[Record] = msgspec.field(name="Records")
    continuation: str | None = msgspec.field(name="ContinuationSequenceNumber", default=None)
    behind_ms: int | None = msgspec.field(name="MillisBehindLatest", default=None)
    children: list[msgspec.Raw] | None = msgspec.field(name="ChildShards", default=None)


_decode = msgspec.json.Decoder(_Payload).decode


def read_events(stream: Any) -> Iterator[Event]:
    """Read the events of `subscribe_to_shard`'s EventStream until it ends.

    Raises:
        EventFailed: It ended by an exception, was cut, or is damaged.
    """
    # botocore has no other way to get at an event before its parser.
    messages, parse = getattr(stream, "_event_generator", None), getattr(stream, "_parse_event", None)
    try:
        if messages is None or parse is None:
            for parsed in stream:
                yield from _of_stock(parsed)
        else:
            for message in messages:
                yield from _of_message(message, parse)
    except EventStreamError as error:
        raise EventFailed(error.response.get("Error", {}).get("Code", "Unknown"), told=True) from None
    except (*CUT, BotoCoreError) as error:
        raise EventFailed(type(error).__name__, told=False) from None


def _of_message(message: Any, parse: Any) -> Iterator[Event]:
    headers = message.headers
    if headers.get(":message-type") == "event" and headers.get(":event-type") == _EVENT:
        try:
            payload = _decode(message.payload)
        except msgspec.DecodeError:
            yield from _of_stock(parse(message) or {})
            return
        yield _event(payload.records, payload.continuation, payload.behind_ms, payload.children)
    elif headers.get(":message-type") in ("exception", "error"):
        code = headers.get(":exception-type") or headers.get(":error-code") or "Unknown"
        raise EventFailed(str(code), told=True)


def _of_stock(parsed: Mapping[str, Any]) -> Iterator[Event]:
    event = parsed.get(_EVENT)
    if event is not None:
        if "Records" not in event:
            raise EventFailed("EventDamaged", told=False)
        yield _event(
            records_of(event["Records"]),
            event.get("ContinuationSequenceNumber"),
            event.get("MillisBehindLatest"),
            event.get("ChildShards"),
        )


def _event(
    records: list[Record], continuation: str | None, behind_ms: int | None, children: list[Any] | None
) -> Event:
    if continuation is None and not children:
        # Only a shard that ended has no continuation, and then it has children.
        raise EventFailed("EventDamaged", told=False)
    return Event(records, continuation, behind_ms or 0)
