"""Random histories of a stream and of a query on it: whatever happens between, every record is read once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headpond.kinesis.api.calls import StreamFacts
from headpond.kinesis.api.replies import Page, Record
from headpond.kinesis.api.retry import PositionRejected
from headpond.kinesis.api.shards import Shard
from headpond.kinesis.planning import shard_state
from headpond.kinesis.planning.options import read_options
from headpond.kinesis.planning.planner import Planner
from headpond.kinesis.reading.cursor import LossRule
from headpond.kinesis.reading.reader import read_pages
from headpond.localkinesis import Engine, ServiceRefusalError
from headpond.localkinesis.model import Start
from headpond.localkinesis.testing import ManualClock
from tests.kinesis.source_kit import STREAM, through_json
from tests.kit.support import share_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class EngineCalls:
    """The source's calls straight on the engine of the local Kinesis, without HTTP."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def describe(self) -> StreamFacts:
        return StreamFacts(self.engine.stream(STREAM).created_ms, 24 * 3_600_000)

    def list_shards(self) -> list[Shard]:
        return [
            Shard(shard.shard_id, tuple(shard.parents), shard.closed_ms is not None)
            for shard in self.engine.shards(STREAM)
        ]

    def iterator(
        self, shard_id: str, kind: str, *, number: str | None = None, time_ms: int | None = None
    ) -> Any:
        wanted = None if number is None else int(number)
        try:
            return self.engine.position(STREAM, shard_id, Start(kind, wanted, time_ms))
        except ServiceRefusalError as refusal:
            raise PositionRejected(refusal.code) from None

    def page(self, iterator: Any, shard_id: str, limit: int) -> Page:  # noqa: ARG002 (the protocol's)
        reading = self.engine.read(iterator, limit)
        records = [
            Record(
                str(record.sequence_number),
                record.arrival_ms / 1000,
                record.partition_key,
                record.wire[record.data_start : record.data_end].decode(),
            )
            for record in reading.records
        ]
        return Page(records, reading.position, reading.behind_ms)  # type: ignore[arg-type]

    def date_ms(self) -> int:
        return self.engine.clock() // 1000 * 1000

    def now_ms(self) -> int:
        return self.engine.clock()


EVENTS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 25)),
    st.tuples(st.just("wait"), st.sampled_from([1, 400, 5_000, 3_600_000])),
    st.tuples(st.just("split"), st.integers(0, 9)),
    st.tuples(st.just("merge"), st.integers(0, 9)),
    st.tuples(st.just("plan"), st.integers(1, 3)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("catch up"), st.just(0)),
)
OPTIONS = st.fixed_dictionaries(
    {
        "maxRecordsPerTrigger": st.sampled_from(["1", "3", "10", "1000"]),
        "maxRecordsPerFetch": st.sampled_from(["1", "4", "10000"]),
        "shardOrdering": st.sampled_from(["parent_first", "none"]),
        "probeLag": st.sampled_from(["0 ms", "500 ms"]),
        "shardDiscoveryInterval": st.just("0 ms"),
    },
    optional={
        "maxBytesPerTrigger": st.sampled_from(["none", "40"]),
        "maxSpanPerTrigger": st.sampled_from(["1 s", "1 hour"]),
    },
)


class History:
    """A stream, and a query that is stopped and started."""

    def __init__(self, options: dict[str, str], start: str) -> None:
        self.clock = ManualClock()
        self.engine = Engine(clock=self.clock)
        self.engine.create_stream(STREAM, 2)
        self.clock.advance(60_000)
        given = {"streamName": STREAM, "startingPosition": start, **options}
        if "maxSpanPerTrigger" in given:
            given.pop("maxBytesPerTrigger", None)
        if "maxSpanPerTrigger" in given or given.get("maxBytesPerTrigger") == "none":
            given.pop("maxRecordsPerTrigger")
        self.settings = read_options(given)
        self.calls = EngineCalls(self.engine)
        self.planner = Planner(self.calls, self.settings, clock=lambda: self.clock() / 1000)
        self.at = through_json(self.planner.initial())
        self.count = 0
        self.old: set[tuple[str, int]] = set()  # what a query from LATEST must leave out
        self.rows: list[tuple[str, int]] = []
        self.batch_of: dict[tuple[str, int], int] = {}
        self.batches = 0

    def put(self, count: int) -> None:
        for _ in range(count):
            self.count += 1
            self.engine.put(STREAM, f"k{self.count}", b"%d" % self.count)

    def split(self, which: int) -> None:
        opened = [s for s in self.engine.shards(STREAM) if s.closed_ms is None]
        if len(opened) < 6:
            self.engine.split_shard(STREAM, opened[which % len(opened)].shard_id)

    def merge(self, which: int) -> None:
        opened = sorted((s for s in self.engine.shards(STREAM) if s.closed_ms is None), key=lambda s: s.low)
        if len(opened) > 1:
            left = which % (len(opened) - 1)
            self.engine.merge_shards(STREAM, opened[left].shard_id, opened[left + 1].shard_id)

    def plan(self) -> bool:
        end = through_json(self.planner.latest(self.at))
        if end == self.at:
            return False
        first, second = self.read(end), self.read(end)
        assert first == second
        self.batches += 1
        for row in first:
            assert row not in self.batch_of
            self.batch_of[row] = self.batches
        self.rows += first
        self.at = end
        return True

    def read(self, end: Any) -> list[tuple[str, int]]:
        found = []
        for wanted in self.planner.ranges(self.at, end):
            loss = LossRule(STREAM, self.planner.retention_ms)
            for page in read_pages(
                self.calls,
                wanted,
                loss,
                records_per_page=self.settings.records_per_page,
                sleep=lambda _seconds: None,
            ):
                found += [(wanted.shard_id, record.number) for record in page]
        return found

    def restart(self, *, available_now: bool = False) -> None:
        self.planner.close()
        self.planner = Planner(self.calls, self.settings, clock=lambda: self.clock() / 1000)
        if available_now:
            self.planner.fix_ends()

    def run(self, most: int = 3000) -> None:
        for _ in range(most):
            if not self.plan():
                return
        raise AssertionError("planning does not end")

    def step(self, what: str, amount: int) -> None:
        if what == "put":
            self.put(amount)
        elif what == "wait":
            self.clock.advance(amount)
        elif what == "split":
            self.split(amount)
        elif what == "merge":
            self.merge(amount)
        elif what == "plan":
            for _ in range(amount):
                self.plan()
        else:
            self.restart(available_now=what == "catch up")
            if what == "catch up":
                before = self.held() - self.old
                self.run()
                assert before <= set(self.rows)
                self.restart()

    def held(self) -> set[tuple[str, int]]:
        return {
            (shard.shard_id, record.sequence_number)
            for shard in self.engine.shards(STREAM)
            for record in self.engine.records(STREAM, shard.shard_id)
        }


@pytest.fixture(autouse=True, scope="module")
def _little_is_looked_at() -> Iterator[None]:
    """Two records where a planner looks at 5,000: what lies beyond has to be found by its time."""
    with patch.object(shard_state, "LOOK_RECORDS", 2), patch.object(shard_state, "FIRST_LOOK", 1):
        yield


@pytest.mark.thorough
@given(st.lists(EVENTS, max_size=14), OPTIONS)
@settings(max_examples=share_of(120))
def test_every_record_is_read_once_and_parents_first(
    events: list[tuple[str, int]], options: dict[str, str]
) -> None:
    """Puts, pauses, reshards, batches, restarts and runs to the end, in any order and under any bound."""
    history = History(options, "TRIM_HORIZON")
    try:
        for what, amount in events:
            history.step(what, amount)
        history.clock.advance(10_000)
        history.run()
        assert sorted(history.held()) == sorted(history.rows)
        if options["shardOrdering"] == "parent_first":
            for shard in history.engine.shards(STREAM):
                own = [n for (name, _), n in history.batch_of.items() if name == shard.shard_id]
                above = [n for (name, _), n in history.batch_of.items() if name in shard.parents]
                assert not own or not above or max(above) < min(own)
    finally:
        history.planner.close()


@pytest.mark.slow
@given(st.lists(EVENTS, max_size=10), OPTIONS, st.integers(0, 20))
@settings(max_examples=share_of(80))
def test_latest_reads_all_that_comes_after_and_nothing_from_before(
    events: list[tuple[str, int]], options: dict[str, str], before: int
) -> None:
    """From the moment LATEST was resolved nothing is missed, on idle, new and split shards alike."""
    history = History(options, "LATEST")
    try:
        history.put(before)
        history.split(before)
        history.old = history.held()
        history.clock.advance(5_000)
        assert history.plan()
        assert history.rows == []
        for what, amount in events:
            history.step(what, amount)
        history.clock.advance(10_000)
        history.restart()
        history.run()
        assert sorted(history.held() - history.old) == sorted(history.rows)
    finally:
        history.planner.close()
