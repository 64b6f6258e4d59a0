"""Full change records of one table → typed rows, and those whose keys or values are wrong.

::

    after   {"id": 1, "qty": 5}  ─┐ members      tokens of "id"   ─ cast ─► c:id
    before  {"id": 2}   (delete) ─┘ per row ──►  tokens of "qty"  ─ cast ─► c:quantity  (renamed)
                                                 canonical texts  ─ sha ──► m:image_hash
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import distinct
from headpond.core.formats import one_batch, unwritable
from headpond.core.schemas import COLUMNS_TYPE, ORIGIN_COLUMNS, OWN_FIELDS, QUARANTINE_SCHEMA, filled, quote
from headpond.dsql.columns import first_bytes, holding, trimmed
from headpond.dsql.config import RowChanges, TableSpec
from headpond.dsql.opened import Images, Members
from headpond.dsql.pg_types import CastOptions
from headpond.dsql.strict_json import read_object
from headpond.dsql.versions import (
    NO_IMAGE_HASH,
    canonical_token,
    cast_values,
    encode_versions,
    image_hash,
    key_column,
    sha256_each,
)

_ORIGIN_TYPES = {name: QUARANTINE_SCHEMA.field(name).type for name in ORIGIN_COLUMNS}

Refusals = tuple[pa.RecordBatch, pa.Array, pa.Array]
"""User records, their reasons and their details."""


@dataclass(slots=True)
class _Rows:
    """Rows of one table on their way, and those that were refused."""

    records: pa.RecordBatch
    decoded: pa.RecordBatch
    at: np.ndarray[Any, np.dtype[np.int64]]  # which of both they are
    tokens: dict[str, pa.Array]  # raw tokens per column, as named in the stream
    columns: pa.Array  # `m:columns`
    refused: list[Refusals] = field(default_factory=list)

    def drop(self, reasons: Mapping[int, tuple[str, str]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Move rows to the refused ones; give the mask of those that stay."""
        kept = np.ones(len(self.at), bool)
        if reasons:
            bad = sorted(reasons)
            kept[bad] = False
            why = [pa.array([reasons[row][part] for row in bad], pa.string()) for part in (0, 1)]
            self.refused.append((self.records.take(pa.array(self.at[bad])), why[0], why[1]))
            mask = pa.array(kept)
            self.at = self.at[kept]
            self.tokens = {name: tokens.filter(mask) for name, tokens in self.tokens.items()}
            self.columns = self.columns.filter(mask)
        return kept

    def fact(self, name: str) -> pa.Array:
        """Return a column of the decoded rows."""
        return self.decoded.column(name).take(pa.array(self.at))

    def origin(self, name: str) -> pa.Array:
        """Return a column of the user records."""
        return self.records.column(name).take(pa.array(self.at))


def typed_rows(
    records: pa.RecordBatch,
    decoded: pa.RecordBatch,
    spec: TableSpec,
    config: RowChanges,
    images: Images,
    *,
    at: np.ndarray[Any, np.dtype[np.int64]] | None = None,
) -> tuple[pa.RecordBatch, list[Refusals], Counter[str]]:
    """Type the full changes of one table: user records, and their rows of `opened.DECODED_SCHEMA` and images.

    `at` are the rows that are `full` and routed to this table, ascending; None: all.

    Returns:
        Typed rows, the refused ones, and counters.
    """
    counters: Counter[str] = Counter()
    at = np.arange(records.num_rows) if at is None else at
    members = images.members(
        at,
        _mask(pc.equal(decoded.column("op"), "d"))[at],
        delete_image="before" if spec.keys else "after",
        max_columns=None if spec.raw else config.max_columns,
    )
    if spec.raw:  # images alone: their values are not looked at, but for the hash
        rows = _Rows(records, decoded, at, members.tokens, pa.nulls(len(at), COLUMNS_TYPE))
        delete = pc.equal(rows.fact("op"), "d")
        own = _own(rows, delete, spec, config) | {
            "m:image_hash": image_hashes(rows.tokens, delete),
            "m:key": pa.nulls(len(at), pa.string()),
            "m:data": rows.origin("data"),  # a lake takes in only so many such tables
        }
        return one_batch(filled(own, pa.schema(OWN_FIELDS), len(at))), [], counters
    rows = _Rows(records, decoded, at, members.tokens, _named_columns(members, spec))
    problems = _key_problems(rows, members, spec)
    rows.drop(problems | _too_wide(members))
    if not len(rows.at):
        # No key was seen then, and a key that is not declared has no column.
        return pa.RecordBatch.from_pylist([], schema=pa.schema(OWN_FIELDS)), rows.refused, counters
    tokens, twice = _renamed(rows.tokens, spec)
    values, failures = _values(rows, _named(rows, tokens, spec), spec, config, counters)
    if dropped := failures | twice:
        kept = pa.array(rows.drop(dropped))
        values = {name: array.filter(kept) for name, array in _named(rows, values, spec).items()}
    delete = pc.equal(rows.fact("op"), "d")
    arrays = _own(rows, delete, spec, config)
    left_out = _left_out(spec)
    seen = {name: array for name, array in rows.tokens.items() if name not in left_out}
    arrays["m:image_hash"] = image_hashes(seen, delete)
    if spec.dedupe == "content":  # hashes of deletes are of the key that they name
        named = pc.and_(delete, pc.is_valid(rows.fact("before")))
        found = [image_hash(text) for text in rows.fact("before").filter(named).to_pylist()]
        hashes = pa.array(found, pa.binary())
        arrays["m:image_hash"] = pc.replace_with_mask(arrays["m:image_hash"], named, hashes)
    count = len(rows.at)
    arrays["m:key"] = key_column(spec, values) if spec.keys else pa.nulls(count, pa.string())
    values = {name: array for name, array in values.items() if name not in spec.except_columns}
    schema = pa.schema([*OWN_FIELDS, *(pa.field(f"c:{name}", array.type) for name, array in values.items())])
    columns = [*(arrays[field.name] for field in OWN_FIELDS), *values.values()]
    return pa.RecordBatch.from_arrays(columns, schema=schema), rows.refused, counters


def columns_named(shape: Sequence[str], count: int, spec: TableSpec) -> pa.Array:
    """`m:columns` of `count` images that name the same columns."""
    return _named_columns(Members([tuple(shape)], np.zeros(count, np.int32), {}), spec)


def _named_columns(members: Members, spec: TableSpec) -> pa.Array:
    """`m:columns` of each image; images of one shape share an entry."""
    texts: dict[str, int] = {}
    entry = [
        texts.setdefault(
            json.dumps(sorted({spec.rename.get(name, name) for name in shape}), ensure_ascii=False),
            len(texts),
        )
        for shape in members.shapes
    ]
    indices = np.array(entry, np.int32)[members.codes] if entry else members.codes
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(list(texts), pa.string()))


def _key_problems(rows: _Rows, members: Members, spec: TableSpec) -> dict[int, tuple[str, str]]:
    """Rows with `missing_before`, `missing_key` or `key_mismatch`, the first of these that holds."""
    problems: dict[int, tuple[str, str]] = {}
    if not spec.keys:
        return problems
    is_delete = _mask(pc.equal(rows.fact("op"), "d"))
    deletes = np.flatnonzero(is_delete)
    lacking = _mask(pc.is_null(rows.decoded.column("before").take(pa.array(rows.at[deletes]))))
    for row in deletes[lacking].tolist():
        problems[row] = ("missing_before", "op is d and there is no before image")
    tokens, _ = _renamed(rows.tokens, spec)
    for key in spec.keys:
        absent = _mask(pc.is_null(tokens[key])) if key in tokens else np.ones(len(rows.at), bool)
        for row in np.flatnonzero(absent).tolist():
            problems.setdefault(row, ("missing_key", f"the key column {key!r} is absent or null"))
    # A stream that leaves nulls out has thousands of shapes in a batch, but deletes have one as a rule.
    mismatches: dict[int, str] = {}
    codes = members.codes[deletes]
    for code in distinct(codes).tolist():
        if other := {spec.rename.get(name, name) for name in members.shapes[code]} - set(spec.keys):
            mismatches[code] = ", ".join(sorted(other))[:200]
    if mismatches:
        at = np.flatnonzero(np.isin(codes, list(mismatches)))
        for row, code in zip(deletes[at].tolist(), codes[at].tolist(), strict=True):
            why = f"before names {mismatches[code]} beside the keys {', '.join(spec.keys)}"
            problems.setdefault(row, ("key_mismatch", why))
    return problems


def _too_wide(members: Members) -> dict[int, tuple[str, str]]:
    """Rows that name so many columns that the table would get slow for every batch to come."""
    if not members.refused:
        return {}
    refused = np.isin(members.codes, list(members.refused))
    return {
        row: ("too_many_columns", members.refused[int(members.codes[row])])
        for row in np.flatnonzero(refused).tolist()
    }


def _mask(values: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mask: np.ndarray[Any, np.dtype[np.bool_]] = values.to_numpy(zero_copy_only=False)
    return mask


def _renamed(
    tokens: Mapping[str, pa.Array], spec: TableSpec
) -> tuple[dict[str, pa.Array], dict[int, tuple[str, str]]]:
    """Columns under their names in the lake, and the rows that hold two values for one of them."""
    if not spec.rename:
        return dict(tokens), {}
    columns: dict[str, pa.Array] = {}
    twice: dict[int, tuple[str, str]] = {}
    for name, array in tokens.items():
        new = spec.rename.get(name, name)
        if new in columns:
            both = _mask(pc.and_(pc.is_valid(columns[new]), pc.is_valid(array)))
            why = ("cast_error", f"two columns with values are called {new!r} after renaming")
            twice.update(dict.fromkeys(np.flatnonzero(both).tolist(), why))
        columns[new] = pc.coalesce(columns[new], array) if new in columns else array
    return columns, twice


def cast_columns(
    spec: TableSpec, tokens: Mapping[str, pa.Array], count: int, config: RowChanges
) -> tuple[dict[str, pa.Array], list[tuple[str, int, str]], int]:
    """Return raw tokens by column in the lake as typed columns, the declared ones first.

    With them come column, row and code of each value that could not be cast, and how many were out of range.
    """
    options = CastOptions(infinity=config.infinity, special_numeric=config.special_numeric)
    values: dict[str, pa.Array] = {}
    failures: list[tuple[str, int, str]] = []
    out_of_range = 0
    for name in dict.fromkeys((*spec.columns, *tokens)):
        if name in spec.except_columns:
            continue
        column = tokens.get(name)
        if column is None:
            values[name] = pa.nulls(count, spec.type_of(name))
            continue
        found = cast_values(spec, name, column, options)
        if name in spec.keys and spec.is_raw(name):
            # Two spellings of one JSON text are one key.
            found.values = canonical(column).cast(pa.string())
        values[name] = spec.values_of(found.values)
        out_of_range += found.out_of_range
        failures += [(name, row, code) for row, code in found.failures.items()]
    return values, failures, out_of_range


_SHOWN_CHARACTERS = 40
"""Of a value that does not fit, in the detail of its record."""


def _values(
    rows: _Rows, tokens: dict[str, pa.Array], spec: TableSpec, config: RowChanges, counters: Counter[str]
) -> tuple[dict[str, pa.Array], dict[int, tuple[str, str]]]:
    """Typed columns, and the rows in which a cast failed."""
    values, failures, counters["out_of_range"] = cast_columns(spec, tokens, len(rows.at), config)
    failed: dict[int, list[str]] = {}
    for name, row, code in failures:
        found = tokens[name][row].as_py().decode(errors="replace")
        shown = found if len(found) <= _SHOWN_CHARACTERS else f"{found[:_SHOWN_CHARACTERS]}…"
        why = f"{spec.columns.get(name, 'JSON')} expected, {shown} found"
        failed.setdefault(row, []).append(f"{name} ({'' if code == 'cast_error' else f'{code}: '}{why})")
    for name in spec.partition_by:
        for row in unwritable(name, values[name]) if name in values else ():
            failed.setdefault(row, []).append(f"{name} (longer than a folder's name)")
    return values, {row: ("cast_error", "columns " + ", ".join(names)) for row, names in failed.items()}


def _named(rows: _Rows, columns: dict[str, pa.Array], spec: TableSpec) -> dict[str, pa.Array]:
    """The keys, and columns declared or named by a row that stays: refused rows alone bring no column."""
    if not rows.refused:
        return columns
    shapes = rows.columns.dictionary.take(rows.columns.indices.unique())
    names = {*spec.keys, *spec.columns}.union(*map(json.loads, shapes.to_pylist()))
    return {name: array for name, array in columns.items() if name in names}


def _own(rows: _Rows, delete: pa.Array, spec: TableSpec, config: RowChanges) -> dict[str, pa.Array]:
    ts_ns, tx_id, count = rows.fact("ts_ns"), rows.fact("tx_id"), len(rows.at)
    # Only a keyed table can find a change too late; else nobody asks where one of its changes came from.
    keeps_data = config.keep_data and spec.keep != "log"
    keeps_origin = config.keep_data or spec.keep == "log"
    return {
        "m:version": encode_versions(ts_ns, tx_id, delete),
        "m:op": rows.fact("op"),
        "m:delete": delete,
        "m:ts_ns": ts_ns,
        "m:tx_id": tx_id,
        "m:columns": rows.columns,
        **{
            f"m:{name}": kept_image(rows.fact(name), spec, config.max_depth)
            if spec.keep == "log"
            else pa.nulls(count, pa.string())
            for name in ("before", "after")
        },
        "m:data": rows.origin("data") if keeps_data else pa.nulls(count, pa.binary()),
        **{
            f"m:{name}": rows.origin(name) if keeps_origin else pa.nulls(count, kind)
            for name, kind in _ORIGIN_TYPES.items()
        },
    }


def _left_out(spec: TableSpec) -> set[str]:
    """Return the names in the source of the columns that a table leaves out."""
    renamed = {name for name, new in spec.rename.items() if new in spec.except_columns}
    return renamed | (set(spec.except_columns) - set(spec.rename))


def kept_image(texts: pa.Array, spec: TableSpec, max_depth: int) -> pa.Array:
    """Return images as a log keeps them: without the columns that are left out, all else as it came."""
    left_out = _left_out(spec)
    if not left_out:
        return texts
    kept = []
    for text in texts.to_pylist():
        members = {} if text is None else read_object(text, max_depth=max_depth)
        rest = (f"{quote(name)}:{value}" for name, value in members.items() if name not in left_out)
        kept.append(text if left_out.isdisjoint(members) else "{" + ",".join(rest) + "}")
    return pa.array(kept, pa.string())


def image_hashes(tokens: Mapping[str, pa.Array], delete: pa.Array) -> pa.Array:
    """Return `m:image_hash`: SHA-256 of the canonical image, built column by column; deletes have no image.

    `tokens` are raw JSON tokens per column, binary; null where a row lacks it. It is `versions.image_hash` of
    each image; with that alone a whole job takes by calculation half as much CPU again.
    """
    names, empty = sorted(tokens), pa.scalar(b"")
    opens = bool(names) and tokens[names[0]].null_count == 0  # every row has the first member
    parts: list[Any] = []
    for number, name in enumerate(names):
        label = pa.scalar(f"{'{' if opens and number == 0 else ','}{quote(name)}:".encode())
        column = canonical(tokens[name])
        if column.null_count:
            member = pc.binary_join_element_wise(label, column, empty)
            parts.append(pc.fill_null(member, b""))
        else:
            parts += [label, column]
    if not opens:
        texts = pc.binary_join_element_wise(*parts, empty) if parts else pa.repeat(empty, len(delete))
        parts = [pa.scalar(b"{"), trimmed(texts, 1, 0)]
    texts = pc.binary_join_element_wise(*parts, pa.scalar(b"}"), empty)
    return pc.if_else(delete, pa.scalar(NO_IMAGE_HASH), sha256_each(texts))


def canonical(tokens: pa.Array) -> pa.Array:
    """Canonical JSON of each token: only strings with some escapes, lists and objects are touched."""
    first = first_bytes(tokens)
    unusual = (first == ord("[")) | (first == ord("{"))
    escaped = np.flatnonzero(holding(tokens, ord("\\")) & (first == ord('"')))
    # Of all escapes only these two have a shorter form.
    unusual[escaped] = _mask(pc.match_substring_regex(tokens.take(pa.array(escaped)), r"\\[/u]"))
    at = np.flatnonzero(unusual)
    if len(at) == 0:
        return tokens
    mended = [canonical_token(tokens[row].as_py().decode()).encode() for row in at.tolist()]
    return pc.replace_with_mask(tokens, pa.array(unusual), pa.array(mended, pa.binary()))
