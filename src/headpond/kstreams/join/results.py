"""Results of a batch: which rows make them, in which order, and their columns.

::

    key · timestamp (the greater, ms) · headers (headersBytes)
    left_timestamp · left_value · left_<further column> …
    right_timestamp · right_value · right_<further column> …       null throughout for a missing side

A row is named by its side and *global row*: the rows of the side's chunks, one chunk behind the other, then
the rows of the batch. Columns are gathered slice by slice, so that a batch whose records have many partners
does not need room for all its results at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import distinct, int64_array
from headpond.kstreams.bytes.headers_arrow import merge_headers_columns
from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.chunks import Kept, bounds_of
from headpond.kstreams.join.pairs import Bool, Int64, Pairs, longest_row
from headpond.kstreams.join.rules import HeadersOf, JoinRules

SLICE_ROWS = 32_768
SLICE_BYTES = 256 << 20
_WHOLE = 4  # a part with at most this many times the rows that are asked for is put together whole
OWN_COLUMNS = ("key", "headers", "value")
"""Columns of a side's records that are not further ones."""
_EXPIRED, _PAIRS, _PAIRS_FIRST, _ITSELF, _PAIRS_LATER = range(5)
_EMPTY: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True)
class Sorted:
    """Results in order; one entry each. -1 stands for a missing side."""

    trigger: Int64
    left: Int64
    right: Int64
    left_ts: Int64
    right_ts: Int64
    expired: Bool

    def __len__(self) -> int:
        return len(self.trigger)


@dataclass
class ResultRows:
    """Collects results in any order."""

    self_join: bool = False
    _parts: list[tuple[Int64, ...]] = field(default_factory=list)

    def add_joined(self, side: Side, phase: int, pairs: Pairs, own: Int64, own_ts: Int64) -> None:
        """Add pairs that records of one side triggered; `own` has the triggers' global rows.

        A self-join looks for partners twice: `phase` 0 has the record on the left, 1 on the right.
        """
        order: Int64 | int = _PAIRS
        first, second = (own, own_ts), (pairs.partner, pairs.partner_ts)
        if self.self_join and phase == 1:
            order = np.where(pairs.partner_ts <= own_ts, _PAIRS_FIRST, _PAIRS_LATER)
            first, second = second, first
        elif side is Side.RIGHT:
            first, second = second, first
        self._add(
            pairs.trigger, order, pairs.partner_ts, pairs.partner_seq,
            first[0], second[0], first[1], second[1],
        )  # fmt: skip

    def add_self(self, trigger: Int64, own: Int64, ts: Int64) -> None:
        """Add results of records with themselves."""
        self._add(trigger, _ITSELF, 0, 0, own, own, ts, ts)

    def add_unmatched(self, trigger: Int64, left: Bool, row: Int64, ts: Int64, *, expired: bool) -> None:
        """Add results without a partner, in the order in which they leave: at once, or expired."""
        self._add(
            trigger, _EXPIRED if expired else _PAIRS, np.arange(len(row)), 0,
            np.where(left, row, -1), np.where(left, -1, row), np.where(left, ts, 0), np.where(left, 0, ts),
        )  # fmt: skip

    def _add(self, trigger: Int64, *columns: Int64 | int) -> None:
        if len(trigger):
            self._parts.append((trigger, *(np.broadcast_to(each, trigger.shape) for each in columns)))

    def sorted(self) -> Sorted:
        """Put all in the order in which they come out."""
        trigger, phase, first, second, left, right, left_ts, right_ts = (
            np.concatenate([_EMPTY, *(part[column] for part in self._parts)]) for column in range(8)
        )
        order = np.argsort(trigger, kind="stable")
        several = repeated(trigger[order][1:] == trigger[order][:-1])
        if len(several):
            # Most records trigger one result or none: only the others need the finer keys.
            some = order[several]
            order[several] = some[np.lexsort((second[some], first[some], phase[some], trigger[some]))]
        return Sorted(
            trigger[order], left[order], right[order], left_ts[order], right_ts[order],
            phase[order] == _EXPIRED,
        )  # fmt: skip


def repeated(equal: Bool) -> Int64:
    """Return the places of values that equal a neighbour; `equal` compares each with the one before."""
    return np.flatnonzero(np.append(equal, False) | np.append(False, equal))


@dataclass(frozen=True)
class Source:
    """All rows of one side: those of its chunks, then those of the batch."""

    schema: pa.Schema
    kept: tuple[Kept, ...]
    incoming: pa.RecordBatch | None
    bases: Int64  # first global row of each chunk, then of the batch

    @classmethod
    def of(cls, schema: pa.Schema, kept: tuple[Kept, ...], incoming: pa.RecordBatch | None) -> Source:
        """Put the rows one after the other."""
        return cls(schema, kept, incoming, bounds_of(kept))

    def gather(self, rows: Int64, names: list[str]) -> list[pa.Array]:
        """Return columns of some rows; -1 gives null. Only chunks that have one of the rows are loaded."""
        missing = rows < 0
        some_missing = bool(missing.any())
        if missing.all():
            return [pa.nulls(len(rows), self.schema.field(name).type) for name in names]
        place = np.searchsorted(self.bases, rows, side="right") - 1
        used = distinct(place[~missing]) if some_missing else distinct(place)
        parts, at = [], 0
        indices = np.zeros(len(rows), np.int64)
        for each in used:
            part = self.kept[each].chunk.records if each < len(self.kept) else self.incoming
            assert part is not None
            mine = np.flatnonzero(place == each) if len(used) > 1 or some_missing else slice(None)
            local = rows[mine] - self.bases[each]
            part = part.select(names)
            if len(used) > 1 and part.num_rows > _WHOLE * len(local):
                # What is put together stays within some times what is asked for, however large the state
                # is: one array of Arrow's holds 2 GiB.
                part, local = part.take(int64_array(local)), np.arange(len(local))
            parts.append(part)
            indices[mine] = local + at
            at += part.num_rows
        which = int64_array(indices, ~missing if some_missing else None)
        return [_taken([part.column(name) for part in parts], which) for name in names]

    def longest(self) -> int:
        """Return an upper bound of a row's size in bytes, for cutting results into slices."""
        most = max((chunk.longest for chunk, _ in self.kept), default=0)
        return max(most, longest_row(self.incoming)) if self.incoming is not None else most


def _taken(parts: list[pa.Array], indices: pa.Array) -> pa.Array:
    if len(parts) == 1:
        return parts[0].take(indices)
    taken = pa.chunked_array(parts).take(indices)
    return taken.combine_chunks() if taken.num_chunks != 1 else taken.chunk(0)


def result_schema(schemas: dict[Side, pa.Schema]) -> pa.Schema:
    """Return the schema of results; see the picture above."""
    fields = [
        pa.field("key", pa.binary()),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("headers", pa.binary(), nullable=False),
    ]
    for side in (Side.LEFT, Side.RIGHT):
        name = side.name.lower()
        fields.append(pa.field(f"{name}_timestamp", pa.int64()))
        fields += [
            pa.field(f"{name}_{each.name}", each.type)
            for each in schemas[side]
            if each.name not in ("key", "headers")
        ]
    return pa.schema(fields)


@dataclass(frozen=True)
class Results:
    """The results of a batch, made when they are asked for."""

    rows: Sorted
    sources: dict[Side, Source]  # in a self-join both are one
    trigger_left: Bool  # per record of the batch: is it a left one?
    trigger_row: Int64  # … its row among its side's new records
    rules: JoinRules
    keeps_headers: bool = True  # whether the state's format has a place for headers

    def __len__(self) -> int:
        return len(self.rows)

    def batches(
        self, *, max_rows: int = SLICE_ROWS, max_bytes: int = SLICE_BYTES
    ) -> Iterator[pa.RecordBatch]:
        """Return the results in order."""
        count = len(self.rows)
        if not count:
            return
        if count > 1:
            longest = sum(source.longest() for source in self.sources.values())
            max_rows = max(1, min(max_rows, max_bytes // max(1, longest)))
        schema = result_schema({side: source.schema for side, source in self.sources.items()})
        for start in range(0, count, max_rows):
            yield pa.RecordBatch.from_arrays(self._columns(slice(start, start + max_rows)), schema=schema)

    def _columns(self, part: slice) -> list[pa.Array]:
        rows = self.rows
        left, right = rows.left[part], rows.right[part]
        left_ts, right_ts = rows.left_ts[part], rows.right_ts[part]
        keys, headers = self._keys_and_headers(part)
        columns = [keys, pa.array(np.maximum(left_ts, right_ts)), headers]
        for side, gids, ts in ((Side.LEFT, left, left_ts), (Side.RIGHT, right, right_ts)):
            source = self.sources[side]
            missing = gids < 0
            columns.append(pa.array(ts, mask=missing if missing.any() else None))
            columns += source.gather(gids, [n for n in source.schema.names if n not in ("key", "headers")])
        return columns

    def _keys_and_headers(self, part: slice) -> tuple[pa.Array, pa.Array]:
        """Key of the trigger, or of the expired record; headers as the rules say."""
        rows, rules = self.rows, self.rules
        trigger, expired = rows.trigger[part], rows.expired[part]
        left, right = rows.left[part], rows.right[part]
        # What leaves behind the last record has no trigger: none of its columns is asked for.
        from_left = np.append(self.trigger_left, False)[trigger]
        own = np.append(self.trigger_row, 0)[trigger] + np.where(
            from_left, self.sources[Side.LEFT].bases[-1], self.sources[Side.RIGHT].bases[-1]
        )
        is_left = np.where(expired, left >= 0, from_left)
        row = np.where(expired, np.maximum(left, right), own)
        if rules.headers is HeadersOf.TRIGGER:
            return self._of_either(is_left, row, "key"), self._of_either(from_left, own, "headers")
        keys, headers = (self._of_either(is_left, row, name) for name in ("key", "headers"))
        if not self.keeps_headers:
            # What came out of a store without headers has none, also before it was stored: results must not
            # depend on where a stream was cut into batches.
            headers = pc.if_else(pa.array(~expired), headers, pa.scalar(b"", pa.binary()))
        elif rules.headers is HeadersOf.MERGE:
            both = np.flatnonzero((left >= 0) & (right >= 0))
            if len(both):
                merged = merge_headers_columns(
                    self.sources[Side.LEFT].gather(left[both], ["headers"])[0],
                    self.sources[Side.RIGHT].gather(right[both], ["headers"])[0],
                )
                choice = np.arange(len(keys))
                choice[both] = len(keys) + np.arange(len(both))
                headers = pa.chunked_array([headers, merged]).take(pa.array(choice)).combine_chunks()
        return keys, headers

    def _of_either(self, is_left: Bool, rows: Int64, name: str) -> pa.Array:
        """Column of rows of both sides mixed."""
        lefts, rights = np.flatnonzero(is_left), np.flatnonzero(~is_left)
        place = np.empty(len(rows), np.int64)
        place[lefts] = np.arange(len(lefts))
        place[rights] = len(lefts) + np.arange(len(rights))
        found = [
            self.sources[side].gather(rows[mine], [name])[0]
            for side, mine in ((Side.LEFT, lefts), (Side.RIGHT, rights))
            if len(mine)
        ]
        return found[0] if len(found) == 1 else _taken(found, int64_array(place))
