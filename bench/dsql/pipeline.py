"""The whole job, archive → current tables, beside the loop people write by hand (`loop.py`).

Run: python bench/dsql/pipeline.py [--workload three | one | many] [--changes 1000000] [--rounds 3]
                                   [--files 16] [--every 50000] [--json FILE]

The workload is three tables, each with a fifth as many keys as there are changes, one table with 200,000
keys, of whose changes 70 % are updates, or a hundred tables of 6,000 keys. Both read the same JSON Lines
files and write Delta tables with the same rows, which is checked. Each is a process of its own, watched with
all below it: for `headpond run` Python, the JVM and its workers. What it takes before the first record is
read is measured on an archive of one record, and shown apart. One start comes first, as on a machine that has
run headpond before, in a cache folder of this run's own.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from payloads import MANY, TABLES, columns_of, keys_of, records
from watch import Watched, watched

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
MIB = 1 << 20


ALL = tuple(TABLES)
WORKLOADS: dict[str, dict[str, Any]] = {
    "three": {"tables": ALL, "weights": (5, 4, 1)},
    "one": {"tables": ("orders",), "weights": (2, 7, 1)},
    "many": {"tables": MANY, "weights": (5, 4, 1)},
}


def write_archive(folder: Path, changes: int, files: int, keys: int, workload: str = "three") -> int:
    folder.mkdir(parents=True)
    size, opened = 0, None
    for number, data in enumerate(records(changes, keys_per_table=keys, **WORKLOADS[workload])):
        if number % -(-changes // files) == 0:
            if opened is not None:
                opened.close()
            opened = (folder / f"{number:010}.jsonl").open("wb")
        assert opened is not None
        sequence = 49_600_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000 + number
        line = {
            "shard": f"shardId-{number % 4:012}",
            "sequenceNumber": str(sequence),
            "partitionKey": str(number),
            "approximateArrivalTimestamp": 1_783_600_000_000 + number // 1000,
            "data": base64.b64encode(data).decode(),
        }
        size += opened.write(json.dumps(line).encode() + b"\n")
    if opened is not None:
        opened.close()
    return size


def of_archive(archive: Path) -> str:
    return f'archive = "{archive}/*.jsonl"'


def pipeline_file(folder: Path, source: str, names: Sequence[str] = ALL) -> Path:
    folder.mkdir()
    tables = "".join(
        f'\n[tables."public.{name}"]\nkeys = {json.dumps(keys_of(name))}\ncolumns = '
        f"{{ {', '.join(f'{json.dumps(c)} = {json.dumps(k)}' for c, k in columns_of(name).items())} }}\n"
        for name in names
    )
    file = folder / "pipeline.toml"
    file.write_text(f'[source]\n{source}\nformat = "dsql"\n\n[target]\npath = "{folder}/lake"\n{tables}')
    return file


def rows_of(place: Path, table: str) -> pa.Table:
    columns = ", ".join([*columns_of(table), "_ts_ns"])
    query = QueryBuilder().register("t", DeltaTable(str(place)))
    return pa.table(query.execute(f"SELECT {columns} FROM t ORDER BY {', '.join(keys_of(table))}").read_all())


def show(name: str, runs: list[Watched], start: Watched | None, base: Watched) -> None:
    wall = statistics.median(run.wall_s for run in runs)
    cpu = statistics.median(run.cpu_s for run in runs)
    peak = max(runs, key=lambda run: run.peak_pss_bytes)
    print(f"{name:18} {wall:7.1f} s, CPU {cpu:6.1f} s, peak {peak.peak_pss_bytes / MIB:6.0f} MiB PSS")
    if start is not None:
        ratios = base.wall_s / wall, base.cpu_s / cpu
        rest = base.wall_s / max(wall - start.wall_s, 0.1), base.cpu_s / max(cpu - start.cpu_s, 0.1)
        print(f"    of its start:     {start.wall_s:7.1f} s, CPU {start.cpu_s:6.1f} s")
        print(f"    times the loop:   {ratios[0]:7.2f} by wall time, {ratios[1]:.2f} by CPU time")
        print(f"    without the start {rest[0]:7.2f} by wall time, {rest[1]:.2f} by CPU time")
    print("     MiB:", ", ".join(f"{part} {size / MIB:.0f}" for part, size in peak.peak_by_process[:6]))
    print("     CPU s:", ", ".join(f"{part} {seconds:.1f}" for part, seconds in peak.cpu_by_process[:6]))


def run_headpond(file: Path, environment: dict[str, str]) -> Watched:
    command = [sys.executable, "-m", "headpond", "run", str(file), "--until-caught-up", "--json"]
    return watched(command, environment)


def check_equal(folder: Path, tables: Sequence[str] = ALL) -> None:
    for table in tables:
        theirs, mine = (
            rows_of(folder / "l" / table, table),
            rows_of(folder / "h/lake" / f"public.{table}", table),
        )
        assert theirs.equals(mine.cast(theirs.schema)), f"{table} differs"
        print(f"{table}: {mine.num_rows} rows, equal")


def compare(
    folder: Path,
    loop: list[str],
    one: str,
    source: str,
    options: argparse.Namespace,
    tables: Sequence[str] = ALL,
) -> None:
    """Run loop, start and job in turns, and show them; `one` and `source` are what a pipeline file reads."""
    # Modules compiled once, as an installation has them, wherever this one keeps them.
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    compiled["HEADPOND_CACHE_DIR"] = str(folder / "cache")
    shutil.rmtree(folder / "w", ignore_errors=True)
    start = run_headpond(pipeline_file(folder / "w", one, tables), compiled)
    print(f"first start: {start.wall_s:.1f} s, CPU {start.cpu_s:.1f} s")
    loops, starts, ours = [], [], []
    for _ in range(options.rounds):
        for name in ("l", "h", "s"):
            shutil.rmtree(folder / name, ignore_errors=True)
        loops.append(watched([*loop, str(folder / "l"), str(options.every)], compiled))
        starts.append(run_headpond(pipeline_file(folder / "s", one, tables), compiled))
        ours.append(run_headpond(pipeline_file(folder / "h", source, tables), compiled))
    check_equal(folder, tables)
    middle = statistics.median_low(run.wall_s for run in loops)
    base = next(run for run in loops if run.wall_s == middle)
    show("hand-written loop", loops, None, base)
    show("headpond run", ours, min(starts, key=lambda run: run.wall_s), base)
    if options.json:
        sides = {"hand-written loop": loops, "headpond run": ours, "headpond run, one record": starts}
        figures = {
            f"{options.changes:,} changes, wall s": {
                name: [run.wall_s for run in runs] for name, runs in sides.items()
            },
            f"{options.changes:,} changes, CPU s": {
                name: [run.cpu_s for run in runs] for name, runs in sides.items()
            },
            f"{options.changes:,} changes, peak MiB of PSS": {
                name: [run.peak_pss_bytes / MIB for run in runs] for name, runs in sides.items()
            },
        }
        options.json.write_text(json.dumps(figures, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--every", type=int, default=50_000)
    parser.add_argument("--workload", choices=WORKLOADS, default="three")
    parser.add_argument("--keys", type=int, help="different keys per table, where others than the workload's")
    parser.add_argument("--folder", type=Path, help="keep archive and lakes here")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="headpond-bench-"))
    archive, one = folder / "archive", folder / "one"
    if not archive.exists():
        keys = (
            options.keys or {"one": 200_000, "three": options.changes // 5, "many": 6_000}[options.workload]
        )
        write_archive(archive, options.changes, options.files, keys, options.workload)
        write_archive(one, 1, 1, 1, options.workload)
    size = sum(file.stat().st_size for file in archive.iterdir())
    print(f"{options.changes} changes, {size / MIB:.0f} MiB of archive")
    loop = [sys.executable, str(HERE / "loop.py"), str(archive)]
    tables = WORKLOADS[options.workload]["tables"]
    compare(folder, loop, of_archive(one), of_archive(archive), options, tables)
    if options.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
