"""Full change records → typed rows of their tables, and those whose keys or values are wrong.

::

    after   {"id": 1, "qty": 5}  ─┐ members      which token is "id"  ─┐ cast with all ┌─► c:id
    before  {"id": 2}   (delete) ─┘ per row ──►  which token is "qty" ─┘ of their type └─► c:quantity, renamed
                                                 canonical texts ─────────── sha ────────► m:image_hash

A call of Arrow takes as long as some hundred values, and a database may have hundreds of tables: what does
not depend on the table is done for the rows of all tables at once, and each takes its slice.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import Bools, Ints, distinct, int64_array, offsets_of, ranges
from headpond.core.formats import unwritable
from headpond.core.schemas import ORIGIN_COLUMNS, OWN_FIELDS, quote
from headpond.dsql.columns import ColumnCast
from headpond.dsql.config import RowChanges, TableSpec
from headpond.dsql.opened import Images, Members
from headpond.dsql.pg_types import CastOptions
from headpond.dsql.strict_json import read_object
from headpond.dsql.versions import (
    NO_IMAGE_HASH,
    canonical,
    cast_values,
    encode_versions,
    image_hash,
    key_column,
    sha256_each,
)

_KNOWN_OPS = pa.array(["c", "u", "d"])
"""Any other is an upsert and counted `unknown_op`."""

Refusals = tuple[pa.RecordBatch, pa.Array, pa.Array]
"""User records, their reasons and their details."""
Asked = tuple[TableSpec, str, Ints]
"""A column to cast: its table, its name in the lake, and which token each row has; -1 for none."""


@dataclass(frozen=True, slots=True)
class Routed:
    """Rows that are `full` and belong to one entry: their numbers in the batch, ascending."""

    spec: TableSpec
    config: RowChanges
    at: Ints


@dataclass(frozen=True, slots=True)
class Typed:
    """Typed rows of one entry, and the records that were refused.

    `newest` is when the newest of them was committed, and how much later a record of then was sent; None
    where there are no rows.
    """

    rows: pa.RecordBatch
    refused: list[Refusals]
    out_of_range: int
    unknown_ops: int
    newest: tuple[int, int | None] | None


class _Batch:
    """What the entries of a batch share; `order` are the numbers of their rows, entry by entry."""

    def __init__(self, records: pa.RecordBatch, decoded: pa.RecordBatch, images: Images, order: Ints) -> None:
        self.records, self.decoded, self.images, self.order = records, decoded, images, order
        self._facts: dict[str, pa.Array] = {}
        op, ts_ns = self.fact("op"), self.fact("ts_ns")
        self.delete = pc.equal(op, "d")
        self.is_delete = _mask(self.delete)
        self.is_unknown_op = ~_mask(pc.is_in(op, _KNOWN_OPS))
        self.versions = encode_versions(ts_ns, self.fact("tx_id"), self.delete)

    def fact(self, name: str) -> pa.Array:
        """Return a column of the records or of what was decoded, in the order of the entries."""
        if name not in self._facts:
            of = self.decoded if name in self.decoded.schema.names else self.records
            self._facts[name] = of.column(name).take(int64_array(self.order))
        return self._facts[name]

    def hashes(self, place: Ints, without: Collection[str]) -> pa.Array:
        """Return `m:image_hash` of the rows at some places of the order; at the others it means nothing."""
        upserts = place[~self.is_delete[place]]
        which = np.zeros(len(self.order), np.int64)
        which[upserts] = np.arange(1, len(upserts) + 1)
        found = image_hashes(self.images, self.images.place["after"][self.order[upserts]], without)
        return pa.concat_arrays([pa.array([NO_IMAGE_HASH], pa.binary()), found]).take(int64_array(which))


class _Rows:
    """Rows of one entry on their way, and those that were refused.

    `place` is where they are in the order of the batch; `tokens` says of each column, as named in the lake,
    which token of the images each row has.
    """

    def __init__(self, batch: _Batch, routed: Routed, first: int) -> None:
        self.batch, self.spec, self.config = batch, routed.spec, routed.config
        self.place = np.arange(first, first + len(routed.at))
        self.refused: list[Refusals] = []
        self.values: dict[str, pa.Array] = {}
        self.out_of_range = 0
        self.tokens: dict[str, Ints] = {}
        self.members: Members | None = None
        if self.spec.raw:  # images alone: their values are not looked at, but for the hash
            return
        self.members = batch.images.members(
            routed.at,
            batch.is_delete[self.place],
            delete_image="before" if self.spec.keys else "after",
            max_columns=self.config.max_columns,
        )
        self.tokens, twice = _renamed(self.members.tokens, self.spec)
        self.drop(twice | self._key_problems(self.members) | _too_wide(self.members))

    def fact(self, name: str) -> pa.Array:
        """Return a column of the records or of what was decoded."""
        return self.of(self.batch.fact(name))

    def of(self, values: pa.Array) -> pa.Array:
        """Return what belongs to these rows of an array that has a value for each of the batch."""
        if not self.refused and len(self.place):
            return values.slice(self.place[0], len(self.place))
        return values.take(int64_array(self.place))

    def drop(self, reasons: Mapping[int, tuple[str, str]]) -> None:
        """Move rows to the refused ones; columns that they alone name go with them."""
        if not reasons:
            return
        assert self.members is not None
        kept = np.ones(len(self.place), bool)
        bad = sorted(reasons)
        kept[bad] = False
        why = [pa.array([reasons[row][part] for row in bad], pa.string()) for part in (0, 1)]
        at = int64_array(self.batch.order[self.place[bad]])
        self.refused.append((self.batch.records.take(at), why[0], why[1]))
        self.place, self.members.codes = self.place[kept], self.members.codes[kept]
        named = {*self.spec.keys, *self.spec.columns}
        for code in distinct(self.members.codes).tolist():
            named.update(self.spec.rename.get(name, name) for name in self.members.shapes[code])
        self.tokens = {name: tokens[kept] for name, tokens in self.tokens.items() if name in named}
        mask = pa.array(kept)
        self.values = {name: array.filter(mask) for name, array in self.values.items() if name in named}

    def _key_problems(self, members: Members) -> dict[int, tuple[str, str]]:
        """Rows with `missing_before`, `missing_key` or `key_mismatch`, the first of these that holds."""
        problems: dict[int, tuple[str, str]] = {}
        spec = self.spec
        if not spec.keys:
            return problems
        deletes = np.flatnonzero(self.batch.is_delete[self.place])
        before = self.batch.images.place["before"][self.batch.order[self.place[deletes]]]
        for row in deletes[before == 0].tolist():
            problems[row] = ("missing_before", "op is d and there is no before image")
        for key in spec.keys:
            absent = self.tokens[key] < 0 if key in self.tokens else np.ones(len(self.place), bool)
            for row in np.flatnonzero(absent).tolist():
                problems.setdefault(row, ("missing_key", f"the key column {key!r} is absent or null"))
        # A stream that leaves nulls out has thousands of shapes in a batch, but deletes have one as a rule.
        codes = members.codes[deletes]
        for code in distinct(codes).tolist():
            if other := {spec.rename.get(name, name) for name in members.shapes[code]} - set(spec.keys):
                named = ", ".join(sorted(other))[:200]
                why = f"before names {named} beside the keys {', '.join(spec.keys)}"
                for row in deletes[codes == code].tolist():
                    problems.setdefault(row, ("key_mismatch", why))
        return problems

    def asked(self) -> list[Asked]:
        """Return the columns to be cast."""
        names = dict.fromkeys((*self.spec.columns, *self.tokens))
        kept = [name for name in names if name in self.tokens and name not in self.spec.except_columns]
        return [(self.spec, name, self.tokens[name]) for name in kept]

    def take_values(self, found: Mapping[str, ColumnCast]) -> None:
        """Take the columns that were cast, and drop the rows in which a cast failed."""
        failed: dict[int, list[str]] = {}
        self.values = typed_columns(self.spec, found, len(self.place))
        for name, cast in found.items():
            self.out_of_range += cast.out_of_range
            for row, code in cast.failures.items():
                token = self.batch.images.tokens[int(self.tokens[name][row])].as_py().decode(errors="replace")
                shown = token if len(token) <= _SHOWN_CHARACTERS else f"{token[:_SHOWN_CHARACTERS]}…"
                why = f"{self.spec.columns.get(name, 'JSON')} expected, {shown} found"
                why = f"{name} ({'' if code == 'cast_error' else f'{code}: '}{why})"
                failed.setdefault(row, []).append(why)
        for name in self.spec.partition_by:
            for row in unwritable(name, self.values[name]) if name in self.values else ():
                failed.setdefault(row, []).append(f"{name} (longer than a folder's name)")
        self.drop({row: ("cast_error", "columns " + ", ".join(names)) for row, names in failed.items()})

    def typed(self, hashes: pa.Array) -> Typed:
        """Put the rows together; `hashes` are those of the batch."""
        spec, count, delete, hashes = self.spec, len(self.place), self.of(self.batch.delete), self.of(hashes)
        # Only a keyed table can find a change too late; else nobody asks where one of its changes came from.
        keeps_origin = self.config.keep_data or spec.keep == "log"
        keeps_data = spec.raw or (self.config.keep_data and spec.keep != "log")
        own: dict[str, pa.Array] = {
            "m:version": self.of(self.batch.versions),
            "m:op": self.fact("op"),
            "m:delete": delete,
            "m:ts_ns": self.fact("ts_ns"),
            "m:tx_id": self.fact("tx_id"),
            "m:image_hash": hashes,
        }
        if self.members is not None:
            own["m:columns"] = columns_named(self.members, spec)
        if spec.keys and count:
            own["m:key"] = key_column(spec, self.values)
        if spec.keep == "log":
            for name in ("before", "after"):
                own[f"m:{name}"] = kept_image(self.fact(name), spec, self.config.max_depth)
        if keeps_data:
            own["m:data"] = self.fact("data")
        if keeps_origin:
            own |= {f"m:{name}": self.fact(name) for name in ORIGIN_COLUMNS}
        if spec.dedupe == "content":  # hashes of deletes are of the key that they name
            named = pc.and_(delete, pc.is_valid(self.fact("before")))
            found = [image_hash(text) for text in self.fact("before").filter(named).to_pylist()]
            own["m:image_hash"] = pc.replace_with_mask(hashes, named, pa.array(found, pa.binary()))
        columns = [own[each.name] if each.name in own else pa.nulls(count, each.type) for each in OWN_FIELDS]
        fields = [*OWN_FIELDS, *(pa.field(f"c:{name}", array.type) for name, array in self.values.items())]
        rows = pa.RecordBatch.from_arrays([*columns, *self.values.values()], schema=pa.schema(fields))
        unknown = int(self.batch.is_unknown_op[self.place].sum())
        return Typed(rows, self.refused, self.out_of_range, unknown, self._newest())

    def _newest(self) -> tuple[int, int | None] | None:
        if not len(self.place):
            return None
        commits_ns = self.fact("ts_ns")
        newest_ns: int = pc.max(commits_ns).as_py()
        sent_ns = pc.max(self.fact("sent_ns").filter(pc.equal(commits_ns, newest_ns))).as_py()
        return newest_ns, None if sent_ns is None else sent_ns - newest_ns


def typed_rows(
    records: pa.RecordBatch, decoded: pa.RecordBatch, images: Images, routed: Sequence[Routed]
) -> list[Typed]:
    """Type full changes: user records, and their rows of `opened.DECODED_SCHEMA` and images, by entry."""
    if not routed:
        return []
    batch = _Batch(records, decoded, images, np.concatenate([each.at for each in routed]))
    ends = np.cumsum([len(each.at) for each in routed])
    rows = [_Rows(batch, each, end - len(each.at)) for each, end in zip(routed, ends.tolist(), strict=True)]
    asked = [each.asked() for each in rows]
    found = iter(cast_columns([one for each in asked for one in each], images.tokens, routed[0].config))
    for each, mine in zip(rows, asked, strict=True):
        each.take_values({name: next(found) for _, name, _ in mine})
    hashes = {}
    for without in {left_out(each.spec) for each in rows}:
        places = [each.place for each in rows if left_out(each.spec) == without]
        hashes[without] = batch.hashes(np.concatenate(places), without)
    return [each.typed(hashes[left_out(each.spec)]) for each in rows]


def cast_columns(asked: Sequence[Asked], tokens: pa.Array, config: RowChanges) -> list[ColumnCast]:
    """Cast columns of any tables, those of one type together: the first has what was out of range."""
    options = CastOptions(infinity=config.infinity, special_numeric=config.special_numeric)
    alike: dict[object, list[int]] = {}
    for number, (spec, name, _) in enumerate(asked):
        rule = spec.columns.get(name, "any"), name in spec.keys, spec.keep == "log"
        alike.setdefault((*rule, spec.key_rule, spec.timestamps), []).append(number)
    found: dict[int, ColumnCast] = {}
    for numbers in alike.values():
        spec, name, _ = asked[numbers[0]]
        which = np.concatenate([asked[number][2] for number in numbers])
        cast = cast_values(spec, name, tokens.take(int64_array(which, which >= 0)), options)
        counts = [len(asked[number][2]) for number in numbers]
        firsts = (np.cumsum(counts) - counts).tolist()
        for number, first, count in zip(numbers, firsts, counts, strict=True):
            found[number] = ColumnCast(cast.values.slice(first, count))
        found[numbers[0]].out_of_range = cast.out_of_range
        for row, code in cast.failures.items():
            column = bisect_right(firsts, row) - 1
            found[numbers[column]].failures[row - firsts[column]] = code
    return [found[number] for number in range(len(asked))]


def typed_columns(spec: TableSpec, found: Mapping[str, ColumnCast], count: int) -> dict[str, pa.Array]:
    """Return the columns of a table's rows: the declared ones first, null where nothing was found."""
    names = (name for name in dict.fromkeys((*spec.columns, *found)) if name not in spec.except_columns)
    return {
        name: found[name].values if name in found else pa.nulls(count, spec.type_of(name)) for name in names
    }


def columns_named(members: Members, spec: TableSpec) -> pa.Array:
    """Return `m:columns` of each image; images of one shape share an entry."""
    texts: dict[str, int] = {}
    names = (sorted({spec.rename.get(name, name) for name in shape}) for shape in members.shapes)
    entry = [texts.setdefault(json.dumps(each, ensure_ascii=False), len(texts)) for each in names]
    indices = np.array(entry, np.int32)[members.codes]
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(list(texts), pa.string()))


def _too_wide(members: Members) -> dict[int, tuple[str, str]]:
    """Rows that name so many columns that the table would get slow for every batch to come."""
    refused = np.isin(members.codes, list(members.refused)) if members.refused else np.zeros(0, bool)
    return {
        row: ("too_many_columns", members.refused[int(members.codes[row])])
        for row in np.flatnonzero(refused).tolist()
    }


def _mask(values: pa.Array) -> Bools:
    mask: Bools = values.to_numpy(zero_copy_only=False)
    return mask


def _renamed(
    tokens: Mapping[str, Ints], spec: TableSpec
) -> tuple[dict[str, Ints], dict[int, tuple[str, str]]]:
    """Columns under their names in the lake, and the rows that hold two values for one of them."""
    columns: dict[str, Ints] = {}
    twice: dict[int, tuple[str, str]] = {}
    for name, mine in tokens.items():
        new = spec.rename.get(name, name)
        other = columns.get(new)
        if other is None:
            columns[new] = mine
            continue
        why = ("cast_error", f"two columns with values are called {new!r} after renaming")
        twice.update(dict.fromkeys(np.flatnonzero((other >= 0) & (mine >= 0)).tolist(), why))
        columns[new] = np.maximum(other, mine)
    return columns, twice


_SHOWN_CHARACTERS = 40
"""Of a value that does not fit, in the detail of its record."""


def left_out(spec: TableSpec) -> frozenset[str]:
    """Return the names in the source of the columns that a table leaves out."""
    renamed = {name for name, new in spec.rename.items() if new in spec.except_columns}
    return frozenset(renamed | (set(spec.except_columns) - set(spec.rename)))


def kept_image(texts: pa.Array, spec: TableSpec, max_depth: int) -> pa.Array:
    """Return images as a log keeps them: without the columns that are left out, all else as it came."""
    without = left_out(spec)
    if not without:
        return texts
    kept = []
    for text in texts.to_pylist():
        members = {} if text is None else read_object(text, max_depth=max_depth)
        rest = (f"{quote(name)}:{value}" for name, value in members.items() if name not in without)
        kept.append(text if without.isdisjoint(members) else "{" + ",".join(rest) + "}")
    return pa.array(kept, pa.string())


def image_hashes(images: Images, numbers: Ints, without: Collection[str] = ()) -> pa.Array:
    """Return the SHA-256 of the canonical text of some images, `without` some columns.

    It is `versions.image_hash` of each; with that alone a whole job takes by calculation half as much CPU
    again. The texts are put together at once, out of labels and tokens::

        {"id":   17   ,"note":   "x"   }   {"id":   18   }
    """
    used = distinct(images.codes[numbers])
    shapes = [images.shapes[code] for code in used.tolist()]
    names: dict[str, int] = {}
    name = np.array([names.setdefault(each, len(names)) for each in chain.from_iterable(shapes)], np.int64)
    # Of the members of each shape, by name: their numbers among all names, and their places in the shape.
    sizes = np.fromiter(map(len, shapes), np.int64, len(shapes))
    shape, place = np.repeat(np.arange(len(shapes)), sizes), ranges(np.zeros(len(shapes), np.int64), sizes)
    rank = np.empty(len(names), np.int64)
    rank[[names[each] for each in sorted(names)]] = np.arange(len(names))
    kept = np.array([each not in without for each in names], bool)
    order = np.lexsort((rank[name], shape))
    order = order[kept[name[order]]]
    name, place, sizes = name[order], place[order], np.bincount(shape[order], minlength=len(shapes))
    shape_of = np.searchsorted(used, images.codes[numbers])
    counts = sizes[shape_of]
    at = ranges((np.cumsum(sizes) - sizes)[shape_of], counts)
    row = np.repeat(np.arange(len(numbers)), counts)
    token = images.starts[numbers][row] + place[at]
    there = images.there[token]
    row, token, name = row[there], token[there], name[at][there]
    counts = np.bincount(row, minlength=len(numbers))

    labels = [f"{mark}{quote(each)}:".encode() for each in names for mark in "{,"]
    fixed = [*labels, b"{}", b"}"]
    # Of each image: label, token, label, token, …, end.
    parts = np.empty(2 * len(row) + len(numbers), np.int64)
    labelled = 2 * np.arange(len(row)) + row
    parts[labelled] = 2 * name + (np.diff(row, prepend=-1) == 0)
    parts[labelled + 1] = token + len(fixed)
    ends = 2 * np.cumsum(counts) + np.arange(len(numbers))
    parts[ends] = len(fixed) - 2 + (counts > 0)
    pool = pa.concat_arrays([pa.array(fixed, pa.binary()), canonical(images.tokens, token)])
    joined = pool.take(int64_array(parts))
    borders = offsets_of(joined)[np.append(0, ends + 1)]
    buffers = [None, pa.py_buffer(borders), joined.buffers()[2]]
    return sha256_each(pa.Array.from_buffers(pa.binary(), len(numbers), buffers))
