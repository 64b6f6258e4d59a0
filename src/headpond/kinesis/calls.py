"""The few calls that reading takes, with patience: throttling and passing failures are waited out.

`StreamCalls` is what planning and reading are written against; `ServiceCalls` is the one on boto3.
Waiting is exponential with full jitter. The server's clock is taken from the `Date` of its replies.
"""

from __future__ import annotations

import random
import time
from collections import deque
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from math import ceil
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, ResponseStreamingError
from botocore.exceptions import ConnectionError as BotoConnectionError

from headpond.formats.hash_keys import HashKeyRange
from headpond.kinesis.aws_errors import error_code
from headpond.kinesis.client import connect, translate
from headpond.kinesis.efo_events import CUT
from headpond.kinesis.pace import Pace
from headpond.kinesis.replies import page_of, read_fast, total_bytes
from headpond.kinesis.shards import Shard

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.errors import HeadpondError
    from headpond.kinesis.connection import ConnectionSettings
    from headpond.kinesis.replies import Page

IteratorKind = Literal["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "AT_TIMESTAMP", "TRIM_HORIZON"]

MOST_PARALLEL_CALLS = 32
_WAITS_KEPT = 8
_LEAST_CPU_S = 1e-4

_PASSING = {
    "ProvisionedThroughputExceededException",
    "LimitExceededException",
    "ThrottlingException",
    "KMSThrottlingException",
    "RequestTimeout",
    "InternalFailure",
    "InternalFailureException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
}
_NOT_FOUND, NOT_THERE = "ResourceNotFoundException", "InvalidArgumentException"
_NO_SUCH_PLACE = {
    "GetShardIterator": (_NOT_FOUND, NOT_THERE),
    "GetRecords": (_NOT_FOUND, NOT_THERE),
    "SubscribeToShard": (_NOT_FOUND, NOT_THERE),
    "DescribeStreamConsumer": (_NOT_FOUND,),
}
_SERVER_ERROR = 500


class IteratorExpired(Exception):
    """The iterator is older than the service keeps it; a new one goes on from the last position."""


class PlaceRefused(Exception):
    """The service knows no such shard, or will not start at that position; `code` is its answer."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Passing(Exception):
    """A failure that passes by itself, `failure`, and how long it is worth waiting for that in sum."""

    def __init__(self, failure: Exception, patience_s: float) -> None:
        super().__init__(type(failure).__name__)
        self.failure = failure
        self.patience_s = patience_s


class StreamFacts(NamedTuple):
    """What is told of the stream as a whole."""

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
        """Get an iterator. Raises PlaceRefused."""

    def page(self, iterator: str, shard_id: str, limit: int) -> Page:
        """Read on. Raises IteratorExpired, PlaceRefused."""

    def date_ms(self) -> int:
        """The time of the newest reply, in whole seconds: never later than the server's clock."""

    def now_ms(self) -> int:
        """The server's clock as well as its replies tell."""

    @property
    def parallel(self) -> int:
        """How many calls at a time pay."""


class Patience(NamedTuple):
    """How long passing failures are waited out."""

    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0
    throttled_s: float = 300.0  # in sum, while the service answers
    unreachable_s: float = 30.0  # in sum, while it does not


class ServiceCalls:
    """The calls on boto3.

    Args:
        settings: The connection.
        client: A client to use; one is made otherwise.
        patience: How long passing failures are waited out.
        pace: The limits to keep to; the service's, unless the endpoint is on this machine.
        sleep: How to wait.
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
        # A service on this machine is a stand-in, which has no limits unless told to.
        self._pace = Pace() if pace is None and not settings.is_loopback else pace
        self._patience = patience
        self._sleep = sleep
        # Our own waiting knows more than the client's: one try per call there.
        self._client = client or connect(
            settings,
            max_pool_connections=MOST_PARALLEL_CALLS,
            max_attempts=1,
            # Arguments are written here and nowhere else; checking and compressing them, which these calls
            # are too small for, is a tenth of what a call costs.
            parameter_validation=False,
            disable_request_compression=True,
        )
        read_fast(self._client)
        self._date: str | None = None  # of the newest reply
        self._date_ms = 0
        self._ahead_ms: float | None = None  # the server's clock less ours
        self._begun, self._under_way, self._counting = 0, 0, Lock()
        self._waits: deque[float] = deque(maxlen=_WAITS_KEPT)  # clock by CPU time, of calls made alone

    def close(self) -> None:
        """Close the connections; calls that come later open new ones."""
        self._client.close()

    def describe(self) -> StreamFacts:
        """Ask for the stream's creation time and retention."""
        reply = self._call(
            "describing the stream",
            self._client.describe_stream_summary,
            **self._settings.stream_argument,
        )
        summary = reply["StreamDescriptionSummary"]
        created_ms = round(summary["StreamCreationTimestamp"].timestamp() * 1000)
        return StreamFacts(created_ms, summary["RetentionPeriodHours"] * 3_600_000, summary["StreamARN"])

    def list_shards(self) -> list[Shard]:
        """List all shards that are not expired, over all pages of replies."""
        found: list[Shard] = []
        arguments = dict(self._settings.stream_argument)
        while True:
            reply = self._call("listing the shards", self._client.list_shards, **arguments)
            found += [_shard(each) for each in reply["Shards"]]
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
        iterator: str = reply["ShardIterator"]
        return iterator

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

    def consumer_arn(self, stream_arn: str, name: str) -> str:
        """Find a registered consumer by name. Raises PlaceRefused where there is none."""
        reply = self._call(
            f"looking for the consumer {name}",
            self._client.describe_stream_consumer,
            StreamARN=stream_arn,
            ConsumerName=name,
        )
        arn: str = reply["ConsumerDescription"]["ConsumerARN"]
        return arn

    def has_consumer(self, consumer_arn: str) -> bool:
        """Whether a consumer is registered."""
        try:
            self._call(
                "looking for the consumer", self._client.describe_stream_consumer, ConsumerARN=consumer_arn
            )
        except PlaceRefused:
            return False
        return True

    def subscribe(self, consumer_arn: str, shard_id: str, start: dict[str, Any]) -> Any:
        """Subscribe to a shard, trying once; gives botocore's event stream, to be closed by the caller.

        Raises:
            Passing: Worth another try; the caller keeps the distance between subscriptions.
            PlaceRefused: No such consumer or shard, or it will not start there.
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

    def judge(self, code: str, operation: str, doing: str) -> Passing:
        """Say what an error code means that came otherwise than as a reply's; raises as a call would."""
        error = ClientError({"Error": {"Code": code}}, operation)
        return Passing(error, self._patience_with(error, doing))

    def given_up(self, failure: Exception, doing: str) -> HeadpondError:
        """Make the error to raise for a failure that did not pass."""
        if not isinstance(failure, (ClientError, BotoCoreError)):
            failure = ResponseStreamingError(error=type(failure).__name__)
        return translate(failure, self._settings, doing=doing)

    # The server's clock

    def date_ms(self) -> int:
        """The time of the newest reply, in whole seconds."""
        return self._date_ms

    def now_ms(self) -> int:
        """The server's clock as well as its replies tell: an estimate from below, within a second."""
        ahead = self._ahead_ms
        return round(time.monotonic() * 1000 + ahead) if ahead is not None else self._date_ms

    @property
    def parallel(self) -> int:
        """How many calls at a time pay: so many that our computing fills the waiting, and two more.

        Of calls that are answered at once 32 at a time take a fifth more CPU than three: threads fight for
        the interpreter. What counts is the longest of the newest waits, seen while nothing else was asked.
        """
        return min(MOST_PARALLEL_CALLS, 2 + ceil(max(self._waits, default=MOST_PARALLEL_CALLS)))

    def _keep_pace(self, shard_id: str, call: Literal["iterator", "page"]) -> None:
        if self._pace is not None:
            wait_s = self._pace.wait_s(shard_id, call)
            if wait_s > 0:
                self._sleep(wait_s)

    def _call(self, doing: str, function: Callable[..., Any], **arguments: Any) -> Any:
        """Call, waiting out passing failures."""
        waited_s, attempt = 0.0, 0
        while True:
            try:
                return self._once(doing, function, **arguments)
            except Passing as passing:
                patience_s, failure = passing.patience_s, passing.failure
            if waited_s >= patience_s:
                raise self.given_up(failure, doing) from None
            longest_s = min(self._patience.longest_wait_s, self._patience.first_wait_s * 2**attempt)
            wait_s = random.uniform(longest_s / 10, longest_s)  # noqa: S311 (jitter, no secret)
            self._sleep(wait_s)
            waited_s += wait_s
            attempt = min(attempt + 1, 16)

    def _once(self, doing: str, function: Callable[..., Any], **arguments: Any) -> Any:
        """Call, and sort out what fails."""
        with self._counting:
            self._begun += 1
            self._under_way += 1
            begun, alone = self._begun, self._under_way == 1
        clock_s, cpu_s = time.perf_counter(), time.thread_time()
        try:
            reply = function(**arguments)
            # A listing of many shards is mostly computing, and would tell of a service that is near.
            if alone and begun == self._begun and function != self._client.list_shards:
                clock_s, cpu_s = time.perf_counter() - clock_s, time.thread_time() - cpu_s
                self._waits.append(clock_s / max(cpu_s, _LEAST_CPU_S))
        except ClientError as error:
            raise Passing(error, self._patience_with(error, doing)) from None
        except (HTTPClientError, BotoConnectionError, *CUT) as error:
            raise Passing(error, self._patience.unreachable_s) from None
        except (BotoCoreError, RuntimeError) as error:
            # A RuntimeError: credentials that were renewed have expired already, by this machine's clock.
            raise translate(error, self._settings, doing=doing) from None
        finally:
            with self._counting:
                self._under_way -= 1
        self._learn_time(reply)
        return reply

    def _patience_with(self, error: ClientError, doing: str) -> float:
        code = error_code(error)
        if code == "ExpiredIteratorException":
            raise IteratorExpired from None
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        # A subscription in use: too soon after the last one, or the consumer is not ACTIVE yet.
        in_use = code == "ResourceInUseException" and error.operation_name == "SubscribeToShard"
        if in_use or code in _PASSING or status >= _SERVER_ERROR:
            return self._patience.throttled_s
        if code in _NO_SUCH_PLACE.get(error.operation_name, ()):
            raise PlaceRefused(code) from None
        raise translate(error, self._settings, doing=doing) from None

    def _learn_time(self, reply: dict[str, Any]) -> None:
        date = reply["ResponseMetadata"]["HTTPHeaders"].get("date")
        if date is None or date == self._date:
            return  # later in the same second it tells nothing new
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


def _shard(value: dict[str, Any]) -> Shard:
    parents = (value.get("ParentShardId"), value.get("AdjacentParentShardId"))
    return Shard(
        value["ShardId"],
        tuple(parent for parent in parents if parent),
        "EndingSequenceNumber" in value["SequenceNumberRange"],
        HashKeyRange(
            int(value["HashKeyRange"]["StartingHashKey"]), int(value["HashKeyRange"]["EndingHashKey"])
        ),
    )
