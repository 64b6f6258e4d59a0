"""What the tests on clusters share: a job that reads each batch twice, looked at while it runs and after."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

JOB = Path(__file__).with_name("cluster_job.py")


def executors(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The executors below the job's process, and no others."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def lost_an_executor(log: Path) -> bool:
    """Whether the driver tells of an executor that it lost; Spark has two wordings, by who notices first."""
    return re.search(r"Lost (an )?executor", log.read_text(errors="replace")) is not None


def event_settings(folder: Path) -> dict[str, str]:
    """Have Spark write its events where `events` reads them; makes the folder."""
    (folder / "events").mkdir()
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
    }


def events(folder: Path) -> Iterator[dict[str, Any]]:
    """What Spark says of itself, in its order."""
    for path in sorted((folder / "events").rglob("events_*")):
        yield from map(json.loads, path.read_text().splitlines())


def begun(folder: Path) -> int:
    """How many batches of the job have begun."""
    path = folder / "begun"
    return len(path.read_text().split()) if path.exists() else 0


def rows_found(folder: Path) -> list[tuple[str, int, int, bytes]]:
    """All rows, sorted; both actions of each batch must have had the same ones."""
    found = []
    for path in (folder / "rows").iterdir():
        first, second = json.loads(path.read_text())
        assert first == second, path.name
        found += [(shard, int(number), sub, data.encode()) for shard, number, sub, data in first]
    return sorted(found)


def tasks_of(folder: Path) -> Counter[str]:
    """What Spark's own events say of tasks: how many ended how, and how many speculative ones began."""
    found: Counter[str] = Counter()
    for event in events(folder):
        if event["Event"] == "SparkListenerTaskStart":
            found["speculative"] += event["Task Info"]["Speculative"]
        elif event["Event"] == "SparkListenerTaskEnd":
            found[event["Task End Reason"]["Reason"]] += 1
            won = event["Task Info"]["Speculative"] and event["Task End Reason"]["Reason"] == "Success"
            found["speculative and first"] += won
    return found
