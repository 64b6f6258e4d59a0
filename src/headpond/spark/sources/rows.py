"""What the tasks of a source return: user records in Spark's types, or changes decoded where they were read.

::

    one task:   page or part of a file ─► user records ─► Spark                                  kinesis
                                                       └► decode ─► cells (`FRAME_SCHEMA`) ─► Spark

Decoded in the task, a record never passes through the JVM: it would cross to it as a row and back to another
Python worker, which costs several times what decoding does.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headpond.core.errors import ConfigurationError
from headpond.kpl.records import ENCRYPTION_TYPE, user_record_schema
from headpond.spark.errors import carried
from headpond.spark.session.cluster import over_connect
from headpond.spark.session.workers import freeze_worker_heap
from headpond.spark.sources.cells import FRAME_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from headpond.core.formats import ChangeFormat


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a source, for several queries at once.

    Spark keeps the variables of the worker's environment in one map for all queries over a source, and adds
    to it whenever a query begins. A task of another query that is serialized meanwhile can never be read
    (`OptionalDataException`), so it gets a map that threads may share.
    """
    if over_connect(spark):
        spark.dataSource.register(source)
        return
    context: Any = spark.sparkContext
    given = context.environment
    context.environment = context._jvm.java.util.concurrent.ConcurrentHashMap(given)  # noqa: SLF001
    try:
        spark.dataSource.register(source)
    finally:
        context.environment = given


def source_schema(*, tags: bool, encryption_type: bool = False) -> StructType:
    """Return the columns of a source of user records."""
    schema: StructType = from_arrow_schema(user_record_schema(tags=tags, encryption_type=encryption_type))
    return schema


@lru_cache(maxsize=4)
def _as_spark(*, tags: bool, encryption_type: bool) -> pa.Schema:
    """Return what Spark compares a batch's schema with, to the letter."""
    schema = source_schema(tags=tags, encryption_type=encryption_type)
    return to_arrow_schema(schema, timezone="UTC")


def as_spark(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with the schema Spark compares it with; columns are not copied where types agree."""
    names = batch.schema.names
    schema = _as_spark(tags="tags" in names, encryption_type=ENCRYPTION_TYPE.name in names)
    return batch if batch.schema.equals(schema) else batch.cast(schema)


def chosen_columns(schema: StructType, whole: StructType) -> pa.Schema | None:
    """Read which columns the user wants, where `schema(…)` says it; Spark itself prunes none of these.

    Returns:
        What a batch has to look like, in the frame's order; None for all columns as they are.

    Raises:
        ConfigurationError: A column is not one of the source's, or is of another type there.
    """
    own = {field.name: field.dataType.simpleString() for field in whole.fields}
    wanted = tuple(field.name for field in schema.fields)
    wrong = [field.name for field in schema.fields if own.get(field.name) != field.dataType.simpleString()]
    if wrong or len(set(wanted)) < len(wanted):
        expected = ", ".join(f"{name} {kind}" for name, kind in own.items())
        what = ", ".join(wrong) or "a column comes twice"
        raise ConfigurationError(
            f"The schema given to the source kinesis does not fit: {what}.",
            next_step=f"Choose out of {expected}.",
            columns=list(wanted),
        )
    found = to_arrow_schema(schema, timezone="UTC")
    return None if found.equals(to_arrow_schema(whole, timezone="UTC")) else found


BYTES_PER_DECODE = 16 << 20
"""Data gathered before it is decoded: many small pages cost more one by one."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What decoding needs, as for `decode_partition`."""

    config: ChangeFormat
    summary: bool = False
    folder: str | None = None


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

    pickled: bytes
    """The rules: planning leaves them as they are, for they bring their decoder with them."""

    @carried
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read and decode one task's part."""
        from headpond.spark.sources.decoded import decode_partition

        records: Iterator[pa.RecordBatch] = super().read(partition)  # type: ignore[misc]  # the other base's
        rules: Rules = pickle.loads(self.pickled)  # noqa: S301 - it came with this class, from the driver
        freeze_worker_heap()
        return decode_partition(rules.config, gathered(records), summary=rules.summary, folder=rules.folder)


class DecodingDataSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """What both sources share. The rules travel with the class; no option holds them."""

    pickled: bytes
    format_name: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.format_name

    @classmethod
    def with_rules(cls, rules: Rules) -> type[Self]:
        """Return the source for one query's tables and rules."""
        return type(cls.__name__, (cls,), {"pickled": pickle.dumps(rules)})

    @carried
    def schema(self) -> StructType:
        """Return the columns of frames."""
        schema: StructType = from_arrow_schema(FRAME_SCHEMA)
        return schema

    @carried
    def streamReader(self, schema: StructType) -> Decoding:
        """Read in micro-batches."""
        reader = self._reader()
        reader.pickled = self.pickled
        return reader

    def _reader(self) -> Decoding:
        raise NotImplementedError
