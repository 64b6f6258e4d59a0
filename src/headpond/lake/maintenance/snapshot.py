"""Rows of a snapshot as typed changes: from files or a database, to be loaded or compared.

::

    tokens by column ─ renamed, cast by declared type ─► c:column
    moment, no transaction, upsert ────────────────────► m:version, m:key, m:image_hash, …

A row becomes what a change record with the same values would have become, and a value is never bent to fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.errors import HeadpondError, InvalidData, UsageError
from headpond.core.schemas import OWN_FIELDS
from headpond.dsql.pg_types import CastOptions
from headpond.dsql.rows import canonical, columns_named, image_hashes
from headpond.dsql.versions import cast_values, encode_versions, key_column
from headpond.lake.maintenance.catch_up import configured
from headpond.lake.state.rows import RowTables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headpond.dsql.config import RowChanges, TableSpec
    from headpond.lake.lake import Lake

PARTS = 64
"""Into so many parts rows are dealt out by their keys, where all of one key must come together."""
_SHOWN_KEYS = 5

UnfitError = Callable[[str, str, int | None], HeadpondError]
"""Makes the error of a column, why it does not fit, and in which row of a part (None: in all)."""


@dataclass(slots=True)
class Loaded:
    """What a load of a table did: files, rows, the table's figures, and the moments that rows count as."""

    files: int = 0
    rows: int = 0
    out_of_range: int = 0
    figures: Counter[str] = field(default_factory=Counter)
    moments_ns: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """What makes typed rows of a configured table out of tokens."""

    config: RowChanges
    spec: TableSpec

    @classmethod
    def of(cls, lake: Lake, table: str) -> SnapshotRows:
        """Return that of a table by its configured name.

        Raises:
            UsageError: there is no such table, or it is a log.
        """
        config = RowTables.of(lake).config
        spec = configured(lake, table)
        if spec.keep == "log":
            raise UsageError(
                f"The table {table!r} is a log: its entries are changes, and a snapshot holds none.",
                next_step="Name tables that keep rows by a key.",
                table=table,
            )
        return cls(config, spec)

    def names(
        self, there: Sequence[str], unfit: UnfitError, *, missing_as_null: bool = False
    ) -> dict[str, str]:
        """Return column of the snapshot → column in the lake; a key or declared column must be there."""
        names = {name: self.spec.rename.get(name, name) for name in there}
        new = Counter(names.values())
        if double := [name for name, count in new.items() if count > 1]:
            raise unfit(double[0], "is there twice (after renaming)", None)
        required = self.spec.keys if missing_as_null else (*self.spec.keys, *self.spec.columns)
        for name in required:
            if name not in new and name not in self.spec.except_columns:
                raise unfit(name, "is not there", None)
        return names

    def typed(self, tokens: Mapping[str, pa.Array], ts_ns: int, unfit: UnfitError) -> tuple[pa.Table, int]:
        """Return tokens as typed rows of a moment, and how many values were out of range."""
        options = CastOptions(infinity=self.config.infinity, special_numeric=self.config.special_numeric)
        spec, count, out_of_range = self.spec, len(next(iter(tokens.values()))), 0
        kept = {
            name: column
            for name, column in tokens.items()
            if spec.rename.get(name, name) not in spec.except_columns
        }
        values = {
            name: pa.nulls(count, spec.type_of(name))
            for name in spec.columns
            if name not in spec.except_columns
        }
        for original, column in kept.items():
            name = spec.rename.get(original, original)
            cast = cast_values(spec, name, column, options)
            if cast.failures:
                row, code = next(iter(cast.failures.items()))
                declared = spec.columns.get(name, "any")
                raise unfit(original, f"holds a value that is not a valid {declared} ({code})", row)
            is_raw_key = name in spec.keys and spec.is_raw(name)
            values[name] = canonical(column).cast(pa.string()) if is_raw_key else spec.values_of(cast.values)
            out_of_range += cast.out_of_range
            if name in spec.keys and values[name].null_count:
                raise unfit(original, "is a key and null", values[name].is_null().index(value=True).as_py())
        named = columns_named(list(tokens), count, spec)
        return self._with_own(kept, values, named, ts_ns), out_of_range

    def _with_own(
        self, tokens: Mapping[str, pa.Array], values: Mapping[str, pa.Array], named: pa.Array, moment_ns: int
    ) -> pa.Table:
        count = len(named)
        delete = pa.array(np.zeros(count, bool))
        ts_ns = pa.repeat(pa.scalar(moment_ns, pa.int64()), count)
        tx_id = pa.repeat(pa.scalar("", pa.string()), count)
        own: dict[str, Any] = {
            "m:columns": named,
            "m:key": key_column(self.spec, values),
            "m:version": encode_versions(ts_ns, tx_id, delete),
            "m:op": pa.repeat(pa.scalar("c"), count),
            "m:delete": delete,
            "m:ts_ns": ts_ns,
            "m:tx_id": tx_id,
            "m:image_hash": image_hashes(tokens, delete),
        }
        schema = pa.schema(
            [*OWN_FIELDS, *(pa.field(f"c:{name}", each.type) for name, each in values.items())]
        )
        arrays = [own.get(each.name, pa.nulls(count, each.type)) for each in OWN_FIELDS]
        return pa.table([*arrays, *values.values()], schema=schema)


def refuse_before_horizon(lake: Lake, table: str, moment_ns: int) -> None:
    """Raise where a snapshot is older than deletes that are no longer known."""
    horizon = lake.tombstones.horizon_ns(table)
    if horizon is not None and moment_ns < horizon:
        raise UsageError(
            f"Deletes of {table!r} up to {horizon} ns are no longer known, so rows of {moment_ns} ns could "
            "bring deleted ones back.",
            next_step="Load a newer snapshot.",
            table=table,
            horizon_ns=horizon,
        )


def refuse_twice(spec: TableSpec, keys: pa.ChunkedArray) -> None:
    """Raise where keys of a snapshot are there twice."""
    counted = keys.value_counts()
    twice = sorted(counted.field("values").filter(pc.greater(counted.field("counts"), 1)).to_pylist())
    if twice:
        shown = ", ".join(twice[:_SHOWN_KEYS]) + (", …" if len(twice) > _SHOWN_KEYS else "")
        raise InvalidData(
            f"Two rows or more of {spec.name!r} have the same key ({', '.join(spec.keys)}): {shown}.",
            next_step="Correct the keys of the table, or take a snapshot of one moment.",
            reason="duplicate_key",
            keys=twice[:_SHOWN_KEYS],
        )


class Parts:
    """Rows in files by a hash of their key: those of one key lie in one file, which memory holds."""

    def __init__(self, folder: str, side: str, count: int = PARTS) -> None:
        self._places = [f"{folder}/{side}-{number}" for number in range(count)]
        self._writers: dict[int, tuple[Any, Any]] = {}

    def add(self, rows: pa.Table) -> None:
        """Write rows (`key`, …) to the files of their keys."""
        keys = rows["key"].to_pylist()
        parts = np.fromiter(map(hash, keys), np.int64, len(keys)) % len(self._places)
        for number in np.unique(parts).tolist():
            if number not in self._writers:
                file = pa.OSFile(self._places[number], "wb")
                self._writers[number] = file, pa.ipc.new_stream(file, rows.schema)
            self._writers[number][1].write_table(rows.filter(pa.array(parts == number)))

    def __iter__(self) -> Iterator[pa.Table]:
        yield from filter(None, (self.read(number) for number in range(len(self._places))))

    def read(self, number: int) -> pa.Table | None:
        """Return the rows of one file, which is ended by that; None where there are none."""
        if number not in self._writers:
            return None
        file, writer = self._writers.pop(number)
        writer.close()
        file.close()
        with pa.OSFile(self._places[number]) as source:
            return pa.ipc.open_stream(source).read_all()
