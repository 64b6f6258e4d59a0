"""The seam between a snapshot and a stream: the database changes meanwhile, and the lake ends the same."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import psycopg
import pytest

from headpond.lake.apply import apply_batch
from headpond.lake.maintenance.compare import Compare
from headpond.lake.maintenance.from_database import DatabaseLoad, DatabaseRows
from headpond.postgres.catalog import tables_of
from headpond.postgres.connection import Database
from tests.lake.lakes import decoded, lake_in, watched
from tests.postgres.test_catalog import run
from tests.postgres.test_snapshot import Killed, change

if TYPE_CHECKING:
    from pathlib import Path

TABLES = '[tables."public.t"]\nkeys = ["id"]\ncolumns = { id = "bigint", v = "text" }\n'
IDS = 30


class Changing:
    """A table that somebody changes, and the change records of that, which wait to be applied."""

    def __init__(self, dsn: str, choice: random.Random) -> None:
        self.connection = psycopg.connect(dsn)
        self.choice = choice
        self.waiting: list[bytes] = []
        self.number = 0

    def change(self) -> None:
        """Insert, change or delete a row, and note it with the time at which that is committed."""
        number, gone = self.choice.randrange(IDS), self.choice.random() < 0.3
        self.number += 1
        row = {"id": number, "v": f"change {self.number}"}
        if gone:
            self.connection.execute("DELETE FROM t WHERE id = %s", [number])
        else:
            self.connection.execute(
                "INSERT INTO t VALUES (%(id)s, %(v)s) ON CONFLICT (id) DO UPDATE SET v = excluded.v", row
            )
        now = self.connection.execute(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000"
        ).fetchone()
        self.connection.commit()
        assert now is not None
        self.waiting.append(change(now[0], row, delete=gone))

    def some(self) -> list[bytes]:
        """Take some of the records that wait, in any order, and some of them again later."""
        self.choice.shuffle(self.waiting)
        count = self.choice.randrange(len(self.waiting) + 1)
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        self.waiting += self.choice.sample(taken, len(taken) // 4)
        return taken


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_lake_is_its_database_whatever_happens_meanwhile(dsn: str, tmp_path: Path, seed: int) -> None:
    """Changes before, during and after; records late and repeated; short transactions, and loads killed."""
    choice = random.Random(seed)
    run(
        dsn,
        "CREATE TABLE t (id bigint PRIMARY KEY, v text)",
        f"INSERT INTO t SELECT n, 'before the stream ' || n FROM generate_series(0, {IDS - 1}, 2) n",
    )
    lake, config = lake_in(tmp_path, TABLES)
    there = Changing(dsn, choice)

    def meanwhile(_words: str) -> None:
        for _ in range(choice.randrange(4)):
            there.change()
        apply_batch(lake, decoded(config, there.some()))

    def killed(_write: str) -> None:
        if choice.random() < 0.05:
            raise Killed

    meanwhile("")
    for _ in range(50):
        torn = watched(lake, killed)
        lasts_s = choice.choice([None, 0.0])
        try:
            job = DatabaseLoad(
                torn, Database(dsn), ["public.t"], rows_at_once=choice.randrange(1, 6), lasts_s=lasts_s
            )
            job.load(say=meanwhile)
        except Killed:
            continue
        break
    for _ in range(5):
        meanwhile("")
    apply_batch(lake, decoded(config, there.waiting))
    rows = there.connection.execute("SELECT id, v FROM t").fetchall()
    there.connection.close()
    found = {row["id"]: row["v"] for row in lake.typed["public.t"].file.read(["id", "v"]).to_pylist()}
    assert found == dict(rows)
    rows = DatabaseRows.of(lake, "public.t", tables_of(Database(dsn)))
    assert Compare(lake, "public.t", rows.called).run(rows.read(Database(dsn))).equal
