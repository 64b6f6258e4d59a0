"""A table that was configured later, caught up from the raw log that its changes went to before.

::

    _headpond/unknown/public.orders ─ in order of commit times ─ keys, casts ─► public.orders
                                                                          └──► quarantine, as whole records

The images are as they came, so each change is what it would have been from the beginning; versions make the
seam to what the running pipeline applies meanwhile exact, and a repetition harmless. The log stays.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.dsql import quarantine_rows
from headpond.changes.dsql_rows import typed_rows
from headpond.changes.model import quote
from headpond.changes.schemas import ORIGIN_COLUMNS, whole
from headpond.errors import UsageError
from headpond.formats.dsql_batch import DECODED_SCHEMA
from headpond.formats.rows import USER_RECORD_SCHEMA
from headpond.tables.apply import Applied, DecodedBatch
from headpond.tables.beside import apply_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headpond.changes.config import DsqlConfig, TableSpec
    from headpond.tables.lake import Lake
    from headpond.tables.log import LogTable

ROWS_AT_ONCE = 50_000
BYTES_AT_ONCE = 64 << 20

_ENTRY = ["_op", "_ts_ns", "_tx_id", "_before", "_after"]
_PLACE = ["_stream", "_shard_id", "_sequence_number", "_sub_sequence_number"]


@dataclass(slots=True)
class CaughtUp:
    """What a catch-up did.

    Attributes:
        entries: of the log.
        applied: the table's figures, and what was quarantined.
    """

    entries: int = 0
    applied: Applied = field(default_factory=Applied)

    def figures(self, table: str) -> Counter[str]:
        """The figures of the table."""
        return self.applied.tables.get(table, Counter())


def catch_up_from_log(
    lake: Lake,
    config: DsqlConfig,
    table: str,
    *,
    rows_at_once: int = ROWS_AT_ONCE,
    bytes_at_once: int = BYTES_AT_ONCE,
    say: Callable[[str], None] = lambda _: None,
    between: Callable[[str], None] = lambda _: None,
) -> CaughtUp:
    """Apply every change of a table's raw log to the table; may be repeated, and run beside the pipeline.

    Args:
        lake: the lake.
        config: tables and rules.
        table: the table's name as configured.
        rows_at_once: bound on the entries of one part.
        bytes_at_once: bound on the images of one part; the changes of one commit time come together.
        say: told how far it is.
        between: called with the name of each write before it is done.

    Raises:
        UsageError: there is no such table, or it has no raw log.
    """
    spec = configured(config, table)
    unknown = lake.unknown.find(spec.schema, spec.table)
    if unknown is None or not unknown.log.typed.file.exists():
        raise UsageError(
            f"There is no raw log of {spec.schema}.{spec.table}, from which {table!r} could be caught up.",
            next_step="Catch up from the start of the stream or archive (--from-start), or, where its "
            "changes were quarantined, with `headpond requeue --reason unknown_table`.",
            table=table,
        )
    lake.typed[table].prepare()
    done = CaughtUp()
    for first_ns, last_ns in _spans(unknown.log, rows_at_once, bytes_at_once):
        where = f'"_ts_ns" BETWEEN {first_ns} AND {last_ns}'
        entries = unknown.log.typed.file.read([*_ENTRY, *_PLACE], where)
        records, decoded = _as_they_came(entries, spec, config.cluster)
        rows, refused, counters = typed_rows(records, decoded, spec, config)
        batch = DecodedBatch({table: pa.Table.from_batches([rows])} if rows.num_rows else {})
        batch.quarantine = pa.Table.from_batches(
            [quarantine_rows(*part) for part in refused], batch.quarantine.schema
        )
        batch.counters.update(counters)
        done.entries += entries.num_rows
        done.applied.add(apply_beside(lake, batch, between=between))
        say(f"{done.entries:,} changes of the log applied")
    return done


def configured(config: DsqlConfig, table: str) -> TableSpec:
    """Find a configured table.

    Raises:
        UsageError: there is none of this name.
    """
    spec = next((spec for spec in config.tables if spec.name == table), None)
    if spec is None:
        names = ", ".join(spec.name for spec in config.tables) or "none"
        raise UsageError(
            f"The pipeline has no table {table!r}.",
            next_step=f"It has {names}. Add a [tables] entry first.",
            table=table,
        )
    return spec


def _spans(log: LogTable, rows_at_once: int, bytes_at_once: int) -> Iterator[tuple[int, int]]:
    """First and last commit time of parts, in order: a delete comes after what it deletes."""
    size = 'coalesce(octet_length("_before"), 0) + coalesce(octet_length("_after"), 0) AS size'
    light = log.typed.file.query(['"_ts_ns"', size]).sort_by("_ts_ns")
    first: int | None = None
    last, rows, held = 0, 0, 0
    for ts_ns, size_bytes in zip(light["_ts_ns"].to_pylist(), light["size"].to_pylist(), strict=True):
        full = rows >= rows_at_once or held + size_bytes > bytes_at_once
        if first is not None and full and ts_ns != last:
            yield first, last
            first, rows, held = None, 0, 0
        first = ts_ns if first is None else first
        last, rows, held = ts_ns, rows + 1, held + size_bytes
    if first is not None:
        yield first, last


def _as_they_came(
    entries: pa.Table, spec: TableSpec, cluster: str | None
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Entries as user records and their decoded rows; the records say the same, in other bytes."""
    entries = entries.combine_chunks()
    count = entries.num_rows
    columns = {name: whole(entries[name]) for name in entries.column_names}
    known: dict[str, Any] = {
        "verdict": pa.repeat("full", count),
        "op": columns["_op"],
        "schema": pa.repeat(spec.schema, count),
        "table": pa.repeat(spec.table, count),
        "version": pa.repeat("1.0", count),
        "ts_ns": columns["_ts_ns"],
        "tx_id": columns["_tx_id"],
        "before": columns["_before"],
        "after": columns["_after"],
    }
    decoded = [known.get(each.name, pa.nulls(count, each.type)) for each in DECODED_SCHEMA]
    origin = {name: columns[f"_{name}"] for name in ORIGIN_COLUMNS if f"_{name}" in columns}
    record: dict[str, Any] = origin | {
        "aggregated": pa.repeat(False, count),
        "data": _records(columns, spec, cluster),
    }
    arrays = [
        record.get(each.name, pa.nulls(count, each.type)).cast(each.type) for each in USER_RECORD_SCHEMA
    ]
    return (
        pa.RecordBatch.from_arrays(arrays, schema=USER_RECORD_SCHEMA),
        pa.RecordBatch.from_arrays(decoded, schema=DECODED_SCHEMA),
    )


def _records(entries: dict[str, pa.Array], spec: TableSpec, cluster: str | None) -> pa.Array:
    """Change records that hold what the log knows: what quarantine keeps of a change that does not fit."""
    named = f'"schema":{quote(spec.schema)},"table":{quote(spec.table)}'
    named += "" if cluster is None else f',"cluster":{quote(cluster)}'
    quoted = {
        name: pa.array(list(map(quote, entries[name].to_pylist())), pa.string()) for name in ("_op", "_tx_id")
    }
    images = {name: pc.fill_null(entries[name], "null") for name in ("_before", "_after")}
    texts = pc.binary_join_element_wise(
        '{"type":"full","op":', quoted["_op"], ',"before":', images["_before"], ',"after":', images["_after"],
        ',"source":{"version":"1.0",', named, ',"ts_ns":', entries["_ts_ns"].cast(pa.string()), ',"txId":',
        quoted["_tx_id"], "}}", "",
    )  # fmt: skip
    return texts.cast(pa.binary())
