"""A table that was configured later, caught up from the raw log that its changes went to before.

::

    _headpond/unknown/public.orders ─ in order of commit times ─ as records ─ decoded ─► public.orders
                                                                                    └──► quarantine

The images are as they came, so each change is what it would have been from the beginning; versions make the
seam to what the running pipeline applies meanwhile exact, and a repetition harmless. The log stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.errors import UsageError
from headpond.core.formats import decoded_parts
from headpond.core.schemas import ORIGIN_COLUMNS, USER_RECORD_SCHEMA, filled, quote, whole
from headpond.dsql.config import TableSpec
from headpond.lake.apply import Applied, DecodedBatch, apply_batch
from headpond.lake.state.rows import RowTables
from headpond.lake.tables import Lake
from headpond.lake.targets.log import BY_PLACE, LogTable

ROWS_AT_ONCE = 50_000
BYTES_AT_ONCE = 64 << 20

_ENTRY = ["_op", "_ts_ns", "_tx_id", "_before", "_after"]


@dataclass(slots=True)
class CaughtUp:
    """Entries of the log that were applied, the figures of the table, and what was quarantined."""

    entries: int = 0
    applied: Applied = field(default_factory=Applied)

    def figures(self, table: str) -> Counter[str]:
        """Return the figures of the table."""
        return self.applied.tables.get(table, Counter())


def catch_up_from_log(
    lake: Lake,
    table: str,
    *,
    rows_at_once: int = ROWS_AT_ONCE,
    bytes_at_once: int = BYTES_AT_ONCE,
    say: Callable[[str], None] = lambda _: None,
) -> CaughtUp:
    """Apply every change of a table's raw log to the table; may be repeated while the pipeline runs.

    A part has at most `rows_at_once` entries with `bytes_at_once` of images, but whole commit times.
    """
    kept = RowTables.of(lake)
    spec = configured(lake, table)
    log = kept.unknown.find(spec.schema, spec.table)
    if log is None or not log.typed.file.exists():
        raise UsageError(
            f"There is no raw log of {spec.schema}.{spec.table}, from which {table!r} could be caught up.",
            next_step="Catch up from the start of the stream or archive (--from-start), or, where its "
            "changes were quarantined, with `headpond requeue --reason unknown_table`.",
            table=table,
        )
    lake.make([table])
    # The bytes stay with each change: one that is too late goes to quarantine with them.
    config = kept.config_of(lake).for_run(only=table, keep_data=True)
    done = CaughtUp()
    for first_ns, last_ns in _spans(log, rows_at_once, bytes_at_once):
        where = f'"_ts_ns" BETWEEN {first_ns} AND {last_ns}'
        entries = log.typed.file.read([*_ENTRY, *BY_PLACE], where)
        batch = DecodedBatch.of(decoded_parts(config, _as_they_came(entries, spec, config.cluster)))
        done.entries += entries.num_rows
        done.applied.add(apply_batch(lake, batch, shared=True))
        say(f"{done.entries:,} changes of the log applied")
    return done


def configured(lake: Lake, table: str) -> TableSpec:
    """Return the entry of a configured table, which the lake has from then on if a pattern stands for it."""
    given = RowTables.of(lake).config
    if given.entry(table) is None:
        names = ", ".join(spec.name for spec in (*given.tables, *given.patterns)) or "none"
        raise UsageError(
            f"The pipeline has no table {table!r}.",
            next_step=f"It has {names}. Add a [tables] entry first.",
            table=table,
        )
    lake.take_in([table])
    found = RowTables.config_of(lake).entry(table)
    assert found is not None
    return found


def _spans(log: LogTable, rows_at_once: int, bytes_at_once: int) -> Iterator[tuple[int, int]]:
    """Yield first and last commit time of parts, in order: a delete comes after what it deletes."""
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


def _as_they_came(entries: pa.Table, spec: TableSpec, cluster: str | None) -> pa.Table:
    """Return entries as user records, equal in content and not in bytes."""
    count = entries.num_rows
    columns = {name: whole(entries[name]) for name in entries.column_names}
    record: dict[str, Any] = {name: columns[f"_{name}"] for name in ORIGIN_COLUMNS if f"_{name}" in columns}
    record |= {"aggregated": pa.repeat(False, count), "data": _records(columns, spec, cluster)}
    return filled(record, USER_RECORD_SCHEMA, count)


def _records(entries: dict[str, pa.Array], spec: TableSpec, cluster: str | None) -> pa.Array:
    """Return change records with what the log knows."""
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
