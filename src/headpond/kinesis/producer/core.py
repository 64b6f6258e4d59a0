"""The producer: takes user records in, sends them as KPL aggregates, and returns a result for each.

::

    put ─► lane of the predicted shard ─► request ─► reply ─► acknowledged
           (aggregate, limit; in order)   (thread)     │ └──► failed, with reason and tries
                ▲                                      │
                └──── throttled, failed, wrong shard ◄─┘

All state lives in one event loop; only PutRecords and ListShards run in threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from headpond.core.errors import UsageError
from headpond.kinesis.api.client import Renewing, connect
from headpond.kinesis.api.errors import SIGN_IN
from headpond.kinesis.producer.dispatcher import Dispatcher
from headpond.kinesis.producer.lanes import Router
from headpond.kinesis.producer.metrics import Metrics, NoMetrics
from headpond.kinesis.producer.records import Bundle, Ledger, Pending, PutFailed, PutResult
from headpond.kinesis.producer.sender import Reply, list_shards, put_records
from headpond.kinesis.producer.settings import ProducerSettings
from headpond.kpl import UserRecord, validate

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

    from headpond.kinesis.api.settings import ConnectionSettings
    from headpond.kinesis.api.shards import Shard
    from headpond.kinesis.producer.records import Puttable
    from headpond.kpl import Tag

T = TypeVar("T")

_YIELD_EVERY = 1024

logger = logging.getLogger(__name__)


def _monotonic_ms() -> float:
    return time.monotonic() * 1000


class Producer:
    """Puts user records into a stream, aggregated, within the shards' limits, each with a result.

    ::

        async with Producer(ConnectionSettings(stream_name="orders")) as producer:
            result = await producer.put("key", b"data")

    Leaving the block flushes. Records of one partition key reach their shard in the order they were put,
    unless something fails. A record that cannot be put fails with `PutFailed`. One producer serves one
    event loop.

    Args:
        connection: Which stream, where, as whom.
        settings: How records are gathered and sent.
        metrics: Where measurements go.
        client: A boto3 client to use instead of one made from `connection`; the caller closes it.
        clock: Milliseconds, of any origin, never falling.
        seed: Of the jitter in backoff; by default from the system.
    """

    def __init__(
        self,
        connection: ConnectionSettings,
        settings: ProducerSettings | None = None,
        *,
        metrics: Metrics | None = None,
        client: KinesisClient | None = None,
        clock: Callable[[], float] = _monotonic_ms,
        seed: int | None = None,
    ) -> None:
        self.settings = settings or ProducerSettings()
        self._connection, self._clock = connection, clock
        self._given_client = client
        self._clients: Renewing | None = None
        # A deadline never lies behind the expiry.
        self._patience_ms = min(self.settings.record_max_buffered_time_ms, self.settings.record_ttl_ms)
        self._pool: ThreadPoolExecutor | None = None
        self._closing = False
        self._ledger = Ledger(
            connection.stream, self.settings.max_outstanding_records, self.settings.max_outstanding_bytes
        )
        self._router = Router(self.settings, clock())
        self._dispatcher = Dispatcher(
            self.settings,
            self._router,
            self._ledger,
            metrics or NoMetrics(),
            self._send,
            self._list_shards,
            clock,
            random.Random(seed),
        )
        self._map = self._dispatcher.shard_map
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect and try once to learn the shards; without them records are sent, though each alone.

        Raises:
            ConfigurationError: No region is known, or the profile does not exist.
            AccessDenied: The credentials to assume a role with cannot be found.
        """
        if self._loop is not None:
            raise UsageError("The producer was started before.", next_step="Make another one.")
        self._loop = asyncio.get_running_loop()
        self._left = weakref.finalize(
            self, _report_unsent, self._ledger, self._connection.stream, os.getpid()
        )
        settings = self.settings
        self._pool = ThreadPoolExecutor(settings.max_connections + 1, "headpond-producer")
        self._clients = await asyncio.to_thread(
            Renewing, self._connected, fixed=self._given_client is not None
        )
        if settings.aggregation_enabled:
            self._map.start()
            await self._map.first_try()

    def _connected(self) -> KinesisClient:
        settings = self.settings
        return self._given_client or connect(
            self._connection,
            max_pool_connections=settings.max_connections + 1,
            connect_timeout_s=settings.connect_timeout / 1000,
            read_timeout_s=settings.request_timeout / 1000,
            parameter_validation=False,
        )

    async def close(self) -> None:
        """Flush and disconnect; does nothing the second time."""
        if self._pool is None:
            return
        self._closing = True  # what waits for room is still sent
        try:
            await self.flush()
        finally:
            # Reached early if the task is cancelled: then what is outstanding fails rather than vanishes.
            self._dispatcher.stop("Closed")
            self._left.detach()
            await self._map.stop()
            pool, self._pool = self._pool, None
            pool.shutdown(wait=False)
            if self._clients is not None and self._given_client is None:
                self._clients.client.close()

    async def put(
        self,
        partition_key: str,
        data: bytes,
        explicit_hash_key: str | None = None,
        tags: tuple[Tag, ...] = (),
    ) -> PutResult:
        """Put one user record and wait until it is in the stream.

        Args:
            partition_key: 1 to 256 characters.
            data: At most `max_user_record_bytes`.
            explicit_hash_key: Decimal text, 0 to 2^128 - 1, to choose the shard by.
            tags: Carried by the aggregate, out of the data's way; a record that has some always goes in one.

        Raises:
            PutFailed: It is not known to be in the stream; has the reason and all tries.
            InvalidUserRecord: Key or data break a bound.
            InvalidHashKey: The explicit hash key is not a number on the ring.
        """
        return await (await self.submit(partition_key, data, explicit_hash_key, tags))

    async def submit(
        self,
        partition_key: str,
        data: bytes,
        explicit_hash_key: str | None = None,
        tags: tuple[Tag, ...] = (),
    ) -> asyncio.Future[PutResult]:
        """Put one user record; return once there is room for it, with a future of its result.

        Raises:
            InvalidUserRecord: Key or data break a bound.
            InvalidHashKey: The explicit hash key is not a number on the ring.
        """
        ledger = self._ledger
        data, explicit_hash_key = self._checked(partition_key, data, explicit_hash_key)
        if not ledger.has_room:
            await ledger.wait_for_room()
        future = self._take_in(partition_key, data, explicit_hash_key, tags)
        if self._dispatcher.is_due or ledger.received % _YIELD_EVERY == 0:
            # A caller in a tight loop never suspends otherwise, and nothing would be sent.
            await asyncio.sleep(0)
        return future

    async def put_many(self, records: Iterable[Puttable]) -> list[PutResult]:
        """Put (partition key, data[, explicit hash key[, tags]]) in order; wait until all are in the stream.

        Raises:
            PutFailed: Some are not known to be; `facts` has `reason` (the commonest), `reasons` (counts),
                `failures` (index → PutFailed) and `attempts` (of the first that failed).
            InvalidUserRecord: A record breaks a bound; those before it were put.
        """
        return await self.settle(await self.submit_many(records))

    async def submit_many(self, records: Iterable[Puttable]) -> list[asyncio.Future[PutResult]]:
        """Put (partition key, data[, explicit hash key[, tags]]) in order; return once all had room.

        Raises:
            InvalidUserRecord: A record breaks a bound; those before it were put.
        """
        return [await self.submit(*record) for record in records]

    async def settle(self, futures: Sequence[asyncio.Future[PutResult]]) -> list[PutResult]:
        """Wait for the results of records that were submitted.

        Raises:
            PutFailed: As `put_many`.
        """
        results: list[PutResult] = []
        failures: dict[int, PutFailed] = {}
        for index, future in enumerate(futures):
            try:
                results.append(await future)
            except PutFailed as error:
                failures[index] = error
        if failures:
            raise summary(self._connection.stream, failures, len(futures))
        return results

    async def flush(self) -> None:
        """Send everything without waiting for company, and wait until nothing is outstanding."""
        dispatcher = self._dispatcher
        dispatcher.hurry += 1
        try:
            dispatcher.pump()
            await self._ledger.wait_until_idle()
        finally:
            dispatcher.hurry -= 1

    @property
    def outstanding(self) -> int:
        """User records taken in that have no result yet."""
        return len(self._ledger.outstanding)

    @property
    def acknowledged(self) -> int:
        """User records that are in the stream."""
        return self._ledger.acknowledged

    @property
    def failed(self) -> dict[str, int]:
        """User records that failed, by reason."""
        return dict(self._ledger.failed)

    def _checked(
        self, partition_key: str, data: bytes, explicit_hash_key: str | None
    ) -> tuple[bytes, str | None]:
        """Check what is put; return data that nobody changes and the hash key in its one spelling."""
        if self._pool is None or self._closing:
            raise UsageError("The producer is not running.", next_step="Use it inside `async with`.")
        settings = self.settings
        if (
            explicit_hash_key is not None
            or type(data) is not bytes
            or len(data) > settings.max_user_record_bytes
            or not self._router.knows(partition_key)
        ):
            record = UserRecord(partition_key, data, explicit_hash_key)
            record = validate(record, max_user_record_bytes=settings.max_user_record_bytes)
            data, explicit_hash_key = bytes(data), record.explicit_hash_key
        return data, explicit_hash_key

    def _take_in(
        self, partition_key: str, data: bytes, explicit_hash_key: str | None, tags: tuple[Tag, ...]
    ) -> asyncio.Future[PutResult]:
        assert self._loop is not None
        settings = self.settings
        now_ms = self._clock()
        ledger = self._ledger
        future: asyncio.Future[PutResult] = self._loop.create_future()
        pending = Pending(
            partition_key,
            data,
            explicit_hash_key,
            now_ms,
            now_ms + self._patience_ms,
            now_ms + settings.record_ttl_ms,
            ledger.received,
            future,
            tags,
        )
        ledger.enter(pending)
        self._dispatcher.take_in(pending)
        return future

    async def _send(self, bundles: list[Bundle]) -> Reply:
        assert self._clients is not None
        put, client = partial(put_records, self._connection, bundles, self.settings), self._clients.client
        reply = await self._in_thread(put, client)
        refused = reply.whole is not None and reply.whole.code in SIGN_IN
        if refused and await self._in_thread(self._clients.renewed, client):
            return await self._in_thread(put, self._clients.client)
        return reply

    async def _list_shards(self) -> list[Shard]:
        assert self._clients is not None
        return await self._in_thread(partial(list_shards, self._connection), self._clients.client)

    async def _in_thread(self, function: Callable[[KinesisClient], T], client: KinesisClient) -> T:
        try:
            call = asyncio.get_running_loop().run_in_executor(self._pool, function, client)
        except RuntimeError:  # the program is ending: no thread takes work any more but the loop's own
            return function(client)
        return await call


def _report_unsent(ledger: Ledger, stream: str, pid: int) -> None:
    """Log what a producer that was never closed did not send; a forked process holds only a copy."""
    if ledger.outstanding and pid == os.getpid():
        logger.error(
            "%d user records for stream %s were not sent: their producer was never closed. "
            "Use it inside `async with`.",
            len(ledger.outstanding),
            stream,
        )


def summary(stream: str, failures: dict[int, PutFailed], count: int) -> PutFailed:
    """Return one error for several records, which `Producer.put_many` raises."""
    reasons = Counter(error.reason for error in failures.values())
    counts = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    first = next(iter(failures.values()))
    return PutFailed(
        f"{len(failures)} of {count} records were not put into stream {stream}: {counts}.",
        next_step=first.next_step,
        reason=reasons.most_common(1)[0][0],
        reasons=dict(reasons),
        failures=failures,
        attempts=first.attempts,
    )
