"""The few calls that reading takes; throttling and other failures that pass are waited out.

`StreamCalls` is what planning and reading are written against; `ServiceCalls` is the one on boto3. The
server's clock is taken from the `Date` of its replies.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, ResponseStreamingError
from botocore.exceptions import ConnectionError as BotoConnectionError

from headpond.core.errors import StreamNotFound
from headpond.kinesis.api.client import Renewing, connect, stream_not_found
from headpond.kinesis.api.errors import SIGN_IN, error_code, translate
from headpond.kinesis.api.replies import install_fast_parser, page_of, total_bytes
from headpond.kinesis.api.retry import (
    CUT,
    Pace,
    Patience,
    PositionRejected,
    RetryableError,
    classify,
)
from headpond.kinesis.api.shards import Shard, shard_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.core.errors import HeadpondError
    from headpond.kinesis.api.replies import Page
    from headpond.kinesis.api.settings import ConnectionSettings

IteratorKind = Literal["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "AT_TIMESTAMP", "TRIM_HORIZON"]

MOST_PARALLEL_CALLS = 32


class StreamFacts(NamedTuple):
    """What describes the stream as a whole."""

    created_ms: int
    retention_ms: int
    arn: str = ""


class StreamCalls(Protocol):
    """What planning and reading ask of a stream; may be used from several threads."""

    def describe(self) -> StreamFacts:
        """Ask for the stream's creation time and retention."""

    def list_shards(self) -> list[Shard]:
        """List all shards that are not expired."""

    def iterator(
        self, shard_id: str, kind: IteratorKind, *, number: str | None = None, time_ms: int | None = None
    ) -> str:
        """Get an iterator. Raises PositionRejected."""

    def page(self, iterator: str, shard_id: str, limit: int) -> Page:
        """Read on. Raises IteratorExpired, PositionRejected."""

    def date_ms(self) -> int:
        """Return the time of the newest reply, in whole seconds: never later than the server's clock."""

    def now_ms(self) -> int:
        """Return the server's clock, estimated from its replies."""


class ServiceCalls:
    """The calls on boto3.

    Args:
        client: A client to use; one is made otherwise.
        pace: The limits to keep to; the service's, unless the endpoint is on this machine.
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
        self._settings = settings
        # A service on this machine is a stand-in, which by default has no limits.
        self._pace = Pace() if pace is None and not settings.is_loopback else pace
        self._patience = patience
        self._sleep = sleep
        self._clients = Renewing(lambda: self._connected(client), fixed=client is not None)
        self._date: str | None = None  # of the newest reply
        self._date_ms = 0
        self._ahead_ms: float | None = None  # the server's clock less ours

    @property
    def _client(self) -> Any:
        return self._clients.client

    def _connected(self, given: Any) -> Any:
        # Our own waiting knows more than the client's: one try per call there.
        client = given or connect(
            self._settings,
            max_pool_connections=MOST_PARALLEL_CALLS,
            max_attempts=1,
            # Arguments are written here and nowhere else; checking and compressing them, which these calls
            # are too small for, is a tenth of what a call costs.
            parameter_validation=False,
            disable_request_compression=True,
        )
        install_fast_parser(client)
        return client

    def close(self) -> None:
        """Close the connections; calls that come later open new ones."""
        self._client.close()

    def describe(self) -> StreamFacts:
        """Ask for the stream's creation time and retention."""
        try:
            reply = self._call(
                "describing the stream",
                self._client.describe_stream_summary,
                **self._settings.stream_argument,
            )
        except StreamNotFound:
            raise stream_not_found(self._client, self._settings) from None
        summary = reply["StreamDescriptionSummary"]
        created_ms = round(summary["StreamCreationTimestamp"].timestamp() * 1000)
        return StreamFacts(created_ms, summary["RetentionPeriodHours"] * 3_600_000, summary["StreamARN"])

    def list_shards(self) -> list[Shard]:
        """List all shards that are not expired, over all pages of replies."""
        found: list[Shard] = []
        arguments = dict(self._settings.stream_argument)
        while True:
            reply = self._call("listing the shards", self._client.list_shards, **arguments)
            found += map(shard_of, reply["Shards"])
            token = reply.get("NextToken")
            if not token:
                return found
            arguments = {"NextToken": token}  # the stream must not be named again

    def iterator(
        self, shard_id: str, kind: IteratorKind, *, number: str | None = None, time_ms: int | None = None
    ) -> str:
        """Get an iterator."""
        arguments: dict[str, Any] = {"ShardId": shard_id, "ShardIteratorType": kind}
        if number is not None:
            arguments["StartingSequenceNumber"] = number
        if time_ms is not None:
            arguments["Timestamp"] = datetime.fromtimestamp(time_ms / 1000, UTC)
        self._keep_pace(shard_id, "iterator")
        reply = self._call(
            f"finding a place in {shard_id}",
            self._client.get_shard_iterator,
            **self._settings.stream_argument,
            **arguments,
        )
        return str(reply["ShardIterator"])

    def page(self, iterator: str, shard_id: str, limit: int) -> Page:
        """Read on."""
        arguments: dict[str, Any] = {"ShardIterator": iterator, "Limit": limit}
        if self._settings.stream_arn is not None:
            arguments["StreamARN"] = self._settings.stream_arn
        self._keep_pace(shard_id, "page")
        reply = self._call(f"reading {shard_id}", self._client.get_records, **arguments)
        page = page_of(reply)
        if self._pace is not None:
            self._pace.count(shard_id, total_bytes(page.records))
        return page

    # Registered consumers

    def call(self, doing: str, operation: str, **arguments: Any) -> Any:
        """Call what a method of boto3's client is named after, and wait out failures that pass.

        Raises:
            PositionRejected: There is no such consumer.
            HeadpondError: The call goes on failing, or no other try helps.
        """
        return self._call(doing, getattr(self._client, operation), **arguments)

    def once(self, doing: str, operation: str, **arguments: Any) -> Any:
        """Call as `call` does, but raise a failure that may pass as RetryableError."""
        return self._once(doing, getattr(self._client, operation), **arguments)

    def has_consumer(self, consumer_arn: str) -> bool:
        """Return whether a consumer is registered."""
        try:
            self.call("looking for the consumer", "describe_stream_consumer", ConsumerARN=consumer_arn)
        except PositionRejected:
            return False
        return True

    def subscribe(self, consumer_arn: str, shard_id: str, start: dict[str, Any]) -> Any:
        """Subscribe to a shard, trying once; return botocore's event stream, which the caller closes.

        Raises:
            RetryableError: Worth another try; the caller keeps the distance between subscriptions.
            PositionRejected: No such consumer or shard, or it will not start there.
        """
        reply = self._once(
            f"subscribing to {shard_id}",
            self._client.subscribe_to_shard,
            ConsumerARN=consumer_arn,
            ShardId=shard_id,
            StartingPosition=start,
        )
        return reply["EventStream"]

    @property
    def patience(self) -> Patience:
        """How long passing failures are waited out."""
        return self._patience

    def classify(self, code: str, operation: str, doing: str) -> RetryableError:
        """Return what an error code means that did not come as a reply's; raise as a call would."""
        error = ClientError({"Error": {"Code": code}}, operation)
        return classify(error, self._patience, self._settings, doing)

    def final_error(self, failure: Exception, doing: str) -> HeadpondError:
        """Return the error to raise for a failure that did not pass."""
        if not isinstance(failure, (ClientError, BotoCoreError)):
            failure = ResponseStreamingError(error=type(failure).__name__)
        return translate(failure, self._settings, doing=doing)

    # The server's clock

    def date_ms(self) -> int:
        """Return the time of the newest reply, in whole seconds."""
        return self._date_ms

    def now_ms(self) -> int:
        """Return the server's clock as estimated from its replies: from below, within a second."""
        ahead = self._ahead_ms
        return round(time.monotonic() * 1000 + ahead) if ahead is not None else self._date_ms

    def _keep_pace(self, shard_id: str, call: Literal["iterator", "page"]) -> None:
        if self._pace is not None:
            wait_s = self._pace.wait_s(shard_id, call)
            if wait_s > 0:
                self._sleep(wait_s)

    def _call(self, doing: str, function: Callable[..., Any], **arguments: Any) -> Any:
        """Call, and wait out failures that pass."""
        waited_s, attempt = 0.0, 0
        while True:
            try:
                return self._once(doing, function, **arguments)
            except RetryableError as error:
                if waited_s >= error.patience_s:
                    raise self.final_error(error.failure, doing) from None
                if (
                    self._pace is None
                    and error_code(error.failure) == "ProvisionedThroughputExceededException"
                ):
                    self._pace = Pace()  # a stand-in that keeps the service's limits
            wait_s = self._patience.wait_s(attempt)
            self._sleep(wait_s)
            waited_s, attempt = waited_s + wait_s, attempt + 1

    def _once(self, doing: str, function: Callable[..., Any], **arguments: Any) -> Any:
        """Call once; raise failures as what they mean."""
        try:
            reply = function(**arguments)
        except ClientError as error:
            # A worker keeps its client; the credentials may have been replaced in their file since.
            refused: Any = getattr(function, "__self__", None)
            if error_code(error) in SIGN_IN and self._clients.renewed(refused):
                return self._once(doing, getattr(self._client, function.__name__), **arguments)
            raise classify(error, self._patience, self._settings, doing) from None
        except (HTTPClientError, BotoConnectionError, *CUT) as error:
            raise RetryableError(error, self._patience.unreachable_s) from None
        except (BotoCoreError, RuntimeError) as error:
            # A RuntimeError: credentials that were renewed have expired already, by this machine's clock.
            raise translate(error, self._settings, doing=doing) from None
        self._learn_time(reply)
        return reply

    def _learn_time(self, reply: dict[str, Any]) -> None:
        date = reply["ResponseMetadata"]["HTTPHeaders"].get("date")
        if date is None or date == self._date:
            return  # later in the same second it says nothing new
        self._date = date
        date_ms = round(parsedate_to_datetime(date).timestamp() * 1000)
        self._date_ms = date_ms
        # A date is cut to whole seconds and old by the way here: the greatest difference is nearest to truth.
        ahead_ms = date_ms - time.monotonic() * 1000
        self._ahead_ms = ahead_ms if self._ahead_ms is None else max(ahead_ms, self._ahead_ms)


@lru_cache(maxsize=8)
def calls_of(settings: ConnectionSettings) -> ServiceCalls:
    """Return this process's calls for a connection: a worker that is used again keeps its connections."""
    return ServiceCalls(settings)
