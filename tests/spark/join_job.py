"""What the kill tests run in a process of its own: a join over the files of a folder, to their end.

Arguments: folder, master. The join's results are in `folder/out`, its checkpoint beside it. With a file
`folder/slow` the tasks of the join linger before and after their writes, so that kills find them at work.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.rules import JoinWindows
from headpond.spark import windowed_join
from headpond.spark.join import api as join
from headpond.spark.join import task as join_task
from headpond.spark.session.start import QUICK_JAVA_OPTIONS, spark_session
from tests.kit.support import ROOT
from tests.spark.join_streams import drained, source

WINDOWS = JoinWindows(12, 9, 15)
TASKS = 3
CLUSTER = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JAVA_OPTIONS,
    "spark.task.maxFailures": "20",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


class LingeringProcessor(join_task.JoinProcessor):
    """The join's processor, with time to be killed in; leaves the ids of its workers behind."""

    def __init__(self, plan: Any, folder: Path) -> None:
        super().__init__(plan)
        self._folder = folder

    def _handled(self, label: int, frames: Any) -> Any:
        (self._folder / "workers" / str(os.getpid())).touch()
        time.sleep(random.uniform(0, 0.3))
        yield from super()._handled(label, frames)
        time.sleep(random.uniform(0, 0.3))


def main(folder: Path, master: str) -> None:
    """Run the join to the end of what is there."""
    os.environ["SPARK_WORKER_DIR"] = str(folder / "work")
    conf = {"spark.master": master, **(CLUSTER if master.startswith("local-cluster") else {})}
    os.environ["PYTHONPATH"] = str(ROOT)
    spark = spark_session("join", conf=conf, log_path=folder / "spark.log", quick=True)
    if (folder / "slow").exists():
        (folder / "workers").mkdir(exist_ok=True)
        original = join_task.JoinProcessor

        def lingering(plan: Any) -> LingeringProcessor:
            # Back in its place, the class that ours extends is found by its name where tasks run.
            join_task.JoinProcessor = original  # type: ignore[misc]
            return LingeringProcessor(plan, folder)

        join_task.JoinProcessor = lingering  # type: ignore[assignment,misc]
    left, right = (source(spark, folder, side) for side in (Side.LEFT, Side.RIGHT))
    drained(windowed_join(left, right, WINDOWS, "outer", tasks=TASKS), folder)
    spark.stop()


__all__ = ["join"]

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
