"""A batch of user records → typed changes per table, quarantine and pending chunks. Runs on executors.

::

    user records ─┬─ problem ─────────────────────────────────► quarantine
                  └─ open_batch ───┬─ refused ────────────────► quarantine
                                   ├─ fragment, chunked ──────► pending
                                   └─ full ─ route ─ rows ─┬──► tables["public.orders"]
                                                           └──► quarantine (keys, casts)

The checks that need the configuration follow those of `records`, in the order of the spec: cluster,
unknown table, what ranks below routing, commit time, missing `before`, keys, casts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import distinct
from headpond.core.formats import Decoded, Newest, opened_records, quarantine_rows
from headpond.core.schemas import ORIGIN_COLUMNS, PENDING_SCHEMA, QUARANTINE_SCHEMA, format_versions
from headpond.dsql.batch import open_batch
from headpond.dsql.config import RowChanges, TableSpec, too_long, unknown_spec
from headpond.dsql.opened import Images, images_of
from headpond.dsql.records import CHECKED_AFTER_ROUTING
from headpond.dsql.rows import Routed, typed_rows

_SHOWN = 200  # characters of a name in a detail

CHUNK_IDS = ("chunk_id", "before_chunk_id", "after_chunk_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class DsqlConfig(RowChanges):
    """The change records of Aurora DSQL."""

    def decode(self, batch: pa.RecordBatch | pa.Table) -> Decoded:
        """Decode a batch of `USER_RECORD_SCHEMA`.

        Returns:
            Typed changes, quarantine, pending, and counters: `records`, `changes`, `unknown_op`,
            `out_of_range`, `ignored` (changes of tables that are not configured).
        """
        records, counters, refused = opened_records(batch)
        opened = open_batch(records.column("data"), max_depth=self.max_depth)
        return sort_out(records, opened.rows, self, counters, refused, opened.images)


def sort_out(
    records: pa.RecordBatch,
    decoded: pa.RecordBatch,
    config: RowChanges,
    counters: Counter[str],
    refused: list[pa.RecordBatch],
    images: Images | None = None,
) -> Decoded:
    """Make the checks that need the configuration, and type what is whole.

    Any format whose records become rows of `opened.DECODED_SCHEMA` goes on from here. `refused` are
    quarantine rows found before, `images` those of `decoded`, where they were read already.
    """
    images = images or images_of(decoded)
    if config.only is not None:
        wanted = _wanted(decoded, config)
        records, decoded = records.filter(wanted), decoded.filter(wanted)
        images = images.of(np.flatnonzero(wanted.to_numpy(zero_copy_only=False)))
    reason, detail, route, pairs, entries = _route(decoded, config)
    reason, detail = _in_time(records, decoded, config, reason, detail)
    is_refused = pc.is_valid(reason)
    if pc.any(is_refused).as_py():
        rows = records.filter(is_refused)
        refused.append(quarantine_rows(rows, reason.filter(is_refused), detail.filter(is_refused)))
    accepted = pc.invert(is_refused)
    pending = _pending(records, decoded, pc.and_(accepted, pc.not_equal(decoded.column("verdict"), "full")))
    full = pc.and_(accepted, pc.equal(decoded.column("verdict"), "full")).to_numpy(zero_copy_only=False)
    # Whoever makes a table that no start knew of may have to quarantine its changes.
    whole = config if config.keep_data else replace(config, keep_data=True)
    known = {spec.name for spec in config.tables}
    routed: list[Routed] = []
    for code in distinct(route[full]).tolist():
        at = np.flatnonzero(full & (route == code))
        found = entries[pairs[code]]
        if not found and config.unknown_tables == "ignore":
            counters["ignored"] += len(at)
            continue
        forms = found or (unknown_spec(*pairs[code]),)  # which becomes a raw log
        wanted = (spec for spec in forms if config.only in (None, spec.name))
        routed += [Routed(spec, config if spec.name in known else whole, at) for spec in wanted]
    tables: dict[str, pa.RecordBatch] = {}
    newest: Newest = {}
    counted = set[tuple[str, ...]]()
    for each, typed in zip(routed, typed_rows(records, decoded, images, routed), strict=True):
        refused.extend(quarantine_rows(*part) for part in typed.refused)
        counters["out_of_range"] += typed.out_of_range
        if typed.newest is None:
            continue
        tables[each.spec.name], newest[each.spec.name] = typed.rows, typed.newest
        counters["changes"] += typed.rows.num_rows
        if (source := each.spec.place) not in counted:  # whatever its forms, a change has one op
            counted.add(source)
            counters["unknown_op"] += typed.unknown_ops
    quarantine = pa.concat_batches([pa.RecordBatch.from_pylist([], schema=QUARANTINE_SCHEMA), *refused])
    figures = {name: n for name, n in counters.items() if n}
    return Decoded(tables, quarantine, pending, figures, newest=newest)


def _route(
    decoded: pa.RecordBatch, config: RowChanges
) -> tuple[
    pa.Array,
    pa.Array,
    np.ndarray[Any, np.dtype[np.int64]],
    dict[int, tuple[str, str]],
    dict[tuple[str, ...], tuple[TableSpec, ...]],
]:
    """Return reasons, details, per row the code of its pair, and the pairs of routed rows with their entries.

    A pair is schema and table. Rows without a schema or table have code -1.
    """
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
    pairs: dict[int, tuple[str, str]] = {}
    for code in distinct(route[routable]).tolist():
        at = divmod(code, width)
        pairs[code] = schemas.dictionary[at[0]].as_py(), tables.dictionary[at[1]].as_py()
    entries = config.entries_of(pairs.values())
    for code, pair in pairs.items():
        if entries[pair] or config.only is not None or config.unknown_tables == "ignore":
            continue
        why = f"{pair[0][:_SHOWN]}.{pair[1][:_SHOWN]} is not configured"
        if config.unknown_tables == "log":
            if (long := too_long(*pair)) is None:
                continue
            why = f"not configured, and {long}"
        for row in np.flatnonzero(routable & (route == code)).tolist():
            found.setdefault(row, ("unknown_table", why))
    if found:
        mask = np.zeros(len(reason), bool)
        mask[list(found)] = True
        ordered = [found[row] for row in sorted(found)]
        reason = pc.replace_with_mask(reason, pa.array(mask), pa.array([r for r, _ in ordered], pa.string()))
        detail = pc.replace_with_mask(detail, pa.array(mask), pa.array([d for _, d in ordered], pa.string()))
    return reason, detail, route, pairs, entries


def _in_time(
    records: pa.RecordBatch, decoded: pa.RecordBatch, config: RowChanges, reason: pa.Array, detail: pa.Array
) -> tuple[pa.Array, pa.Array]:
    """Refuse changes committed long after they arrived: nothing could ever supersede them."""
    if config.max_commit_ahead_ms is None:
        return reason, detail
    arrived_us = records.column("approximate_arrival_timestamp").cast(pa.int64())
    # In seconds: a commit time in nanoseconds may be anything up to the year 2262.
    committed_s, arrived_s = pc.divide(decoded.column("ts_ns"), 10**9), pc.divide(arrived_us, 10**6)
    ahead_s = pc.subtract(committed_s, arrived_s)
    late = pc.fill_null(pc.greater(ahead_s, config.max_commit_ahead_ms // 1000), fill_value=False)
    late = pc.and_(late, pc.is_null(reason))
    if not pc.any(late).as_py():
        return reason, detail
    words = pc.binary_join_element_wise(
        "committed", pc.cast(ahead_s, pa.string()), "s after its arrival", " "
    )
    return pc.if_else(late, "future_commit", reason), pc.if_else(late, words, detail)


def _wanted(decoded: pa.RecordBatch, config: RowChanges) -> pa.Array:
    """Return which rows are of the one table wanted, or main records: these must not leave fragments."""
    spec = config.entry(config.only or "")
    assert spec is not None  # whoever asks for one looks it up before
    other = pc.or_(
        pc.not_equal(decoded.column("schema"), spec.schema), pc.not_equal(decoded.column("table"), spec.table)
    )
    passed = pc.and_(
        pc.fill_null(other, fill_value=False), pc.not_equal(decoded.column("verdict"), "chunked")
    )
    return pc.invert(passed)


def _pending(records: pa.RecordBatch, decoded: pa.RecordBatch, mask: pa.Array) -> pa.RecordBatch:
    rows, found = records.filter(mask), decoded.filter(mask)
    columns = {
        "kind": found.column("verdict"),
        **{name: found.column(name) for name in (*CHUNK_IDS, "fragment_index")},
        **{name: rows.column(name) for name in (*ORIGIN_COLUMNS, "data")},
        "format_version": format_versions(rows.num_rows),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in PENDING_SCHEMA.names], schema=PENDING_SCHEMA)
