"""What is done to a lake now and then while a stream is followed, by a thread beside the batches.

::

    every minute   a group whose last record arrived a chunk_timeout before T ─► quarantine
    every hour     old tombstones ─► dropped
    always         `lake.maintenance.regular`

Batches wait for what gives up chunks, and for the commits of the rest.

T is the arrival up to which everything of the source has been read and applied: a group must not be given up
while its missing fragment may be among what is unread. It is asked for only where a group may be due.

- A stream: the service reports for each shard how long the oldest record behind the checkpoint has waited;
  with nothing unread, T is the service's clock. So a group is given up on a stream that has fallen silent,
  and is not while any shard has a backlog, a silent or a new one too.
- An archive: the newest arrival that was read, once every file is read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headpond.dsql.chunks import Chunks, last_arrival
from headpond.kinesis.reading.positions import HORIZON, Offset, read_offset
from headpond.lake.apply import Applied, apply_batch
from headpond.lake.maintenance.regular import Maintenance
from headpond.lake.tables import Lake
from headpond.lake.target import DecodedBatch
from headpond.spark.following.checkpoint import standing

if TYPE_CHECKING:
    from headpond.kinesis.api.calls import StreamCalls
    from headpond.pipeline import Pipeline

logger = logging.getLogger(__name__)

RETIRE_S = 3600.0
"""How often a run that goes on drops tombstones."""
TICK_S = 5.0
"""How often the thread looks what is due, at the least."""
OUR_CLOCK = timedelta(minutes=1)
"""How far behind the source's our clock may be; further, and groups are given up later."""
MARGIN_MS = 1_000
"""Arrivals of a shard's records are in order to about a second, and so well is the service's clock known."""


def stream_read_up_to(calls: StreamCalls, at: Offset | None, probe_lag_ms: int = 0) -> datetime | None:
    """Return T of a stream; None where it is not known.

    Args:
        calls: the stream.
        at: the offset after the last batch that is done; None before the first.
        probe_lag_ms: records younger than this may come out of order.
    """
    from headpond.kinesis.reading.reader import lags_ms

    if at is None:
        return None
    # A shard that no batch has come to yet is unread from its beginning.
    listed = [shard.shard_id for shard in calls.list_shards()]
    shards = dict(at.shards) | {each: at.shards.get(each, HORIZON) for each in listed}
    now_ms = calls.now_ms()
    lags = lags_ms(calls, replace(at, shards=shards))
    # Of a shard whose place has expired all that is still there is unread; of one that is gone, nothing.
    expired = {each: HORIZON for each, lag_ms in lags.items() if lag_ms is None and each in listed}
    lags |= lags_ms(calls, replace(at, shards=expired)) if expired else {}
    if any(lags[each] is None for each in listed):
        return None
    longest_ms = max((lag_ms for lag_ms in lags.values() if lag_ms is not None), default=0)
    return datetime.fromtimestamp((now_ms - longest_ms - max(MARGIN_MS, probe_lag_ms)) / 1000, UTC)


def read_up_to_of(
    pipeline: Pipeline, *, until_caught_up: bool
) -> Callable[[datetime | None], datetime | None]:
    """Return what gives T of a pipeline's source, from the newest arrival that a batch of this run had."""
    target, archive = pipeline.target, pipeline.source.archive
    if archive is not None and until_caught_up:
        return lambda _: None  # it ends when T is first known
    if archive is not None:
        from headpond.spark.sources.archive_files import from_json, open_pattern

        files = open_pattern(archive, target.storage_options)

        def of_archive(newest: datetime | None) -> datetime | None:
            found = standing(target.checkpoint, target.storage_options)
            if found.offset is None or found.planned_batch_id is not None:
                return None
            at = from_json(found.offset)
            is_read = all(name in at and at[name].size >= file.size for name, file in files.listed().items())
            return newest if is_read else None

        return of_archive

    from headpond.kinesis.api.calls import calls_of
    from headpond.kinesis.planning.options import read_options

    settings = read_options({name.lower(): value for name, value in pipeline.source.source_options().items()})
    calls = calls_of(settings.connection)

    def of_stream(_: datetime | None) -> datetime | None:
        found = standing(target.checkpoint, target.storage_options).offset
        return stream_read_up_to(calls, None if found is None else read_offset(found), settings.probe_lag_ms)

    return of_stream


class Ended(Exception):
    """The query ended meanwhile."""


class Upkeep:
    """Gives up chunks that waited too long, drops old tombstones and maintains tables, while a query goes on.

    Args:
        lake: the lake.
        waiting: how chunked changes are put together, `now` aside; None where changes come whole.
        read_up_to: returns T, or None where it is not known, given the newest arrival of this run's batches.
            None: no chunks are given up.
        beside: the same lake, opened for this alone; None: nothing else uses `lake`.
        retention_ms: of tombstones; None: they are not dropped.
        versions_ms: how long maintenance keeps old versions; None: nothing is maintained.
        is_active: whether the query goes on; nothing is written after its end.
        on_given_up: called with the figures where chunks were given up.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        lake: Lake,
        waiting: Chunks | None,
        read_up_to: Callable[[datetime | None], datetime | None] | None,
        *,
        beside: Lake | None = None,
        retention_ms: int | None = None,
        versions_ms: int | None = None,
        is_active: Callable[[], bool] = lambda: True,
        on_given_up: Callable[[Applied], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.writing = threading.Lock()
        """Held while anything writes into the lake."""
        self._lake, self._waiting, self._read_up_to = lake, waiting, read_up_to
        self._beside, self._retention_ms = beside or lake, retention_ms
        self._is_active, self._on_given_up = is_active, on_given_up
        self._clock = clock
        self._newest: datetime | None = None
        self._maintenance: Maintenance | None = None
        if versions_ms is not None:
            self._maintenance = Maintenance(self._beside, self.alone, retain_ms=versions_ms)
            lake.leave_tidying()
        self._gives_up = waiting is not None and read_up_to is not None
        self._every_s = 60.0 if waiting is None else min(60.0, max(0.5, waiting.timeout_ms / 4_000))
        self._look_at, self._retire_at = clock(), clock() + RETIRE_S

    def chunks(self, batch: DecodedBatch) -> Chunks | None:
        """Return how a batch puts chunks together, and note its arrivals."""
        for arrival_us in batch.newest_arrivals_us.values():
            arrival = datetime.fromtimestamp(arrival_us / 1_000_000, UTC)
            self._newest = arrival if self._newest is None else max(self._newest, arrival)
        return self._waiting

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold batches up; raise Ended after the query's end: another run may be writing by then."""
        with self.writing:
            if not self._is_active():
                raise Ended
            self._lake.tombstones.forget_horizons()
            yield

    def start(self) -> None:
        """Begin the thread, which does not hold up the end of the process."""
        if not self._gives_up and self._retention_ms is None and self._maintenance is None:
            return

        def work() -> None:
            with suppress(Exception):  # Spark is gone
                while self._is_active():
                    self.do_due()
                    time.sleep(min(self._every_s, TICK_S))

        threading.Thread(target=work, name="headpond-upkeep", daemon=True).start()

    def do_due(self) -> None:
        """Do what is due; a failure is logged, and it is tried again."""
        self.give_up_due()
        if self._retention_ms is not None and self._clock() >= self._retire_at:
            self._retire_at = self._clock() + RETIRE_S
            self._try("Dropping tombstones", self.retire)
        if self._maintenance is not None:
            self._try("Maintaining tables", self._maintenance.do_due)

    def give_up_due(self) -> None:
        """Give chunks up where that is due: after a batch, too, since a run may end with it."""
        if self._gives_up and self._clock() >= self._look_at:
            self._look_at = self._clock() + self._every_s
            self._try("Giving chunks up", self.give_up)

    def _try(self, what: str, do: Callable[[], None]) -> None:
        try:
            do()
        except Ended:
            logger.debug("%s is left to the next run", what)
        except Exception as error:  # noqa: BLE001 - it is tried again, whatever it met
            logger.warning("%s failed and is tried again: %s", what, error)

    def retire(self) -> None:
        """Drop old tombstones."""
        assert self._retention_ms is not None
        self._beside.retire_tombstones(self._retention_ms, self.alone)

    def give_up(self) -> None:
        """Give up what is due; the source is asked only where something may be."""
        if self._waiting is None or self._read_up_to is None:
            return
        timeout = timedelta(milliseconds=self._waiting.timeout_ms)
        with self.writing:
            waiting = [last_arrival(group) for group in self._lake.pending.outline()]
        oldest = min((arrival for arrival in waiting if arrival is not None), default=None)
        if oldest is None or oldest + timeout > datetime.now(UTC) + OUR_CLOCK:
            return
        now = self._read_up_to(self._newest)
        if now is None or oldest + timeout > now:
            return
        with self.writing:
            if not self._is_active():
                return
            applied = apply_batch(self._lake, DecodedBatch(), chunks=replace(self._waiting, now=now))
            applied.batches = 0
            given_up = sum(applied.quarantined.values())
            if given_up and self._on_given_up is not None:
                self._on_given_up(applied)
        if given_up:
            logger.info("%d records of chunked changes that are not whole went to quarantine", given_up)
