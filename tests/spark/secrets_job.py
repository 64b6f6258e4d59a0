"""A source and a sink that assume a role, in a process of its own that shows all Spark can show of them.

Arguments: endpoint, folder. Prints plans, progress and errors; Spark's log, its event log
and the checkpoint are left in the folder.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headpond.spark import register
from headpond.spark.session.start import spark_session
from tests.kit.token_service import EXTERNAL_ID, ROLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def say(*words: object) -> None:
    """Print."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def show(frame: DataFrame) -> None:
    """Print every form of a plan, with the options that Spark leaves out of none of them by itself."""
    for mode in ("simple", "extended", "formatted", "codegen", "cost"):
        frame.explain(mode)
    execution: Any = frame._jdf.queryExecution()
    for plan in (execution.logical(), execution.analyzed(), execution.optimizedPlan(), execution):
        say(plan.toString())


def run(spark: SparkSession, endpoint: str, folder: Path, **more: str) -> None:
    """Read in a batch and in a stream, and write, showing all of it."""
    given = {"endpointUrl": endpoint, "roleArn": ROLE, "roleExternalId": EXTERNAL_ID, **more}
    reading = {"streamName": "orders", "startingPosition": "TRIM_HORIZON", **given}
    batch = spark.read.format("headpond-kinesis").options(**reading).load()
    show(batch)
    rows = batch.select("partition_key", "data")
    say(rows.count(), "rows")
    rows.write.format("headpond-kinesis").mode("append").options(streamName="copies", **given).save()
    stream = spark.readStream.format("headpond-kinesis").options(**reading).load()
    say(stream._jdf.queryExecution().toString())
    query = (
        stream.select("partition_key", "data")
        .writeStream.format("headpond-kinesis")
        .options(streamName="copies", checkpointLocation=str(folder / "checkpoint"), **given)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(extended=True)
    say(query.lastProgress, query.status, [each.json for each in query.recentProgress])


def main(endpoint: str, folder: Path) -> None:
    """Run what works, then what is refused in each of the ways."""
    events = folder / "events"
    events.mkdir()
    conf = {
        "spark.master": "local[2]",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    spark = spark_session("secrets", conf=conf, log_path=folder / "spark.log", quick=True)
    register(spark)
    run(spark, endpoint, folder)
    say("WORKED")
    for name, wrong in (
        ("stream", {"streamName": "nowhere"}),
        ("option", {"roleExternalID2": EXTERNAL_ID}),
        ("role", {"roleArn": ROLE + "-refused"}),
    ):
        try:
            run(spark, endpoint, folder / name, **wrong)
        except Exception as error:  # noqa: BLE001 - whatever is raised is what is to be looked at
            traceback.print_exc(file=sys.stdout)
            say(repr(error), error)
            say("FAILED")
    spark.stop()


main(sys.argv[1], Path(sys.argv[2]))
