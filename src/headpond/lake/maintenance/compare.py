"""A table of a lake compared with what its rows should be: key by key, column by column, in bounded memory.

::

    rows there (files, database) ─┐ key, cells ─► part 0 … n on disk, by a hash of the key ─► joined, a part
    rows here (the lake) ─────────┘                                                          after the other

Values are compared as the lake keeps them, after the casts that changes get. What the table has of a time
after the moment of the snapshot cannot be judged by it, and is counted apart.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headpond.core.schemas import VALUE, whole
from headpond.dsql.versions import canonical, sha256_each, value_texts
from headpond.lake.delta import literal
from headpond.lake.maintenance.snapshot import PARTS, Parts, SnapshotRows, refuse_twice
from headpond.lake.tables import Lake

LISTED = 20
_LONGEST_CELL = 32
"""Bytes of a value that are compared as they are; of a longer one its hash is."""


@dataclass(slots=True)
class Comparison:
    """What is different: counts, and the first keys of each kind, as JSON arrays (`different` with columns).

    `extra` counts rows of a key beyond the first, too; `newer` the keys that differ and were changed here
    after the moment of the snapshot; `columns` in how many rows each one differs.
    """

    rows_there: int = 0
    rows_here: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    newer: int = 0
    newest_ns: int = 0
    columns: Counter[str] = field(default_factory=Counter)
    keys: dict[str, list[Any]] = field(default_factory=lambda: {"missing": [], "extra": [], "different": []})

    @property
    def equal(self) -> bool:
        """Whether nothing is different that can be judged."""
        return not (self.missing or self.extra or self.different)


class Compare:
    """A comparison of one table, by its configured name, with rows that a snapshot typed.

    `columns` are those of the snapshot, as the lake calls them. `parts` is how many parts are compared one
    after the other, which bounds the memory; `listed` bounds the keys of each kind that are named.
    """

    def __init__(
        self, lake: Lake, table: str, columns: Sequence[str], *, parts: int = PARTS, listed: int = LISTED
    ) -> None:
        self.lake, self.listed = lake, listed
        self.spec = spec = SnapshotRows.of(lake, table).spec
        self.target = lake.tables[spec.name]
        self.columns = [name for name in columns if name not in spec.keys and name not in spec.except_columns]
        self._count = parts

    def run(
        self,
        rows: Iterable[pa.Table],
        moment_ns: Callable[[], int | None] = lambda: None,
        *,
        say: Callable[[str], None] = lambda _: None,
    ) -> Comparison:
        """Compare typed rows (`SnapshotRows.typed`) with the table; `moment_ns` is asked when they are read.

        Raises:
            InvalidData: two of the rows have one key.
        """
        found = Comparison()
        with tempfile.TemporaryDirectory(prefix="headpond-compare-") as folder:
            there = Parts(folder, "there", self._count)
            for part in rows:
                found.rows_there += part.num_rows
                there.add(self._cells(part["m:key"], {name: part[VALUE + name] for name in self.columns}))
                say(f"{found.rows_there:,} rows read of the snapshot")
            moment = moment_ns()
            here = Parts(folder, "here", self._count)
            for part in self._rows_here(moment, found):
                found.rows_here += part.num_rows
                here.add(part)
                say(f"{found.rows_here:,} rows read of the table")
            gone = Parts(folder, "gone", self._count)
            for part in self._deletes_since(moment):
                gone.add(part)
            for number in range(self._count):
                self._compare(there.read(number), here.read(number), gone.read(number), found)
        return found

    def _cells(self, key: Any, values: Mapping[str, Any], **more: pa.Array) -> pa.Table:
        """Return keys with what is compared of each column: at most `_LONGEST_CELL` bytes of each."""
        cells = {f"v:{name}": self._cell(name, whole(column)) for name, column in values.items()}
        return pa.table({"key": whole(key).cast(pa.string()), **more, **cells})

    def _cell(self, name: str, values: pa.Array) -> pa.Array:
        raw = self.spec.is_raw(name)
        texts = (
            canonical(values.cast(pa.binary())) if raw else value_texts(values, raw=False).cast(pa.binary())
        )
        long = pc.fill_null(pc.greater(pc.binary_length(texts), _LONGEST_CELL), fill_value=False)
        return pc.replace_with_mask(texts, long, sha256_each(texts.filter(long)).cast(pa.binary()))

    def _rows_here(self, moment_ns: int | None, found: Comparison) -> Iterator[pa.Table]:
        """Yield the table's rows as they are now, with whether they were committed after the moment."""
        typed = self.target.typed
        if not typed.file.exists():
            return
        names = {name: typed.originals().get(name) for name in self.columns}
        there = [*map(typed.column, self.spec.keys), *filter(None, names.values()), "_ts_ns"]
        where = '"_valid_to_ns" IS NULL' if self.target.keep == "history" else None
        batches, _ = typed.file.batches(list(dict.fromkeys(there)), where)
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            absent = pa.nulls(rows.num_rows, pa.string())
            values = {name: absent if at is None else rows[at] for name, at in names.items()}
            found.newest_ns = max(found.newest_ns, pc.max(rows["_ts_ns"]).as_py() or 0)
            since = pc.greater(rows["_ts_ns"], 2**63 - 1 if moment_ns is None else moment_ns)
            yield self._cells(self.target.key_texts(rows), values, newer=whole(since))

    def _deletes_since(self, moment_ns: int | None) -> Iterator[pa.Table]:
        """Yield the keys of deletes that were committed after the moment."""
        if moment_ns is None:
            return
        where = f'"table" = {literal(self.spec.known_as)} AND "ts_ns" > {moment_ns}'
        for file in (self.lake.tombstones.file, self.lake.deletes.file):
            if file.exists():
                for batch in file.batches(["key"], where)[0]:
                    yield pa.table({"key": batch.column("key")})

    def _compare(
        self, there: pa.Table | None, here: pa.Table | None, gone: pa.Table | None, found: Comparison
    ) -> None:
        """Compare one part, of which all rows of some keys are in."""
        if there is None and here is None:
            return
        columns = [f"v:{name}" for name in self.columns]
        none = pa.schema([("key", pa.string()), *((name, pa.binary()) for name in columns)]).empty_table()
        there = none if there is None else there
        here = none.append_column("newer", pa.array([], pa.bool_())) if here is None else here
        refuse_twice(self.spec, there["key"])
        at = pc.index_in(here["key"], value_set=there["key"])
        same = here.filter(pc.is_valid(at))
        extra = here.filter(pc.is_null(at))
        missing = there["key"].filter(pc.invert(pc.is_in(there["key"], value_set=here["key"])))
        since = pa.array([], pa.string()) if gone is None else gone["key"]
        known = pc.is_in(missing, value_set=since.cast(pa.string()))
        self._note(found, "missing", missing.filter(pc.invert(known)).to_pylist())
        self._note(found, "extra", extra["key"].filter(pc.invert(extra["newer"])).to_pylist())
        twice = same.group_by("key").aggregate([([], "count_all")])
        twice = twice.filter(pc.greater(twice["count_all"], 1))
        for key, count in zip(twice["key"].to_pylist(), twice["count_all"].to_pylist(), strict=True):
            self._note(found, "extra", [key] * (count - 1))
        found.newer += pc.sum(known).as_py() or 0
        found.newer += pc.sum(extra["newer"]).as_py() or 0
        wanted = there.take(at.drop_null())
        differs = {name: _differ(wanted[f"v:{name}"], same[f"v:{name}"]) for name in self.columns}
        if not differs:
            return
        any_of = np.logical_or.reduce(list(differs.values()))
        newer = same["newer"].to_numpy(zero_copy_only=False)
        found.newer += int((any_of & newer).sum())
        judged = any_of & ~newer
        found.columns.update(
            {name: int((mask & judged).sum()) for name, mask in differs.items() if (mask & judged).any()}
        )
        found.different += int(judged.sum())
        for row in np.flatnonzero(judged)[: self.listed - len(found.keys["different"])].tolist():
            names = [name for name, mask in differs.items() if mask[row]]
            found.keys["different"].append({"key": same["key"][row].as_py(), "columns": names})

    def _note(self, found: Comparison, kind: str, keys: list[str]) -> None:
        setattr(found, kind, getattr(found, kind) + len(keys))
        found.keys[kind] += keys[: self.listed - len(found.keys[kind])]


def _differ(a: pa.ChunkedArray, b: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return where two columns differ; null equals null."""
    either = pc.xor(pc.is_null(a), pc.is_null(b))
    mask: np.ndarray[Any, np.dtype[np.bool_]] = pc.or_(
        either, pc.fill_null(pc.not_equal(a, b), fill_value=False)
    ).to_numpy(zero_copy_only=False)
    return mask
