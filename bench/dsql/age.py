"""What a table costs that is a week old: to open it, to tell its size, a batch, and to keep its log short.

Run: python bench/dsql/age.py [--commits 120000] [--rounds 5]

120,000 commits are a week of one every five seconds, and a week is how long maintenance keeps old versions by
default. The older entries are links to one, which nobody reads, but which are listed. The checkpoint after
them remembers two files for each commit that were replaced: a vacuum removes them when their week is over.
Beside it, deltalake opens the same table. Shown are medians of CPU time, of a young table and of that one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from deltalake import DeltaTable
from merge import NAME, changes, make

from headpond.dsql.decode import DsqlConfig
from headpond.lake.apply import DecodedBatch, apply_batch
from headpond.lake.reports import sizes_of
from headpond.lake.tables import Lake

if TYPE_CHECKING:
    from collections.abc import Callable

    from headpond.dsql.config import TableSpec

LINKS = 30_000
"""To one file: file systems bound them."""


def replaced(log: Path, version: int, count: int) -> None:
    """Commit that so many files were replaced just now."""
    facts = {
        "deletionTimestamp": time.time_ns() // 1_000_000,
        "dataChange": True,
        "extendedFileMetadata": True,
    }
    gone = [
        {
            "path": f"part-00000-{uuid.uuid4()}-c000.snappy.parquet",
            "partitionValues": {},
            "size": 100_000,
            **facts,
        }
        for _ in range(count)
    ]
    (log / f"{version:020}.json").write_text("".join(json.dumps({"remove": each}) + "\n" for each in gone))


def aged(table: Path, commits: int) -> None:
    """Give a table's newest version a number, with a checkpoint of it and an entry for each before it."""
    log = table / "_delta_log"
    newest = DeltaTable(table).version() + 1
    replaced(log, newest, 2 * commits)
    DeltaTable(table).create_checkpoint()
    for kind in ("json", "checkpoint.parquet"):
        (log / f"{newest:020}.{kind}").rename(log / f"{commits:020}.{kind}")
    hint = log / "_last_checkpoint"
    hint.write_text(json.dumps(json.loads(hint.read_text()) | {"version": commits}))
    for number in range(commits):
        entry = log / f"{number:020}.json"
        if number % LINKS == 0:
            first = entry
            first.write_text('{"commitInfo":{"timestamp":1,"operation":"WRITE"}}\n')
        else:
            entry.unlink(missing_ok=True)
            os.link(first, entry)


def costs(folder: str, spec: TableSpec, rounds: int, first_commit: int) -> dict[str, float]:
    """Return the median CPU time of each job in milliseconds; each round opens the lake again."""
    draw, found = np.random.default_rng(7), dict[str, list[float]]()

    def timed(job: str, work: Callable[[], Any]) -> None:
        begun = time.process_time()
        work()
        found.setdefault(job, []).append((time.process_time() - begun) * 1000)

    for number in range(rounds):
        rows = changes(spec, draw.integers(0, 5000, 500), first_commit + number, draw, 60)
        timed("deltalake opens it", partial(DeltaTable, Path(folder, NAME)))
        lake = Lake(folder, DsqlConfig(tables=(spec,)))
        timed("headpond opens it", partial(sizes_of, lake))  # a look at what its log says
        timed("its size, again", partial(sizes_of, lake))
        timed("a batch of 500 changes", partial(apply_batch, lake, DecodedBatch({NAME: rows})))
        timed("a checkpoint", lake.typed[NAME].file.write_checkpoint)
    return {job: statistics.median(each) for job, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--commits", type=int, default=120_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headpond-age-") as folder:
        _, spec = make(Path(folder), 5000, 0, 60, marks=False, form="current", versions=1)
        young = costs(folder, spec, given.rounds, 2)
        aged(Path(folder, NAME), given.commits)
        old = costs(folder, spec, given.rounds, given.commits)
    for job, ms in young.items():
        print(f"{job:24} {ms:6.0f} ms, with {given.commits:,} older commits {old[job]:6.0f} ms")


if __name__ == "__main__":
    main()
