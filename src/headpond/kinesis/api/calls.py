"""The few calls that reading takes; throttling and other failures that pass are waited out.

`StreamCalls` is what reading a shard is written against; `ServiceCalls` is the one on boto3. The server's
clock is taken from the `Date` of its replies.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from email.utils import formatdate, parsedate_to_datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as BotoConnectionError

from headpond.core.errors import StreamNotFound
from headpond.kinesis.api.client import Renewing, connect, stream_not_found
from headpond.kinesis.api.errors import SIGN_IN, error_code, translate
from headpond.kinesis.api.replies import Page, read_pages_of
from headpond.kinesis.api.retry import CUT, Pace, Patience, RetryableError, classify
from headpond.kinesis.api.settings import ConnectionSettings
from headpond.kinesis.api.shards import Shard, shard_of

IteratorKind = Literal["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "AT_TIMESTAMP", "TRIM_HORIZON"]

MOST_PARALLEL_CALLS = 64
_QUICK = Patience(throttled_s=0.001, unreachable_s=0.001)  # one more try


class StreamFacts(NamedTuple):
    """A stream as a whole; `created_ms` tells it from a later one of its name."""

    created_ms: int
    retention_ms: int
    arn: str = ""


class StreamCalls(Protocol):
    """What reading a shard asks of a stream; may be used from several threads."""

    def list_shards(self) -> list[Shard]:
        """List all shards that are not expired."""

    def iterator(
        self, shard_id: str, kind: IteratorKind, *, number: str | None = None, time_ms: int | None = None
    ) -> str:
        """Get an iterator. Raises PositionRejected."""

    def page(self, iterator: str, shard_id: str, limit: int) -> Page:
        """Read on. Raises IteratorExpired, PositionRejected."""

    def now_ms(self) -> int:
        """Return the server's clock, estimated from its replies: from below, within a second."""


class ServiceCalls:
    """The calls on boto3, by a `client` that is made where none is given.

    `pace` are the limits to keep to; by default the service's, on this machine not before one is met.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        client: Any = None,
        patience: Patience = Patience(),  # noqa: B008 (immutable)
        pace: Pace | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings, self.patience, self._sleep = settings, patience, sleep
        self._pace = pace or Pace()
        # A service on this machine is a stand-in, which by default has no limits.
        self._keeps_pace = pace is not None or not settings.is_loopback
        self._clients = Renewing(lambda: self._connected(client), fixed=client is not None)
        self._date_ms = 0  # of the newest reply
        self._ahead_ms: float | None = None  # the server's clock less ours

    @property
    def _client(self) -> Any:
        return self._clients.client

    def _connected(self, given: Any) -> Any:
        client = given or connect(
            self.settings,
            max_pool_connections=MOST_PARALLEL_CALLS,
            # Arguments are written here and nowhere else; checking and compressing them, which these calls
            # are too small for, is a tenth of what a call costs.
            parameter_validation=False,
            disable_request_compression=True,
        )
        read_pages_of(client)
        return client

    def close(self) -> None:
        """Close the connections; calls that come later open new ones."""
        self._client.close()

    def describe(self) -> StreamFacts:
        """Describe the stream."""
        doing, which = f"describing stream {self.settings.name}", self.settings.stream_argument
        found = self.call(doing, "describe_stream_summary", **which)["StreamDescriptionSummary"]
        return StreamFacts(
            round(found["StreamCreationTimestamp"].timestamp() * 1000),
            found["RetentionPeriodHours"] * 3_600_000,
            found["StreamARN"],
        )

    def list_shards(self) -> list[Shard]:
        """List all shards that are not expired, over all pages of replies."""
        found: list[Shard] = []
        arguments = dict(self.settings.stream_argument)
        while True:
            reply = self.call("listing the shards", "list_shards", **arguments)
            found += map(shard_of, reply["Shards"])
            token = reply.get("NextToken")
            if not token:
                return found
            arguments = {"NextToken": token}  # the stream must not be named again

    def iterator(
        self, shard_id: str, kind: IteratorKind, *, number: str | None = None, time_ms: int | None = None
    ) -> str:
        """Get an iterator."""
        place: dict[str, Any] = dict(self.settings.stream_argument)
        if number is not None:
            place["StartingSequenceNumber"] = number
        if time_ms is not None:
            place["Timestamp"] = datetime.fromtimestamp(time_ms / 1000, UTC)
        place |= {"ShardId": shard_id, "ShardIteratorType": kind}
        reply = self.call(f"finding a place in {shard_id}", "get_shard_iterator", shard_id, **place)
        return str(reply["ShardIterator"])

    def page(self, iterator: str, shard_id: str, limit: int) -> Page:
        """Read on."""
        arn = self.settings.stream_arn
        place = {"ShardIterator": iterator, "Limit": limit} | ({} if arn is None else {"StreamARN": arn})
        page: Page = self.call(f"reading {shard_id}", "get_records", shard_id, **place)["Page"]
        self._pace.count(shard_id, page.about_bytes)
        return page

    # The server's clock

    def date_ms(self) -> int:
        """Return the time of the newest reply, in whole seconds: never later than the server's clock."""
        return self._date_ms

    def now_ms(self) -> int:
        """Return the server's clock as estimated from its replies: from below, within a second."""
        ahead = self._ahead_ms
        return round(time.monotonic() * 1000 + ahead) if ahead is not None else self._date_ms

    def _learn_time(self, reply: dict[str, Any]) -> None:
        # A stand-in that does not tell the time is taken to have this machine's.
        date = reply["ResponseMetadata"]["HTTPHeaders"].get("date") or formatdate(usegmt=True)
        self._date_ms = round(parsedate_to_datetime(date).timestamp() * 1000)
        # A date is cut to whole seconds and old by the way here: the greatest difference is nearest to truth.
        ahead_ms = self._date_ms - time.monotonic() * 1000
        self._ahead_ms = ahead_ms if self._ahead_ms is None else max(ahead_ms, self._ahead_ms)

    # Any call

    def call(self, doing: str, operation: str, shard_id: str | None = None, /, **arguments: Any) -> Any:
        """Call what a method of boto3's client is named after, and wait out failures that pass.

        Calls that read a shard (`shard_id`) keep its pace.

        Raises:
            IteratorExpired: The iterator is too old.
            PositionRejected: There is no such shard or consumer, or it will not start there.
            StreamNotFound: There is no such stream; names the nearest that exist, where they may be listed.
            HeadpondError: The call goes on failing, or no other try helps.
        """
        waited_s, attempt = 0.0, 0
        while True:
            if shard_id is not None and self._keeps_pace:
                self._sleep(self._pace.wait_s(shard_id, operation))
            try:
                return self.once(doing, operation, **arguments)
            except StreamNotFound:
                raise stream_not_found(self._client, self.settings) from None
            except RetryableError as error:
                if waited_s >= error.patience_s:
                    raise translate(error.failure, self.settings, doing=doing) from None
                if error_code(error.failure) == "ProvisionedThroughputExceededException":
                    self._keeps_pace = True  # a stand-in that has the service's limits
            wait_s = self.patience.wait_s(attempt)
            self._sleep(wait_s)
            waited_s, attempt = waited_s + wait_s, attempt + 1

    def once(self, doing: str, operation: str, **arguments: Any) -> Any:
        """Call as `call` does, but raise a failure that may pass as RetryableError."""
        client = self._client
        try:
            reply = getattr(client, operation)(**arguments)
        except ClientError as error:
            # A worker keeps its client; the credentials may have been replaced in their file since.
            if error_code(error) in SIGN_IN and self._clients.renewed(client):
                return self.once(doing, operation, **arguments)
            raise classify(error, self.patience, self.settings, doing) from None
        except (HTTPClientError, BotoConnectionError, *CUT) as error:
            raise RetryableError(error, self.patience.unreachable_s) from None
        except (BotoCoreError, RuntimeError) as error:
            # A RuntimeError: credentials that were renewed have expired already, by this machine's clock.
            raise translate(error, self.settings, doing=doing) from None
        self._learn_time(reply)
        return reply


@lru_cache(maxsize=8)
def calls_of(settings: ConnectionSettings) -> ServiceCalls:
    """Return this process's calls for a connection: a worker that is used again keeps its connections."""
    return ServiceCalls(settings)


def check_stream(settings: ConnectionSettings) -> StreamFacts:
    """Ask for the stream before anything slow is started; takes a few seconds at most.

    Raises:
        HeadpondError: It cannot be described: says whether by configuration, right, network or service.
    """
    client = connect(settings, connect_timeout_s=2.0, read_timeout_s=5.0)
    with closing(ServiceCalls(settings, client=client, patience=_QUICK)) as calls:
        return calls.describe()
