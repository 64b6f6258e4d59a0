"""What the decoder of QLDB records must know of the tables; frozen and picklable, it travels to executors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from headpond.changes.config import MAX_COLUMNS, wrong_entry
from headpond.errors import ConfigurationError
from headpond.formats.ion import MAX_DEPTH
from headpond.formats.ion_types import parse_ion_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OFFSET = "#offset_minutes"
"""Ends the name of the column beside a declared timestamp that holds its offset from UTC."""
OFFSET_TYPE = pa.int16()
AGAIN = "#2"
"""Ends the name of a data field whose own name is given to another column by the configuration."""
PARTITION_TYPES = frozenset({"string", "boolean", "bigint"})
"""Types whose values can name folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSpec:
    """One configured table of documents. Column names are those after renaming.

    Args:
        name: the table's name in the lake.
        table: its name in the ledger.
        columns: column → type of `formats.ion_types`; others hold canonical JSON.
        keep: `current` (the newest revision of each document) or `history` (every revision).
        rename: field → column.
        except_columns: columns left out.
        partition_by: columns whose values name folders of the table; declared, of `PARTITION_TYPES`.
        buckets: how many hash buckets of the document are folders besides; null: none.
        target_file_size_bytes: size that the table's files are to have; null leaves it to the writers.

    Raises:
        ConfigurationError: the parts contradict each other.
        UsageError: a type does not exist.
    """

    name: str
    table: str
    columns: Mapping[str, str] = field(default_factory=dict)
    keep: Literal["current", "history"] = "current"
    rename: Mapping[str, str] = field(default_factory=dict)
    except_columns: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    buckets: int | None = None
    target_file_size_bytes: int | None = None

    def __post_init__(self) -> None:
        for kind in self.columns.values():
            parse_ion_type(kind)
        if left_out := set(self.columns) & set(self.except_columns):
            raise wrong_entry(
                self.name, f"leaves out the column {min(left_out)!r}, which it declares", "Keep one of both."
            )
        if renamed := set(self.columns) & (set(self.rename) - set(self.rename.values())):
            raise wrong_entry(
                self.name, f"declares {min(renamed)!r}, which it renames", "Use the new name in columns."
            )
        for column in self.partition_by:
            if parse_ion_type(self.columns.get(column, "json")).name not in PARTITION_TYPES:
                raise wrong_entry(
                    self.name,
                    f"is partitioned by {column!r}, which is not declared as a type that can name folders",
                    f"Declare it as one of {', '.join(sorted(PARTITION_TYPES))}.",
                )

    @property
    def keys(self) -> tuple[str, ...]:
        """No column of the data is a key: the document's id is."""
        return ()

    def declared(self) -> dict[str, pa.DataType]:
        """Column → Arrow type, of the declared columns and the offsets beside timestamps."""
        found: dict[str, pa.DataType] = {}
        for column, kind in self.columns.items():
            found[column] = parse_ion_type(kind).arrow
            if self.is_timestamp(column):
                found[column + OFFSET] = OFFSET_TYPE
        return found

    def is_timestamp(self, column: str) -> bool:
        """Say whether a column is declared as a timestamp."""
        return column in self.columns and parse_ion_type(self.columns[column]).name == "timestamp"

    def types_by_field(self) -> dict[str, str]:
        """Field of the data → declared type."""
        field_of = {new: old for old, new in self.rename.items()}
        return {field_of.get(column, column): kind for column, kind in self.columns.items()}

    def column_of(self, name: str) -> str | None:
        """Give the column of a data field; null for one that is left out.

        A field that is not renamed, but called like a column that the configuration gives to another field or
        to an offset, gets `AGAIN` behind its name: a rule that does not look at what a batch holds.
        """
        column = self.rename.get(name)
        if column is None:
            taken = name in self.rename.values() or (
                name.endswith(OFFSET) and self.is_timestamp(name.removesuffix(OFFSET))
            )
            column = name + AGAIN if taken else name
        return None if column in self.except_columns else column


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    """Tables and rules of one pipeline.

    Args:
        tables: the configured tables; one of the ledger may be there twice, as current state and as history.
        raw_ion: rows have the bytes of `data` in `_ion`.
        canonical_json: rows have the whole `data` as canonical JSON in `_json`.
        honour: the contents of a redacted revision are dropped; else they stay where they came with data.
        verify: hashes are computed, so that the journal can be verified.
        check_deletes: verifying looks at the hashes of deletes, too, for which no real example is known.
        max_depth: bound on the nesting of a record.
        max_columns: bound on the fields that one document may have as columns, and those of a table that are
            decoded together.

    Raises:
        ConfigurationError: two tables have one name, or keep the same thing.
    """

    tables: tuple[DocumentSpec, ...]
    raw_ion: bool = False
    canonical_json: bool = False
    honour: bool = False
    verify: bool = False
    check_deletes: bool = True
    max_depth: int = MAX_DEPTH
    max_columns: int = MAX_COLUMNS

    def __post_init__(self) -> None:
        names: set[str] = set()
        places: set[tuple[str, str]] = set()
        for spec in self.tables:
            if spec.name in names or (spec.table, spec.keep) in places:
                raise ConfigurationError(
                    f"The table {spec.name!r} ({spec.table}, {spec.keep}) is configured twice.",
                    next_step="Remove one of the two, or keep the history in one of them.",
                    table=spec.name,
                )
            names.add(spec.name)
            places.add((spec.table, spec.keep))

    def of_table(self, table: str) -> Iterator[DocumentSpec]:
        """Give the entries of one table of the ledger."""
        return (spec for spec in self.tables if spec.table == table)
