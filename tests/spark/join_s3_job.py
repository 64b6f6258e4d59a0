"""What the S3 test runs in a process of its own: a join over the files of a folder, its checkpoint in S3.

Arguments: folder, number of tasks, the checkpoint's URL, Spark's settings as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.rules import JoinWindows
from headpond.spark import windowed_join
from headpond.spark.session.start import spark_session
from tests.spark.join_streams import drained, source

WINDOWS = JoinWindows(12, 9, 60_000)


def main(folder: Path, tasks: int, checkpoint: str, conf: dict[str, str]) -> None:
    """Run the join to the end of what is there."""
    spark = spark_session("join", conf=conf, log_path=folder / "spark.log", quick=True)
    left, right = (source(spark, folder, side) for side in (Side.LEFT, Side.RIGHT))
    drained(windowed_join(left, right, WINDOWS, "inner", tasks=tasks), folder, checkpoint)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
