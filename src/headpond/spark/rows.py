"""User record batches in the types Spark expects of a Python data source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headpond.errors import ConfigurationError
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


def chosen_columns(schema: StructType, *, tags: bool) -> pa.Schema | None:
    """Read which columns the user wants, where `schema(…)` says it; Spark itself prunes none of these.

    Args:
        schema: Of the frame.
        tags: Whether the source has the column `tags`.

    Returns:
        What a batch has to look like, in the frame's order; None for all columns as they are.

    Raises:
        ConfigurationError: A column is not one of the source's, or is of another type there.
    """
    own = {field.name: field.dataType.simpleString() for field in source_schema(tags=tags).fields}
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
    return None if found.equals(_AS_SPARK[tags]) else found
