"""The producer's motor: sends what the lanes hold, judges replies, and brings back what must go again.

It runs as callbacks in one event loop: something became ready, a moment came, a reply arrived, the shards
changed. After the shards changed, nothing is sent before the earlier requests are answered, so that no record
overtakes an older one of its key.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from headpond.kinesis.api.errors import WRONG_CALL
from headpond.kinesis.producer.lanes import Part, backoff_ms, choose, has_enough
from headpond.kinesis.producer.records import Attempt, Bundle, Pending
from headpond.kinesis.producer.sender import CALL_FAILURES, Stored, inside, remedy
from headpond.kinesis.producer.shard_map import ShardMap

if TYPE_CHECKING:
    from headpond.kinesis.api.shards import Shard
    from headpond.kinesis.producer.lanes import Lane, Router
    from headpond.kinesis.producer.metrics import Metrics
    from headpond.kinesis.producer.records import Ledger
    from headpond.kinesis.producer.sender import Reply
    from headpond.kinesis.producer.settings import ProducerSettings
    from headpond.kinesis.producer.shard_map import OpenShards

_DOUBT_AGAIN_S = 1.0
_USUAL_MOST_BYTES = 1 << 20  # of a Kinesis record; UpdateMaxRecordSize raises it for a stream
_WRONG_SHARD = "Wrong Shard"
_EXPIRED = "Expired"


class _Request(NamedTuple):
    parts: list[Part]
    epoch: int
    start_ms: float


class _Parked(NamedTuple):
    """An aggregate stored in a shard whose range is not known yet."""

    bundle: Bundle
    stored: Stored
    attempt: Attempt


class Dispatcher:
    """Moves records from the lanes into the stream."""

    def __init__(
        self,
        settings: ProducerSettings,
        router: Router,
        ledger: Ledger,
        metrics: Metrics,
        send: Callable[[list[Bundle]], Awaitable[Reply]],
        list_shards: Callable[[], Awaitable[list[Shard]]],
        clock: Callable[[], float],
        draw: random.Random,
    ) -> None:
        self._settings, self._router, self._ledger, self._metrics = settings, router, ledger, metrics
        self._send, self._clock, self._draw = send, clock, draw
        self.shard_map = ShardMap(list_shards, CALL_FAILURES, self._shards_changed, clock)
        self.is_due = False
        self.hurry = 0
        self._epoch = 0
        self._tasks: dict[asyncio.Task[None], int] = {}
        self._parked: list[_Parked] = []
        self._reported = 0
        self._stopped: str | None = None
        self._wake_ms = math.inf
        self._timer: asyncio.TimerHandle | None = None

    # What the producer calls

    def take_in(self, record: Pending) -> None:
        """Put a record into its lane, and see that it leaves in time."""
        if self._stopped is not None:
            self._ledger.fail([record], self._stopped, "The producer stopped.")
            return
        lane, ready = self._router.add(record)
        if ready and not lane.in_flight and has_enough([lane], self._settings):
            self._pump_soon()
        if record.deadline_ms < self._wake_ms:
            self._wake_at(record.deadline_ms)

    def pump(self) -> None:
        """Send what may go now, and see when to look again."""
        self.is_due = False
        if self._stopped is not None:
            return
        with self._or_stop():
            now_ms, busy = self._clock(), self._router.busy
            again_ms = self._prepare(now_ms)
            has_older_requests = any(epoch != self._epoch for epoch in self._tasks.values())
            while len(self._tasks) < self._settings.max_connections and not has_older_requests:
                parts, look_again_ms = choose(busy, self._settings, now_ms, hurry=bool(self.hurry))
                if not parts:
                    again_ms = min(again_ms, look_again_ms)
                    break
                self._start(_Request(parts, self._epoch, now_ms))
            for lane in [lane for lane in busy if lane.is_empty]:
                busy.discard(lane)
            self._wake_ms = math.inf
            if again_ms < math.inf:
                self._wake_at(again_ms)

    def _shards_changed(self, open_shards: OpenShards | None) -> None:
        """Go over to other shards, or to none known; then judge what waited for their ranges."""
        with self._or_stop():
            self._epoch += 1
            self._router.change(open_shards, self._clock())
            if open_shards is not None:
                parked, self._parked = self._parked, []
                for each in parked:
                    self._judge(each)
                unknown = {each.stored.shard_id for each in self._parked}
                for shard_id in unknown:
                    asyncio.get_running_loop().call_later(_DOUBT_AGAIN_S, self._doubt_again, shard_id)
            self._pump_soon()

    def stop(self, reason: str) -> None:
        """Stop sending; whatever is still outstanding fails."""
        self._stopped = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()
        self._ledger.fail(list(self._ledger.outstanding), reason, "The producer stopped.")

    # Sending

    def _prepare(self, now_ms: float) -> float:
        """Fail what expired, make ready what is due; return when the next of either comes."""
        again_ms = math.inf
        for lane in self._router.busy:
            self._expire(lane.take_expired(now_ms))
            if self.hurry:
                lane.close_open()
            else:
                lane.close_due(now_ms)
                again_ms = min(again_ms, lane.open_deadline_ms)
            if lane.ready:
                again_ms = min(again_ms, lane.ready[0].expiry_ms)
        if self._parked:
            late = [each for each in self._parked if each.bundle.expiry_ms <= now_ms]
            self._parked = [each for each in self._parked if each.bundle.expiry_ms > now_ms]
            for each in late:
                message = f"Stored in shard {each.stored.shard_id}, whose range could not be learnt."
                self._note(each.bundle.records, each.attempt._replace(code=_WRONG_SHARD, message=message))
                self._ledger.fail(each.bundle.records, _WRONG_SHARD, message)
            again_ms = min([again_ms, *(each.bundle.expiry_ms for each in self._parked)])
        return again_ms

    def _start(self, request: _Request) -> None:
        task = asyncio.get_running_loop().create_task(self._run(request))
        self._tasks[task] = request.epoch
        task.add_done_callback(self._ended)
        self._measure_request(request)

    async def _run(self, request: _Request) -> None:
        reply = await self._send([part.bundle for part in request.parts])
        end_ms = self._clock()
        self._metrics.observe("RequestTime", end_ms - request.start_ms)
        answers = reply.entries if reply.whole is None else [reply.whole] * len(request.parts)
        returned: dict[Lane, list[Bundle]] = {}
        doubted: set[str] = set()
        for (lane, bundle), answer in zip(request.parts, answers, strict=True):
            lane.in_flight = False
            if isinstance(answer, Stored):
                attempt = Attempt(request.start_ms, end_ms)
                if lane.shard_id not in {None, answer.shard_id}:
                    doubted.add(answer.shard_id)
                if lane.shard_id in {None, answer.shard_id} or len(bundle.records) == 1:
                    self._acknowledge(bundle, bundle.records, range(len(bundle.records)), answer, attempt)
                else:
                    self._judge(_Parked(bundle, answer, attempt))
            else:
                attempt = Attempt(request.start_ms, end_ms, answer.code, answer.message)
                if self._refused(bundle, attempt, len(request.parts)):
                    returned.setdefault(lane, []).append(bundle)
        for lane, bundles in returned.items():
            self._bring_back(lane, bundles, request.epoch)
        for shard_id in doubted:
            self.shard_map.doubt(shard_id, request.start_ms)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if task.cancelled():
            return
        with self._or_stop():
            task.result()
        self.pump()

    @contextmanager
    def _or_stop(self) -> Iterator[None]:
        """Fail all records after a fault in this code, so that nothing waits for ever, and raise it."""
        try:
            yield
        except BaseException:
            self.stop("InternalError")
            raise

    # Judging

    def _refused(self, bundle: Bundle, attempt: Attempt, entries: int) -> bool:
        """Note a failed try; return whether the Kinesis record goes again."""
        code, message = attempt.code or "", attempt.message
        self._note(bundle.records, attempt)
        bundle.tries += 1
        what = remedy(code, fail_if_throttled=self._settings.fail_if_throttled, entries=entries)
        if what == "fail":
            facts = {}
            if bundle.size_bytes > _USUAL_MOST_BYTES:
                message = (
                    f"{message} It was in a Kinesis record of {bundle.size_bytes:,} bytes with its key; a "
                    f"stream takes {_USUAL_MOST_BYTES:,} unless it was set to take more."
                )
                facts = {"too_large": code in WRONG_CALL and len(bundle.records) == 1}
            self._ledger.fail(bundle.records, code, message, **facts)
            return False
        bundle.alone = what == "alone"
        return True

    def _bring_back(self, lane: Lane, bundles: list[Bundle], epoch: int) -> None:
        """Queue failed Kinesis records again: in front of their lane, or by new routes if shards changed."""
        until_ms = self._clock() + backoff_ms(max(bundle.tries for bundle in bundles), self._draw)
        if epoch == self._epoch:
            lane.put_back(bundles)
            lane.held_until_ms = until_ms
            self._router.busy.add(lane)
            return
        for bundle in bundles:
            self._route_again(bundle.records)

    def _judge(self, stored: _Parked) -> None:
        """Judge an aggregate in a shard that was not predicted; wait if the shard's range is not known."""
        bundle, (shard_id, _), attempt = stored
        keys = self.shard_map.range_of(shard_id)
        if keys is None:
            self._parked.append(stored)
            return
        places, outside = inside(bundle, keys)
        records = [bundle.records[place] for place in places]
        self._acknowledge(bundle, records, places, stored.stored, attempt)
        if outside:
            message = f"The record's hash key does not belong to shard {shard_id}."
            self._note(outside, attempt._replace(code=_WRONG_SHARD, message=message))
            self._route_again(outside)

    def _route_again(self, records: list[Pending]) -> None:
        now_ms = self._clock()
        self._expire([record for record in records if record.expiry_ms <= now_ms])
        for record in records:
            if record.expiry_ms > now_ms:
                wait_ms = self._settings.record_max_buffered_time_ms / 2
                record.deadline_ms = min(now_ms + wait_ms, record.expiry_ms)
                self.take_in(record)

    def _doubt_again(self, shard_id: str) -> None:
        self.shard_map.doubt(shard_id, self._clock())

    def _expire(self, records: list[Pending]) -> None:
        if records:
            self._metrics.observe("UserRecordExpired", 1, len(records))
            last = max((record.attempts[-1:] for record in records), default=())
            because = f"The last try ended with {last[0].code}." if last else "It was never sent."
            self._ledger.fail(records, _EXPIRED, because)

    def _note(self, records: list[Pending], attempt: Attempt) -> None:
        for record in records:
            record.attempts = (*record.attempts, attempt)
        self._metrics.observe("ErrorsByCode", 1, code=attempt.code)
        self._metrics.observe("AllErrors", 1)

    def _acknowledge(
        self,
        bundle: Bundle,
        records: list[Pending],
        places: list[int] | range,
        stored: Stored,
        attempt: Attempt,
    ) -> None:
        if not records:
            return
        see, shard_id = self._metrics.observe, stored.shard_id
        see("UserRecordsPut", 1, len(records), shard_id=shard_id)
        see("UserRecordsDataPut", sum(len(record.data) for record in records), shard_id=shard_id)
        see("KinesisRecordsPut", 1, shard_id=shard_id)
        see("KinesisRecordsDataPut", bundle.data_bytes, shard_id=shard_id)
        see("RetriesPerRecord", len(records[0].attempts), len(records), shard_id=shard_id)
        self._ledger.acknowledge(records, places, stored, attempt)

    # Time and measurements

    def _pump_soon(self) -> None:
        if not self.is_due:
            self.is_due = True
            asyncio.get_running_loop().call_soon(self.pump)

    def _wake_at(self, moment_ms: float) -> None:
        self._wake_ms = moment_ms
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, moment_ms - self._clock()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.pump)

    def _measure_request(self, request: _Request) -> None:
        see, ledger = self._metrics.observe, self._ledger
        if ledger.received > self._reported:
            see("UserRecordsReceived", 1, ledger.received - self._reported)
            self._reported = ledger.received
        see("UserRecordsPending", len(ledger.outstanding))
        see("KinesisRecordsPerPutRecordsRequest", len(request.parts))
        see("UserRecordsPerPutRecordsRequest", sum(len(bundle.records) for _, bundle in request.parts))
        for lane, bundle in request.parts:
            see("UserRecordsPerKinesisRecord", len(bundle.records), shard_id=lane.shard_id)
            waited_ms = request.start_ms - bundle.records[0].arrival_ms
            see("BufferingTime", waited_ms, len(bundle.records), shard_id=lane.shard_id)
