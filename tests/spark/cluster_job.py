"""What `test_standalone` runs in a process of its own: a query on two executors, its rows written down.

Arguments: endpoint, folder, master. Each batch is read by two actions; both results go to
`rows/<batch>.json`, and a line in `begun` says when a batch begins. Spark's events go to `events`. It
imports nothing of the tests: spark-submit brings headpond along, and not them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headpond.spark import register
from headpond.spark.session.start import QUICK_JAVA_OPTIONS, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JAVA_OPTIONS,
    "spark.task.maxFailures": "8",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


def main(endpoint: str, folder: Path, master: str) -> None:
    """Run the query to the end of what is there."""
    (folder / "events").mkdir()
    events = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": (folder / "events").as_uri()}
    conf = CONF | events | {"spark.eventLog.compress": "false", "spark.master": master}
    spark = spark_session("cluster", conf=conf, log_path=folder / "spark.log", quick=True)
    register(spark)
    (folder / "rows").mkdir()

    def rows(frame: DataFrame) -> list[list[object]]:
        columns = ("shard_id", "sequence_number", "sub_sequence_number", "data")
        return sorted([r[0], r[1], r[2], bytes(r[3]).decode()] for r in frame.select(*columns).collect())

    def batch(frame: DataFrame, number: int) -> None:
        with (folder / "begun").open("a") as begun:
            begun.write(f"{number}\n")
        both = [rows(frame), rows(frame)]
        (folder / "rows" / f"{number}.json").write_text(json.dumps(both))

    query = (
        spark.readStream.format("headpond-kinesis")
        .options(streamName="orders", endpointUrl=endpoint, startingPosition="TRIM_HORIZON")
        .option("maxRecordsPerTrigger", "60")
        .option("shardsPerTask", "1")  # a task that waits is slow beside others
        .load()
        .writeStream.foreachBatch(batch)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
