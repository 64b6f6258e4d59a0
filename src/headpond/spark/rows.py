"""User record batches in the types Spark expects of a Python data source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headpond.formats.kinesis_records import USER_RECORD_SCHEMA_WITH_TAGS
from headpond.formats.rows import USER_RECORD_SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def source_schema(*, tags: bool) -> StructType:
    """Return the columns of a source of user records."""
    schema: StructType = from_arrow_schema(USER_RECORD_SCHEMA_WITH_TAGS if tags else USER_RECORD_SCHEMA)
    return schema


_AS_SPARK = {
    tags: to_arrow_schema(source_schema(tags=tags), timezone="UTC") for tags in (False, True)
}  # what Spark compares a batch's schema with, to the letter


def as_spark(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give a batch the schema Spark compares it with; columns are not copied where types agree."""
    schema = _AS_SPARK["tags" in batch.schema.names]
    return batch if batch.schema.equals(schema) else batch.cast(schema)
