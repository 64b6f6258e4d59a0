"""How long does `headpond demo` take beyond a bare Spark start?

The demonstration is to end within a bare Spark start plus 75 s once headpond is installed. Both are
programs of their own and are run in turn, round after round, so that a busy moment of the machine meets both:

    bare Spark start   a session on two cores with headpond's own settings, one job of one row, stop
    headpond demo      the whole of it, in a folder of its own, no terminal

Neither keeps anything for the next round: classes of the JVM are kept in a folder that goes with the round,
as if headpond had just been installed. Wall seconds; the demonstration checks itself, and must be right.

    python bench/demo.py [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ALLOWED_S = 75
"""What the demonstration may take beyond the start."""
START, DEMO, BEYOND = "bare Spark start", "headpond demo", "headpond demo, beyond the start"
BARE = """
import sys
from headpond.spark.session.start import spark_session

spark = spark_session("bare", conf={"spark.master": "local[2]"}, log_path=sys.argv[1], quick=True)
assert spark.range(1).count() == 1
spark.stop()
"""


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """Run a program to its end, which must be a good one."""
    begun = time.perf_counter()
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    took = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout.decode(errors='replace')[-3000:]}")
    return took


def one_round() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="headpond-bench-") as folder:
        place = Path(folder)
        took = {}
        commands = {
            START: [sys.executable, "-c", BARE, str(place / "spark.log")],
            DEMO: [sys.executable, "-m", "headpond", "demo", "--json", "--lake", str(place / "demo")],
        }
        for number, (name, command) in enumerate(commands.items()):
            cache = {"HEADPOND_CACHE_DIR": str(place / f"cache {number}")}
            took[name] = seconds(command, os.environ | cache)
    return took | {BEYOND: took[DEMO] - took[START]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sides: dict[str, list[float]] = {START: [], DEMO: [], BEYOND: []}
    for number in range(options.rounds):
        for name, took in one_round().items():
            sides[name].append(round(took, 2))
        told = ", ".join(f"{name} {rounds[-1]:.1f} s" for name, rounds in sides.items())
        print(f"round {number + 1}: {told}", flush=True)
    beyond = statistics.median(sides[BEYOND])
    print(f"beyond the start: {beyond:.1f} s in the middle; {ALLOWED_S} s are allowed")
    if options.json:
        figures = {"wall s": sides, "allowed beyond the start, s": ALLOWED_S}
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
