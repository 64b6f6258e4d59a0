"""A batch of user records → typed changes per table, quarantine and pending chunks. Runs on executors.

::

    user records ─┬─ problem ─────────────────────────────────► quarantine
                  └─ decode_batch ─┬─ refused ────────────────► quarantine
                                   ├─ fragment, chunked ──────► pending
                                   └─ full ─ route ─ rows ─┬──► tables["public.orders"]
                                                           └──► quarantine (keys, casts)

The checks that need the configuration follow those of `formats.dsql`, in the order of the spec: cluster,
unknown table, what ranks below routing, missing `before`, keys, casts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.config import DsqlConfig, TableSpec
from headpond.changes.dsql_rows import typed_rows
from headpond.changes.schemas import ORIGIN_COLUMNS, PENDING_SCHEMA, QUARANTINE_SCHEMA, format_versions
from headpond.changes.unknown import too_long, unknown_spec
from headpond.formats.dsql import CHECKED_AFTER_ROUTING
from headpond.formats.dsql_batch import Shapes, decode_batch
from headpond.formats.dsql_spans import Spans

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Decoded", "DsqlConfig", "Shapes", "TableSpec", "decode", "quarantine_rows"]

_SHOWN = 200  # characters of a name in a detail

OPS = frozenset({"c", "u", "d"})
"""Operations that are known; any other is an upsert and counted `unknown_op`."""


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
    """What a QLDB stream says beside the rows (`qldb_facts`)."""


def decode(batch: pa.RecordBatch | pa.Table, config: DsqlConfig, *, shapes: Shapes | None = None) -> Decoded:
    """Decode a batch of `USER_RECORD_SCHEMA`.

    Args:
        batch: user records.
        config: tables and rules.
        shapes: what was learnt from earlier batches of the stream; null: nothing.

    Returns:
        Typed changes, quarantine, pending, and counters: `records`, `changes`, `unknown_op`, `out_of_range`.
    """
    records, counters, refused = opened_records(batch)
    spans = Spans(records.column("data"))
    decoded = decode_batch(spans.data, max_depth=config.max_depth, spans=spans, shapes=shapes)
    decoded = decoded.append_column("row", pa.array(np.arange(decoded.num_rows)))
    return sort_out(records, decoded, config, counters, refused, spans)


def opened_records(
    batch: pa.RecordBatch | pa.Table,
) -> tuple[pa.RecordBatch, Counter[str], list[pa.RecordBatch]]:
    """Take in a batch of `USER_RECORD_SCHEMA`.

    Returns:
        The records without a problem, the counter `records` of all, and quarantine rows of the others.
    """
    records = _one_batch(batch)
    counters: Counter[str] = Counter(records=records.num_rows)
    refused: list[pa.RecordBatch] = []
    problem = records.column("problem")
    if problem.null_count < len(problem):
        has_problem = pc.is_valid(problem)
        bad = records.filter(has_problem)
        refused.append(quarantine_rows(bad, bad.column("problem"), pa.nulls(bad.num_rows, pa.string())))
        records = records.filter(pc.invert(has_problem))
    return records, counters, refused


def sort_out(  # noqa: PLR0917 - the halves of `decode`
    records: pa.RecordBatch,
    decoded: pa.RecordBatch,
    config: DsqlConfig,
    counters: Counter[str],
    refused: list[pa.RecordBatch],
    spans: Spans | None = None,
) -> Decoded:
    """Make the checks that need the configuration, and type what is whole.

    Any format whose records become rows of `DECODED_SCHEMA` goes on from here.

    Args:
        records: user records.
        decoded: their rows of `formats.dsql_batch.DECODED_SCHEMA`.
        config: tables and rules.
        counters: counted on.
        refused: quarantine rows found before.
        spans: where the values of regular records lie; `decoded` then tells their numbers, as `row`.
    """
    if config.only is not None:
        records, decoded = _wanted(records, decoded, config)
    reason, detail, route = _route(decoded, config)
    is_refused = pc.is_valid(reason)
    if pc.any(is_refused).as_py():
        rows = records.filter(is_refused)
        refused.append(quarantine_rows(rows, reason.filter(is_refused), detail.filter(is_refused)))
    accepted = pc.invert(is_refused)
    pending = _pending(records, decoded, pc.and_(accepted, pc.not_equal(decoded.column("verdict"), "full")))
    full = pc.and_(accepted, pc.equal(decoded.column("verdict"), "full")).to_numpy(zero_copy_only=False)
    tables: dict[str, pa.RecordBatch] = {}
    for code, spec in _routed_specs(decoded, config, route, full).items():
        if config.only not in (None, spec.name):
            continue
        at = np.flatnonzero(full & (route == code))
        rows, bad, counted = typed_rows(records, decoded, spec, config, at=at, spans=spans)
        counters += counted
        refused.extend(quarantine_rows(*part) for part in bad)
        if rows.num_rows:
            tables[spec.name] = rows
            counters["changes"] += rows.num_rows
            counters["unknown_op"] += rows.num_rows - _known_ops(rows.column("m:op"))
    quarantine = _concat(refused, QUARANTINE_SCHEMA)
    return Decoded(tables, quarantine, pending, {name: n for name, n in counters.items() if n})


def quarantine_rows(records: pa.RecordBatch, reason: pa.Array, detail: pa.Array) -> pa.RecordBatch:
    """Quarantine rows of user records: `reason` and `detail` beside their origin and untouched data."""
    arrays = [reason, detail, *(records.column(name) for name in (*ORIGIN_COLUMNS, "data"))]
    return pa.RecordBatch.from_arrays([*arrays, format_versions(records.num_rows)], schema=QUARANTINE_SCHEMA)


def _one_batch(batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    if isinstance(batch, pa.RecordBatch):
        return batch
    batches = batch.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=batch.schema)


def _concat(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    return pa.concat_batches([pa.RecordBatch.from_pylist([], schema=schema), *parts])


def _known_ops(ops: pa.Array) -> int:
    return sum(n["counts"] for n in ops.value_counts().to_pylist() if n["values"] in OPS)


def _route(
    decoded: pa.RecordBatch, config: DsqlConfig
) -> tuple[pa.Array, pa.Array, np.ndarray[Any, np.dtype[np.int64]]]:
    """Reasons, details and, per row, the code of its (schema, table) pair; -1 for rows without one."""
    reason, detail = decoded.column("reason"), decoded.column("detail")
    schemas, tables = (decoded.column(name).dictionary_encode() for name in ("schema", "table"))
    width = max(len(tables.dictionary), 1)
    codes = pc.add(pc.multiply(schemas.indices.cast(pa.int64()), width), tables.indices.cast(pa.int64()))
    route = pc.fill_null(codes, -1).to_numpy(zero_copy_only=False)
    # Rows refused before routing keep their reason; those refused for what ranks below it are asked again.
    routable = (route >= 0) & pc.fill_null(
        pc.or_(pc.is_null(reason), pc.is_in(reason, pa.array(sorted(CHECKED_AFTER_ROUTING)))), fill_value=True
    ).to_numpy(zero_copy_only=False)
    found: dict[int, tuple[str, str]] = {}
    if config.cluster is not None:
        other = pc.fill_null(pc.not_equal(decoded.column("cluster"), config.cluster), fill_value=True)
        for row in np.flatnonzero(routable & other.to_numpy(zero_copy_only=False)).tolist():
            found[row] = ("unexpected_cluster", f"cluster is {decoded.column('cluster')[row].as_py()!r}")
    known = {(spec.schema, spec.table) for spec in config.tables}
    for code in np.unique(route[routable]).tolist():
        pair = _pair(schemas, tables, code)
        if pair in known or config.only is not None:
            continue
        why = f"{pair[0][:_SHOWN]}.{pair[1][:_SHOWN]} is not configured"
        if config.unknown_tables == "log":
            if (long := too_long(*pair)) is None:
                continue
            why = f"not configured, and {long}"
        for row in np.flatnonzero(routable & (route == code)).tolist():
            found.setdefault(row, ("unknown_table", why))
    if found:
        at = np.zeros(len(reason), bool)
        at[list(found)] = True
        ordered = [found[row] for row in sorted(found)]
        reason = pc.replace_with_mask(reason, pa.array(at), pa.array([r for r, _ in ordered], pa.string()))
        detail = pc.replace_with_mask(detail, pa.array(at), pa.array([d for _, d in ordered], pa.string()))
    return reason, detail, route


def _wanted(
    records: pa.RecordBatch, decoded: pa.RecordBatch, config: DsqlConfig
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Leave out the records of other tables, but for main records: they must not leave fragments behind."""
    (spec,) = (spec for spec in config.tables if spec.name == config.only)
    other = pc.or_(
        pc.not_equal(decoded.column("schema"), spec.schema), pc.not_equal(decoded.column("table"), spec.table)
    )
    passed = pc.and_(
        pc.fill_null(other, fill_value=False), pc.not_equal(decoded.column("verdict"), "chunked")
    )
    return records.filter(pc.invert(passed)), decoded.filter(pc.invert(passed))


def _pair(schemas: pa.DictionaryArray, tables: pa.DictionaryArray, code: int) -> tuple[str, str]:
    at = divmod(code, max(len(tables.dictionary), 1))
    return schemas.dictionary[at[0]].as_py(), tables.dictionary[at[1]].as_py()


def _routed_specs(
    decoded: pa.RecordBatch,
    config: DsqlConfig,
    route: np.ndarray[Any, np.dtype[np.int64]],
    full: np.ndarray[Any, np.dtype[np.bool_]],
) -> Mapping[int, TableSpec]:
    """Code → table, of every table that full changes were routed to; an unknown one becomes a raw log."""
    specs = {(spec.schema, spec.table): spec for spec in config.tables}
    schemas, tables = (decoded.column(name).dictionary_encode() for name in ("schema", "table"))
    found: dict[int, TableSpec] = {}
    for code in np.unique(route[full]).tolist():
        pair = _pair(schemas, tables, code)
        found[code] = specs.get(pair) or unknown_spec(*pair)
    return found


def _pending(records: pa.RecordBatch, decoded: pa.RecordBatch, mask: pa.Array) -> pa.RecordBatch:
    rows, found = records.filter(mask), decoded.filter(mask)
    columns = {
        "kind": found.column("verdict"),
        **{
            name: found.column(name)
            for name in ("chunk_id", "fragment_index", "before_chunk_id", "after_chunk_id")
        },
        **{name: rows.column(name) for name in (*ORIGIN_COLUMNS, "data")},
        "format_version": format_versions(rows.num_rows),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in PENDING_SCHEMA.names], schema=PENDING_SCHEMA)
