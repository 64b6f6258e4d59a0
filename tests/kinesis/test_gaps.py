"""Long gaps in a shard: empty replies far from the tip are neither the tip nor the end of what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headpond.core.errors import ServiceFailure
from headpond.kinesis.api.replies import Page
from headpond.kinesis.planning.planner import Planner
from tests.kinesis.test_plan_histories import EngineCalls, History

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 1_200
"""More empty replies than are followed where they come no nearer."""


class Gaps(EngineCalls):
    """Calls that give empty replies, each a second nearer, from every place with records before it."""

    empty = LONG
    ends = True

    def iterator(self, shard_id: str, kind: str, **place: Any) -> Any:
        return super().iterator(shard_id, kind, **place), self.empty

    def page(self, iterator: Any, shard_id: str, limit: int) -> Page:
        place, left = iterator
        found = super().page(place, shard_id, limit)
        if found.records and left:
            return Page([], (place, left - self.ends), left * 1000)  # type: ignore[arg-type]
        return Page(found.records, found.next_iterator and (found.next_iterator, 0), found.behind_ms)  # type: ignore[arg-type]


@pytest.fixture(
    params=[{"maxRecordsPerTrigger": "20"}, {}, {"maxSpanPerTrigger": "1 hour", "maxRecordsPerTrigger": "1"}],
    ids=str,
)
def history(request: pytest.FixtureRequest) -> Iterator[History]:
    """Forty records in two shards, behind gaps."""
    made = History({"probeLag": "0 ms", "shardDiscoveryInterval": "0 ms", **request.param}, "TRIM_HORIZON")
    made.planner.close()
    made.calls = Gaps(made.engine)
    made.planner = Planner(made.calls, made.settings)
    made.put(40)
    made.clock.advance(60_000)
    yield made
    made.planner.close()


@pytest.mark.slow
def test_a_run_up_to_now_reads_over_gaps(history: History) -> None:
    """Nothing new would end the run, and the next one would begin before the same gap."""
    history.planner.fix_ends()
    history.run()
    assert sorted(history.rows) == sorted(history.held())


@pytest.mark.slow
def test_a_batch_read_ends_beyond_gaps(history: History) -> None:
    """Its ends are those of all records."""
    history.at, end = history.planner.span()
    assert sorted(history.read(end)) == sorted(history.held())


def test_a_query_that_goes_on_comes_over_gaps_in_time(history: History) -> None:
    """A plan need not wait for a gap's end, for other shards wait for the plan."""
    for _ in range(200):
        history.plan()
        if len(history.rows) == len(history.held()):
            break
    assert sorted(history.rows) == sorted(history.held())


@pytest.mark.slow
def test_a_shard_that_never_comes_nearer_to_its_tip_is_told(history: History) -> None:
    """Where all that is there is asked for, it is an error, and not nothing."""
    assert isinstance(history.calls, Gaps)
    history.calls.ends = False
    history.planner.fix_ends()
    with pytest.raises(ServiceFailure, match="gives neither records nor its tip"):
        history.plan()
    with pytest.raises(ServiceFailure, match="gives neither records nor its tip"):
        history.planner.span()


def test_a_gap_that_begins_after_the_ends_were_taken_is_told_too() -> None:
    """A look-ahead finds it."""
    made = History({"maxRecordsPerTrigger": "20"}, "TRIM_HORIZON")
    made.put(10)
    made.clock.advance(60_000)
    made.planner.fix_ends()
    calls = Gaps(made.engine)
    calls.ends = False
    made.calls.page, made.calls.iterator = calls.page, calls.iterator  # type: ignore[method-assign]
    try:
        with pytest.raises(ServiceFailure, match="gives neither records nor its tip"):
            made.plan()
    finally:
        made.planner.close()
