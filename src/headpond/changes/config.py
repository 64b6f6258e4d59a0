"""What the decoder of DSQL changes must know of the tables; frozen and picklable, it travels to executors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from headpond.errors import ConfigurationError
from headpond.formats.dsql_types import arrow_type, parse_type
from headpond.formats.json_strict import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Mapping

NTZ_TIMESTAMP = pa.timestamp("us")
UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")

PARTITION_TYPES = frozenset(
    {"smallint", "integer", "bigint", "oid", "boolean", "date", "text", "varchar", "bpchar", "name", "uuid"}
)
"""Types whose values can name folders."""
UNKNOWN = "unknown:"
"""Begins the names of the logs of tables that are not configured (`changes.unknown`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """One configured table. Column names are those after renaming.

    Args:
        name: the table's name in the lake.
        schema: its schema in the database.
        table: its name in the database.
        keys: key columns, in order; none means an append-only log.
        columns: column → PostgreSQL type; others hold raw JSON text.
        keep: `current`, `history` or `log`; default `current` with keys, `log` without.
        rename: name in the stream → name in the lake.
        except_columns: columns left out.
        dedupe: what makes two log entries one: their place in the stream, or their content.
        timestamps: what a PostgreSQL `timestamp` becomes: one without a time zone (`timestamp_ntz`), or one
            in UTC, for readers of Delta that do not know the former.
        raw: a log of images alone, without columns of their values.
        partition_by: columns whose values name folders of the table; declared columns of a type in
            `PARTITION_TYPES`, or keys.
        buckets: how many hash buckets of the key are folders besides; null: none.
        target_file_size_bytes: size that the table's files are to have; null leaves it to the writers.

    Raises:
        ConfigurationError: the parts contradict each other, or a type does not exist.
    """

    name: str
    schema: str
    table: str
    keys: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    keep: Literal["current", "history", "log"] | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    except_columns: tuple[str, ...] = ()
    dedupe: Literal["identity", "content"] = "identity"
    timestamps: Literal["ntz", "utc"] = "ntz"
    raw: bool = False
    partition_by: tuple[str, ...] = ()
    buckets: int | None = None
    target_file_size_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.keep is None:
            object.__setattr__(self, "keep", "current" if self.keys else "log")
        if not self.keys and self.keep != "log":
            raise wrong_entry(
                self.name, f"has no keys but keep = {self.keep!r}", 'Name its keys, or write keep = "log".'
            )
        if len(set(self.keys)) < len(self.keys):
            raise wrong_entry(
                self.name, f"names a key twice: {', '.join(self.keys)}", "Name each key column once."
            )
        if left_out := set(self.keys) & set(self.except_columns):
            raise wrong_entry(self.name, f"leaves out its key {min(left_out)!r}", "Keep key columns.")
        if renamed := (set(self.keys) | set(self.columns)) & (set(self.rename) - set(self.rename.values())):
            raise wrong_entry(
                self.name, f"uses {min(renamed)!r}, which it renames", "Use the new name in keys and columns."
            )
        for column, kind in self.columns.items():
            if parse_type(kind).name == "oidvector" and column in self.keys and self.keep != "log":
                raise wrong_entry(
                    self.name,
                    f"has the key {column!r} of type {kind}, whose values a stream does not carry",
                    "Name other keys, or write keys = [] to keep a log of its changes.",
                )
        self._check_partitions()

    def type_of(self, column: str) -> pa.DataType:
        """Give the Arrow type of a declared column."""
        kind = arrow_type(self.columns[column])
        return UTC_TIMESTAMP if self.timestamps == "utc" and kind == NTZ_TIMESTAMP else kind

    def is_raw(self, column: str) -> bool:
        """Say whether a column holds JSON text: it is not declared, or as `any`."""
        return parse_type(self.columns.get(column, "any")).name == "any"

    def values_of(self, values: pa.Array) -> pa.Array:
        """Give values that were cast by PostgreSQL type as this table keeps them."""
        if self.timestamps == "utc" and values.type == NTZ_TIMESTAMP:
            return values.cast(UTC_TIMESTAMP)  # the same microseconds
        return values

    def _check_partitions(self) -> None:
        if self.buckets is not None and not self.keys:
            raise wrong_entry(
                self.name, "has buckets but no keys to hash", "Leave out buckets, or name its keys."
            )
        for column in self.partition_by:
            if column in self.except_columns or not (column in self.columns or column in self.keys):
                raise wrong_entry(
                    self.name,
                    f"is partitioned by {column!r}, which it need not have",
                    "Declare the column in columns, or partition by a key.",
                )
            kind = self.columns.get(column)
            if kind is not None and parse_type(kind).name not in PARTITION_TYPES:
                raise wrong_entry(
                    self.name,
                    f"is partitioned by {column!r} of type {kind}",
                    f"Partition by a column of one of the types {', '.join(sorted(PARTITION_TYPES))}.",
                )


def wrong_entry(table: str, what: str, next_step: str) -> ConfigurationError:
    """Give the error of a table's entry that contradicts itself."""
    return ConfigurationError(f"The table {table!r} {what}.", next_step=next_step, table=table)


MAX_COLUMNS = 1_600
"""Columns that one change may name: PostgreSQL's own bound for a table; Aurora DSQL has 255."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DsqlConfig:
    """Tables and rules of one pipeline.

    Args:
        tables: the configured tables.
        format: which decoder reads the records (`changes.decoders`).
        cluster: changes of another cluster are quarantined as `unexpected_cluster`; None takes all.
        unknown_tables: `quarantine`, or `log`: a raw log per table, named by `changes.unknown`.
        infinity: what becomes of infinite and out-of-range dates and timestamps; in keys they are errors.
        special_numeric: what becomes of NaN and infinities in decimal columns; in keys they are errors.
        keep_data: changes of keyed tables keep their record in `m:data`, so that `latest.too_late` can
            quarantine them; without it such a change goes to quarantine with empty data.
        max_depth: bound on the nesting of a record.
        max_columns: bound on the columns that one change may name, and those of a table that are decoded
            together.
        only: the name of the one table whose changes are wanted, when it is caught up; those of every other
            table are passed over, for someone else has them.

    Raises:
        ConfigurationError: two tables are the same one, or have one name.
    """

    tables: tuple[TableSpec, ...]
    format: str = "dsql"
    cluster: str | None = None
    unknown_tables: Literal["quarantine", "log"] = "quarantine"
    infinity: Literal["clamp", "null", "error"] = "clamp"
    special_numeric: Literal["error", "null"] = "error"
    keep_data: bool = True
    max_depth: int = MAX_DEPTH
    max_columns: int = MAX_COLUMNS
    only: str | None = None

    def __post_init__(self) -> None:
        names: set[str] = set()
        places: set[tuple[str, str]] = set()
        for spec in self.tables:
            if spec.name.startswith(UNKNOWN) and not spec.raw:
                raise ConfigurationError(
                    f"The table {spec.name!r} is named like the log of a table that is not configured.",
                    next_step=f"Give it a name that does not begin with {UNKNOWN!r}.",
                    table=spec.name,
                )
            if spec.name in names or (spec.schema, spec.table) in places:
                raise ConfigurationError(
                    f"The table {spec.name!r} ({spec.schema}.{spec.table}) is configured twice.",
                    next_step="Remove one of the two.",
                    table=spec.name,
                )
            names.add(spec.name)
            places.add((spec.schema, spec.table))
