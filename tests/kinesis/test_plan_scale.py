"""Planning over a thousand shards: in few calls, at little more than their cost, and in little memory.

How long it takes is measured by part d of bench/kinesis, where nothing else runs. Here it is held by what
no load changes: the number of calls, and what planning costs beside the very same calls made bare.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Lock
from typing import TYPE_CHECKING, Any

import boto3
import psutil
import pytest

from headpond.kinesis.api.calls import MOST_PARALLEL_CALLS, ServiceCalls
from headpond.kinesis.planning.options import read_options
from headpond.kinesis.planning.planner import Planner
from headpond.localkinesis.testing import local_kinesis
from tests.kinesis.source_kit import STREAM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headpond.kinesis.api.calls import IteratorKind, StreamFacts
    from headpond.kinesis.api.replies import Page
    from headpond.kinesis.api.settings import ConnectionSettings
    from headpond.kinesis.api.shards import Shard

SHARDS = int(os.environ.get("HEADPOND_MANY_SHARDS", "1000"))
"""As many as the bound is for; more to try what becomes of it."""
TIMES_THE_CALLS = 2.0
"""What a plan may cost beside its calls, both in CPU time of ours; it is some 1.3."""
TRIES = 5
"""Another process's load shows in CPU time too: of so many tries the best counts."""


class CountedCalls(ServiceCalls):
    """Calls that are counted."""

    def __init__(self, settings: ConnectionSettings) -> None:
        super().__init__(settings)
        self.made = Counter[str]()
        self._one_at_a_time = Lock()

    def _count(self, call: str) -> None:
        with self._one_at_a_time:
            self.made[call] += 1

    def describe(self) -> StreamFacts:
        self._count("describe")
        return super().describe()

    def list_shards(self) -> list[Shard]:
        self._count("list")
        return super().list_shards()

    def iterator(self, shard_id: str, kind: IteratorKind, **place: Any) -> str:
        self._count("iterator")
        return super().iterator(shard_id, kind, **place)

    def page(self, iterator: str, shard_id: str, limit: int) -> Page:
        self._count("page")
        return super().page(iterator, shard_id, limit)

    def take(self) -> dict[str, int]:
        """Give what was counted, and begin anew."""
        made, self.made = self.made, Counter()
        return dict(made)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A local Kinesis in a process of its own, so that its time is not ours; two records in every shard."""
    command = [sys.executable, "-m", "headpond", "local", "--port", "0", "--json"]
    with subprocess.Popen(
        [*command, "--stream", f"{STREAM}:{SHARDS}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["endpoint"]
            fill(url)
            yield url
        finally:
            server.terminate()


def fill(url: str) -> None:
    """Put two records into every shard."""
    client = boto3.client(
        "kinesis", endpoint_url=url, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    pages = client.get_paginator("list_shards").paginate(StreamName=STREAM)
    entries: list[Any] = [
        {"PartitionKey": "k", "ExplicitHashKey": shard["HashKeyRange"]["StartingHashKey"], "Data": b"x" * 100}
        for page in pages
        for shard in page["Shards"]
        for _ in range(2)
    ]
    for first in range(0, len(entries), 500):
        client.put_records(StreamName=STREAM, Records=entries[first : first + 500])
    client.close()


def bare_s(connection: ConnectionSettings, pages: int) -> float:
    """CPU time of the same calls without a planner: a place and so many pages of each shard, as parallel."""
    calls = ServiceCalls(connection)

    def read(shard: Shard) -> None:
        iterator: str | None = calls.iterator(shard.shard_id, "TRIM_HORIZON")
        for _ in range(pages):
            assert iterator is not None
            iterator = calls.page(iterator, shard.shard_id, 1).next_iterator

    with closing(calls), ThreadPoolExecutor(MOST_PARALLEL_CALLS) as pool:
        begun_s = time.process_time()
        list(pool.map(read, calls.list_shards()))
        return time.process_time() - begun_s


@pytest.mark.thorough
@pytest.mark.parametrize(("bound", "pages"), [("64 MiB", 1), ("none", 1)])
def test_a_thousand_shards_are_planned_in_few_calls(endpoint: str, bound: str, pages: int) -> None:
    """A first plan, an idle one, and the ranges: so many calls, and not twice what these cost alone."""
    settings = read_options(
        {
            "streamName": STREAM,
            "endpointUrl": endpoint,
            "startingPosition": "TRIM_HORIZON",
            "probeLag": "0 ms",
            "maxBytesPerTrigger": bound,
        }
    )
    ratios = []
    before_bytes = psutil.Process().memory_info().rss
    for _ in range(TRIES):
        calls = CountedCalls(settings.connection)
        with closing(calls), closing(Planner(calls, settings, clock=lambda: 0.0)) as planner:
            begun_s = time.process_time()
            start = planner.initial()
            end = planner.latest(start)
            spent_s = time.process_time() - begun_s
            # Described again before the first records of shards are taken for this stream's.
            assert calls.take() == {"describe": 2, "list": 1, "iterator": SHARDS, "page": pages * SHARDS}
            # The cursors stand at the tips: asking again takes a page each.
            assert planner.latest(end) == end
            assert calls.take() == {"page": SHARDS}
            assert len(planner.ranges(start, end)) == SHARDS
            assert calls.take() == {}
        ratios.append(spent_s / bare_s(settings.connection, pages))
        if ratios[-1] <= TIMES_THE_CALLS:
            break
    assert min(ratios) <= TIMES_THE_CALLS, ratios
    assert psutil.Process().memory_info().rss - before_bytes < 150 << 20


def test_each_shard_gets_its_result() -> None:
    """In the order they were given, whichever thread came to them."""
    with local_kinesis(STREAM, shards=1) as kinesis:
        settings = read_options({"streamName": STREAM, "endpointUrl": kinesis.endpoint_url})
        calls = CountedCalls(settings.connection)
        with closing(calls), closing(Planner(calls, settings)) as planner:
            names = [f"shard {n}" for n in range(500)]
            assert planner._each(lambda name: name + "!", names) == [(name, name + "!") for name in names]
            assert planner._each(len, []) == []


@pytest.mark.slow
def test_one_shard_that_fails_ends_the_round() -> None:
    """Its error is raised; shards that nobody has begun with are not asked any more."""
    with local_kinesis(STREAM, shards=1) as kinesis:
        settings = read_options({"streamName": STREAM, "endpointUrl": kinesis.endpoint_url})
        calls = CountedCalls(settings.connection)
        asked = []

        def ask(name: str) -> None:
            asked.append(name)
            time.sleep(0.05)  # so that there is time to stop, also on a busy machine
            if name == "shard 3":
                raise ValueError(name)

        with closing(calls), closing(Planner(calls, settings)) as planner:
            with pytest.raises(ValueError, match="shard 3"):
                planner._each(ask, [f"shard {n}" for n in range(500)])
            assert len(asked) < 250
