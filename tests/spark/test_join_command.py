"""`headpond join inspect` and `headpond join rescale` on the checkpoint of a real query."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from headpond.cli.commands import join as join_state
from headpond.cli.main import main
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.rules import JoinWindows
from headpond.spark import windowed_join
from headpond.spark.session import start
from tests.spark.join_streams import drained, random_batches, source, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_a_checkpoint_is_shown_and_rescaled(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stream times, records, bytes and unmatched ones per task and slice; the copy holds the same records."""
    monkeypatch.setattr(
        join_state, "_session", lambda _conf: nullcontext(spark)
    )  # the command would end its own
    batch = random_batches(12, batches=1, size=100, keys=40)[0]
    write(tmp_path, [batch])
    left, right = (source(spark, tmp_path, side) for side in (Side.LEFT, Side.RIGHT))
    query = drained(
        windowed_join(left, right, JoinWindows(40, 50, 30), "outer", tasks=2, name="join"), tmp_path
    )
    metrics = query.recentProgress[-1].observedMetrics["join"].asDict()
    checkpoint, copy = str(tmp_path / "checkpoint"), str(tmp_path / "copy")

    assert main(["join", "inspect", checkpoint, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["batch"], found["tasks"]) == (1, 2)  # the last one is the one at rest
    assert (found["records"], found["bytes"]) == (metrics["state_rows"], metrics["state_bytes"])
    assert found["unmatched"] == metrics["state_waiting"] > 0
    assert found["held"] == metrics["held"] == 0
    assert json.loads(found["rules"])["grace_ms"] == 30
    newest = max(event.micros for event in batch) // 1000
    assert max(task["stream_time"] for task in found["each"]) == newest
    for task in found["each"]:
        assert {part["side"] for part in task["slices"]} == {"left", "right"}
        assert task["oldest_ms"] == min(part["from_ms"] for part in task["slices"])
        for name in ("records", "bytes", "unmatched"):
            assert task[name] == sum(part[name] for part in task["slices"])

    assert main(["join", "inspect", checkpoint]) == 0
    shown = capsys.readouterr().out
    assert f"2 tasks after batch 1: {found['records']} records" in shown
    assert "0 records are held for a slower input" in shown
    assert "task 1: stream time 20" in shown

    kept = 0
    for key in sorted({event.key for event in batch if event.key and event.value})[-2:]:
        assert main(["join", "show", checkpoint, "--key", key.decode(), "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        by_value = {event.value: event for event in batch if event.key == key}
        kept += len(lines)
        for line in lines:
            event = by_value[bytes.fromhex(line["value"])]
            assert (line["side"], line["timestamp"]) == (event.side.name.lower(), event.micros // 1000)
            headers = [[k, v and v.hex()] for k, v in event.headers]
            assert line["headers"] == headers
    assert kept > 0
    last = max((e for e in batch if e.key and e.value), key=lambda e: e.micros)
    assert last.key
    assert last.value
    moment = str(last.micros // 1000)
    assert main(["join", "show", checkpoint, "--key-hex", last.key.hex(), "--from", moment]) == 0
    assert last.value.decode() in capsys.readouterr().out
    assert main(["join", "show", checkpoint]) == 2
    assert "--key-hex" in capsys.readouterr().err

    assert main(["join", "rescale", checkpoint, "--tasks", "3", "--out", copy, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done == {"from_tasks": 2, "to_tasks": 3, "records": found["records"], "checkpoint": copy}
    assert main(["join", "inspect", copy, "--json"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert (other["tasks"], other["records"], other["unmatched"]) == (3, found["records"], found["unmatched"])


def test_a_folder_that_is_no_checkpoint_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before Spark is started, as a number of tasks is that no join can have."""
    assert main(["join", "inspect", str(tmp_path)]) == 2
    assert main(["join", "rescale", str(tmp_path), "--tasks", "2", "--out", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err.count("has no folder offsets") == 2
    (tmp_path / "offsets").mkdir()
    assert main(["join", "rescale", str(tmp_path), "--tasks", "5000", "--out", str(tmp_path / "new")]) == 2
    assert "1<=x<=4096" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["inspect"], ["rescale", "--tasks", "2", "--out", "copy"]])
@pytest.mark.parametrize("checkpoint", ["s3://bucket/checkpoint", "s3a://bucket/checkpoint"])
def test_a_store_that_spark_does_not_know_is_said_in_a_sentence(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    checkpoint: str,
) -> None:
    """With what Spark says, and not its stack trace."""

    class Kept:
        stop = staticmethod(lambda: None)  # the command would end its own

        def __getattr__(self, name: str) -> Any:
            return getattr(spark, name)

    monkeypatch.setattr(start, "spark_session", lambda *_args, **_named: Kept())
    assert main(["join", *command, checkpoint]) == 3
    shown = capsys.readouterr().err
    assert "Error: Spark failed on the checkpoint: " in shown
    assert ("FileSystem" in shown, "--conf spark.jars.packages" in shown, "py4j" in shown) == (
        True,
        True,
        False,
    )
