"""Kafka Streams on a real broker: records of several partitions come in the order that we take them in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headpond.kstreams.join.rules import HeadersOf, JoinRules, JoinType
from tests.kit.maven_jars import maven_jars
from tests.spark.join_broker import ARTIFACTS, broker
from tests.spark.join_streams import wanted
from tests.spark.join_topics import PARTITIONS, STREAMS, WINDOWS, ask, halves, results, sent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.maven, pytest.mark.timeout(600)]

JOIN = f"join\tleft\tright\tstreams-out\t{WINDOWS.before_ms}\t{WINDOWS.after_ms}\t{WINDOWS.grace_ms}"


@pytest.fixture
def streams() -> Path:
    """Kafka Streams and a client."""
    return maven_jars("kafka-streams-4.3.0", STREAMS)


@pytest.fixture
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of its own for each test."""
    with broker(maven_jars("kafka-4.3.0", ARTIFACTS), tmp_path_factory.mktemp("broker")) as found:
        yield found


def test_a_running_application_gives_equal_results(streams: Path, address: str, tmp_path: Path) -> None:
    """An outer join, three tasks of two partitions each, records out of order: the reference engine's."""
    batches = halves()
    lines = [f"topic\t{name}\t{PARTITIONS}" for name in ("left", "right", "streams-out")]
    lines += [line for batch in batches for line in sent(batch)]
    (theirs,) = ask(streams, address, tmp_path, [*lines, JOIN, "read\tstreams-out"])
    rules = JoinRules(JoinType.OUTER, WINDOWS, HeadersOf.TRIGGER)
    expected, counters = wanted(rules, batches, PARTITIONS)
    assert results(theirs, timed=False) == expected
    assert counters.out_of_order > 50
    assert counters.joined > 100
    assert counters.unmatched > 100
