"""Give groups of chunks up that nothing more came for, beside the batches of a followed stream.

::

    batches ──────┐
                  ├─ one lock ─► the lake
    every minute ─┘   a group whose last record arrived a chunk_timeout before T ─► quarantine

T is the arrival up to which everything of the source has been read and applied: a group must not be given up
while its missing fragment may be among what is unread. It is asked for only where a group may be due.

- A stream: the service tells for each shard how long the oldest record behind the checkpoint has waited; with
  nothing unread, T is the service's clock. So a group is given up on a stream that has fallen silent, and is
  not while any shard has a backlog, a silent or a new one too.
- An archive: the newest arrival that was read, once every file is read.

Batches themselves give nothing up: a batch that comes again does what it did.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headpond.changes.schemas import PENDING_SCHEMA
from headpond.kinesis.positions import HORIZON, Offset, read_offset
from headpond.kinesis.shards import position_of
from headpond.spark.checkpoint import standing
from headpond.tables.apply import apply_batch
from headpond.tables.batch import DecodedBatch

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from headpond.kinesis.calls import StreamCalls
    from headpond.pipeline import Pipeline
    from headpond.tables.apply import Applied
    from headpond.tables.batch import Chunks
    from headpond.tables.lake import Lake

logger = logging.getLogger(__name__)

LOOKS = 4
"""How often in a chunk_timeout it is looked whether groups are due …"""
SHORTEST_S, LONGEST_S = 0.5, 60.0
"""… and never more or less often than this."""
OUR_CLOCK = timedelta(minutes=1)
"""How far behind the source's our clock may be; further, and groups are given up later."""
MARGIN_MS = 1_000
"""Arrivals of a shard's records are in order to about a second, and so well is the service's clock known."""


class StreamClock:
    """T of a stream.

    Args:
        calls: the stream.
        offset: gives the offset after the last batch that is done; null before the first.
        probe_lag_ms: records younger than this may come out of order.
    """

    def __init__(
        self, calls: StreamCalls, offset: Callable[[], Offset | None], probe_lag_ms: int = 0
    ) -> None:
        self._calls, self._offset, self._margin_ms = calls, offset, max(MARGIN_MS, probe_lag_ms)

    def note(self, batch: DecodedBatch) -> None:
        """Nothing to take in: the service and the checkpoint tell."""

    def __call__(self) -> datetime | None:
        """Ask the service."""
        from headpond.kinesis.lag import lags_ms  # noqa: PLC0415 - an AWS client

        at = self._offset()
        if at is None:
            return None
        # A shard that no batch has come to yet is unread from its beginning.
        listed = [shard.shard_id for shard in self._calls.list_shards()]
        shards = dict(at.shards) | {each: position_of(at.shards, each) for each in listed}
        now_ms = self._calls.now_ms()
        lags = lags_ms(self._calls, replace(at, shards=shards))
        # Of a shard whose place has expired all that is still there is unread; of one that is gone, nothing.
        expired = {each: HORIZON for each, lag_ms in lags.items() if lag_ms is None and each in listed}
        lags |= lags_ms(self._calls, replace(at, shards=expired)) if expired else {}
        if any(lags[each] is None for each in listed):
            return None
        longest_ms = max((lag_ms for lag_ms in lags.values() if lag_ms is not None), default=0)
        return datetime.fromtimestamp((now_ms - longest_ms - self._margin_ms) / 1000, UTC)


class ArchiveClock:
    """T of an archive.

    Args:
        is_read: says whether nothing of it is unread.
    """

    def __init__(self, is_read: Callable[[], bool]) -> None:
        self._is_read = is_read
        self._newest_us: int | None = None

    def note(self, batch: DecodedBatch) -> None:
        """Take in the arrivals of a batch, of whichever shard."""
        arrivals = batch.newest_arrivals_us.values()
        known = [] if self._newest_us is None else [self._newest_us]
        self._newest_us = max([*known, *arrivals], default=None)

    def __call__(self) -> datetime | None:
        """Give the newest arrival that a batch of this run had."""
        newest_us = self._newest_us
        if newest_us is None or not self._is_read():
            return None
        return datetime.fromtimestamp(newest_us / 1_000_000, UTC)


def clock_of(pipeline: Pipeline, *, until_caught_up: bool) -> StreamClock | ArchiveClock:
    """Make the clock of a pipeline's source."""
    if pipeline.source.archive is None:
        return _stream_clock(pipeline)
    # A run over an archive to its end gives nothing up: it ends when T is first known.
    return ArchiveClock(lambda: False) if until_caught_up else _archive_clock(pipeline)


def _stream_clock(pipeline: Pipeline) -> StreamClock:
    """Make the clock of a pipeline's stream; it reads the query's checkpoint."""
    from headpond.kinesis.calls import calls_of  # noqa: PLC0415 - an AWS client
    from headpond.kinesis.options import read_options  # noqa: PLC0415 - as above

    target = pipeline.target
    given = {name.lower(): value for name, value in pipeline.source.source_options().items()}
    settings = read_options(given)

    def offset() -> Offset | None:
        found = standing(target.checkpoint, target.storage_options).offset
        return None if found is None else read_offset(found)

    return StreamClock(calls_of(settings.connection), offset, settings.probe_lag_ms)


def _archive_clock(pipeline: Pipeline) -> ArchiveClock:
    """Make the clock of a pipeline's archive; it compares its files with the query's checkpoint."""
    from headpond.spark.archive_files import open_pattern  # noqa: PLC0415 - only here
    from headpond.spark.archive_plan import from_json  # noqa: PLC0415 - as above

    target = pipeline.target
    assert pipeline.source.archive is not None
    files = open_pattern(pipeline.source.archive, target.storage_options)

    def is_read() -> bool:
        found = standing(target.checkpoint, target.storage_options)
        if found.offset is None or found.planned_batch_id is not None:
            return False
        at = from_json(found.offset)
        return all(name in at and at[name].size >= size for name, size in files.sizes().items())

    return ArchiveClock(is_read)


class TimeOuts:
    """Gives up what waited too long.

    Args:
        lake: the lake.
        chunks: how chunked changes are put together; its `now` is not used.
        clock: tells T; null where it is not known now.
        writing: held while anything writes into the lake.
        is_active: whether the query goes on; nothing is written after its end.
        on_given_up: told the figures where anything was given up.
    """

    def __init__(
        self,
        lake: Lake,
        chunks: Chunks,
        clock: Callable[[], datetime | None],
        writing: threading.Lock,
        *,
        is_active: Callable[[], bool] = lambda: True,
        on_given_up: Callable[[Applied], None] | None = None,
    ) -> None:
        self._lake, self._chunks, self._clock, self._writing = lake, chunks, clock, writing
        self._is_active, self._on_given_up = is_active, on_given_up
        self._timeout = timedelta(milliseconds=chunks.rules.timeout_ms)

    @property
    def every_s(self) -> float:
        """How often to look."""
        return min(LONGEST_S, max(SHORTEST_S, self._timeout.total_seconds() / LOOKS))

    def look(self) -> None:
        """Give up what is due; most often that costs a look at what waits, and nobody is asked."""
        with self._writing:
            groups = self._lake.pending.outline(PENDING_SCHEMA.empty_table())
        waiting = [group.last_arrival for group in groups]
        oldest = min((arrival for arrival in waiting if arrival is not None), default=None)
        if oldest is None or oldest + self._timeout > datetime.now(UTC) + OUR_CLOCK:
            return
        now = self._clock()
        if now is None or oldest + self._timeout > now:
            return
        with self._writing:
            if not self._is_active():
                return
            applied = apply_batch(self._lake, DecodedBatch(), chunks=replace(self._chunks, now=now))
            applied.batches = 0
            given_up = sum(applied.quarantined.values())
            if given_up and self._on_given_up is not None:
                self._on_given_up(applied)
        if given_up:
            logger.info("%d records of chunked changes that are not whole went to quarantine", given_up)
