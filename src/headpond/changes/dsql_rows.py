"""Full change records of one table → typed rows, and those whose keys or values are wrong.

::

    after   {"id": 1, "qty": 5}  ─┐ members      tokens of "id"   ─ cast ─► c:id
    before  {"id": 2}   (delete) ─┘ per row ──►  tokens of "qty"  ─ cast ─► c:quantity  (renamed)
                                                 canonical texts  ─ sha ──► m:image_hash
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.changes.keys import key_column
from headpond.changes.model import NO_IMAGE_HASH, canonical_token, encode_versions, quote, sha256_each
from headpond.changes.schemas import COLUMNS_TYPE, ORIGIN_COLUMNS, OWN_FIELDS
from headpond.formats.dsql_columns import (
    cast_column,
    first_bytes,
    holding,
    null_tokens_as_null,
    trimmed,
)
from headpond.formats.dsql_types import CastOptions
from headpond.formats.json_strict import read_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headpond.changes.config import DsqlConfig, TableSpec

Refusals = tuple[pa.RecordBatch, pa.Array, pa.Array]
"""User records, their reasons and their details."""

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EMPTY: dict[str, Any] = {}


@dataclass(slots=True)
class _Rows:
    """Rows of one table on their way, and those that were refused."""

    records: pa.RecordBatch
    decoded: pa.RecordBatch
    tokens: dict[str, pa.Array]  # raw tokens per column, as named in the stream
    columns: pa.Array  # `m:columns`
    refused: list[Refusals]

    def drop(self, reasons: Mapping[int, tuple[str, str]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Move rows to the refused ones; give the mask of those that stay."""
        kept = np.ones(self.records.num_rows, bool)
        if reasons:
            bad = sorted(reasons)
            kept[bad] = False
            why = [pa.array([reasons[row][part] for row in bad], pa.string()) for part in (0, 1)]
            self.refused.append((self.records.take(pa.array(bad)), why[0], why[1]))
            mask = pa.array(kept)
            self.records, self.decoded = self.records.filter(mask), self.decoded.filter(mask)
            self.tokens = {name: tokens.filter(mask) for name, tokens in self.tokens.items()}
            self.columns = self.columns.filter(mask)
        return kept


def typed_rows(
    records: pa.RecordBatch, decoded: pa.RecordBatch, spec: TableSpec, config: DsqlConfig
) -> tuple[pa.RecordBatch, list[Refusals], Counter[str]]:
    """Type the full changes of one table.

    Args:
        records: the user records.
        decoded: their rows of `decode_batch`, all `full` and routed to this table.
        spec: the table.
        config: the rules.

    Returns:
        Typed rows, the refused ones, and counters.
    """
    counters: Counter[str] = Counter()
    if spec.raw:
        return _raw_rows(records, decoded, spec, config), [], counters
    images = _images(decoded, spec)
    rows = _Rows(records, decoded, _tokens(images), columns_named(images, spec), [])
    rows.drop(_key_problems(rows, images, spec))
    tokens, twice = _renamed(rows.tokens, spec)
    values, failures = _values(rows, tokens, spec, config, counters)
    kept = pa.array(rows.drop(failures | twice))
    values = {name: array.filter(kept) for name, array in values.items()}
    delete = pc.equal(rows.decoded.column("op"), "d")
    arrays = _own(rows, delete, spec, config)
    arrays["m:image_hash"] = image_hashes(rows.tokens, delete)
    count = rows.records.num_rows
    arrays["m:key"] = key_column(spec, values) if spec.keys else pa.nulls(count, pa.string())
    values = {name: array for name, array in values.items() if name not in spec.except_columns}
    schema = pa.schema([*OWN_FIELDS, *(pa.field(f"c:{name}", array.type) for name, array in values.items())])
    columns = [*(arrays[field.name] for field in OWN_FIELDS), *values.values()]
    return pa.RecordBatch.from_arrays(columns, schema=schema), rows.refused, counters


def _raw_rows(
    records: pa.RecordBatch, decoded: pa.RecordBatch, spec: TableSpec, config: DsqlConfig
) -> pa.RecordBatch:
    """Rows of images alone: their values are not looked at, but for the hash."""
    delete = pc.equal(decoded.column("op"), "d")
    own = _own(
        _Rows(records, decoded, {}, pa.nulls(records.num_rows, COLUMNS_TYPE), []), delete, spec, config
    )
    own["m:image_hash"] = image_hashes(_tokens(_images(decoded, spec)), delete)
    own["m:key"] = pa.nulls(records.num_rows, pa.string())
    own["m:data"] = records.column("data")  # a lake takes in only so many such tables
    return pa.RecordBatch.from_arrays([own[field.name] for field in OWN_FIELDS], schema=pa.schema(OWN_FIELDS))


def _images(decoded: pa.RecordBatch, spec: TableSpec) -> list[Mapping[str, Any]]:
    """Members of each row's image: `after`, or the key in `before` of a delete, as name → raw bytes."""
    image = decoded.column("after")
    if spec.keys:
        image = pc.if_else(pc.equal(decoded.column("op"), "d"), decoded.column("before"), image)
    return [_EMPTY if text is None else _members(text) for text in image.cast(pa.binary()).to_pylist()]


def _members(text: bytes) -> Mapping[str, Any]:
    try:
        return _MEMBERS.decode(text)
    except RecursionError:  # the strict reader needs no stack; it has read this text before
        return {name: token.encode() for name, token in read_object(text.decode()).items()}


def _tokens(images: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
    """Raw tokens per column, in order of first appearance; absent and JSON null are null."""
    names = dict.fromkeys(chain.from_iterable(images))
    return {name: null_tokens_as_null(_binary([image.get(name) for image in images])) for name in names}


def columns_named(images: Sequence[Iterable[str]], spec: TableSpec) -> pa.Array:
    """`m:columns` of each image; images of one shape share an entry."""
    shapes: dict[tuple[str, ...], int] = {}
    count = len(images)
    codes = np.fromiter((shapes.setdefault(tuple(image), len(shapes)) for image in images), np.int32, count)
    texts: dict[str, int] = {}
    entry = [
        texts.setdefault(
            json.dumps(sorted({spec.rename.get(name, name) for name in shape}), ensure_ascii=False),
            len(texts),
        )
        for shape in shapes
    ]
    indices = np.array(entry, np.int32)[codes] if shapes else codes
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(list(texts), pa.string()))


def _binary(values: Sequence[Any]) -> pa.Array:
    """Bytes-like values, or None, as a binary array."""
    contents, validity = values, None
    if None in values:
        present = np.fromiter((value is not None for value in values), np.bool_, len(values))
        contents = [value for value in values if value is not None]
        lengths = np.zeros(len(values), np.int64)
        lengths[present] = np.fromiter(map(len, contents), np.int64, len(contents))
        validity = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    else:
        lengths = np.fromiter(map(len, contents), np.int64, len(contents))
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    data = pa.py_buffer(b"".join(contents))
    offsets = offsets.astype(np.int32)  # images of one batch come from one binary array of 31-bit offsets
    return pa.Array.from_buffers(pa.binary(), len(values), [validity, pa.py_buffer(offsets), data])


def _key_problems(
    rows: _Rows, images: Sequence[Mapping[str, Any]], spec: TableSpec
) -> dict[int, tuple[str, str]]:
    """Rows with `missing_before`, `missing_key` or `key_mismatch`, the first of these that holds."""
    problems: dict[int, tuple[str, str]] = {}
    if not spec.keys:
        return problems
    is_delete = _mask(pc.equal(rows.decoded.column("op"), "d"))
    for row in np.flatnonzero(is_delete & _mask(pc.is_null(rows.decoded.column("before")))).tolist():
        problems[row] = ("missing_before", "op is d and there is no before image")
    tokens, _ = _renamed(rows.tokens, spec)
    for key in spec.keys:
        absent = _mask(pc.is_null(tokens[key])) if key in tokens else np.ones(len(images), bool)
        for row in np.flatnonzero(absent).tolist():
            problems.setdefault(row, ("missing_key", f"the key column {key!r} is absent or null"))
    for row in np.flatnonzero(is_delete).tolist():
        if other := {spec.rename.get(name, name) for name in images[row]} - set(spec.keys):
            shown = ", ".join(sorted(other))[:200]
            problems.setdefault(
                row, ("key_mismatch", f"before names {shown} beside the keys {', '.join(spec.keys)}")
            )
    return problems


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


def _values(
    rows: _Rows, tokens: dict[str, pa.Array], spec: TableSpec, config: DsqlConfig, counters: Counter[str]
) -> tuple[dict[str, pa.Array], dict[int, tuple[str, str]]]:
    """Typed columns, the declared ones first, and the rows in which a cast failed."""
    options = CastOptions(infinity=config.infinity, special_numeric=config.special_numeric)
    count = rows.records.num_rows
    values: dict[str, pa.Array] = {}
    failed: dict[int, list[str]] = {}
    for name in dict.fromkeys((*spec.columns, *tokens)):
        if name in spec.except_columns:
            continue
        column = tokens.get(name)
        if column is None:
            values[name] = pa.nulls(count, spec.type_of(name))
            continue
        if not _named(rows, name, column, spec):
            continue
        found = cast_column(spec.columns.get(name, "any"), column, options)
        if name in spec.keys and name not in spec.columns:
            # Two spellings of one JSON text are one key.
            found.values = canonical(column).cast(pa.string())
        values[name] = spec.values_of(found.values)
        counters["out_of_range"] += found.out_of_range
        for row, code in found.failures.items():
            failed.setdefault(row, []).append(name if code == "cast_error" else f"{name} ({code})")
    return values, {row: ("cast_error", "columns " + ", ".join(names)) for row, names in failed.items()}


def _named(rows: _Rows, name: str, column: pa.Array, spec: TableSpec) -> bool:
    """Whether a column is there for a row that stays: refused rows alone bring no column."""
    return not rows.refused or name in spec.columns or column.null_count < len(column)


def _own(rows: _Rows, delete: pa.Array, spec: TableSpec, config: DsqlConfig) -> dict[str, pa.Array]:
    decoded, records = rows.decoded, rows.records
    ts_ns, tx_id = decoded.column("ts_ns"), decoded.column("tx_id")
    # Only a keyed table can find a change too late.
    keeps_data = config.keep_data and spec.keep != "log"
    return {
        "m:version": encode_versions(ts_ns, tx_id, delete),
        "m:op": decoded.column("op"),
        "m:delete": delete,
        "m:ts_ns": ts_ns,
        "m:tx_id": tx_id,
        "m:columns": rows.columns,
        **{
            f"m:{name}": decoded.column(name)
            if spec.keep == "log"
            else pa.nulls(records.num_rows, pa.string())
            for name in ("before", "after")
        },
        "m:data": records.column("data") if keeps_data else pa.nulls(records.num_rows, pa.binary()),
        **{f"m:{name}": records.column(name) for name in ORIGIN_COLUMNS},
    }


def image_hashes(tokens: Mapping[str, pa.Array], delete: pa.Array) -> pa.Array:
    """`m:image_hash`: SHA-256 of the canonical image, built column by column.

    Args:
        tokens: raw JSON tokens per column, binary; null where a row lacks it.
        delete: whether a row is a delete, which has no image.
    """
    empty = pa.scalar(b"")
    texts = pa.repeat(empty, len(delete))
    for name in sorted(tokens):
        prefix = pa.scalar(f",{quote(name)}:".encode())
        member = pc.binary_join_element_wise(prefix, canonical(tokens[name]), empty)
        # Not null_handling="skip": pyarrow 26 gives no row at all where every part is null.
        texts = pc.binary_join_element_wise(texts, pc.coalesce(member, empty), empty)
    texts = pc.binary_join_element_wise(pa.scalar(b"{"), trimmed(texts, 1, 0), pa.scalar(b"}"), empty)
    return pc.if_else(delete, pa.scalar(NO_IMAGE_HASH), sha256_each(texts))


def canonical(tokens: pa.Array) -> pa.Array:
    """Canonical JSON of each token: only strings with escapes, lists and objects are touched."""
    first = first_bytes(tokens)
    unusual = (first == ord("[")) | (first == ord("{"))
    unusual |= holding(tokens, ord("\\")) & (first != 0)
    at = np.flatnonzero(unusual)
    if len(at) == 0:
        return tokens
    mended = [canonical_token(tokens[row].as_py().decode()).encode() for row in at.tolist()]
    return pc.replace_with_mask(tokens, pa.array(unusual), pa.array(mended, pa.binary()))
