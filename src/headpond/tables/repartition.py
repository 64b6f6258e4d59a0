"""Write a table anew, dealt out as the configuration says; rows, columns and their names stay.

::

    property headpond.buckets = 0 ──► all rows, overwritten in one commit ──► headpond.buckets = N
                    a pipeline refuses a table that says 0: what lies between is never merged into

Rows go through memory in batches. The versions before stay readable until a vacuum.
"""

from __future__ import annotations

import queue
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import QueryBuilder, write_deltalake

from headpond.changes.documents import keys_of
from headpond.changes.keys import key_column
from headpond.changes.qldb_config import DocumentSpec
from headpond.errors import UsageError
from headpond.tables.delta import plain_types, quoted, writer_of
from headpond.tables.partitions import BUCKET, PROPERTY, bucket_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalake import DeltaTable

    from headpond.changes.config import TableSpec
    from headpond.tables.typed import TypedTable

_PARTS_AHEAD = 4
_PAUSE_S = 0.2


def repartition(typed: TypedTable, spec: TableSpec | DocumentSpec) -> bool:
    """Deal a table's rows out anew.

    Args:
        typed: the table; nothing else may write to it meanwhile.
        spec: its entry.

    Returns:
        Whether there was anything to do.

    Raises:
        UsageError: there is no such table yet, or it lacks a column that it is to be partitioned by.
    """
    file = typed.file
    if not file.exists():
        raise UsageError(
            f"The table {typed.name!r} is not there yet.",
            next_step="Nothing is to be done: it will be made as its entry says.",
            table=typed.name,
        )
    wanted = typed.wanted_partitions()
    have = wanted.of_file(file)
    if (have.columns, have.buckets) == (wanted.columns, wanted.buckets):
        return False
    schema = file.schema()
    if missing := [column for column in wanted.columns if column not in schema.names]:
        raise UsageError(
            f"The table {typed.name!r} has no column {missing[0]!r} yet.",
            next_step="Let the pipeline run once without partition_by: it adds declared columns.",
            table=typed.name,
        )
    kept = [field for field in schema if field.name != BUCKET]
    made = pa.schema([*kept, *([pa.field(BUCKET, pa.int32())] if wanted.buckets else [])])

    def dealt(part: pa.Table) -> pa.Table:
        if wanted.buckets:
            part = part.append_column(BUCKET, bucket_of(_key_texts(typed, spec, part), wanted.buckets))
        return pa.table(part.columns, schema=made)

    def attempt(table: DeltaTable) -> None:
        with _rows_of(table, [field.name for field in kept]) as parts:
            batches = (batch for part in parts for batch in dealt(part).to_batches())
            write_deltalake(
                table,
                pa.RecordBatchReader.from_batches(made, batches),
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=wanted.all_columns,
                target_file_size=wanted.target_file_bytes,
                writer_properties=writer_of(table),
            )

    file.set_property(PROPERTY, "0")
    file.committing(attempt)
    file.set_property(PROPERTY, str(wanted.buckets or 0))
    return True


def _key_texts(typed: TypedTable, spec: TableSpec | DocumentSpec, rows: pa.Table) -> pa.Array:
    """The canonical texts of the rows' keys, as a batch has them."""
    if isinstance(spec, DocumentSpec):
        return keys_of(rows["_document_id"], rows["_version"] if spec.keep == "history" else None)
    return key_column(spec, {name: rows[typed.column(name)].combine_chunks() for name in spec.keys})


@contextmanager
def _rows_of(table: DeltaTable, columns: Sequence[str]) -> Iterator[Iterator[pa.Table]]:
    """Read a table in parts, in a thread: a reader of deltalake cannot be asked from within its writer."""
    ready: queue.Queue[pa.Table | BaseException | None] = queue.Queue(_PARTS_AHEAD)
    over = threading.Event()

    def put(part: pa.Table | BaseException | None) -> None:
        while not over.is_set():
            with suppress(queue.Full):
                ready.put(part, timeout=_PAUSE_S)
                return

    def read() -> None:
        try:
            query = QueryBuilder().register("t", table)
            for part in query.execute(f"SELECT {', '.join(map(quoted, columns))} FROM t"):  # noqa: S608 - quoted
                rows = pa.Table.from_batches([pa.record_batch(part)])
                put(rows.cast(plain_types(rows.schema)))
                if over.is_set():
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001 - raised by whoever takes the parts
            put(error)

    def taken() -> Iterator[pa.Table]:
        while (part := ready.get()) is not None:
            if isinstance(part, BaseException):
                raise part
            yield part

    reader = threading.Thread(target=read, name="headpond-repartition", daemon=True)
    reader.start()
    try:
        yield taken()
    finally:
        over.set()
        reader.join()
