"""Make headpond's sources and its sink known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.spark.archive import ArchiveDataSource
from headpond.spark.redaction import redact_options
from headpond.spark.source import KinesisDataSource, ShortNamedKinesisDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register `headpond-kinesis`, `kinesis` (both also sinks) and `headpond-archive`; again changes nothing.

    Some platforms have a built-in `kinesis`; there the long name reaches ours. Spark before 4.3 shows the
    options of a source in its plans: the session is told to leave `roleExternalId` and `storageOptions` out,
    beside what it leaves out already.
    """
    for source in (KinesisDataSource, ShortNamedKinesisDataSource, ArchiveDataSource):
        spark.dataSource.register(source)
    redact_options(spark)
