"""The producer for scripts without an event loop: the same one, with its loop in a thread."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from itertools import islice
from threading import Event, Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headpond.core.errors import UsageError
from headpond.kinesis.producer.core import Producer, summary
from headpond.kinesis.producer.records import PutFailed
from headpond.kpl.model import check_type

if TYPE_CHECKING:
    from headpond.kinesis.api.settings import ConnectionSettings
    from headpond.kinesis.producer.metrics import Metrics
    from headpond.kinesis.producer.records import PutResult, Puttable
    from headpond.kinesis.producer.settings import ProducerSettings
    from headpond.kpl import Tag

    T = TypeVar("T")

_CHUNK = 5_000

logger = logging.getLogger(__name__)


class BlockingProducer:
    """`Producer` with blocking methods, for any number of threads.

    ::

        with BlockingProducer(ConnectionSettings(stream_name="orders")) as producer:
            producer.put_all(("key", line) for line in lines)

    Leaving the block flushes, and so does the end of a program that started the producer and never closed
    it. Each process has its own: one that was started before a fork does not work in the child.

    Args:
        connection: Which stream, where, as whom.
        settings: How records are gathered and sent.
        metrics: Where measurements go; called from the producer's thread.
    """

    def __init__(
        self,
        connection: ConnectionSettings,
        settings: ProducerSettings | None = None,
        *,
        metrics: Metrics | None = None,
    ) -> None:
        self._stream = connection.stream
        self._producer = Producer(connection, settings, metrics=metrics)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = Lock()  # what began before the end is done before the producer is closed
        self._thread: Thread | None = None
        self._pid = 0  # of the process that the thread runs in

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Connect; see `Producer.start`."""
        if self._thread is not None:
            raise UsageError("The producer was started before.", next_step="Make another one.")
        self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
        self._thread = Thread(target=_run, args=(self._loop,), name="headpond-producer-loop", daemon=True)
        self._thread.start()
        try:
            self._call(self._producer.start())
        except BaseException:
            self.close()
            raise
        atexit.register(self._close_at_exit)

    def close(self) -> None:
        """Flush and disconnect; does nothing the second time. What waits for room is still sent.

        Does nothing in a process that was forked from the producer's, which sends what it took.
        """
        if self._forked:
            return
        atexit.unregister(self._close_at_exit)
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is None:
                return
            future = asyncio.run_coroutine_threadsafe(self._producer.close(), loop)
        assert self._thread is not None
        try:
            future.result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    def _close_at_exit(self) -> None:
        before = sum(self.failed.values())
        self.close()
        if lost := sum(self.failed.values()) - before:
            logger.error(
                "%d user records for stream %s were still waiting when the program ended, and failed: %s.",
                lost,
                self._stream,
                ", ".join(self.failed),
            )

    def put(
        self,
        partition_key: str,
        data: bytes,
        explicit_hash_key: str | None = None,
        tags: tuple[Tag, ...] = (),
    ) -> Future[PutResult]:
        """Put one user record; return once there is room for it, with a future of its result.

        The future raises what `Producer.put` raises. For many records `put_all` is faster.

        Raises:
            InvalidUserRecord: The data is not bytes.
            UsageError: The producer is not running, or this process was forked from the one it runs in.
        """
        kept, entered = _kept(data), Event()

        async def put() -> PutResult:
            result = await self._producer.submit(partition_key, kept, explicit_hash_key, tags)
            entered.set()
            return await result

        future = self._begin(put())
        future.add_done_callback(lambda _: entered.set())
        entered.wait()
        return future

    def put_all(self, records: Iterable[Puttable]) -> list[PutResult]:
        """Put (partition key, data[, explicit hash key[, tags]]) in order; return their results in order.

        Records are taken from `records` some thousands at a time, as there is room for them.

        Raises:
            PutFailed: Some are not known to be in the stream; see `Producer.put_many`.
        """
        results: list[PutResult] = []
        self._put_in_turn(records, results.extend)
        return results

    def send_all(
        self,
        records: Iterable[Puttable],
        *,
        aside: Callable[[Puttable, PutFailed], bool] = lambda _record, _error: False,
    ) -> int:
        """Put as `put_all` does, but keep no results: memory does not grow with the number of records.

        Args:
            records: As of `put_all`.
            aside: Called with each record that failed; where it returns True, that is no failure any longer.

        Returns:
            How many were put, or put aside.

        Raises:
            PutFailed: Some are not known to be in the stream; no more were taken after the first failed.
        """
        return self._put_in_turn(records, lambda _results: None, aside)

    def _put_in_turn(
        self,
        records: Iterable[Puttable],
        keep: Callable[[list[PutResult]], None],
        aside: Callable[[Puttable, PutFailed], bool] | None = None,  # None: all are put, whatever fails
    ) -> int:
        source = map(_record_kept, records)
        under_way: deque[tuple[int, list[Puttable], Future[list[PutResult]]]] = deque()
        failures: dict[int, PutFailed] = {}
        count = 0

        def settle() -> None:
            start, chunk, future = under_way.popleft()
            try:
                keep(future.result())
            except PutFailed as error:
                failed: dict[int, PutFailed] = error.facts["failures"]
                failures.update(
                    (start + index, each)
                    for index, each in failed.items()
                    if aside is None or not aside(chunk[index], each)
                )

        while not (failures and aside is not None) and (chunk := list(islice(source, _CHUNK))):
            # One chunk enters after the other, so that order holds; only their results are awaited together.
            futures = self._call(self._producer.submit_many(chunk))
            work = self._producer.settle(futures)
            under_way.append((count, chunk, self._begin(work)))
            count += len(chunk)
            while under_way and under_way[0][2].done():
                settle()
        while under_way:
            settle()
        if failures:
            raise summary(self._stream, failures, count)
        return count

    def flush(self, timeout_s: float | None = None) -> None:
        """Send everything without waiting for company, and wait until nothing is outstanding.

        Raises:
            TimeoutError: Something was still outstanding after `timeout_s` seconds; it is sent all the same.
        """
        self._call(self._producer.flush(), timeout_s)

    @property
    def outstanding(self) -> int:
        """User records taken in that have no result yet."""
        return self._producer.outstanding

    @property
    def acknowledged(self) -> int:
        """User records that are in the stream."""
        return self._producer.acknowledged

    @property
    def failed(self) -> dict[str, int]:
        """User records that failed, by reason."""
        return self._producer.failed

    @property
    def _forked(self) -> bool:
        return self._loop is not None and self._pid != os.getpid()

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._forked:
            work.close()
            raise UsageError(
                f"The producer runs in process {self._pid}, from which this one was forked.",
                next_step="Start one in each process, after the fork.",
                stream=self._stream,
            )
        with self._lock:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise UsageError(
            "The producer is not running: it was not started, or is closed.",
            next_step="Use it inside `with`.",
        )

    def _call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        future = self._begin(work)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise


def _kept(data: Any) -> bytes:
    """Return data that nobody changes: a caller may use a buffer again before its bytes are sent."""
    if type(data) is not bytes:
        check_type(data)
    return bytes(data)


def _record_kept(record: Puttable) -> Puttable:
    return record if type(record[1]) is bytes else (record[0], _kept(record[1]), *record[2:])


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, and end what is under way then: all that waits gets its answer."""
    loop.run_forever()
    loop.run_until_complete(_end_all())
    loop.close()


async def _end_all() -> None:
    """End the loop's other tasks; there are some only where a caller was interrupted, as while flushing."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
