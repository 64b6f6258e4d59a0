"""The windowed join as a whole query, beside Spark's own and Kafka Streams, on the same data in one run.

131 bytes a record (100 random bytes, two headers), one record a millisecond and side, 100,000 records
a micro-batch, read from Parquet files, results thrown away. Each case is a query of its own in one Spark; the
figure is the median of its batches but the first ones. A query before the first one warms the JVM up (--cold:
none), and Spark has the settings that docs/how-to/join.md recommends. Kafka Streams: TopologyTestDriver on
RocksDB in the headers format, one instance, and two at once (the sum of both), after at least 150,000 records
that fill what is retained and warm its JVM up.

    python bench/windows/join.py [--batches 6] [--only inner]… [--without native] [--cold] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own name for it

from headpond.kstreams.bytes.headers_arrow import HEADERS_TYPE
from headpond.kstreams.join.rules import JoinWindows
from headpond.spark import windowed_join
from headpond.spark.session.start import spark_session

HERE = Path(__file__).parent
JARS = HERE.parents[1] / ".bench" / "kafka-streams-4.3.0"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
START_MS = 1_700_000_000_000
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", HEADERS_TYPE),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
DDL = (
    "key binary, value binary, timestamp timestamp, headers array<struct<key:string,value:binary>>, "
    "partition int, offset bigint"
)
CASES = {
    # name: type, keys, window in ms
    "inner": ("inner", 5000, 5000),
    "left": ("left", 5000, 5000),
    "outer": ("outer", 5000, 5000),
    "wide": ("inner", 50_000, 50_000),
}
BATCH = 100_000
NATIVE_BYTES = 142
"""What Spark's join took a buffered record in format 2, compacted; its files in a short run are larger."""
SMALL = 2000
FORMATS = ("2", "4")
"""Of the state of Spark's own join."""
WARM_UP = 3
COLLECTOR = "-XX:+UseParallelGC"
UNSIZED = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}


def make_data(folder: Path, keys: int, batches: int, batch: int, first_ms: int = 0) -> Path:
    """Write both sides' files, one per micro-batch."""
    place = folder / f"{keys}-{batches}-{batch}-{first_ms}"
    if place.exists():
        return place
    chance = np.random.default_rng(keys)
    per_side = batch // 2
    for side, step in (("left", 7919), ("right", 7907)):
        (place / side).mkdir(parents=True)
        for number in range(batches):
            place_in_time = np.arange(number * per_side, (number + 1) * per_side) + first_ms
            names = [b"key-%08d" % each for each in place_in_time * step % keys]
            headers = [[("trace-id", chance.bytes(8)), ("source", b"app")] for _ in range(per_side)]
            table = pa.table(
                [
                    pa.array(names, pa.binary()),
                    pa.array([chance.bytes(100) for _ in range(per_side)], pa.binary()),
                    pa.array((START_MS + place_in_time) * 1000).cast(SCHEMA.field("timestamp").type),
                    pa.array([[{"key": k, "value": v} for k, v in each] for each in headers], HEADERS_TYPE),
                    pa.array(np.zeros(per_side, np.int32)),
                    pa.array(place_in_time),
                ],
                schema=SCHEMA,
            )
            path = place / side / f"{number:05}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1e9 + number, 1e9 + number))
    return place


def stream(spark: SparkSession, place: Path, side: str) -> DataFrame:
    reader = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(place / side))


def ours(spark: SparkSession, place: Path, kind: str, window_ms: int) -> DataFrame:
    left, right = stream(spark, place, "left"), stream(spark, place, "right")
    return windowed_join(left, right, JoinWindows(window_ms, window_ms), kind, tasks=2, name="headpond_join")


def native(spark: SparkSession, place: Path, kind: str, window_ms: int) -> DataFrame:
    """Spark's own join of key, value and headers."""
    left, right = (
        stream(spark, place, side)
        .select(
            *[F.col(each).alias(f"{side[0]}_{each}") for each in ("key", "value", "timestamp", "headers")]
        )
        .withWatermark(f"{side[0]}_timestamp", "0 seconds")
        for side in ("left", "right")
    )
    span = f"INTERVAL {window_ms} MILLISECONDS"
    condition = F.expr(
        f"l_key = r_key AND r_timestamp >= l_timestamp - {span} AND r_timestamp <= l_timestamp + {span}"
    )
    return left.join(right, condition, {"inner": "inner", "left": "left_outer", "outer": "full_outer"}[kind])


CPU: dict[str, float] = {}
"""Case → CPU seconds a record, of this process and all below it, after the first batches."""


def cpu_seconds() -> float:
    """CPU time of this process and all below it; children that have ended count in their parents."""
    mine = psutil.Process()
    total = 0.0
    for each in [mine, *mine.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(each.cpu_times()[:4])
    return total


def run(frame: DataFrame, folder: Path, checkpoint: str = "", name: str = "") -> list[Any]:
    """Run a query to the end of its files; gives the progress of its batches that had input."""
    place = folder / (checkpoint or f"checkpoint-{time.monotonic_ns()}")
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(place))
        .trigger(availableNow=True)
        .start()
    )
    spent: dict[int, float] = {}
    try:
        while not query.awaitTermination(0.1):
            last = query.lastProgress
            if last is not None:
                spent.setdefault(last.batchId, cpu_seconds())
        progress = [p for p in query.recentProgress if p.numInputRows]
        warm = [number for number in spent if WARM_UP - 1 <= number < len(progress) - 1]
        if warm:
            CPU[name] = (cpu_seconds() - spent[warm[0]]) / sum(
                p.numInputRows for p in progress[warm[0] + 1 :]
            )
    finally:
        query.stop()
        if not checkpoint:
            shutil.rmtree(place, ignore_errors=True)
    return progress


def rate(progress: list[Any], what: str = "triggerExecution") -> float:
    """Records a second of the batches after the first ones."""
    kept = progress[min(WARM_UP, len(progress) - 1) :]
    return statistics.median(p.numInputRows / p.durationMs[what] * 1000 for p in kept)


def figures(progress: Any) -> dict[str, int]:
    told: dict[str, int] = progress.observedMetrics["headpond_join"].asDict()
    return told


def streams(kind: str, keys: int, window_ms: int, records: int, instances: int) -> tuple[float, float] | None:
    """Records a second of Kafka Streams, of all instances together, and CPU seconds a record of one."""
    if not JARS.exists() or shutil.which("java") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                [
                    "java",
                    "-cp",
                    f"{JARS}/*",
                    str(HERE / "StreamsJoin.java"),
                    kind,
                    str(keys),
                    str(window_ms),
                    str(records),
                    f"{folder}/{number}",
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for number in range(instances)
        ]
        told = [each.communicate()[0].split() for each in running]
        return sum(float(each[0]) for each in told), statistics.mean(float(each[2]) for each in told)


def throughput(
    spark: SparkSession, folder: Path, name: str, batches: int, *, found: dict[str, float], without: list[str]
) -> None:
    kind, keys, window_ms = CASES[name]
    place = make_data(folder, keys, batches, BATCH)
    progress = run(ours(spark, place, kind, window_ms), folder, name=name)
    found[f"{name}: records/s"] = rate(progress)
    found[f"{name}: records/s by addBatch"] = rate(progress, "addBatch")
    if name in CPU:
        found[f"{name}: CPU us a record"] = CPU[name] * 1e6
    told = figures(progress[-1])
    found[f"{name}: bytes of state a record"] = told["state_bytes"] / told["state_rows"]
    for count in (1, 2) if "streams" not in without else ():
        measured = streams(kind, keys, window_ms, 60_000, count)
        if measured is not None:
            theirs, spent = measured
            found[f"{name}: Kafka Streams, {count} at once, CPU us a record"] = spent * 1e6
            found[f"{name}: Kafka Streams, {count} at once, records/s"] = theirs
            found[f"{name}: times Kafka Streams, {count} at once"] = found[f"{name}: records/s"] / theirs
    for version in FORMATS if name == "inner" and "native" not in without else ():
        spark.conf.set("spark.sql.streaming.join.stateFormatVersion", version)
        theirs_progress = run(native(spark, place, kind, window_ms), folder, name=version)
        if version in CPU:
            found[f"{name}: Spark's join, format {version}, CPU us a record"] = CPU[version] * 1e6
        found[f"{name}: Spark's join, format {version}, records/s"] = rate(theirs_progress)
        found[f"{name}: times Spark's join, format {version}"] = (
            found[f"{name}: records/s"] / found[f"{name}: Spark's join, format {version}, records/s"]
        )
        last = theirs_progress[-1].stateOperators[0]
        if last.numRowsTotal:
            found[f"{name}: Spark's join, format {version}, state rows"] = last.numRowsTotal
            found[f"{name}: Spark's join, format {version}, SST bytes a record"] = (
                last.customMetrics.get("rocksdbSstFileSize", 0) / last.numRowsTotal
            )
    sizes = [each for label, each in found.items() if label.startswith(name) and "SST bytes" in label]
    if len(sizes) == len(FORMATS):
        found[f"{name}: bytes of state, of Spark's join in its smaller format"] = found[
            f"{name}: bytes of state a record"
        ] / min(*sizes, NATIVE_BYTES)


def small_batches(spark: SparkSession, folder: Path, found: dict[str, float]) -> None:
    """Cost of a record in small batches beside large ones, the fixed cost of a batch taken off both."""
    kind, keys, window_ms = CASES["inner"]
    times: dict[int, list[int]] = {2: [], SMALL: [], BATCH: []}
    plans = ((BATCH, WARM_UP + 3), (2, 30), (SMALL, 30), (2, 30), (SMALL, 30))
    for batch, count in plans:
        # The large ones first, for a warm JVM; then in turn: another's work would be taken for a fixed cost.
        progress = run(ours(spark, make_data(folder, keys, count, batch), kind, window_ms), folder)
        times[batch] += [p.durationMs["triggerExecution"] for p in progress[WARM_UP:]]
    costs = {batch: statistics.median(found_ms) for batch, found_ms in times.items()}
    fixed = costs[2]
    found["small: fixed cost of a batch, ms"] = fixed
    found["small: a batch of 2,000 records, ms"] = costs[SMALL]
    for batch in (SMALL, BATCH):
        found[f"small: us a record in batches of {batch}"] = max(0.0, costs[batch] - fixed) * 1000 / batch
    large = found[f"small: us a record in batches of {BATCH}"]
    if large:
        found["small: cost a record, of that in large batches"] = (
            found[f"small: us a record in batches of {SMALL}"] / large
        )


def restart(spark: SparkSession, folder: Path, found: dict[str, float]) -> None:
    """First batch after a restart with a million buffered records, beyond the same with an empty state."""
    window_ms, times = 250_000, {}
    for name, batches in (("full", 11), ("empty", 1)):
        place = make_data(folder, 100_000, batches, BATCH)
        checkpoint = f"restart-{name}"
        held = place / "held"
        held.mkdir(exist_ok=True)
        last = f"{batches - 1:05}.parquet"
        if name == "full":
            for side in ("left", "right"):
                shutil.move(place / side / last, held / f"{side}.parquet")
            told = figures(run(ours(spark, place, "inner", window_ms), folder, checkpoint)[-1])
            found["restart: buffered records"] = told["state_rows"]
            for side in ("left", "right"):
                shutil.move(held / f"{side}.parquet", place / side / last)
        begun = time.monotonic()
        run(ours(spark, place, "inner", window_ms), folder, checkpoint)
        times[name] = time.monotonic() - begun
    found["restart: seconds to the first batch's end, full"] = times["full"]
    found["restart: seconds to the first batch's end, empty"] = times["empty"]
    found["restart: seconds beyond an empty state"] = times["full"] - times["empty"]


TARGETS = {
    # figure: at least, aim, greater is better
    **{
        f"{name}: times Kafka Streams, {count} at once": (*bounds, True)
        for name, count, bounds in (
            ("inner", 1, (3, 5)), ("inner", 2, (1.5, 2.5)), ("left", 1, (2.5, 4)), ("left", 2, (1.2, 2)),
            ("outer", 1, (2.5, 4)), ("outer", 2, (1.2, 2)),
        )
    },
    "wide: cost a record, of that of inner": (1.5, 1.1, False),
    "inner: bytes of state, of Spark's join in its smaller format": (1.0, 0.8, False),
    "restart: seconds beyond an empty state": (20, 5, False),
    "small: cost a record, of that in large batches": (3, 1.5, False),
}  # fmt: skip


def verdict(name: str, figure: float) -> str:
    if name not in TARGETS:
        return ""
    least, aim, more = TARGETS[name]
    met = [figure >= bound if more else figure <= bound for bound in (least, aim)]
    if not figure:
        return "   not told from noise"
    said = "aim met" if met[1] else "met" if met[0] else "MISSED"
    return f"   at least {least}, aim {aim}: {said}"


def measure(
    batches: int, only: list[str] | None = None, without: list[str] | None = None, *, cold: bool = False
) -> dict[str, float]:
    """Answer all questions, or some."""
    memory = Path("/dev/shm")
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        folder = Path(name)
        settings = {
            "spark.master": "local[2]",
            "spark.driver.memory": "3g",
            "spark.driver.extraJavaOptions": COLLECTOR,
            **UNSIZED,
            "spark.local.dir": str(folder / "local"),
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        }
        spark = spark_session("bench", conf=settings, log_path=folder / "spark.log")
        if not cold:
            kind, keys, window_ms = CASES["inner"]
            run(ours(spark, make_data(folder, keys, batches, BATCH), kind, window_ms), folder)
        for case in CASES:
            if not only or case in only:
                throughput(spark, folder, case, batches, found=found, without=without or [])
        if not only or "small" in only:
            small_batches(spark, folder, found)
        if not only or "restart" in only:
            restart(spark, folder, found)
        spark.stop()
    if "inner: records/s" in found and "wide: records/s" in found:
        found["wide: cost a record, of that of inner"] = found["inner: records/s"] / found["wide: records/s"]
    return found


def show(found: dict[str, float]) -> None:
    """Print figures, beside the targets that they have."""
    for name, figure in found.items():
        print(f"{name:56}{figure:14,.2f}{verdict(name, figure)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--only", choices=[*CASES, "small", "restart"], action="append")
    parser.add_argument("--without", choices=["native", "streams"], action="append")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = measure(chosen.batches, chosen.only, chosen.without, cold=chosen.cold)
    show(found)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
