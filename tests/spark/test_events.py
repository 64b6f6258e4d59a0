"""What measuring a query asks of the JVM, in a real session."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from py4j.java_gateway import GatewayClient

from headpond.spark.metrics import progress
from headpond.spark.metrics.progress import measuring
from tests.spark.test_progress import Seen

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BATCHES = 3


def test_an_event_is_asked_for_in_a_few_calls(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of pyspark itself made 460 of each batch, 0.3 s of CPU time, whatever a listener wanted."""
    calls: Counter[str] = Counter()
    send = GatewayClient.send_command

    def counted(client: Any, command: str, *args: Any, **named: Any) -> Any:
        calls[threading.current_thread().name] += not command.startswith("m\n")  # objects that are let go
        return send(client, command, *args, **named)

    monkeypatch.setattr(GatewayClient, "send_command", counted)
    for number in range(BATCHES):
        (tmp_path / f"{number}.txt").write_text("line")
    seen = Seen()
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path))
    with measuring(spark, [seen]) as measures:
        query = lines.writeStream.format("noop").trigger(availableNow=True).start()
        measures.follows(query)
        query.awaitTermination()
    assert [(report.batch_id, report.records) for report in seen.reports] == [
        (number, 1) for number in range(BATCHES)
    ]
    of_events = sum(count for name, count in calls.items() if name != threading.current_thread().name)
    assert 0 < of_events <= 10 * BATCHES


def test_tasks_that_end_show_that_a_batch_makes_progress(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor would end a run whose batch takes longer than it has patience."""
    monkeypatch.setattr(progress, "WORKS_S", 0.1)
    monkeypatch.setattr(progress, "TICK_S", 0.1)
    (tmp_path / "a.txt").write_text("line")
    seen = Seen()
    worked: list[int] = []

    def slowly(batches: Any) -> Any:
        import time

        time.sleep(0.5)
        yield from batches

    def apply(_frame: Any, _number: int) -> None:
        before = seen.worked
        spark.range(0, 8, 1, 8).mapInArrow(slowly, "id long").collect()
        worked.append(seen.worked - before)

    with measuring(spark, [seen]) as measures:
        stream = spark.readStream.text(str(tmp_path)).writeStream
        query = stream.foreachBatch(apply).trigger(availableNow=True).start()
        measures.follows(query)
        query.awaitTermination()
    assert worked[0] > 1
