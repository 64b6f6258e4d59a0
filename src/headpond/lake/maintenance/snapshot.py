"""Rows of a snapshot as typed changes: from files or a database, to be loaded or compared.

::

    tokens by column ─ renamed, cast by declared type ─► c:column
    moment, no transaction, upsert ────────────────────► m:version, m:key, m:image_hash, …

A row becomes what a change record with the same values would have become, and a value is never bent to fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.arrow import distinct
from headpond.core.errors import HeadpondError, InvalidData, UsageError
from headpond.core.schemas import OWN_FIELDS, filled
from headpond.dsql.config import RowChanges, TableSpec
from headpond.dsql.opened import Images
from headpond.dsql.rows import cast_columns, columns_named, image_hashes, left_out, typed_columns
from headpond.dsql.versions import encode_versions, key_column
from headpond.lake.maintenance.catch_up import configured
from headpond.lake.state.rows import RowTables
from headpond.lake.tables import Lake

PARTS = 64
"""Into this many parts rows are dealt out by their keys, where all of one key must come together."""
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
        config = RowTables.of(lake).config_of(lake)
        spec = configured(lake, table)
        if spec.keep == "log":
            raise UsageError(
                f"The table {table!r} is a log: its entries are changes, and a snapshot holds none.",
                next_step="Name tables that keep rows by a key.",
                table=table,
            )
        return cls(config, spec)

    def unfit(
        self, column: str, of: str, why: str, fix: str, at: str | None = None, **facts: Any
    ) -> UsageError | InvalidData:
        """Return the error of a source's column that does not fit, or of its value in the row `at`."""
        kind: type[UsageError | InvalidData] = UsageError if at is None else InvalidData
        said = f"The column {column!r} of {of} {why}{'' if at is None else f', in {at}'}"
        facts |= {} if at is None else {"reason": "unfit_value"}
        name = self.spec.name
        return kind(f"{said}, for the table {name!r}.", next_step=fix, table=name, column=column, **facts)

    def names(
        self, there: Sequence[str], unfit: UnfitError, *, missing_as_null: bool = False
    ) -> dict[str, str]:
        """Return column of the snapshot → column in the lake; a key or declared column must be there."""
        names = {name: self.spec.rename.get(name, name) for name in there}
        new = Counter(names.values())
        if double := [name for name, count in new.items() if count > 1]:
            raise unfit(double[0], "occurs twice (after renaming)", None)
        required = self.spec.keys if missing_as_null else (*self.spec.keys, *self.spec.columns)
        for name in required:
            if name not in new and name not in self.spec.except_columns:
                raise unfit(name, "is not there", None)
        return names

    def typed(self, tokens: Mapping[str, pa.Array], ts_ns: int, unfit: UnfitError) -> tuple[pa.Table, int]:
        """Return tokens as typed rows of a moment, and how many values were out of range."""
        spec, images = self.spec, Images.of_columns(tokens)
        count = len(images.codes)
        rows, delete = np.arange(count), np.zeros(count, bool)
        members = images.members(rows, delete, delete_image="after", max_columns=None)
        named_here = {spec.rename.get(name, name): name for name in tokens}
        names = [name for name in named_here if name not in spec.except_columns]
        asked = [(spec, name, members.tokens[named_here[name]]) for name in names]
        cast = cast_columns(asked, images.tokens, self.config)
        found = dict(zip(names, cast, strict=True))
        for name, each in found.items():
            for row, code in each.failures.items():
                declared = spec.columns.get(name, "any")
                raise unfit(named_here[name], f"holds a value that is not a valid {declared} ({code})", row)
        values = typed_columns(spec, found, count)
        for key in spec.keys:
            if values[key].null_count:
                at = values[key].is_null().index(value=True).as_py()
                raise unfit(named_here[key], "is a key and null", at)
        moments, tx_id = pa.repeat(pa.scalar(ts_ns, pa.int64()), count), pa.repeat("", count)
        own: dict[str, Any] = {
            "m:columns": columns_named(members, spec),
            "m:key": key_column(spec, values),
            "m:version": encode_versions(moments, tx_id, pa.array(delete)),
            "m:op": pa.repeat("c", count),
            "m:delete": pa.array(delete),
            "m:ts_ns": moments,
            "m:tx_id": tx_id,
            "m:image_hash": image_hashes(images, rows, left_out(spec)),
        }
        typed = filled(own, pa.schema(OWN_FIELDS), count)
        for name, column in values.items():
            typed = typed.append_column(f"c:{name}", column)
        return typed, sum(each.out_of_range for each in cast)


def refuse_before_horizon(lake: Lake, table: str, moment_ns: int) -> None:
    """Raise where a snapshot is older than deletes that are no longer known."""
    horizon = lake.tombstones.horizons_ns().get(lake.tables[table].known_as)
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
        for number in distinct(parts).tolist():
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
