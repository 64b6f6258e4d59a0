"""Columns that follow from others: Spark computes from their expressions what headpond writes."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headpond.core.derived import derived_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MOMENTS = [
    datetime(1, 1, 2, tzinfo=UTC),
    datetime(999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    datetime(2026, 7, 9, 23, 30, tzinfo=UTC),
    datetime(9999, 12, 30, 0, 0, 0, 1, tzinfo=UTC),
    None,
]
COLUMNS = {
    "at": pa.array(MOMENTS, pa.timestamp("us", "UTC")),
    "wall time": pa.array([each and each.replace(tzinfo=None) for each in MOMENTS], pa.timestamp("us")),
    "d": pa.array([each and each.date() for each in MOMENTS], pa.date32()),
    "n": pa.array([0, -1, 2**63 - 1, -(2**63), 7, None, 10, 11], pa.int64()),
    "who": pa.array(["", "é", "a b", "x" * 99, "\U0001f600", None, "7", "q"], pa.string()),
}
WAYS = [f"{function}({column})" for function in ("day", "month", "hour") for column in ("at", "wall time")]
WAYS += ["month(d)", *(f"bucket(16, {column})" for column in ("n", "who", "d"))]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York", "Asia/Kolkata"])
def test_spark_computes_what_is_written(spark: SparkSession, zone: str) -> None:
    """In whatever time zone its session is."""
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.createDataFrame(pa.table(COLUMNS))
        found = [derived_of(way) for way in WAYS]
        expressions = [
            f"{each.expression(each.column, COLUMNS[each.column].type)} AS c{number}"
            for number, each in enumerate(found)
            if each is not None
        ]
        computed = frame.selectExpr(*expressions).toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    for number, each in enumerate(found):
        assert each is not None
        wanted = each.values(COLUMNS[each.column])
        assert computed[f"c{number}"].cast(wanted.type).to_pylist() == wanted.to_pylist(), str(each)
    assert date(2026, 7, 9) in computed["c0"].to_pylist()
