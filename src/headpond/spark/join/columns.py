"""The columns of a join's input and output, and what they are in between.

::

    input       key · value · timestamp · headers (may be missing) · position · further columns
    position    Kafka:   partition · offset (· topic)
                Kinesis: shard_id · sequence_number · sub_sequence_number (· stream)
    record      key · headers (headersBytes) · value · micros · all further columns, position included
    output      key · timestamp · headers · partition · offset · left_timestamp · left_value · left_… · …

The join counts milliseconds; what a timestamp has below them is the record's `micros`, and comes back in
`left_timestamp` and `right_timestamp`. Output columns may be missing a side: all of that side's are null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headpond.core.errors import UsageError
from headpond.kstreams.bytes.join_buffer import Side

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MICROS = "_micros"
"""A record's further column for what its timestamp has below a millisecond."""
PLACE = ("partition", "offset")
"""A result's own place: its task, and its number there."""
RESERVED = ("key", "value", "timestamp", "headers")
POSITIONS = {
    # source: identity of a partition (the first may be missing), position in it
    "kafka": (("topic", "partition"), ("offset",)),
    "kinesis": (("stream", "shard_id"), ("sequence_number", "sub_sequence_number")),
}


@dataclass(frozen=True)
class SideColumns:
    """One side's columns.

    Attributes:
        side: which.
        key_is_text: the key is a string; it is hashed and compared as UTF-8.
        value_is_text: likewise the value.
        has_headers: whether there is a column `headers`.
        position: "kafka" or "kinesis".
        further: the further columns in their order: name, Arrow type.
        spark: the same with their types in Spark, as JSON.
    """

    side: Side
    key_is_text: bool
    value_is_text: bool
    has_headers: bool
    position: str
    further: tuple[tuple[str, pa.DataType], ...]

    @property
    def schema(self) -> pa.Schema:
        """What the engine sees of a record."""
        fields = [(name, pa.binary()) for name in ("key", "headers", "value")]
        return pa.schema([*fields, (MICROS, pa.int16()), *self.further])

    @property
    def selected(self) -> list[str]:
        """Return the input columns that are read, in order."""
        head = ["key", "value", "timestamp", *(["headers"] if self.has_headers else [])]
        return [*head, *(name for name, _ in self.further)]

    @property
    def partition_columns(self) -> list[str]:
        """Return the columns that name a source partition."""
        names = {name for name, _ in self.further}
        return [name for name in POSITIONS[self.position][0] if name in names]

    @property
    def position_columns(self) -> list[str]:
        """Return the columns that order the records of a source partition."""
        return list(POSITIONS[self.position][1])


def side_columns(schema: StructType, side: Side) -> SideColumns:
    """Check one side's columns.

    Raises:
        UsageError: A column is missing, or has a type that the join cannot take.
    """
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import ArrayType, BinaryType, StringType, TimestampType

    called = f"The {side.name.lower()} input"
    types = {field.name: field.dataType for field in schema.fields}
    if len(types) != len(schema.fields):
        raise UsageError(f"{called} has two columns of one name.", next_step="Select or rename its columns.")
    for name in ("key", "value", "timestamp"):
        if name not in types:
            raise UsageError(
                f"{called} has no column {name}; it has {', '.join(types)}.",
                next_step="Select key, value, timestamp (and headers) as Spark's Kafka source names them.",
                column=name,
            )
    for name in ("key", "value"):
        if not isinstance(types[name], BinaryType | StringType):
            raise UsageError(
                f"Column {name} of the {side.name.lower()} input is {types[name].simpleString()}; the join "
                "takes binary or string.",
                next_step=f"Cast it, for instance with to_json() or CAST({name} AS STRING).",
                column=name,
            )
    if not isinstance(types["timestamp"], TimestampType):
        raise UsageError(
            f"Column timestamp of the {side.name.lower()} input is {types['timestamp'].simpleString()}, "
            "not timestamp.",
            next_step="Make one, for instance with timestamp_millis() or to_timestamp().",
            column="timestamp",
        )
    headers = types.get("headers")
    if headers is not None:
        element = headers.elementType if isinstance(headers, ArrayType) else None
        wanted = "array<struct<key:string,value:binary>>"
        if element is None or headers.simpleString() != wanted:
            raise UsageError(
                f"Column headers of the {side.name.lower()} input is {headers.simpleString()}, not {wanted}.",
                next_step="Give them as Spark's Kafka source does with includeHeaders, or drop the column.",
                column="headers",
            )
    further = {name: kind for name, kind in types.items() if name not in RESERVED}
    position = _position(further, called)
    if MICROS in further:
        raise UsageError(f"{called} has a column {MICROS}, which the join keeps for itself.", column=MICROS)
    return SideColumns(
        side,
        isinstance(types["key"], StringType),
        isinstance(types["value"], StringType),
        headers is not None,
        position,
        tuple((name, to_arrow_type(kind, timezone="UTC")) for name, kind in further.items()),
    )


def _position(further: dict[str, Any], called: str) -> str:
    for position, (partition, place) in POSITIONS.items():
        if partition[1] in further and all(name in further for name in place):
            return position
    raise UsageError(
        f"{called} does not say where its records come from: it needs partition and offset (Kafka), or "
        "shard_id, sequence_number and sub_sequence_number (Kinesis).",
        next_step="Keep those columns, or make them: without, the join's order would be that of a shuffle.",
    )


def output_type(columns: dict[Side, SideColumns], schemas: dict[Side, StructType]) -> StructType:
    """Return the schema of the join's output in Spark."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    headers = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
    fields = [
        StructField("key", StringType() if columns[Side.LEFT].key_is_text else BinaryType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", headers),
        StructField(PLACE[0], IntegerType()),
        StructField(PLACE[1], LongType()),
    ]
    for side, schema in schemas.items():
        name = side.name.lower()
        types = {field.name: field.dataType for field in schema.fields}
        fields.append(StructField(f"{name}_timestamp", TimestampType()))
        fields.append(StructField(f"{name}_value", types["value"]))
        fields += [StructField(f"{name}_{each}", types[each]) for each, _ in columns[side].further]
    return StructType(fields)
