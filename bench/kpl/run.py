"""How near to its limit, the MD5 alone, does opening and packing aggregates come, and how do others?

Each peer runs in an environment of its own under `.bench/`, made on the first run. All answer in
turn, round after round, so that a busy moment of the machine meets them alike. Printed: CPU time
per round (median, and best), user records per second, and ratios of medians.

    python bench/kpl/run.py [--rounds 9] [--workloads abcde] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import pickle
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from payloads import WORKLOADS, Workload, user_records

from headpond.kpl import UserRecord, encode

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent.parent / ".bench"
PEERS = {
    # name: what its environment holds; None is the project's own
    "md5": None,
    "headpond": None,
    "aws_kinesis_agg": ["aws-kinesis-agg==1.2.3", "protobuf==7.36.2", "six==1.17.0"],
    "aiokpl": ["aiokpl==0.2.0"],
    "upb": ["protobuf==7.36.2", "pyarrow==26.0.1"],
}
TARGETS = {
    # (task, workload): (against, at least, aim); a ratio to MD5 is to be small, the others great
    ("decode", "a"): [("md5", 2.5, 1.5), ("aws_kinesis_agg", 5, 10), ("aiokpl", 10, 20)],
    ("decode", "b"): [("md5", 1.5, 1.5)],
    ("decode", "c"): [("md5", 3.5, 1.5)],
    ("encode", "a"): [("aiokpl", 4, 6)],
}


def interpreter(peer: str) -> Path | None:
    """Find or make a peer's environment; None, with the reason on stderr, if that cannot be done."""
    needs = PEERS[peer]
    if needs is None:
        return Path(sys.executable)
    folder = ENVIRONMENTS / f"kpl-{peer.replace('_', '-')}"
    python = folder / "bin" / "python"
    if (folder / "made").exists():
        return python
    uv = shutil.which("uv")
    make = [uv, "venv", "-q", "--clear", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
    add = (
        [uv, "pip", "install", "-q", "--python", str(python)]
        if uv
        else [str(python), "-m", "pip", "install", "-q"]
    )
    for command in ([*make, str(folder)], [*add, *needs]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{peer} is left out: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return None
    (folder / "made").touch()
    return python


class Worker:
    """A peer's process with one workload loaded."""

    def __init__(self, peer: str, python: Path, workload: Workload, blobs: Path) -> None:
        self.peer = peer
        command = [str(python), str(HERE / "worker.py"), peer, workload.name, str(blobs)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._expect("ready")

    def ask(self, task: str) -> tuple[float, int]:
        """Have it do something once: CPU seconds, user records."""
        assert self._process.stdin is not None
        self._process.stdin.write(task + "\n")
        self._process.stdin.flush()
        seconds, count = self._expect("").split()
        return float(seconds), int(count)

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def _expect(self, word: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line or (word and line != word):
            raise SystemExit(f"{self.peer} ended or answered {line!r} instead of {word or 'figures'}.")
        return line


def measure(workload: Workload, pythons: dict[str, Path], rounds: int) -> dict[str, Any]:
    """Run one workload through all peers in turn."""
    blobs = [encode([UserRecord(*pair) for pair in some]).data for some in user_records(workload)]
    expected = workload.aggregates * workload.records
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(pickle.dumps(blobs))
        workers = [Worker(peer, python, workload, Path(file.name)) for peer, python in pythons.items()]
    times: dict[str, dict[str, list[float]]] = {}
    for task in ("decode", "encode"):
        for number in range(rounds + 1):
            for worker in workers:
                seconds, count = worker.ask(task)
                assert count == expected, (worker.peer, task, count)
                if number:  # the first round warms up
                    times.setdefault(task, {}).setdefault(worker.peer, []).append(seconds)
    for worker in workers:
        worker.close()
    return times


def show(workload: Workload, times: dict[str, Any]) -> None:
    """Print a table for each direction, and how the targets are met."""
    count = workload.aggregates * workload.records
    for task, by_peer in times.items():
        medians = {peer: statistics.median(some) for peer, some in by_peer.items()}
        print(f"\n{task} ({workload.name}): {workload.told}")
        print(f"  {'':18}{'median ms':>11}{'best ms':>10}{'Mrec/s':>9}{'x md5':>8}{'x headpond':>12}")
        for peer, median in medians.items():
            print(
                f"  {peer:18}{median * 1e3:11.2f}{min(by_peer[peer]) * 1e3:10.2f}{count / median / 1e6:9.2f}"
                f"{median / medians['md5']:8.2f}{median / medians['headpond']:12.2f}"
            )
        for against, least, aim in TARGETS.get((task, workload.name), []):
            if against not in medians:
                continue
            ratio = medians[against] / medians["headpond"]
            if against == "md5":
                ratio = 1 / ratio
                verdict = "aim" if ratio <= aim else "met" if ratio <= least else "MISSED"
            else:
                verdict = "aim" if ratio >= aim else "met" if ratio >= least else "MISSED"
            print(f"  target against {against}: at least {least}, aim {aim}: {ratio:.2f} {verdict}")


def main() -> None:
    """Measure, print, and write the figures where asked to."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--workloads", default="abcde")
    arguments.add_argument("--json", type=Path)
    chosen = arguments.parse_args()
    pythons = {peer: python for peer in PEERS if (python := interpreter(peer)) is not None}
    print(f"Python {platform.python_version()}, {platform.machine()}")
    print(f"CPU time of one thread, {chosen.rounds} rounds")
    figures = {}
    for workload in WORKLOADS:
        if workload.name in chosen.workloads:
            figures[workload.name] = measure(workload, pythons, chosen.rounds)
            show(workload, figures[workload.name])
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
