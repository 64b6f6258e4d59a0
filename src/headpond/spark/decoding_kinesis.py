"""A source that gives decoded changes: what `kinesis` reads, decoded where it is read (see `decoding`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headpond.kinesis.options import read_options
from headpond.spark.decoding import Decoding, DecodingDataSource, without_rules
from headpond.spark.errors import carried
from headpond.spark.source import KinesisStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DecodingKinesisReader(Decoding, KinesisStreamReader):
    """Micro-batches of a stream, decoded."""


class DecodedKinesisSource(DecodingDataSource):
    """`spark.readStream.format("headpond-decoded-kinesis")`: for `follow` alone."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "headpond-decoded-kinesis"

    @carried
    def streamReader(self, schema: StructType) -> DecodingKinesisReader:  # noqa: ARG002, N802 (Spark's name and signature)
        """Read in micro-batches."""
        reader = DecodingKinesisReader(read_options(without_rules(self.options)))
        reader.rules = self.rules()
        return reader
