"""What `headpond verify` costs from ten thousand records to a million: CPU and memory of all its processes.

Journals of `journal.py` are made once, under .bench/qldb. Start-up is the verification of five files of a few
records: as many pieces as start the workers. Memory is the largest sum over all processes of one moment,
taken every 50 ms: RSS counts shared pages once per process, PSS once in all.

    python bench/qldb/verify.py [--counts 10000 100000 1000000] [--workers 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from journal import write

ROOT = Path(__file__).parent.parent.parent
KEPT = ROOT / ".bench" / "qldb"
BETWEEN_S = 0.05
PR_SET_CHILD_SUBREAPER = 36
MAX_PEAK_MIB = 2048
AIM_PEAK_MIB = 1024
MAX_GROWTH = 1.2
SMALL_FILES, SMALL_RECORDS = 5, 20


class Run(NamedTuple):
    """One verification."""

    cpu_s: float
    wall_s: float
    rss_mib: float
    pss_mib: float
    processes: int


def archive(count: int) -> Path:
    KEPT.mkdir(parents=True, exist_ok=True)
    file = KEPT / f"{count}.jsonl"
    if not file.exists():
        write(count, file)
    return file


def below(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for one in found:
        try:
            tasks = list(Path(f"/proc/{one}/task").iterdir())
            found += [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def memory(pids: list[int]) -> tuple[float, float]:
    """RSS and PSS of processes in MiB."""
    total = {"Rss:": 0, "Pss:": 0}
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, *rest = line.split()
            if name in total:
                total[name] += int(rest[0])
    return total["Rss:"] / 1024, total["Pss:"] / 1024


def used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def verified(files: list[Path], workers: int) -> Run:
    """Verify, and see to it that nothing was wrong; all processes are waited for."""
    before, start = used(), time.monotonic()
    command = [sys.executable, "-m", "headpond", "verify", "--json", "--workers", str(workers)]
    with subprocess.Popen([*command, *map(str, files)], stdout=subprocess.PIPE, cwd=ROOT) as process:
        rss = pss = 0.0
        most = 0
        while process.poll() is None:
            pids = below(process.pid)
            seen = memory(pids)
            rss, pss, most = max(rss, seen[0]), max(pss, seen[1]), max(most, len(pids))
            time.sleep(BETWEEN_S)
        assert process.stdout is not None
        found = json.load(process.stdout)
    wall = time.monotonic() - start
    while True:  # the fork server's workers come to us when it ends
        try:
            os.wait()
        except ChildProcessError:
            break
    assert not found["anomalies"], found["anomalies"][:3]
    assert not found["counts"]["malformed"]
    return Run(used() - before, wall, rss, pss, most)


def main() -> None:
    """Measure, print, and write the figures where asked to."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--counts", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--json", type=Path)
    chosen = arguments.parse_args()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    files = {count: archive(count) for count in chosen.counts}
    small = []
    for at in range(SMALL_FILES):
        small.append(KEPT / f"small-{at}.jsonl")
        # The same few records in each: repeats are no anomaly.
        write(SMALL_RECORDS, small[-1])
    start_up = verified(small, chosen.workers)
    print(f"load {os.getloadavg()[0]:.1f}, {chosen.workers} workers")
    print(f"start-up: {start_up.cpu_s:.2f} s CPU, PSS {start_up.pss_mib:.0f} MiB")
    figures = {"start-up": start_up._asdict()}
    each: list[float] = []
    for count, file in files.items():
        run = verified([file], chosen.workers)
        each.append((run.cpu_s - start_up.cpu_s) / count * 1e6)
        figures[str(count)] = run._asdict()
        print(
            f"{count:>10,} records: {run.cpu_s:7.2f} s CPU, {each[-1]:6.1f} µs a record beside start-up, "
            f"{run.wall_s:6.1f} s; peak RSS {run.rss_mib:5.0f}, PSS {run.pss_mib:5.0f} MiB "
            f"in {run.processes} processes",
            flush=True,
        )
    peak, growth = max(one["rss_mib"] for one in figures.values()), each[-1] / each[0]
    verdict = "aim" if peak <= AIM_PEAK_MIB else "met" if peak <= MAX_PEAK_MIB else "MISSED"
    print(f"peak memory {peak:.0f} MiB (at most {MAX_PEAK_MIB}, aim {AIM_PEAK_MIB}): {verdict}")
    verdict = "met" if growth <= MAX_GROWTH else "MISSED"
    print(f"cost per record {growth:.2f} times from first to last (at most {MAX_GROWTH}): {verdict}")
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
