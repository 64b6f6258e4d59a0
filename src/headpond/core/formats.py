"""What a format of changes says of itself, and what its decoder gives: where formats and lakes meet.

::

    user records ─ ChangeFormat.decode ─┬► tables      typed changes of each configured table
                                        ├► quarantine  records that are wrong, with a reason
                                        ├► pending     chunks that wait for others
                                        └► facts       what is kept beside the tables
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, Self
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.derived import MAX_BUCKETS, derived_in
from headpond.core.errors import ConfigurationError
from headpond.core.schemas import ORIGIN_COLUMNS, PENDING_SCHEMA, QUARANTINE_SCHEMA, format_versions

INTERNAL_ERROR = "internal_error"
"""The reason of a record on which headpond itself failed."""
_SHOWN_FAULT = 300

MAX_COLUMNS = 1_600
"""Columns that one change may name: PostgreSQL's own bound for a table; Aurora DSQL has 255."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """One configured table, of whatever format; column names are those after renaming.

    `name` is the table's name in the lake, `table` that at the source. `columns` has types in the format's
    own words; others hold JSON text. `keep` is `current` (the newest version of each key), `history` (every
    version) or `log` (every change). `partition_by` has columns and functions of columns (`core.derived`);
    `buckets` of the key are folders besides those;
    `target_file_size_bytes` None leaves the size to the writers. `deletion_vectors` says whether rows may be
    marked as gone where files would be written again; None leaves that as the table is. `table_properties`
    are Delta's, `comments` those of columns.
    """

    name: str
    table: str
    keys: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    keep: Literal["current", "history", "log"] | None = "current"
    rename: Mapping[str, str] = field(default_factory=dict)
    except_columns: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    buckets: int | None = None
    target_file_size_bytes: int | None = None
    deletion_vectors: bool | None = None
    table_properties: Mapping[str, str] = field(default_factory=dict)
    comments: Mapping[str, str] = field(default_factory=dict)

    @property
    def form(self) -> str:
        """The form of its rows: `current`, `soft`, `history` or `log`."""
        return self.keep or "current"

    @property
    def known_as(self) -> str:
        """The name under which deletes of its keys are remembered."""
        return self.name

    def declared(self) -> dict[str, pa.DataType]:
        """Return the Arrow type of each declared column, in the configured order."""
        raise NotImplementedError

    def stored_as(self, column: str) -> tuple[object, ...]:
        """Return what is equal for two entries under which the values of a column are the same."""
        raise NotImplementedError

    def kind_of(self, kind: pa.DataType) -> str | None:
        """Return a type in the format's words that is kept as an Arrow type; None where texts are."""
        raise NotImplementedError

    def is_key_rule_moot(self) -> bool:
        """Return whether all rules of key texts give the same."""
        return True

    def check_derived(self) -> None:
        """Raise where `partition_by` has a function of a column that it cannot follow from."""
        for each in derived_in(self.partition_by):
            kind = self.declared().get(each.column)
            if kind is None or each.column in self.except_columns:
                raise wrong_entry(
                    self.name,
                    f"is partitioned by {each}, and {each.column!r} has no type",
                    "Declare it in columns.",
                )
            if not each.takes(kind):
                raise wrong_entry(
                    self.name,
                    f"is partitioned by {each}, and {each.column!r} is {self.columns[each.column]}",
                    "Take day, month or hour of a timestamp, month of a date, and bucket, of up to "
                    f"{MAX_BUCKETS:,}, of a whole number, a text, a UUID or a date.",
                )

    @property
    def place(self) -> tuple[str, ...]:
        """Where the table is at the source."""
        return (self.table,)

    def at(self, place: tuple[str, ...], name: str) -> Self:
        """Return the same of a table at another place, by its name in the lake."""
        return replace(self, table=place[-1], name=name)


class ChangeFormat(Protocol):
    """The rules of one pipeline for one format of changes; frozen and picklable, it travels to executors.

    Attributes:
        kept_as: which version of a key wins and what is kept beside the tables, as `lake.tables` names it:
            `rows` by their commit time, `documents` by their own version.
    """

    kept_as: ClassVar[str]

    @property
    def tables(self) -> Sequence[TableEntry]:
        """The configured tables."""

    @property
    def patterns(self) -> Sequence[TableEntry]:
        """Entries that stand for every table whose name matches."""

    @property
    def max_unknown_tables(self) -> int:
        """How many tables may be made because a pattern matches."""

    def entry(self, name: str) -> TableEntry | None:
        """Return the entry of a table by its name in the lake, as `patterns.Entries.entry`."""

    def with_tables(self, entries: Iterable[Any]) -> Self:
        """Return the same rules with more tables."""

    def decode(self, batch: pa.RecordBatch | pa.Table) -> Decoded:
        """Decode a batch of `USER_RECORD_SCHEMA`; bytes that are wrong go to quarantine and never raise."""

    def for_run(self, *, only: str | None, keep_data: bool) -> Self:
        """Return the rules of one run: for all tables or `only` one, with or without the data."""


Newest = dict[str, tuple[int, int | None]]
"""Table → when its newest change was committed, and how much later its source sent it, nanoseconds.

The latter is None where the source does not say; clocks may make it negative.
"""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a batch of user records holds.

    `tables` maps a table's name in the lake to its typed batch (`schemas.OWN_FIELDS`, then `c:` columns; a
    declared column is always there, an undeclared one where the batch brought it).
    """

    tables: dict[str, pa.RecordBatch]
    quarantine: pa.RecordBatch
    pending: pa.RecordBatch
    counters: dict[str, int]
    facts: dict[str, pa.RecordBatch] = field(default_factory=dict)
    """What is kept beside the tables, by the name of its own table (`qldb.decode`)."""
    newest: Newest = field(default_factory=dict)


def add_newest(into: Newest, found: Mapping[str, tuple[int, int | None]]) -> None:
    """Add what others know of tables: of each the newest change counts."""
    for table, (commit_ns, delay_ns) in found.items():
        if table not in into or into[table][0] < commit_ns:
            into[table] = commit_ns, delay_ns


def decoded_parts(config: ChangeFormat, batch: pa.RecordBatch | pa.Table) -> Iterator[Decoded]:
    """Decode a batch whatever its records do: one that the decoder fails on goes to quarantine.

    As a rule that is one part. Where `decode` raises, which is a defect of headpond, the batch is halved
    until the record is found: its reason is `internal_error`, its detail names the fault and where it arose.
    What is not a record's fault, too little memory or a failing disk, is raised.
    """
    try:
        yield config.decode(batch)
    except (MemoryError, OSError):
        raise
    except Exception as fault:  # noqa: BLE001 - whatever a record does, the others go on
        records = one_batch(batch)
        if records.num_rows > 1:
            half = records.num_rows // 2
            yield from decoded_parts(config, records.slice(0, half))
            yield from decoded_parts(config, records.slice(half))
            return
        reason, detail = (pa.array([text], pa.string()) for text in (INTERNAL_ERROR, shown_fault(fault)))
        pending = pa.RecordBatch.from_pylist([], schema=PENDING_SCHEMA)
        yield Decoded({}, quarantine_rows(records, reason, detail), pending, {"records": 1})


def shown_fault(fault: BaseException) -> str:
    """Return the type of an unexpected error, its first words, and the line of code where it arose."""
    at = "".join(
        f" in {frame.filename.rpartition('headpond/')[2]}:{frame.lineno}"
        for frame in traceback.extract_tb(fault.__traceback__)[-1:]
    )
    return f"{type(fault).__name__}{at}: {str(fault)[:_SHOWN_FAULT]}"


def opened_records(
    batch: pa.RecordBatch | pa.Table,
) -> tuple[pa.RecordBatch, Counter[str], list[pa.RecordBatch]]:
    """Split off the records that cannot be read, because what they came in is damaged.

    Returns the others, the counter `records` of all, and quarantine rows.
    """
    records = one_batch(batch)
    counters: Counter[str] = Counter(records=records.num_rows)
    problem = records.column("problem")
    if problem.null_count == len(problem):
        return records, counters, []
    has_problem = pc.is_valid(problem)
    bad = records.filter(has_problem)
    refused = quarantine_rows(bad, bad.column("problem"), pa.nulls(bad.num_rows, pa.string()))
    return records.filter(pc.invert(has_problem)), counters, [refused]


def quarantine_rows(records: pa.RecordBatch, reason: pa.Array, detail: pa.Array) -> pa.RecordBatch:
    """Return quarantine rows of user records: reason and detail, their origin and untouched data."""
    arrays = [reason, detail, *(records.column(name) for name in (*ORIGIN_COLUMNS, "data"))]
    return pa.RecordBatch.from_arrays([*arrays, format_versions(records.num_rows)], schema=QUARANTINE_SCHEMA)


def quarantined_changes(rows: pa.Table, reason: str, detail: str) -> pa.Table:
    """Return quarantine rows of typed changes, all with one reason and detail."""
    columns = {name: rows[f"m:{name}"] for name in (*ORIGIN_COLUMNS, "data")}
    own = {"reason": pa.repeat(reason, rows.num_rows), "detail": pa.repeat(detail, rows.num_rows)}
    versions = {"format_version": format_versions(rows.num_rows)}
    return pa.table(columns | own | versions, schema=QUARANTINE_SCHEMA)


def one_batch(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    """Return rows as one record batch."""
    if isinstance(rows, pa.RecordBatch):
        return rows
    batches = rows.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)


@dataclass(slots=True)
class NameBound:
    """How many columns a batch may name: each name becomes an array over all its rows, and a column.

    `most` bounds those of one record, and of all that are not refused; None: any number. `said` says how many
    a record has (`the image names {} columns`), `names` are those that were admitted.
    """

    most: int | None
    said: str
    names: set[str] = field(default_factory=set)

    def refuses(self, found: Sequence[str]) -> str | None:
        """Admit the names of a record, or return why not."""
        if self.most is None:
            return None
        if len(found) > self.most:
            return f"{self.said.format(len(found))}, more than {self.most}"
        new = [name for name in found if name not in self.names]
        if len(self.names) + len(new) > self.most:
            beside = f"beside the {len(self.names)} of others of its batch"
            return f"{self.said.format(len(new))} {beside}; together they are more than {self.most}"
        self.names.update(new)
        return None


def wrong_entry(table: str, what: str, next_step: str) -> ConfigurationError:
    """Return the error of a table's entry that contradicts itself or another one."""
    return ConfigurationError(f"The table {table!r} {what}.", next_step=next_step, table=table)


MAX_FOLDER_BYTES = 255
"""Longest name of one folder on the file systems in use."""
_PLAIN = "[A-Za-z0-9._~-]"


def unwritable(column: str, values: pa.Array) -> list[int]:
    """Return the rows whose value in this partition column is too long to name a folder; only text can be."""
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)) or not len(values):
        return []
    # A column's name in Delta is escaped itself, and once more in the folder's name.
    room = MAX_FOLDER_BYTES - len(quote(quote(column, safe=""), safe="")) - len("=")
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    if longest * 3 <= room:
        return []
    size = pc.binary_length(values)
    plain = pc.count_substring_regex(values, _PLAIN)
    taken = pc.subtract(pc.multiply(size, 3), pc.multiply(plain, 2))
    over = pc.fill_null(pc.greater(taken, room), fill_value=False)
    found: list[int] = np.flatnonzero(over.to_numpy(zero_copy_only=False)).tolist()
    return found
