"""User records acknowledged a second: headpond's producer against aiokpl 0.2.0, interleaved, one endpoint.

    python bench/producer/run.py [--rounds 5] [--records 100000] [--json FILE]

The endpoint is the local Kinesis in a process of its own, without limits; each producer runs in a process
of its own, the peer in an environment of its own under `.bench/`. Prints the medians and their ratio.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PEER = HERE.parent.parent / ".bench" / "aiokpl"
SERVE = """
from headpond.localkinesis import serve_forever
def announce(url, engine):
    engine.create_stream("bench", {shards})
    print(url, flush=True)
serve_forever(0, announce=announce)
"""


def peer_python() -> str:
    python = PEER / "bin" / "python"
    if not python.exists():
        uv = shutil.which("uv")
        make = [uv, "venv", "-q"] if uv else [sys.executable, "-m", "venv"]
        subprocess.run([*make, str(PEER)], check=True)
        install = (
            [uv, "pip", "install", "-q", "--python", str(python)]
            if uv
            else [str(python), "-m", "pip", "install"]
        )
        subprocess.run([*install, "aiokpl==0.2.0"], check=True)
    return str(python)


def measure(python: str, script: str, *arguments: str) -> dict[str, float]:
    done = subprocess.run(
        [python, str(HERE / script), *arguments], capture_output=True, text=True, check=True, timeout=600
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    sides = {"headpond": (sys.executable, "ours.py", 1), "aiokpl": (peer_python(), "peer_aiokpl.py", 5)}
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE.format(shards=chosen.shards)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        for _ in range(chosen.rounds):
            for name, (python, script, part) in sides.items():
                # The slower side puts fewer: its rate does not depend on the number.
                records = str(chosen.records // part)
                sizes = (str(chosen.keys), str(chosen.size))
                seen[name].append(measure(python, script, endpoint, "bench", records, *sizes))
    finally:
        server.terminate()
        server.wait()
    rates = {name: statistics.median(one["per_second"] for one in runs) for name, runs in seen.items()}
    cpu = {name: statistics.median(one["cpu_us"] for one in runs) for name, runs in seen.items()}
    for name in sides:
        print(f"{name:10} {rates[name]:12,.0f} records/s   {cpu[name]:7.1f} us CPU a record")
    print(f"ratio      {rates['headpond'] / rates['aiokpl']:12.1f}")
    if chosen.json:
        kinds = {"records acknowledged a second": "per_second", "CPU µs a record": "cpu_us"}
        figures = {
            told: {name: [one[kind] for one in runs] for name, runs in seen.items()}
            for told, kind in kinds.items()
        }
        chosen.json.write_text(json.dumps(figures, indent=1))


main()
