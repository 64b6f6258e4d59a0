"""Calls to every join task in every batch, and one batch more when all inputs are at rest.

::

    records of left and right ─► packed ─► watermark: the wall clock ─┐
    one row a task, the same in each batch ───────────────────────────┴─► join tasks

In the batch at rest there are no records: nobody waits for a slower input any more, and what was held comes
out. Spark runs such a batch where a watermark has moved, as for its own joins; this one is the wall clock,
and only batches with records move it. So it is one batch each time that the input pauses.

The rows are a streaming relation without a source: they take no place among the offsets, and checkpoints from
before them go on. PySpark has no call that makes one; under Spark Connect, where there is no JVM at hand, an
input of which no row is read stands in for it, and takes a place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headpond.spark.join.pack import PACKED_DDL, PACKED_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_rest(packed: DataFrame, labels: Sequence[int], *, rest_batch: bool) -> DataFrame:
    """Add a row for each task, and let a batch at rest follow.

    Args:
        packed: the records of all inputs, packed.
        labels: of the tasks.
        rest_batch: whether that batch is to come. A query has one watermark on its way to a result: one that
            is there already is used.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.utils import is_remote

    if rest_batch and (is_remote() or "EventTimeWatermark" not in plan_of(packed).toString()):
        packed = packed.withColumn("_at", F.current_timestamp()).withWatermark("_at", "0 seconds").drop("_at")
    if not is_remote():
        return packed.unionAll(_streaming_rows(packed, labels))
    rows = pa.RecordBatch.from_arrays(
        [pa.array(labels, pa.int32()), pa.array([b""] * len(labels), pa.binary())], schema=PACKED_SCHEMA
    )

    def none(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def call(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        yield rows

    # Between the two a single partition is made, which is there without input as well.
    never = packed.filter(F.lit(0) == F.lit(1)).mapInArrow(none, PACKED_DDL).coalesce(1)
    return packed.unionAll(never.mapInArrow(call, PACKED_DDL))


def plan_of(frame: DataFrame, which: str = "analyzed") -> Any:
    """Return a frame's plan, as the JVM has it."""
    return getattr(frame._jdf.queryExecution(), which)()  # noqa: SLF001 - there is no public way


def _streaming_rows(frame: DataFrame, labels: Sequence[int]) -> DataFrame:
    """Make a stream that has these rows in each batch: the same rows, marked as a stream."""
    from pyspark.sql import DataFrame

    spark: Any = frame.sparkSession
    values = ", ".join(f"({label}, X'')" for label in labels)
    rows = plan_of(spark.sql(f"FROM VALUES {values} AS calls(label, blob)"), "optimizedPlan")
    is_streaming = True
    rows = rows.copy(rows.output(), rows.data(), is_streaming, rows.stream())
    dataset = spark._jvm.org.apache.spark.sql.classic.Dataset  # noqa: SLF001 - there is no public way
    # Spark would give each row a partition of its own, and a task in every batch.
    return DataFrame(dataset.ofRows(spark._jsparkSession, rows), spark).coalesce(1)  # noqa: SLF001 - likewise
