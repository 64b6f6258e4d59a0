"""Tables of QLDB documents, as configured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import pyarrow as pa

from headpond.core.derived import derived_of
from headpond.core.formats import TableEntry, wrong_entry
from headpond.ion.column_types import ion_type_of, parse_ion_type

OFFSET = "#offset_minutes"
"""Ends the name of the column beside a declared timestamp that holds its offset from UTC."""
OFFSET_TYPE = pa.int16()
AGAIN = "#2"
"""Ends the name of a data field whose own name is given to another column by the configuration."""
PARTITION_TYPES = frozenset({"string", "boolean", "bigint"})
"""Types whose values can name folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSpec(TableEntry):
    """One configured table of documents; see `TableEntry` for what all entries have.

    No column of the data is a key: the document's id is.

    Args:
        columns: column → type of `ion.column_types`; others hold canonical JSON.
        keep: `current` (the newest revision of each document) or `history` (every revision).
        partition_by: declared columns of `PARTITION_TYPES`, or functions of declared columns.
        table_id: only revisions of the table with this id; None takes all tables of the name.

    Raises:
        ConfigurationError: the parts contradict each other.
        UsageError: a type does not exist.
    """

    keep: Literal["current", "history"] = "current"
    table_id: str | None = None

    def __post_init__(self) -> None:
        for kind in self.columns.values():
            parse_ion_type(kind)
        wrong, declared = partial(wrong_entry, self.name), set(self.columns)
        if left_out := declared & set(self.except_columns):
            raise wrong(f"leaves out the column {min(left_out)!r}, which it declares", "Keep one of both.")
        self.check_derived()
        for column in self.partition_by:
            if derived_of(column) is not None:
                continue
            if parse_ion_type(self.columns.get(column, "json")).name not in PARTITION_TYPES:
                raise wrong(
                    f"is partitioned by {column!r}, which is not declared as a type that can name folders",
                    f"Declare it as one of {', '.join(sorted(PARTITION_TYPES))}.",
                )

    def declared(self) -> dict[str, pa.DataType]:
        """Column → Arrow type, of the declared columns and the offsets beside timestamps."""
        found: dict[str, pa.DataType] = {}
        for column, kind in self.columns.items():
            found[column] = parse_ion_type(kind).arrow
            if self.is_timestamp(column):
                found[column + OFFSET] = OFFSET_TYPE
        return found

    def stored_as(self, column: str) -> tuple[object, ...]:
        """Return what is equal for two entries under which the values of a column are the same."""
        return (self.declared().get(column, pa.string()), self.columns.get(column, "json") == "json")

    def kind_of(self, kind: pa.DataType) -> str | None:
        """Return a type that is kept as an Arrow type; None where texts are."""
        return ion_type_of(kind)

    def is_timestamp(self, column: str) -> bool:
        """Return whether a column is declared as a timestamp."""
        return column in self.columns and parse_ion_type(self.columns[column]).name == "timestamp"

    def types_by_field(self) -> dict[str, str]:
        """Field of the data → declared type."""
        field_of = {new: old for old, new in self.rename.items()}
        return {field_of.get(column, column): kind for column, kind in self.columns.items()}

    def column_of(self, name: str) -> str | None:
        """Return the column of a data field; None for one that is left out.

        A field that is not renamed, but has the name of a renamed column or of an offset, gets `AGAIN` behind
        its name: a rule that does not depend on what a batch holds.
        """
        column = self.rename.get(name)
        if column is None:
            taken = name in self.rename.values() or (
                name.endswith(OFFSET) and self.is_timestamp(name.removesuffix(OFFSET))
            )
            column = name + AGAIN if taken else name
        return None if column in self.except_columns else column
