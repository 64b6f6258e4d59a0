"""The tables and rules of formats whose records are changes of rows with PostgreSQL types.

A table that is not configured has, when the configuration is open, a raw log with a name of its own::

    schema "public", table "orders"      unknown:public.orders
    schema "a.b",    table "c"           unknown:a%2Eb.c

A name is a function of schema and table alone, and no two tables share one. The prefix keeps these names
apart from configured ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, Self
from urllib.parse import unquote

import pyarrow as pa

from headpond.core.derived import derived_of
from headpond.core.formats import MAX_COLUMNS, Decoded, TableEntry, wrong_entry
from headpond.core.patterns import Entries, encoded
from headpond.dsql.pg_types import INTEGER_RANGES, TEXT_TYPES, arrow_type, is_wider, parse_type, pg_type_of
from headpond.dsql.strict_json import MAX_DEPTH

NTZ_TIMESTAMP = pa.timestamp("us")
UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")

PARTITION_TYPES = frozenset(
    {"smallint", "integer", "bigint", "oid", "boolean", "date", "text", "varchar", "bpchar", "name", "uuid"}
)
"""Types whose values can name folders."""
UNKNOWN = "unknown:"
"""Begins the names of the logs of tables that are not configured (`unknown_name`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec(TableEntry):
    """One configured table whose changes are those of rows, as `pipeline.model.Table` describes it.

    Args:
        raw: a log of images alone, without columns of their values.
        key_rule: how key texts are written (`dsql.versions`); 1 of tables that were made before.
        key_epoch: counts what deletes are remembered by; another one with other key texts.

    Raises:
        ConfigurationError: the parts contradict each other, or a type does not exist.
    """

    schema: str
    keep: Literal["current", "history", "log"] | None = None
    dedupe: Literal["identity", "content"] = "identity"
    timestamps: Literal["ntz", "utc"] = "ntz"
    deletes: Literal["hard", "soft"] = "hard"
    raw: bool = False
    type_changes: Literal["refuse", "widen"] = "refuse"
    key_rule: int = 2
    key_epoch: int = 0

    def __post_init__(self) -> None:
        if self.keep is None:
            object.__setattr__(self, "keep", "current" if self.keys else "log")
        wrong = partial(wrong_entry, self.name)
        if self.name.startswith(UNKNOWN) and not self.raw:
            raise wrong(
                "is named like the log of a table that is not configured",
                f"Give it a name that does not begin with {UNKNOWN!r}.",
            )
        if not self.keys and self.keep != "log":
            raise wrong(f"has no keys but keep = {self.keep!r}", 'Name its keys, or write keep = "log".')
        if len(set(self.keys)) < len(self.keys):
            raise wrong(f"names a key twice: {', '.join(self.keys)}", "Name each key column once.")
        if left_out := {*self.keys} & {*self.except_columns}:
            raise wrong(f"leaves out its key {min(left_out)!r}", "Keep key columns.")
        if self.deletes == "soft" and self.keep != "current":
            raise wrong(
                f'has deletes = "soft" and keep = {self.keep!r}, in which nothing is deleted',
                'Write deletes = "hard", or keep = "current".',
            )
        for column, kind in self.columns.items():
            if parse_type(kind).name == "oidvector" and column in self.keys and self.keep != "log":
                raise wrong(
                    f"has the key {column!r} of type {kind}, whose values a stream does not carry",
                    "Name other keys, or write keys = [] to keep a log of its changes.",
                )
        self._check_partitions()

    def _check_partitions(self) -> None:
        wrong = partial(wrong_entry, self.name)
        if self.buckets is not None and not self.keys:
            raise wrong("has buckets but no keys to hash", "Leave out buckets, or name its keys.")
        self.check_derived()
        for column in self.partition_by:
            if derived_of(column) is not None:
                continue
            if column in self.except_columns or not (column in self.columns or column in self.keys):
                raise wrong(
                    f"is partitioned by {column!r}, which it need not have",
                    "Declare the column in columns, or partition by a key.",
                )
            kind = self.columns.get(column, "text")
            if parse_type(kind).name not in PARTITION_TYPES:
                raise wrong(
                    f"is partitioned by {column!r} of type {kind}",
                    f"Partition by a column of one of the types {', '.join(sorted(PARTITION_TYPES))}.",
                )

    @property
    def place(self) -> tuple[str, ...]:
        """Schema and table."""
        return self.schema, self.table

    def at(self, place: tuple[str, ...], name: str) -> Self:
        """Return the same of another table."""
        return replace(self, schema=place[0], table=place[1], name=name)

    def declared(self) -> dict[str, pa.DataType]:
        """Return the Arrow type of each declared column that is not left out."""
        return {each: self.type_of(each) for each in self.columns if each not in self.except_columns}

    def type_of(self, column: str) -> pa.DataType:
        """Return the Arrow type of a column; one that is not declared holds JSON text."""
        kind = arrow_type(self.columns.get(column, "any"))
        return UTC_TIMESTAMP if self.timestamps == "utc" and kind == NTZ_TIMESTAMP else kind

    @property
    def form(self) -> str:
        """The form of its rows, as `TableEntry.form` has it."""
        return "soft" if self.deletes == "soft" else self.keep or "current"

    @property
    def known_as(self) -> str:
        """The name under which deletes of its keys are remembered: another one with other key texts."""
        return f"{self.name}\n{self.key_epoch}" if self.key_epoch else self.name

    @property
    def key_order(self) -> tuple[str, ...]:
        """The key columns in the order that key texts have."""
        return tuple(sorted(self.keys)) if self.key_rule > 1 else self.keys

    def stored_as(self, column: str) -> tuple[object, ...]:
        """Return what is equal for two entries under which the values of a column are the same."""
        kind = parse_type(self.columns.get(column, "any"))
        as_key = column in self.keys and self.keep != "log" and kind.is_loose
        return (self.type_of(column), self.is_raw(column), (kind.name, self.key_rule) if as_key else None)

    def written_as(self, key: str) -> tuple[object, ...]:
        """Return what is equal for two entries under which key texts have the same for a value."""
        kind = parse_type(self.columns.get(key, "any"))
        if kind.is_loose:
            return (kind.name, self.key_rule)
        if kind.name in INTEGER_RANGES:
            return ("digits",)
        return ("text",) if kind.name in TEXT_TYPES else (self.type_of(key), kind.name)

    def widens(self, have: Self, columns: Iterable[str]) -> bool:
        """Return whether some columns have a wider type here than in another entry."""
        kinds = ([parse_type(each.columns.get(name, "any")) for each in (self, have)] for name in columns)
        return all(is_wider(kind, than) for kind, than in kinds)

    def kind_of(self, kind: pa.DataType) -> str | None:
        """Return a type that is kept as an Arrow type; None where texts are."""
        return pg_type_of(kind)

    def is_key_rule_moot(self) -> bool:
        """Return whether both rules of key texts give the same."""
        loose = (parse_type(self.columns.get(key, "any")).is_loose for key in self.keys)
        return self.keep == "log" or (list(self.keys) == sorted(self.keys) and not any(loose))

    def is_raw(self, column: str) -> bool:
        """Return whether a column holds JSON text: it is not declared, or as `any`."""
        return parse_type(self.columns.get(column, "any")).name == "any"

    def values_of(self, values: pa.Array) -> pa.Array:
        """Return values that were cast by PostgreSQL type as this table keeps them."""
        if self.timestamps == "utc" and values.type == NTZ_TIMESTAMP:
            return values.cast(UTC_TIMESTAMP)  # the same microseconds
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges(Entries[TableSpec], ABC):
    """A format whose records are changes of rows, as `pipeline.model.Source` and `Target` describe it.

    Args:
        tables: the configured tables; one of the database may be there in several forms (`keep`).
        patterns: entries that stand for every table whose names match.
        made: names of the tables that are configured by those.
        keep_data: changes of keyed tables keep their record in `m:data`, so that `newest.too_late` can
            quarantine them; without it such a change goes to quarantine with empty data.
        max_depth: bound on the nesting of a record.
        only: the name of the one table whose changes are wanted, when it is caught up.
    """

    kept_as: ClassVar[str] = "rows"

    tables: tuple[TableSpec, ...]
    patterns: tuple[TableSpec, ...] = ()
    made: tuple[str, ...] = ()
    cluster: str | None = None
    unknown_tables: Literal["quarantine", "log", "ignore"] = "quarantine"
    max_unknown_tables: int = 1_000
    infinity: Literal["clamp", "null", "error"] = "clamp"
    special_numeric: Literal["error", "null"] = "error"
    max_commit_ahead_ms: int | None = 24 * 3_600_000
    keep_data: bool = True
    max_depth: int = MAX_DEPTH
    max_columns: int = MAX_COLUMNS
    only: str | None = None

    @abstractmethod
    def decode(self, batch: pa.RecordBatch | pa.Table) -> Decoded:
        """Decode a batch of user records: make rows of `DECODED_SCHEMA`, then `dsql.decode.sort_out`."""

    def for_run(self, *, only: str | None, keep_data: bool) -> Self:
        """Return the rules of one run."""
        return replace(self, only=only, keep_data=keep_data)


MAX_NAME_BYTES = 255
"""Longest schema or table name, in UTF-8, that gets a log; the service allows 63."""


def unknown_spec(schema: str, table: str) -> TableSpec:
    """Return the raw log of a table that is not configured."""
    return TableSpec(name=unknown_name(schema, table), schema=schema, table=table, raw=True)


def unknown_name(schema: str, table: str) -> str:
    """Name the log of a table that is not configured; what cannot be printed is written as ``%XX``."""
    return f"{UNKNOWN}{encoded(schema, '%.')}.{encoded(table, '%.')}"


def schema_and_table(name: str) -> tuple[str, str]:
    """Return schema and table back from the name of such a log."""
    schema, _, table = name.removeprefix(UNKNOWN).partition(".")
    return unquote(schema), unquote(table)


def too_long(schema: str, table: str) -> str | None:
    """Return what is too long for a log's name; None when nothing is."""
    for what, text in (("schema", schema), ("table", table)):
        if (size := len(text.encode())) > MAX_NAME_BYTES:
            return (
                f"the {what} name {text[:40]!r}… takes {size} bytes, more than the {MAX_NAME_BYTES} of a log"
            )
    return None
