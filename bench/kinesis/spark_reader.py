"""One Spark session on two cores that runs queries of the Kinesis source into the noop sink, as told.

Arguments: endpoint. Each line of standard input is a JSON object `{"stream": …, "options": {…}}`; the
answer is one JSON line: user records, seconds from `start()` to the query's end, CPU seconds of the JVM and
of its Python processes meanwhile, batches, and what the driver holds in memory at its most.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from headpond.spark import register
from headpond.spark.session.start import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20


def tree() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def planning() -> list[psutil.Process]:
    """The processes that plan."""
    found = []
    for process in tree():
        try:
            if process.name() == "python_streamin":
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def cpu_seconds() -> dict[str, float]:
    """CPU used so far by the JVM and by its Python processes, those that have ended included.

    Planning ends a moment after its query: looked at just then it would be in neither sum.
    """
    psutil.wait_procs(planning(), timeout=5)
    time.sleep(0.5)  # for its parent to take note
    found = {"jvm": 0.0, "python": 0.0}
    for process in tree():
        try:
            times = process.cpu_times()
            kind = "jvm" if "java" in process.name() else "python"
        except psutil.NoSuchProcess:
            continue
        found[kind] += times.user + times.system
        # Those that ended are in their parent's times: planning is the JVM's child, a worker the daemon's.
        found["python"] += times.children_user + times.children_system
    return found


def memory(spark: SparkSession) -> dict[str, float]:
    """What the driver holds: the JVM's heap after a collection, and its planning processes."""
    jvm: Any = spark._jvm  # noqa: SLF001 - there is no other way to the JVM
    jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    held = 0
    for process in planning():
        with suppress(psutil.NoSuchProcess):
            held += process.memory_info().rss
    return {
        "heap_mib": (runtime.totalMemory() - runtime.freeMemory()) / MIB,
        "planning_mib": held / MIB,
    }


def run(spark: SparkSession, endpoint: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Read a stream from beginning to end; look at the memory meanwhile where it is asked for."""
    given = {"streamName": wanted["stream"], "endpointUrl": endpoint, "startingPosition": "TRIM_HORIZON"}
    given |= wanted["options"]
    columns = given.pop("schema", None)
    held: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        reader = spark.readStream if columns is None else spark.readStream.schema(columns)
        frame = reader.format("headpond-kinesis").options(**given).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        before, start = cpu_seconds(), time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        while not query.awaitTermination(0.2 if wanted.get("memory") else 1):
            if wanted.get("memory"):
                held.append(memory(spark))
        seconds = time.perf_counter() - start
        after = cpu_seconds()
        progress = query.recentProgress
    return {
        "records": sum(each["numInputRows"] for each in progress),
        "seconds": seconds,
        "cpu": {kind: after[kind] - before[kind] for kind in after},
        "batches": len(progress),
        "batch_ms": [each["durationMs"] for each in progress],
        **{name: max(each[name] for each in held) for name in (held[0] if held else ())},
    }


def main(endpoint: str) -> None:
    """Answer until standard input ends."""
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "local")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "local")
    with tempfile.TemporaryDirectory() as folder:
        conf = {"spark.master": "local[2]", "spark.sql.streaming.numRecentProgressUpdates": "1000"}
        spark = spark_session("bench", conf=conf, log_path=Path(folder) / "spark.log")
        register(spark)
        print("ready", flush=True)
        for line in sys.stdin:
            wanted = json.loads(line)
            print(json.dumps(run(spark, endpoint, wanted)), flush=True)
        spark.stop()


main(sys.argv[1])
