"""One Delta table through `deltalake`: open, create, widen, read, merge; commits retried on conflict.

Every write goes through `DeltaFile.merge`, so that repeating it changes nothing: rows are matched by
identity and written only where the new one wins.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    QueryBuilder,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake import Field as DeltaField
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from headpond.errors import ServiceFailure
from headpond.tables.commit_lock import commit_lock
from headpond.tables.remote import told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

COMMIT_ATTEMPTS = 10
"""How often a commit that lost against another writer is computed anew."""
FIRST_PAUSE_S = 0.05
PART_ROWS = 500_000
"""Rows that are looked through at once: DataFusion gives 8,192, each a call."""

# A file's least and greatest texts go into its footer and the commit: whole ones of a row of 40 MiB took
# 17 times its size to merge, and 20 times as long.
_LONGEST_BOUND = 64
# Hardly two rows are equal in these: to look for a dictionary is a fifth of what a merge costs.
_WITHOUT_DICTIONARY = {
    name: ColumnProperties(dictionary_enabled=False) for name in ("_image_hash", "_tx_id", "_ts_ns")
}
WRITER = WriterProperties(statistics_truncate_length=_LONGEST_BOUND, column_properties=_WITHOUT_DICTIONARY)
"""How all Parquet files are written, but for what `writer_of` adds."""
_EXACT_DIGITS = 15
_DECIMAL = re.compile(r"decimal\((\d+),")

Result = TypeVar("Result")


def writer_of(table: DeltaTable) -> WriterProperties:
    """Say how the Parquet files of a table are written.

    deltalake 1.6 writes the least and greatest decimals of a file into its commit as doubles, integers beyond
    64 bits as 2⁶³ - 1. Whoever goes by these misses rows: a merge finds no match in such a file and inserts
    a second row of a key. So there are none of decimals that a double may not hold exactly.
    """
    wide = [
        field.name
        for field in table.schema().fields
        if (found := _DECIMAL.match(str(getattr(field.type, "type", "")))) and int(found[1]) > _EXACT_DIGITS
    ]
    if not wide:
        return WRITER
    none = ColumnProperties(dictionary_enabled=True, statistics_enabled="NONE")
    columns = {**_WITHOUT_DICTIONARY, **dict.fromkeys(wide, none)}
    return WriterProperties(statistics_truncate_length=_LONGEST_BOUND, column_properties=columns)


def quoted(name: str, side: str = "") -> str:
    """Quote a column's name for a merge predicate, with `t` (target) or `s` (source) before it."""
    inner = name.replace('"', '""')
    return f'{side}."{inner}"' if side else f'"{inner}"'


def same(columns: Iterable[str]) -> str:
    """Write the SQL that says a target row and a source row are equal in these columns."""
    return " AND ".join(f"{quoted(c, 't')} = {quoted(c, 's')}" for c in columns)


def copied(columns: Iterable[str]) -> dict[str, str]:
    """Write the assignments that take every column from the source."""
    return {quoted(c): quoted(c, "s") for c in columns}


def literal(value: int | str) -> str:
    """Write a number or a text as a SQL literal."""
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _plain(kind: pa.DataType) -> pa.DataType:
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return plain.get(kind, kind)


def plain_types(schema: pa.Schema) -> pa.Schema:
    """Give a schema without view types, which not all of pyarrow's kernels take."""
    return pa.schema([field.with_type(_plain(field.type)) for field in schema])


def _plain_table(batches: list[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches)
    return table.cast(plain_types(table.schema))


class DeltaFile:
    """A Delta table at one place.

    Args:
        uri: a folder, or an object-store URL.
        storage_options: handed to `deltalake` as they are; never printed.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.uri = uri
        self._options = dict(storage_options or {})
        self._table: DeltaTable | None = None

    def exists(self) -> bool:
        """Say whether there is a Delta table at the place."""
        if self._table is not None:
            return True
        # Not `is_deltatable`: it keeps the interpreter's lock while it waits for an object store.
        try:
            self.open()
        except TableNotFoundError:
            return False
        return True

    def open(self) -> DeltaTable:
        """Open the table at its newest version.

        Raises:
            TableNotFoundError: there is none.
        """
        with told(self.uri, self._options):
            if self._table is None:
                self._table = DeltaTable(self.uri, storage_options=self._options)
            else:
                self._table.update_incremental()
        return self._table

    def create(
        self,
        schema: pa.Schema,
        *,
        description: str = "",
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create the table unless it is there."""
        if not self.exists():
            with told(self.uri, self._options):
                DeltaTable.create(
                    self.uri,
                    schema=schema,
                    mode="ignore",
                    description=description or None,
                    partition_by=list(partition_by) or None,
                    configuration=dict(properties or {}),
                    storage_options=self._options,
                    raise_if_key_not_exists=False,
                )

    def schema(self) -> pa.Schema:
        """Give the table's columns as Arrow fields, their Delta metadata included."""
        table = self.open()
        arrow = pa.schema(table.schema().to_arrow())
        metadata = {field.name: field.metadata for field in table.schema().fields}
        return pa.schema([field.with_metadata(metadata.get(field.name) or None) for field in arrow])

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add nullable columns, keeping each field's metadata; columns already there are left."""

        def attempt(table: DeltaTable) -> None:
            have = {field.name for field in table.schema().fields}
            new = [field for field in fields if field.name not in have]
            if not new:
                return
            kinds = DeltaSchema.from_arrow(pa.schema(new)).fields
            table.alter.add_columns(
                [
                    DeltaField(
                        kind.name,
                        kind.type,
                        nullable=True,
                        metadata={k.decode(): v.decode() for k, v in (field.metadata or {}).items()},
                    )
                    for kind, field in zip(kinds, new, strict=True)
                ]
            )

        self.committing(attempt)

    def set_property(self, name: str, value: str | None) -> None:
        """Set a table property unless it is so already; null leaves it as it is."""
        if value is None or self.open().metadata().configuration.get(name) == value:
            return
        self.committing(
            lambda table: table.alter.set_table_properties({name: value}, raise_if_not_exists=False)
        )

    def read(self, columns: Sequence[str] | None = None, where: str | None = None) -> pa.Table:
        """Read rows into memory: the named columns of those rows for which SQL `where` holds.

        DataFusion does the reading: it skips files by their statistics and knows deletion vectors. Its view
        types are turned into plain ones, which all of pyarrow's kernels take.
        """
        return self.query([*map(quoted, columns)] if columns is not None else ["*"], where)

    def query(self, expressions: Sequence[str], where: str | None = None) -> pa.Table:
        """Read SQL expressions over the rows for which SQL `where` holds."""
        condition = f" WHERE {where}" if where is not None else ""
        query = QueryBuilder().register("t", self.open())
        with told(self.uri, self._options):
            table = pa.table(query.execute(f"SELECT {', '.join(expressions)} FROM t{condition}").read_all())  # noqa: S608 - quoted
        return table.cast(plain_types(table.schema))

    def parts(
        self, columns: Sequence[str], where: str | None = None, *, rows: int = PART_ROWS
    ) -> Iterator[pa.Table]:
        """Read the named columns of those rows for which SQL `where` holds, at least so many rows at a time.

        For rows of which few are kept: a table may be larger than memory.
        """
        condition = f" WHERE {where}" if where is not None else ""
        query = QueryBuilder().register("t", self.open())
        with told(self.uri, self._options):
            reader = query.execute(f"SELECT {', '.join(map(quoted, columns))} FROM t{condition}")  # noqa: S608 - quoted
            held: list[pa.RecordBatch] = []
            count = 0
            for part in reader:
                held.append(pa.record_batch(part))
                count += held[-1].num_rows
                if count >= rows:
                    yield _plain_table(held)
                    held, count = [], 0
            if held:
                yield _plain_table(held)

    def count(self) -> int:
        """Count the rows from the file statistics, without reading data where those are complete."""
        if self.has_deletion_vectors():
            # deltalake's own figure counts the rows that these take out of their files.
            return int(self.query(["count(*) AS n"])["n"][0].as_py())
        return int(self.open().count())

    def has_deletion_vectors(self) -> bool:
        """Say whether rows may have been taken out of the table's files by deletion vectors."""
        return "deletionVectors" in (self.open().protocol().reader_features or ())

    def version(self) -> int:
        """Give the newest version's number."""
        return int(self.open().version())

    def has_applied(self, transaction: tuple[str, int]) -> bool:
        """Say whether a commit of this application and number, or of a later number, stands in the table."""
        application, number = transaction
        known = self.open().transaction_version(application)
        return known is not None and known >= number

    def merge(
        self,
        rows: pa.Table,
        *,
        match: str,
        update: Mapping[str, str] | None = None,
        update_if: str | None = None,
        insert: Mapping[str, str] | None = None,
        insert_if: str | None = None,
        delete_if: str | None = None,
        transaction: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        """Merge `rows` (alias `s`) into the table (alias `t`) in one commit.

        Args:
            rows: the source, at most one row per target row.
            match: SQL that says when a source row and a target row are one.
            update: target column → source expression, for matched rows where `update_if` holds.
            update_if: SQL over `s` and `t`; null means always.
            insert: target column → source expression, for source rows without a match.
            insert_if: SQL over `s`; null means always.
            delete_if: SQL over `s` and `t`; null means never.
            transaction: application id and number stored with the commit, unless the table has that number
                or a greater one already: then this is a repeat, whose rows are compared all the same.

        Returns:
            deltalake's figures of the merge.
        """

        def attempt(table: DeltaTable) -> dict[str, Any]:
            # deltalake would record a number again, or a lesser one over it; what is new is up to the rows.
            properties = None
            if transaction is not None and not self.has_applied(transaction):
                properties = CommitProperties(app_transactions=[Transaction(*transaction)])
            merger = table.merge(
                rows,
                predicate=match,
                source_alias="s",
                target_alias="t",
                # A source that may be looked at beforehand: files that its keys cannot be in are not read.
                streamed_exec=False,
                writer_properties=writer_of(table),
                commit_properties=properties,
            )
            if delete_if is not None:
                merger = merger.when_matched_delete(predicate=delete_if)
            if update:
                merger = merger.when_matched_update(updates=dict(update), predicate=update_if)
            if insert:
                merger = merger.when_not_matched_insert(updates=dict(insert), predicate=insert_if)
            return merger.execute()

        return self.committing(attempt)

    def append(
        self, rows: pa.Table, *, writer: WriterProperties, transaction: tuple[str, int] | None = None
    ) -> None:
        """Append rows in one commit, without looking at what is there.

        Args:
            rows: all of the table's columns.
            writer: how the Parquet file is written.
            transaction: as for `merge`.
        """

        def attempt(table: DeltaTable) -> None:
            properties = None
            if transaction is not None and not self.has_applied(transaction):
                properties = CommitProperties(app_transactions=[Transaction(*transaction)])
            write_deltalake(
                table, rows, mode="append", writer_properties=writer, commit_properties=properties
            )

        self.committing(attempt)

    def update(self, updates: Mapping[str, str], predicate: str) -> None:
        """Set columns (quoted) to SQL expressions in the rows for which SQL `predicate` holds."""
        self.committing(
            lambda table: table.update(
                updates=dict(updates), predicate=predicate, writer_properties=writer_of(table)
            )
        )

    def delete(self, predicate: str) -> dict[str, Any]:
        """Delete the rows for which SQL `predicate` holds."""
        return self.committing(lambda table: table.delete(predicate, writer_properties=writer_of(table)))

    def committing(self, attempt: Callable[[DeltaTable], Result]) -> Result:
        """Do something that commits; where another writer was faster, do it anew on that one's result.

        Raises:
            ServiceFailure: the other was faster `COMMIT_ATTEMPTS` times.
        """
        pause = FIRST_PAUSE_S
        for number in range(1, COMMIT_ATTEMPTS + 1):
            try:
                with commit_lock(self.uri), told(self.uri, self._options):
                    return attempt(self.open())
            except CommitFailedError as lost:
                # Another writer (OPTIMIZE, VACUUM, a second job) was faster: compute on its result.
                self._table = None
                if number == COMMIT_ATTEMPTS:
                    raise ServiceFailure(
                        f"the Delta table at {self.uri} refused the commit {COMMIT_ATTEMPTS} times: {lost}",
                        next_step="Look for another writer of the same rows and stop one of the two.",
                        table=self.uri,
                    ) from lost
                time.sleep(pause)
                pause *= 2
        raise AssertionError  # the loop returns or raises


__all__ = ["DeltaFile", "TableNotFoundError", "copied", "literal", "quoted", "same"]
