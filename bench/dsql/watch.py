"""Run a command and watch it: wall time, CPU time and memory of all its processes together."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PAUSE_S = 0.2
MEMORY_EVERY_S = 2.0
"""How often memory is looked at. The kernel walks all pages for that: at every look, it took a seventh of the
time of a run of 15 s on two cores."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _CPU = 1, slice(11, 13)  # of /proc/<pid>/stat after the name: ppid; user and system ticks


@dataclass(frozen=True, slots=True)
class Watched:
    """What a command took.

    Attributes:
        output: what it printed.
        wall_s: from start to end.
        cpu_s: of all its processes, as last seen of each (short-lived ones are missed).
        peak_pss_bytes: the greatest sum of proportional set sizes: a shared page counts once.
        peak_by_process: the parts of that sum, by name, greatest first.
        cpu_by_process: the parts of `cpu_s`, by name, greatest first.
    """

    output: str
    wall_s: float
    cpu_s: float
    peak_pss_bytes: int
    peak_by_process: list[tuple[str, int]]
    cpu_by_process: list[tuple[str, float]]


def watched(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Watched:
    """Run a command to its end.

    Raises:
        RuntimeError: it failed.
    """
    begun = time.monotonic()
    cpu: dict[str, float] = {}
    peak, parts, next_look = 0, [], begun
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    ) as process:
        while process.poll() is None:
            family = _family(process.pid)
            cpu |= {f"{name} {pid}": seconds for pid, name, seconds in family}
            sizes = []
            if time.monotonic() >= next_look:
                sizes = [(f"{name} {pid}", _pss(pid)) for pid, name, _ in family]
                next_look = time.monotonic() + MEMORY_EVERY_S
            if (total := sum(size for _, size in sizes)) > peak:
                peak, parts = total, sorted(sizes, key=lambda part: -part[1])
            time.sleep(PAUSE_S)
        output = process.stdout.read() if process.stdout is not None else ""
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")
    by_cpu = sorted(cpu.items(), key=lambda part: -part[1])
    return Watched(output, time.monotonic() - begun, sum(cpu.values()), peak, parts, by_cpu)


def cpu_seconds(root: int) -> float:
    """CPU time so far of a process and all that live below it."""
    return sum(seconds for _, _, seconds in _family(root))


def _family(root: int) -> list[tuple[int, str, float]]:
    """The process and all below it: number, name, CPU seconds."""
    stats: dict[int, tuple[int, str, float]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            fields = rest.split()
            stats[int(folder.name)] = (int(fields[_PARENT]), name, sum(map(int, fields[_CPU])) / _TICKS)
    found, layer = [], {root} & stats.keys()
    while layer:
        found += [(pid, *stats[pid][1:]) for pid in layer]
        layer = {pid for pid, (parent, *_) in stats.items() if parent in layer}
    return found


def _pss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
