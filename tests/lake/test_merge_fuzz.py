"""Random batches, kills, compactions and foreign writers, against a dictionary.

deltalake, polars and DuckDB read what is there after each.

The thorough test has a hundred runs; with `HEADPOND_RUNS_PERCENT=1000` it has a thousand.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

from headpond.lake.delta import DeltaFile
from headpond.lake.engine import index
from headpond.lake.engine import merge as engine
from headpond.lake.engine.folder import Folder
from headpond.lake.engine.lookup import Wanted
from headpond.lake.engine.merge import Merge
from tests.kit.duck import rows_of
from tests.kit.support import share_of

if TYPE_CHECKING:
    from pathlib import Path

KEYS = 60
SCHEMA = pa.schema(
    [("k", pa.string()), ("n", pa.int64()), ("day", pa.string()), ("v", pa.int64()), ("t", pa.string())]
)
Row = tuple[str, int, str, int, str]
Model = dict[tuple[str, int], Row]


class Killed(BaseException):
    """What a process that dies is to its files: nothing is cleaned up."""


def newer(t: pa.Table, s: pa.Table) -> pa.ChunkedArray:
    return pc.less(t["v"], s["v"])


class Player:
    """One table, what must be in it, and what may happen to it."""

    def __init__(self, place: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.draw, self.patch = random.Random(seed), monkeypatch
        self.place, self.model, self.clock = str(place), Model(), 0
        self.parts = self.draw.random() < 0.4
        self.file = DeltaFile(self.place)
        self.file.create(SCHEMA, partition_by=["day"] if self.parts else [])
        self.past: dict[int, Model] = {}
        if self.draw.random() < 0.7:
            self.file.allow_marks(allowed=True)

    def batch(self) -> pa.Table:
        keys = self.draw.sample(range(KEYS), self.draw.randint(1, 25))
        self.clock += 1
        rows: list[Row] = []
        for key in keys:
            version = max(0, self.clock - self.draw.choice([0, 0, 0, 1, 3]))
            # A row keeps its day: it is a part of what it is found by.
            rows.append((f"k{key % 7}é", key, f"d{key % 3}", version, f"text {version}"))
        columns = list(zip(*rows, strict=True))
        table = pa.table([pa.array(column) for column in columns], schema=SCHEMA)
        gone = pa.array([self.draw.random() < 0.25 for _ in rows])
        return table.append_column("%gone", gone)

    def apply(self, rows: pa.Table) -> Model:
        model = dict(self.model)
        for row in rows.to_pylist():
            gone = row.pop("%gone")
            key, new = (row["k"], row["n"]), tuple(row[name] for name in SCHEMA.names)
            known = model.get(key)
            if known is None and not gone:
                model[key] = new  # type: ignore[assignment]
            elif known is not None and known[3] < row["v"]:
                if gone:
                    del model[key]
                else:
                    model[key] = new  # type: ignore[assignment]
        return model

    def write(self, rows: pa.Table) -> None:
        on = ["k", "n", *(["day"] if self.draw.random() < 0.5 else [])]
        if self.draw.random() < 0.5:  # as a batch that decides by what it looked up
            more = pa.concat_tables([rows.select(on), self.batch().select(on)]).group_by(on).aggregate([])
            self.file.look_up(Wanted(more, on, ("v",)))
        self.file.merge(Merge(rows, on, ("v",), newer, gone=rows["%gone"]), transaction=("fuzz", self.clock))

    def step(self) -> None:
        kind = self.draw.choices(
            ["write", "killed", "compact", "foreign", "vacuum", "checkpoint", "again", "marks"],
            [10, 3, 2, 3, 1, 1, 1, 1],
        )[0]
        getattr(self, f"do_{kind}")()

    def do_write(self) -> None:
        rows = self.batch()
        self.write(rows)
        self.model = self.apply(rows)
        self.past[self.file.version()] = self.model

    def do_killed(self) -> None:
        """Stop before any one write of a batch, which then comes again."""
        rows, left = self.batch(), self.draw.randint(0, 4)

        def dying(name: str) -> Any:
            whole = getattr(Folder, name)

            def call(*arguments: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise Killed
                left -= 1
                return whole(*arguments)

            return call

        with self.patch.context() as patch:
            for name in ("create", "put_new"):
                patch.setattr(Folder, name, dying(name))
            patch.setattr(Folder, "remove", lambda *_: None)
            try:
                self.write(rows)
            except Killed:
                self.file = DeltaFile(self.place)
        self.check(*([self.model] if left == 0 else []), self.apply(rows))
        self.write(rows)
        self.model = self.apply(rows)
        self.past[self.file.version()] = self.model

    def do_compact(self) -> None:
        self.file.compact()

    def do_marks(self) -> None:
        self.file.allow_marks(allowed=self.draw.random() < 0.7)

    def do_again(self) -> None:
        self.file = DeltaFile(self.place)

    def do_checkpoint(self) -> None:
        self.file.open().create_checkpoint()

    def do_vacuum(self) -> None:
        self.file.vacuum(0)
        self.past.clear()

    def do_foreign(self) -> None:
        """Another writer: deltalake deletes, updates, compacts."""
        table = DeltaTable(self.place)
        kind = self.draw.choice(["delete", "update", "optimize"])
        some = self.draw.randrange(KEYS)
        if kind == "delete":
            table.delete(f"n = {some}")
            self.model = {key: row for key, row in self.model.items() if key[1] != some}
        elif kind == "update":
            table.update(updates={"t": "'theirs'"}, predicate=f"n < {some}")
            self.model = {
                key: (*row[:4], "theirs") if key[1] < some else row for key, row in self.model.items()
            }
        else:
            table.optimize.compact()

    def check(self, *models: Model) -> None:
        expected = [sorted(model.values()) for model in models or (self.model,)]
        table = DeltaTable(self.place)
        rows = pa.table(
            QueryBuilder().register("t", table).execute("SELECT k, n, day, v, t FROM t").read_all()
        )
        found = sorted(tuple(row.values()) for row in rows.to_pylist())
        assert found in expected
        seen = pl.scan_delta(self.place).select(SCHEMA.names).collect()
        assert sorted(seen.rows()) == found
        assert sorted(rows_of(self.place, SCHEMA.names)) == found
        assert DeltaFile(self.place).count() == len(found) == self.file.count()

    def check_past(self) -> None:
        for version in self.draw.sample(sorted(self.past), min(2, len(self.past))):
            table = DeltaTable(self.place, version=version)
            rows = pa.table(QueryBuilder().register("t", table).execute("SELECT n, v FROM t").read_all())
            expected = sorted((row[1], row[3]) for row in self.past[version].values())
            assert sorted((row["n"], row["v"]) for row in rows.to_pylist()) == expected


def play(place: Path, seed: int, monkeypatch: pytest.MonkeyPatch, steps: int = 12) -> None:
    """Play one run; small files are marked, too, and few of them are a crowd, and keys of most are kept."""
    monkeypatch.setattr(engine, "SMALL_BYTES", seed % 2 * 4096)
    monkeypatch.setattr(engine, "CROWD", 3 + seed % 5)
    monkeypatch.setattr(index, "LEAST_ROWS", 1 << 18 * (seed % 3 == 0))
    monkeypatch.setenv("HEADPOND_CACHE_DIR", str(place.with_name("cache")))
    player = Player(place, seed, monkeypatch)
    for _ in range(steps):
        player.step()
        player.check()
    player.check_past()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_table_is_what_a_dictionary_is(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to it, and whoever reads it."""
    play(tmp_path / "t", seed, monkeypatch)


@pytest.mark.thorough
@pytest.mark.timeout(7200)
def test_many_tables_are_what_dictionaries_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, many times."""
    for seed in range(100, 100 + share_of(100)):
        play(tmp_path / str(seed), seed, monkeypatch, steps=20)
