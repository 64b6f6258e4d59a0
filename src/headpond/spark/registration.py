"""Make headpond's sources and its sink known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.spark.archive import ArchiveDataSource
from headpond.spark.source import KinesisDataSource, ShortNamedKinesisDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


REDACTED_OPTIONS = "spark.sql.redaction.options.regex"
_OURS = "(?i)roleexternalid"


def register(spark: SparkSession) -> None:
    """Register `headpond-kinesis`, `kinesis` (both also sinks) and `headpond-archive`; again changes nothing.

    Some platforms have a built-in `kinesis`; there the long name reaches ours. Spark before 4.3 shows the
    options of a source in its plans: the session is told to leave `roleExternalId` out, beside what it leaves
    out already.
    """
    for source in (KinesisDataSource, ShortNamedKinesisDataSource, ArchiveDataSource):
        spark.dataSource.register(source)
    redacted = spark.conf.get(REDACTED_OPTIONS) or ""  # a default given here would hide Spark's own
    if _OURS not in redacted:
        spark.conf.set(REDACTED_OPTIONS, f"(?:{redacted})|{_OURS}" if redacted else _OURS)
