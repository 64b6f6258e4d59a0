"""Inputs that progress unequally: files of other sizes, and two Kinesis streams with other bytes a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.rules import JoinRules, JoinWindows
from headpond.localkinesis.testing import local_kinesis, put_all
from headpond.spark import register, windowed_join
from tests.spark.join_streams import drained, random_batches, rows_of, source, wanted, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
WINDOWS = JoinWindows(12, 9, 15)
START_MS = 1_700_000_000_000


@pytest.mark.thorough
@pytest.mark.parametrize("stream_time", ["task", "query"])
def test_files_of_other_sizes_give_what_one_batch_gives(
    stream_time: str, spark: SparkSession, tmp_path: Path
) -> None:
    """One side in two files, the other in nine: the faster side's records wait, with their headers."""
    events = [event for batch in random_batches(21, batches=3, size=120) for event in batch]
    left, right = ([event for event in events if event.side is side] for side in (Side.LEFT, Side.RIGHT))
    cut = [left[n * len(left) // 9 : (n + 1) * len(left) // 9] for n in range(9)]
    cut[0], cut[1] = cut[0] + right[: len(right) // 2], cut[1] + right[len(right) // 2 :]
    write(tmp_path, cut)
    sides = [source(spark, tmp_path, side) for side in (Side.LEFT, Side.RIGHT)]
    joined = windowed_join(*sides, WINDOWS, "outer", tasks=2, stream_time=stream_time, name="join")
    query = drained(joined, tmp_path)
    rules = JoinRules("outer", WINDOWS, stream_time=stream_time)  # type: ignore[arg-type]
    assert rows_of(spark, tmp_path) == wanted(rules, [events], 2)[0]
    metrics = [p.observedMetrics["join"].asDict() for p in query.recentProgress]
    assert max(each["held"] for each in metrics) > 50
    assert max(each["held_bytes"] for each in metrics) > 0
    assert metrics[-1]["held"] == 0
    assert metrics[-1]["records"] > 0  # in a batch without new ones


@pytest.mark.parametrize("options", [pytest.param({}, marks=pytest.mark.thorough), {"inStep": "pairs"}])
def test_two_kinesis_streams_with_other_bytes_a_record(
    options: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    """The same times, records of 20 kB and 200 B, 1 MiB a batch: all pairs, and nothing unmatched.

    In step, batches end at one arrival time, and next to nothing has to wait in the join.
    """
    register(spark)
    count, keys, width_s = 400, 5, 10
    with local_kinesis("large", "small") as kinesis:
        for first in range(0, count, 10):
            for name, size in (("large", 20_000), ("small", 200)):
                records = [
                    (f"k{n % keys}", b"%d|" % (START_MS + n * 1000) + b"x" * size)
                    for n in range(first, first + 10)
                ]
                put_all(kinesis.client(), name, records)

        def stream(name: str) -> DataFrame:
            given: dict[str, Any] = {
                "streamName": name, "region": "us-east-1", "endpointUrl": kinesis.endpoint_url,
                "startingPosition": "TRIM_HORIZON", "maxBytesPerTrigger": 1 << 20,
            }  # fmt: skip
            time = (
                "timestamp_millis(CAST(regexp_extract(decode(data, 'iso-8859-1'), '^([0-9]+)', 1) AS BIGINT))"
            )
            return (
                spark.readStream.format("headpond-kinesis")
                .options(**given, **options)
                .load()
                .selectExpr(
                    "partition_key AS key", "data AS value", f"{time} AS timestamp",
                    "shard_id", "sequence_number", "sub_sequence_number",
                )
            )  # fmt: skip

        windows = JoinWindows(width_s * 1000, width_s * 1000)
        joined = windowed_join(
            stream("large"), stream("small"), windows, "left", tasks=2, emit="final", name="join"
        )
        query = drained(joined.select("left_timestamp", "right_timestamp"), tmp_path)
    pairs = sum(a % keys == b % keys and abs(a - b) <= width_s for a in range(count) for b in range(count))
    rows = spark.read.parquet(str(tmp_path / "out"))
    assert pairs == 1970
    assert rows.count() == pairs
    assert rows.where("right_timestamp IS NULL").count() == 0
    held = max(each.observedMetrics["join"].asDict()["held"] for each in query.recentProgress)
    assert held <= 20 if options else held > 100
