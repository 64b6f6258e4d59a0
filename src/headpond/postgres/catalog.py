"""What a database's catalog says of its tables: columns, types, NOT NULL, primary keys; as `[tables]`.

Types are those of columns of a change stream (`dsql.pg_types`): a domain counts as what it is made of, and a
type that streams do not have is proposed as `any`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headpond.core.errors import ConfigurationError
from headpond.dsql.pg_types import parse_type

if TYPE_CHECKING:
    from headpond.dsql.config import TableSpec
    from headpond.postgres.connection import Database

# The key comes from the constraint: the index of a key in Aurora DSQL includes all other columns.
_COLUMNS = r"""
SELECT n.nspname::text, c.relname::text, a.attname::text, a.attnotnull,
       format_type(CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE a.atttypid END,
                   CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END),
       array_position(k.conkey, a.attnum), c.reltuples::float8
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_constraint k ON k.conrelid = c.oid AND k.contype = 'p'
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'sys') AND n.nspname NOT LIKE 'pg\_t%'
ORDER BY 1, 2, a.attnum
"""


@dataclass(frozen=True, slots=True)
class DatabaseColumn:
    """A column: its name, its type as the catalog writes it, and whether it may not be NULL."""

    name: str
    type: str
    not_null: bool

    @property
    def declared(self) -> str:
        """The type as a pipeline file declares it; `any` where a change stream has none such."""
        try:
            found = parse_type(self.type)
        except ConfigurationError:
            return "any"
        return f"numeric({found.precision},{found.scale})" if found.is_decimal else found.name

    @property
    def note(self) -> str:
        """What a person should know of the type and of NULL."""
        notes = ["not null"] if self.not_null else []
        if self.declared == "any":
            notes.append(f"{self.type}: change records have no such type")
        elif self.declared == "numeric":
            notes.append(f"{self.type}: kept as text")
        return "; ".join(notes)


@dataclass(frozen=True, slots=True)
class DatabaseTable:
    """A table: its columns in order, its primary key in the key's order, and about how many rows it has."""

    schema: str
    table: str
    columns: list[DatabaseColumn] = field(default_factory=list)
    key: list[str] = field(default_factory=list)
    about: int | None = None

    def column(self, name: str) -> DatabaseColumn:
        """Return a column by its name."""
        return next(each for each in self.columns if each.name == name)


def tables_of(database: Database) -> dict[tuple[str, str], DatabaseTable]:
    """Return every table of a database that is not the system's own, by schema and name."""
    found: dict[tuple[str, str], DatabaseTable] = {}
    keys: dict[tuple[str, str], dict[int, str]] = {}
    with database.connect() as connection, database.errors():
        rows = connection.execute(_COLUMNS).fetchall()
    for schema, table, name, not_null, kind, position, about in rows:
        place = (schema, table)
        known = int(about) if about is not None and about > 0 else None
        entry = found.setdefault(place, DatabaseTable(schema, table, about=known))
        entry.columns.append(DatabaseColumn(name, kind, bool(not_null)))
        if position is not None:
            keys.setdefault(place, {})[position] = name
    for place, entry in found.items():
        entry.key.extend(name for _, name in sorted(keys.get(place, {}).items()))
    return found


def proposal(
    tables: Mapping[tuple[str, str], DatabaseTable], entries: Iterable[TableSpec] = ()
) -> dict[str, Any]:
    """Return the `[tables]` that a catalog asks for, as plain values; `entries` are configured already."""
    configured = {(entry.schema, entry.table): entry.name for entry in entries}
    found: dict[str, Any] = {}
    for place, table in tables.items():
        name = ".".join(place)
        while name in found:  # ("a.b", "c") and ("a", "b.c") are two tables
            name += "_"
        columns = {each.name: {"type": each.declared, "note": each.note} for each in table.columns}
        found[name] = {
            "schema": table.schema,
            "table": table.table,
            "configured_as": configured.get(place),
            "keys": table.key,
            "keys_note": "the primary key" if table.key else "no primary key: kept as a log",
            "columns": columns,
        }
    return {"tables": found}
