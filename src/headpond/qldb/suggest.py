"""What the tables of a ledger look like: Ion types as the documents have them, for a person to correct.

::

    user records ─ decode ─► revisions ─► per table and field: values of each Ion type ─► a type that takes
                                                                                          all of them

No column need be declared: one that is not holds canonical JSON. A guess takes every value that was seen, and
says what it would lose: digits of a second beyond the sixth, annotations. `pipeline.proposal` writes the
proposal
for a pipeline file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headpond.ion import binary
from headpond.ion.binary import Node, decimal_parts, fields, integer
from headpond.ion.stream import only_value
from headpond.ion.text import field_name
from headpond.ion.timestamps import read_timestamp
from headpond.qldb.batch import decode_user_data
from headpond.qldb.records import OK

if TYPE_CHECKING:
    import pyarrow as pa

    from headpond.qldb.config import DocumentSpec

MAX_FIELDS = 10_000
"""Fields of one table that are looked at."""
_MAX_PRECISION = 38
_MICROSECONDS = 6
_INT64 = 2**63
_EXACT = frozenset({"int", "decimal"})
_NUMBERS = _EXACT | {"float"}


@dataclass(slots=True)
class FieldSeen:
    """Values of one field.

    Attributes:
        kinds: how many of each Ion type, nulls of any type as `null`.
        annotated: how many have annotations.
        whole: most digits before the point, of ints and decimals.
        scale: most digits after it.
        huge: ints and decimals beyond 64 bits or with a fraction: no bigint.
        fine: timestamps with digits beyond the microsecond.
        offsets: timestamps whose offset is another than UTC's.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    annotated: int = 0
    whole: int = 1
    scale: int = 0
    huge: bool = False
    fine: int = 0
    offsets: int = 0

    def add(self, data: bytes, node: Node) -> None:
        """Look at one value that was checked."""
        self.annotated += node.annotated
        if node.is_null:
            self.kinds["null"] += 1
            return
        self.kinds[binary.TYPE_NAMES[binary.INT if node.kind == binary.NEGATIVE_INT else node.kind]] += 1
        if node.kind in (binary.INT, binary.NEGATIVE_INT):
            value = integer(data, node)
            self.huge |= not -_INT64 <= value < _INT64
            self._digits(value.bit_length(), value, 0)
        elif node.kind == binary.DECIMAL:
            _, coefficient, exponent = decimal_parts(data, node)
            self._digits(coefficient.bit_length(), coefficient, exponent)
        elif node.kind == binary.TIMESTAMP:
            time = read_timestamp(data, node)
            self.fine += time.digits > _MICROSECONDS
            self.offsets += time.offset_minutes not in (0, None)

    def _digits(self, bits: int, value: int, exponent: int) -> None:
        if bits > 4 * _MAX_PRECISION or abs(exponent) > _MAX_PRECISION:  # more digits than any decimal has
            self.whole = self.scale = _MAX_PRECISION
            return
        digits = len(str(abs(value)))
        self.whole = max(self.whole, digits + exponent)
        self.scale = max(self.scale, -exponent)

    def guess(self) -> tuple[str, str]:  # noqa: C901 - one per type
        """Return a type that takes every value seen, and what a person should know of it."""
        kinds = {kind for kind, count in self.kinds.items() if count} - {"null"}
        if self.annotated:
            return "json", f"{self.annotated:,} values have annotations, which other types leave out"
        if not kinds:
            return "json", "only null was seen"
        if kinds <= {"string", "symbol"}:
            return "string", "symbols among them" if "symbol" in kinds else ""
        if kinds == {"bool"}:
            return "boolean", ""
        if kinds == {"int"} and not self.huge:
            return "bigint", ""
        if kinds <= _EXACT:
            if self.whole + self.scale > _MAX_PRECISION:
                return "string", f"exact text: more than {_MAX_PRECISION} digits"
            return f"decimal({self.whole + self.scale},{self.scale})", "no wider than what was seen"
        if kinds <= _NUMBERS:
            return "double", "ints and decimals are rounded" if kinds & _EXACT else ""
        if kinds == {"timestamp"}:
            return "timestamp", self._time()
        if kinds <= {"blob", "clob"}:
            return "binary", ""
        several = ", ".join(sorted(kinds))
        return "json", f"values of several types: {several}" if len(kinds) > 1 else several

    def _time(self) -> str:
        notes = []
        if self.offsets:
            notes.append(f"{self.offsets:,} with an offset other than UTC, which gets its own column")
        if self.fine:
            notes.append(f"{self.fine:,} finer than a microsecond, which is cut; declare string to keep it")
        return "; ".join(notes)


@dataclass(slots=True)
class LedgerTableSeen:
    """What was seen of one table."""

    ids: set[str] = field(default_factory=set)
    documents: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)
    fields: dict[str, FieldSeen] = field(default_factory=dict)
    left: int = 0  # values of fields beyond MAX_FIELDS

    def add(self, raw: bytes) -> None:
        """Look at the contents of one revision."""
        part = only_value(raw)
        for sid, node in fields(part.data, part.node):
            name = field_name(part.symbols, sid, node)
            if name not in self.fields and len(self.fields) == MAX_FIELDS:
                self.left += 1
            else:
                self.fields.setdefault(name, FieldSeen()).add(part.data, node)


@dataclass(slots=True)
class LedgerSurvey:
    """What was seen of a ledger's records so far: user records, and those that are not QLDB's, by reason."""

    records: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    blocks: int = 0
    controls: int = 0
    tables: dict[str, LedgerTableSeen] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """Look at a batch of `USER_RECORD_SCHEMA`."""
        self.records += batch.num_rows
        problems = batch.column("problem")
        self.refused.update(reason for reason in problems.to_pylist() if reason is not None)
        data = batch.filter(problems.is_null()).column("data")
        decoded = decode_user_data(data, verify=False)
        self.refused.update(one for one in decoded.verdicts["verdict"].to_pylist() if one != OK)
        self.blocks += decoded.blocks.num_rows
        self.controls += decoded.controls.num_rows
        wanted = ("table_name", "table_id", "document_id", "kind", "data")
        for name, table_id, document, kind, raw in zip(
            *(decoded.revisions[column].to_pylist() for column in wanted), strict=True
        ):
            if name is None:  # an exported block that does not name its document's table
                self.refused["unknown_table"] += 1
                continue
            seen = self.tables.setdefault(name, LedgerTableSeen())
            seen.ids.add(table_id)
            seen.documents.add(document)
            seen.kinds[kind] += 1
            if raw is not None:
                seen.add(raw)


def ledger_document(survey: LedgerSurvey, entries: Iterable[DocumentSpec] = ()) -> dict[str, Any]:
    """Return the proposal as plain values; `entries` are the tables that are configured already."""
    configured: dict[str, list[str]] = {}
    for entry in entries:
        configured.setdefault(entry.table, []).append(entry.name)
    return {
        "records": survey.records,
        "refused": dict(sorted(survey.refused.items())),
        "blocks": survey.blocks,
        "controls": survey.controls,
        "tables": {
            name: {
                "table_ids": sorted(seen.ids),
                "configured_as": configured.get(name, []),
                "documents": len(seen.documents),
                "revisions": dict(sorted(seen.kinds.items())),
                "columns": {column: _column(one) for column, one in seen.fields.items()},
                "values_left_out": seen.left,
            }
            for name, seen in survey.tables.items()
        },
    }


def _column(seen: FieldSeen) -> dict[str, Any]:
    guess, note = seen.guess()
    return {"type": guess, "note": note, "ion_types": dict(sorted(seen.kinds.items()))}
