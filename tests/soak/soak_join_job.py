"""What the soak runs beside the pipelines, in a process of its own: a windowed join of two Kinesis streams.

Arguments: endpoint, folder, master, `on` (run until killed), `out` (run to the end of what is there), `again`
(from the start to the end, with a checkpoint and results of its own; prints its counters as JSON). A record's
value begins with its time in milliseconds and a bar; its tags become headers. Results are Parquet files in
`folder/out`, or `folder/again`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headpond.kstreams import JoinWindows
from headpond.spark import register, windowed_join
from headpond.spark.session.start import QUICK_JAVA_OPTIONS, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEFORE_MS, AFTER_MS = 700, 400
# Far more than a soak lasts: no record is late, so the results do not depend on the order of arrival.
GRACE_MS = 86_400_000
TASKS = 2
CLUSTER = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JAVA_OPTIONS,
    "spark.task.maxFailures": "20",
}


def source(spark: SparkSession, endpoint: str, stream: str) -> DataFrame:
    """Read one side."""
    options = {"streamName": stream, "endpointUrl": endpoint, "startingPosition": "TRIM_HORIZON"}
    return (
        spark.readStream.format("headpond-kinesis")
        .options(**options, includeTags="true")
        .load()
        .selectExpr(
            "partition_key AS key",
            "data AS value",
            "timestamp_millis(CAST(substring_index(CAST(data AS STRING), '|', 1) AS BIGINT)) AS timestamp",
            "transform(tags, t -> struct(t.key AS key, CAST(t.value AS BINARY) AS value)) AS headers",
            "shard_id",
            "sequence_number",
            "sub_sequence_number",
        )
    )


def main(endpoint: str, folder: Path, master: str, until: str) -> None:
    """Run the join."""
    os.environ["SPARK_WORKER_DIR"] = str(folder / "work")
    conf = {"spark.master": master, **(CLUSTER if master.startswith("local-cluster") else {})}
    spark = spark_session("soak join", conf=conf, log_path=folder / "spark.log", quick=True)
    register(spark)
    joined = windowed_join(
        source(spark, endpoint, "left"),
        source(spark, endpoint, "right"),
        JoinWindows(BEFORE_MS, AFTER_MS, GRACE_MS),
        "inner",
        tasks=TASKS,
        headers="merge",
        name="join",
    )
    again = until == "again"
    trigger: dict[str, Any] = {"processingTime": "1 second"} if until == "on" else {"availableNow": True}
    query = (
        joined.select("key", "left_value", "right_value", "timestamp", "headers")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / ("checkpoint-again" if again else "checkpoint")))
        .option("path", str(folder / ("again" if again else "out")))
        .trigger(**trigger)
        .start()
    )
    query.awaitTermination()
    if again:
        counted: Counter[str] = Counter()
        for progress in query.recentProgress:
            figures = progress.observedMetrics.get("join")
            counted.update(figures.asDict() if figures is not None else {})
        print(json.dumps(counted), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])
