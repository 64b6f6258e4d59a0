"""When a call may be made, and when it is made again: a shard's limits, and which failures pass.

Waiting is exponential with full jitter. A shard allows 5 reads and 2 MiB a second. A read of 10 MiB is
answered whole and paid for by the seconds after it, so the next one waits. Each process keeps its own
account; what several of them ask for together the service may still refuse, and then it is waited out.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from botocore.eventstream import ParserError
from urllib3.exceptions import HTTPError

from headpond.core.bucket import Bucket
from headpond.kinesis.api.errors import error_code, translate
from headpond.kinesis.api.settings import ConnectionSettings

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

CALLS_PER_SECOND = 5
BYTES_PER_SECOND = 2 << 20

CUT = (HTTPError, OSError, ParserError)
"""What reading an event stream raises when the connection breaks or what comes is damaged."""

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
NOT_FOUND, INVALID_ARGUMENT = "ResourceNotFoundException", "InvalidArgumentException"
IN_USE = "ResourceInUseException"
_REJECTED_POSITIONS = {
    **dict.fromkeys(("GetShardIterator", "GetRecords", "SubscribeToShard"), (NOT_FOUND, INVALID_ARGUMENT)),
    "DescribeStreamConsumer": (NOT_FOUND,),
    "DeregisterStreamConsumer": (NOT_FOUND,),
    "RegisterStreamConsumer": (IN_USE,),
}
_SERVER_ERROR = 500
_JITTER = random.Random()


class IteratorExpired(Exception):
    """The iterator is older than the service keeps it; a new one goes on from the last position."""


class PositionRejected(Exception):
    """The service knows no such shard or consumer, or will not start there; `code` is its answer."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class RetryableError(Exception):
    """A retryable `failure`, and the total time worth waiting for it to pass."""

    def __init__(self, failure: Exception, patience_s: float) -> None:
        super().__init__(type(failure).__name__)
        self.failure, self.patience_s = failure, patience_s


class Patience(NamedTuple):
    """How long retryable failures are waited out."""

    first_wait_s: float = 0.1
    longest_wait_s: float = 1.0
    throttled_s: float = 300.0  # in sum, while the service answers
    unreachable_s: float = 30.0  # in sum, while it does not

    def wait_s(self, attempt: int) -> float:
        """Return how long to wait before the next try; `attempt` counts the waits before this one."""
        longest_s = min(self.longest_wait_s, self.first_wait_s * 2 ** min(attempt, 16))  # no overflow
        return _JITTER.uniform(longest_s / 10, longest_s)


def classify(
    error: ClientError, patience: Patience, settings: ConnectionSettings, doing: str
) -> RetryableError:
    """Return an error of the service as a retryable one; raise what it means otherwise.

    Raises:
        IteratorExpired: The iterator is too old.
        PositionRejected: There is no such shard or consumer, or it will not start there.
        HeadpondError: No other try helps.
    """
    code = error_code(error)
    if code == "ExpiredIteratorException":
        raise IteratorExpired from None
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    # A subscription in use: too soon after the last one, or the consumer is not ACTIVE yet.
    in_use = code == IN_USE and error.operation_name == "SubscribeToShard"
    if in_use or code in _PASSING or status >= _SERVER_ERROR:
        return RetryableError(error, patience.throttled_s)
    if code in _REJECTED_POSITIONS.get(error.operation_name, ()):
        raise PositionRejected(code) from None
    raise translate(error, settings, doing=doing) from None


class Pace:
    """The reads of all shards, one by one; GetShardIterator and GetRecords each evenly spaced."""

    def __init__(
        self,
        calls_per_second: float = CALLS_PER_SECOND,
        bytes_per_second: float = BYTES_PER_SECOND,
        *,
        clock: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._clock, self._lock = clock, Lock()
        # By shard and call, and by shard.
        self._calls = defaultdict[tuple[str, str], Bucket](lambda: Bucket(calls_per_second, capacity=1))
        self._bytes = defaultdict[str, Bucket](lambda: Bucket(bytes_per_second))

    def wait_s(self, shard_id: str, operation: str) -> float:
        """Count a call that is about to be made, and say how long it has to wait."""
        with self._lock:
            now_ms = self._clock()
            calls = self._calls[shard_id, operation]
            wait_ms = calls.wait_ms(1, now_ms)
            calls.take(1)
            if operation == "get_records":
                wait_ms = max(wait_ms, self._bytes[shard_id].wait_ms(1, now_ms))
            return wait_ms / 1000

    def count(self, shard_id: str, size_bytes: int) -> None:
        """Count what a read gave."""
        with self._lock:
            volume = self._bytes[shard_id]
            volume.level(self._clock())
            volume.take(size_bytes)
