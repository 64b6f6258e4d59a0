"""A source that gives decoded changes: what `headpond-archive` reads, decoded where it is read.

::

    one task:   page or part of a file ─► user records ─► decode ─► frames (`cells.FRAME_SCHEMA`) ─► Spark

A record so never passes through the JVM: it would cross to it as a row and back to another Python worker,
which costs several times what decoding does. Offsets, options and tasks are those of the source wrapped.

The source over `kinesis` is in `decoding_kinesis`: every process that plans or reads imports its source, and
half of that would be an AWS client.
"""

from __future__ import annotations

import base64
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema

from headpond.spark.archive import ArchiveStreamReader
from headpond.spark.archive import read_options as archive_options
from headpond.spark.cells import FRAME_SCHEMA
from headpond.spark.errors import carried
from headpond.spark.settled import settle_worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from headpond.changes.decoders import Config

RULES = "changerules"
"""The option that holds the tables and rules; all others are those of the wrapped source."""

BYTES_PER_DECODE = 16 << 20
"""Data gathered before it is decoded: many small pages cost more one by one."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What decoding is told.

    Attributes:
        config: the tables and rules.
        outline: as for `decode_partition`.
        folder: as for `decode_partition`.
    """

    config: Config
    outline: bool = False
    folder: str | None = None


def written_rules(rules: Rules) -> str:
    """Give the rules as the text of the option `RULES`."""
    return base64.b64encode(pickle.dumps(rules)).decode()


def without_rules(options: Mapping[str, str]) -> dict[str, str]:
    """The options of the source wrapped."""
    return {name: value for name, value in options.items() if name.lower() != RULES}


def gathered(
    batches: Iterable[pa.RecordBatch], size_bytes: int = BYTES_PER_DECODE
) -> Iterator[pa.RecordBatch]:
    """Put small batches together, up to about `size_bytes` each."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if waiting and size + batch.nbytes > size_bytes:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
        waiting.append(batch)
        size += batch.nbytes
    if waiting:
        yield pa.concat_batches(waiting)


class Decoding:
    """A reader whose tasks give frames."""

    rules: Rules

    @carried
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read and decode one task's part."""
        from headpond.spark.decoded import decode_partition  # noqa: PLC0415 (planning need not wait for it)

        records: Iterator[pa.RecordBatch] = super().read(partition)  # type: ignore[misc]  # the other base's
        rules = self.rules
        settle_worker()
        return decode_partition(rules.config, gathered(records), outline=rules.outline, folder=rules.folder)


class DecodingArchiveReader(Decoding, ArchiveStreamReader):
    """Micro-batches of an archive, decoded."""


class DecodingDataSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """What both sources share."""

    @carried
    def schema(self) -> StructType:
        """The columns of frames."""
        schema: StructType = from_arrow_schema(FRAME_SCHEMA)
        return schema

    def rules(self) -> Rules:
        """The tables and rules: written by `written_rules` in the driver of the same query."""
        rules: Rules = pickle.loads(base64.b64decode(self.options[RULES]))  # noqa: S301 - our own driver's
        return rules


class DecodedArchiveSource(DecodingDataSource):
    """`spark.readStream.format("headpond-decoded-archive")`: for `follow` alone."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "headpond-decoded-archive"

    @carried
    def streamReader(self, schema: StructType) -> DecodingArchiveReader:  # noqa: ARG002, N802 (Spark's name and signature)
        """Read in micro-batches."""
        reader = DecodingArchiveReader(archive_options(without_rules(self.options)))
        reader.rules = self.rules()
        return reader
