"""What a stream's tables look like: keys as deletes name them, types as values allow; to be corrected.

::

    user records ─ decode ─► per table ─┬─ names in `before` of deletes ─► keys
                                        └─ kinds of tokens per column ───► a type that takes all of them

The stream carries no types. A guess is never narrower than what was seen, and says what else it could be: an
integer may be a date or a time, a text may be a number. Of the values only the ends of integers are shown.
`pipeline.proposal` writes the proposal for a pipeline file.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headpond.dsql.batch import decode_batch
from headpond.dsql.pg_types import (
    BASE64_TEXT,
    DATE_FINITE,
    INTEGER_RANGES,
    INTEGER_TOKEN,
    NUMERIC_TEXT,
    SPECIAL_NUMERICS,
    UUID_TEXT,
)
from headpond.dsql.strict_json import read_object, unescape

if TYPE_CHECKING:
    import pyarrow as pa

    from headpond.dsql.config import TableSpec

MAX_COLUMNS = 10_000
"""Columns of one table that are looked at; a table of the service has 255 at a time."""

_MOMENTS = (10**14, 10**16)  # microseconds of the years 1973 to 2286
_BIGINT = INTEGER_RANGES["bigint"]
_OTHERS = {
    **{name: INTEGER_RANGES[name] for name in ("integer", "smallint", "oid")},
    "date (days since 1970)": DATE_FINITE,
    "time (microseconds)": INTEGER_RANGES["time"],
    "interval (microseconds)": INTEGER_RANGES["interval"],
    "real": (-(2**24), 2**24),  # further integers are not all exact there
}
"""Types whose values also come as integers, and between which ends."""
_LEAST_BASE64 = 8  # shorter texts look like Base64 by chance


@dataclass(slots=True)
class ColumnSeen:
    """Tokens of one column: how many of each kind, and what all its texts look like."""

    kinds: Counter[str] = field(default_factory=Counter)
    least: int | None = None
    greatest: int | None = None
    looks: set[str] | None = None  # what every text so far looks like; null before the first

    def add(self, token: str) -> None:
        """Look at one raw JSON token."""
        kind = _kind(token)
        self.kinds[kind] += 1
        if kind == "integer" and len(token) <= len(str(_BIGINT[0])):
            value = int(token)
            self.least = value if self.least is None else min(self.least, value)
            self.greatest = value if self.greatest is None else max(self.greatest, value)
        elif kind == "integer":
            self.kinds["huge"] += 1
        elif kind in ("text", "special"):
            looks = _looks(unescape(token))
            self.looks = looks if self.looks is None else self.looks & looks

    def guess(self) -> tuple[str, str]:
        """Return a type that takes every value seen, and what a person should know of it."""
        kinds = {kind for kind, count in self.kinds.items() if count} - {"null"}
        if not kinds:
            return "any", "only null was seen"
        if kinds == {"boolean"}:
            return "boolean", ""
        if "huge" in kinds:
            return "any", "integers beyond 64 bits"
        if kinds == {"integer"}:
            return self._integer()
        if kinds <= {"integer", "number", "special"} and kinds & {"integer", "number"}:
            return "double precision", "or real"
        if kinds <= {"text", "special"}:
            return "text", self._text()
        if kinds == {"empty list"}:
            return "any", "or oidvector, which always comes as []"
        return "any", "values of several kinds: " + ", ".join(sorted(kinds))

    def _integer(self) -> tuple[str, str]:
        assert self.least is not None
        assert self.greatest is not None
        if self.least < _BIGINT[0] or self.greatest > _BIGINT[1]:
            return "any", "integers beyond 64 bits"
        ends = f"{self.least} to {self.greatest}"
        if self.least >= _MOMENTS[0] and self.greatest < _MOMENTS[1]:
            return "bigint", f"{ends}: timestamp or timestamptz, if these are microseconds since 1970"
        fits = [name for name, (low, high) in _OTHERS.items() if low <= self.least and self.greatest <= high]
        return "bigint", f"{ends}: or " + ", ".join(fits)

    def _text(self) -> str:
        order = ("numeric", "uuid", "json", "bytea")
        named = [name for name in order if name in (self.looks or set())]
        return f"every value looks like {' and '.join(named)}" if named else ""


def _kind(token: str) -> str:
    first = token[0]
    if first == '"':
        return "special" if token[1:-1] in SPECIAL_NUMERICS else "text"
    if first == "n":
        return "null"
    if first in "tf":
        return "boolean"
    if first == "[":
        return "empty list" if not token[1:-1].strip() else "list"
    if first == "{":
        return "object"
    if INTEGER_TOKEN.fullmatch(token):
        return "integer"
    if math.isfinite(float(token)) and float(token) != 0:
        return "number"
    # Zero is a number; what a double cannot hold is not one.
    mantissa = token.lower().partition("e")[0]
    return "number beyond a double" if mantissa.strip("-0.") else "number"


def _looks(text: str) -> set[str]:
    found: set[str] = set()
    if NUMERIC_TEXT.fullmatch(text) or text in SPECIAL_NUMERICS:
        found.add("numeric")
    if UUID_TEXT.fullmatch(text):
        found.add("uuid")
    if text[:1] in ("{", "[") and text[-1:] in ("}", "]"):
        found.add("json")
    if len(text) >= _LEAST_BASE64 and BASE64_TEXT.fullmatch(text):
        found.add("bytea")
    return found


@dataclass(slots=True)
class TableSeen:
    """What was seen of one table."""

    schema: str
    table: str
    upserts: int = 0
    deletes: int = 0
    deletes_without_key: int = 0
    chunked: int = 0
    keys: Counter[tuple[str, ...]] = field(default_factory=Counter)  # names in `before` of deletes
    columns: dict[str, ColumnSeen] = field(default_factory=dict)
    columns_left: int = 0  # values of columns beyond MAX_COLUMNS

    def add(self, op: str, before: str | None, after: str | None, *, chunked: bool) -> None:
        """Look at one change."""
        self.chunked += chunked
        if op != "d":
            self.upserts += 1
            self._look(after)
            return
        self.deletes += 1
        if before is not None:
            self.keys[tuple(sorted(self._look(before)))] += 1
        elif not chunked:
            self.deletes_without_key += 1

    def _look(self, image: str | None) -> list[str]:
        members: Mapping[str, str] = read_object(image) if image is not None else {}
        for name, token in members.items():
            if name not in self.columns and len(self.columns) == MAX_COLUMNS:
                self.columns_left += 1
            else:
                self.columns.setdefault(name, ColumnSeen()).add(token)
        return list(members)

    def guess_keys(self) -> tuple[list[str], str]:
        """Key columns, in the order of the columns, and what a person should know of them."""
        if len(self.keys) == 1 and not self.deletes_without_key:
            ((names, count),) = self.keys.items()
            return [name for name in self.columns if name in names], f"as {count:,} deletes name them"
        if self.keys:
            seen = [
                f"{json.dumps(list(names), ensure_ascii=False)} ({n:,})"
                for names, n in self.keys.most_common(5)
            ]
            if self.deletes_without_key:
                seen.append(f"none ({self.deletes_without_key:,})")
            return [], "deletes disagree: " + ", ".join(seen) + "; name the key to keep current rows"
        if self.deletes_without_key:
            return (
                [],
                f"{self.deletes_without_key:,} deletes name no key: the table has none, and is kept as a log",
            )
        return [], "no delete was seen: name the primary key to keep current rows; without it this is a log"


@dataclass(slots=True)
class Survey:
    """What was seen of a stream so far: user records, and those that are not changes, by reason.

    `fragments` are pieces of chunked changes, which name no table. `logged` are the tables known from their
    raw log alone, with the entries looked at.
    """

    records: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    fragments: int = 0
    tables: dict[tuple[str, str], TableSeen] = field(default_factory=dict)
    logged: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """Look at a batch of `USER_RECORD_SCHEMA`."""
        self.records += batch.num_rows
        problems = batch.column("problem")
        self.refused.update(reason for reason in problems.to_pylist() if reason is not None)
        decoded = decode_batch(batch.filter(problems.is_null()).column("data"))
        wanted = ("verdict", "reason", "op", "schema", "table", "before", "after")
        for verdict, reason, op, schema, table, before, after in zip(
            *(decoded.column(name).to_pylist() for name in wanted), strict=True
        ):
            if verdict == "quarantine":
                self.refused[reason] += 1
            elif verdict == "fragment":
                self.fragments += 1
            else:
                seen = self.tables.setdefault((schema, table), TableSeen(schema, table))
                seen.add(op, before, after, chunked=verdict == "chunked")

    def add_log(self, schema: str, table: str, entries: pa.Table) -> None:
        """Look at entries (`_op`, `_before`, `_after`) of the raw log of a table that is not configured."""
        seen = self.tables.setdefault((schema, table), TableSeen(schema, table))
        self.logged[schema, table] = self.logged.get((schema, table), 0) + entries.num_rows
        columns = (entries[name].to_pylist() for name in ("_op", "_before", "_after"))
        for op, before, after in zip(*columns, strict=True):
            seen.add(op, before, after, chunked=False)


def document(survey: Survey, entries: Iterable[TableSpec] = ()) -> dict[str, Any]:
    """Return the proposal as plain values; `entries` are the tables that are configured already."""
    configured = {(entry.schema, entry.table): entry.name for entry in entries}
    tables: dict[str, Any] = {}
    for place, seen in survey.tables.items():
        keys, note = seen.guess_keys()
        name = ".".join(place)
        while name in tables:  # ("a.b", "c") and ("a", "b.c") are two tables
            name += "_"
        tables[name] = {
            "schema": seen.schema,
            "table": seen.table,
            "configured_as": configured.get(place),
            "upserts": seen.upserts,
            "deletes": seen.deletes,
            "chunked": seen.chunked,
            "from_log": survey.logged.get(place, 0),
            "keys": keys,
            "keys_note": note,
            "columns": {name: _column(column) for name, column in seen.columns.items()},
            "values_left_out": seen.columns_left,
        }
    return {
        "records": survey.records,
        "refused": dict(sorted(survey.refused.items())),
        "fragments": survey.fragments,
        "tables": tables,
    }


def _column(seen: ColumnSeen) -> dict[str, Any]:
    guess, note = seen.guess()
    count = sum(n for kind, n in seen.kinds.items() if kind != "huge")
    return {"type": guess, "note": note, "values": count, "nulls": seen.kinds["null"]}
