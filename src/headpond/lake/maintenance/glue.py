"""The tables of a lake made known to AWS Glue, so that Athena and Spark find them by name.

::

    s3://…/lake/public.orders/   database.public_orders   table_type = DELTA            Athena
                                                          spark.sql.sources.provider    Spark, EMR, Glue jobs

Both read the table's own log: the entry names the place; its columns are for people and Lake Formation.
Registering again brings new columns; an entry of another place is not touched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headpond.core.errors import ConfigurationError, UsageError
from headpond.kinesis.aws import aws_errors
from headpond.lake.object_store import is_s3

if TYPE_CHECKING:
    from headpond.lake.delta import DeltaFile
    from headpond.lake.tables import Lake

_OUTSIDE = re.compile(r"[^a-z0-9_]")
_KEPT = ("Description", "Owner", "Retention")
_LONGEST_COMMENT = 255
_HIVE: dict[pa.DataType, str] = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.date32(): "date",
}


@dataclass(slots=True)
class Registered:
    """What became of each table: its name in Glue, by its name in the lake; and those not made yet."""

    created: dict[str, str] = field(default_factory=dict)
    updated: dict[str, str] = field(default_factory=dict)
    unchanged: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)


def register(lake: Lake, glue: Any, database: str) -> Registered:
    """Make the configured tables of a lake that are there known to a database of Glue (boto3's client).

    Raises:
        UsageError: the lake is not in S3, or a name stands for another place already.
        ConfigurationError: the database does not exist, or two tables would get one name.
        AccessDenied, EndpointUnreachable, ServiceFailure: Glue cannot be asked.
    """
    if not is_s3(lake.path):
        raise UsageError(
            f"The lake {lake.path} is not in S3, where Athena and Spark on AWS look for tables.",
            next_step="Register a lake whose target.path begins with s3://.",
        )
    names = glue_names(list(lake.tables))
    found = Registered()
    with aws_errors("glue"):
        try:
            glue.get_database(Name=database)
        except glue.exceptions.EntityNotFoundException:
            raise ConfigurationError(
                f"Glue has no database {database!r} in this account and region.",
                next_step=f"Create it: aws glue create-database --database-input Name={database}",
                database=database,
            ) from None
        there = {name: _entry(glue, database, names[name]) for name in lake.tables}
        for name, entry in there.items():
            _refuse_other_place(name, entry, lake.place_of(name), database)
        for name, entry in there.items():
            file = lake.typed[name].file
            if not file.exists():
                found.absent.append(name)
                continue
            wanted = table_input(names[name], lake.place_of(name), file)
            if entry is None:
                glue.create_table(DatabaseName=database, TableInput=wanted)
                found.created[name] = names[name]
            elif _same(entry, wanted):
                found.unchanged[name] = names[name]
            else:
                kept = {part: entry[part] for part in _KEPT if part in entry}
                wanted["Parameters"] = entry.get("Parameters", {}) | wanted["Parameters"]
                glue.update_table(DatabaseName=database, TableInput=kept | wanted)
                found.updated[name] = names[name]
    return found


def glue_names(tables: Sequence[str]) -> dict[str, str]:
    """Return the name that each table gets: lower case, with `_` for all but letters and digits."""
    names: dict[str, str] = {}
    for table in tables:
        name = _OUTSIDE.sub("_", table.lower())
        if name in names.values():
            other = next(each for each, given in names.items() if given == name)
            raise ConfigurationError(
                f"The tables {other!r} and {table!r} would both be called {name} in Glue.",
                next_step="Give one of the two [tables] entries another name.",
                tables=[other, table],
            )
        names[table] = name
    return names


def table_input(name: str, place: str, file: DeltaFile) -> dict[str, Any]:
    """Return a table's entry as Glue takes it, with the columns of its newest version."""
    location = re.sub(r"^s3[an]://", "s3://", place)
    columns = [_column(each) for each in file.schema()]
    return {
        "Name": name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {"EXTERNAL": "TRUE", "table_type": "DELTA", "spark.sql.sources.provider": "delta"},
        "PartitionKeys": [],
        "StorageDescriptor": {
            "Location": location,
            "Columns": columns,
            # What Spark writes for a table that Hive cannot read: the path is what it goes by.
            "InputFormat": "org.apache.hadoop.mapred.SequenceFileInputFormat",
            "OutputFormat": "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
            "SerdeInfo": {
                "SerializationLibrary": "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
                "Parameters": {"serialization.format": "1", "path": location},
            },
        },
    }


def _column(column: pa.Field) -> dict[str, str]:
    comment = (column.metadata or {}).get(b"comment", b"").decode()[:_LONGEST_COMMENT]
    found = {"Name": column.name.lower(), "Type": hive_type(column.type)}
    return found | ({"Comment": comment} if comment else {})


def hive_type(kind: pa.DataType) -> str:
    """Return the name of a type in Glue."""
    if kind in _HIVE:
        return _HIVE[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{hive_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{each.name}:{hive_type(each.type)}' for each in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{hive_type(kind.key_type)},{hive_type(kind.item_type)}>"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return "binary"
    return "string"


def _entry(glue: Any, database: str, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = glue.get_table(DatabaseName=database, Name=name)["Table"]
    except glue.exceptions.EntityNotFoundException:
        return None
    return found


def _refuse_other_place(table: str, entry: Mapping[str, Any] | None, place: str, database: str) -> None:
    location = None if entry is None else entry.get("StorageDescriptor", {}).get("Location", "")
    if entry is None or _plain(location or "") == _plain(place):
        return
    raise UsageError(
        f"{database}.{entry['Name']} in Glue is at {location or 'no place'}, and the table {table!r} is at "
        f"{place}.",
        next_step="Register the lake in another database, or remove that entry.",
        table=table,
        expected=place,
        found=location,
    )


def _plain(place: str) -> str:
    return re.sub(r"^s3[an]://", "s3://", place).rstrip("/")


def _same(entry: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether an entry says all that is wanted, whatever else it says."""
    described, asked = entry.get("StorageDescriptor", {}), wanted["StorageDescriptor"]
    return bool(
        wanted["Parameters"].items() <= entry.get("Parameters", {}).items()
        and described.get("Columns") == asked["Columns"]
        and described.get("SerdeInfo", {}).get("Parameters") == asked["SerdeInfo"]["Parameters"]
    )
