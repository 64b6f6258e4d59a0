"""What the fault tests run in a process of its own: a stream kept in a table and copied to another stream.

Arguments: endpoint, folder, `on` (run until killed) or `out` (run to the end of what is there), and the
master if not this machine's own. The table is a file for each batch; one that is there already, from before a
kill, must hold the same rows as the batch now does, or a line goes to `differences`. The table's batches have
an exact bound, the copy's a span.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from headpond.spark import register
from headpond.spark.session.start import QUICK_JAVA_OPTIONS, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IDENTITY = ("stream", "shard_id", "sequence_number", "sub_sequence_number")
LOCAL = "local[2,20]"  # tasks whose worker is killed are tried again
CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JAVA_OPTIONS,
    "spark.task.maxFailures": "20",
    "spark.sql.streaming.stopTimeout": "30s",
}


def keep(folder: Path) -> Any:
    """Make the function that keeps each batch as a file."""

    def keep_batch(frame: DataFrame, number: int) -> None:
        found = frame.select(*IDENTITY, "data").toArrow()
        rows = found.sort_by([(name, "ascending") for name in IDENTITY])
        path = folder / f"{number}.parquet"
        if path.exists() and not pq.read_table(path).equals(rows):
            with (folder / "differences").open("a") as differences:
                differences.write(f"{number}\n")
        written = folder / f"{number}.new"
        pq.write_table(rows, written)
        written.replace(path)

    return keep_batch


def source(spark: SparkSession, endpoint: str, **bound: str) -> DataFrame:
    """Read the stream in small batches."""
    options = {"streamName": "orders", "endpointUrl": endpoint, "startingPosition": "TRIM_HORIZON"}
    # A task a shard: batches are small, and each executor is to have something to lose.
    options |= {"shardsPerTask": "1", "probeLag": "100 ms"}
    return spark.readStream.format("headpond-kinesis").options(**options, **bound).load()


def main(endpoint: str, folder: Path, until: str, master: str) -> None:
    """Run both queries."""
    # Or the workers of a cluster would leave their folders in Spark's installation.
    os.environ["SPARK_WORKER_DIR"] = str(folder / "work")
    conf = CONF | {"spark.master": master}
    spark = spark_session("copy", conf=conf, log_path=folder / "spark.log", quick=True)
    register(spark)
    (folder / "table").mkdir(exist_ok=True)
    trigger: dict[str, Any] = (
        {"availableNow": True} if until == "out" else {"processingTime": "100 milliseconds"}
    )
    table = (
        source(spark, endpoint, maxRecordsPerTrigger="400")
        .writeStream.foreachBatch(keep(folder / "table"))
        .option("checkpointLocation", str(folder / "table checkpoint"))
    )
    copy = (
        source(spark, endpoint, maxSpanPerTrigger="1 s")
        .selectExpr(
            "partition_key",
            f"concat_ws('/', {', '.join(IDENTITY)}, base64(data)) AS data",
        )
        .writeStream.format("headpond-kinesis")
        .options(streamName="copies", endpointUrl=endpoint, identity="tags")
        .option("checkpointLocation", str(folder / "copy checkpoint"))
    )
    queries = [each.trigger(**trigger).start() for each in (table, copy)]
    (folder / "started").touch()
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], *(sys.argv[4:] or [LOCAL]))
