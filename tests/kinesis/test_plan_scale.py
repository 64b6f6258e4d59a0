"""Planning over a thousand shards: in seconds, and in little memory."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from source_kit import STREAM

from headpond.kinesis.calls import ServiceCalls
from headpond.kinesis.options import read_options
from headpond.kinesis.plan import Planner
from headpond.kinesis.testing import local_kinesis

if TYPE_CHECKING:
    from headpond.kinesis.local import LocalKinesis

SHARDS = int(os.environ.get("HEADPOND_MANY_SHARDS", "1000"))
"""A quarter of what the documented figures were measured with, to keep the plain tests short."""


def fill(kinesis: LocalKinesis) -> None:
    """Put two records into every shard."""
    client = kinesis.client()
    entries = [
        {"PartitionKey": "k", "ExplicitHashKey": str(shard.low), "Data": b"x" * 100}
        for shard in kinesis.engine.shards(STREAM)
        for _ in range(2)
    ]
    for first in range(0, len(entries), 500):
        client.put_records(StreamName=STREAM, Records=entries[first : first + 500])  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.parametrize("bound", ["64 MiB", "none"])
def test_a_thousand_shards_are_planned_in_seconds(bound: str) -> None:
    """A first plan, an idle one and the ranges, the service's own time included; memory stays small."""
    with local_kinesis(STREAM, shards=SHARDS) as kinesis:
        fill(kinesis)
        settings = read_options(
            {
                "streamName": STREAM,
                "endpointUrl": kinesis.endpoint_url,
                "startingPosition": "TRIM_HORIZON",
                "probeLag": "0 ms",
                "maxBytesPerTrigger": bound,
            }
        )
        before_bytes = psutil.Process().memory_info().rss
        planner = Planner(ServiceCalls(settings.connection), settings)
        begun = time.monotonic()
        start = planner.initial()
        end = planner.latest(start, planner.limits)
        planned_s = time.monotonic() - begun
        assert planner.latest(end, planner.limits) == end
        assert len(planner.ranges(start, end)) == SHARDS
        grown = psutil.Process().memory_info().rss - before_bytes
        planner.close()
    # Some ten seconds on two shared cores; the bounds leave room for a busy machine.
    assert planned_s < 60
    assert grown < 150 << 20
