"""What decoding and verifying QLDB records costs, against amazon.ion with its C extension.

Both sides give the same Arrow columns from the same records in one process. The peer reads with bare Python
values, its fastest way, and verifies with an Ion hash over the objects it reads. The column `data` is made by
headpond alone: bare values have lost what it would have to be written from. The two answer in turn, so that a
busy moment of the machine meets them alike. Printed: CPU time per record (median, and best), and ratios.

    python bench/qldb/run.py [--rounds 5] [--count 4000] [--json FILE]
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import statistics
import sys
import time
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))
import peer
import pyarrow as pa
from records import records

from headpond.qldb.batch import decode_qldb

if TYPE_CHECKING:
    from collections.abc import Callable

VECTORS = Path(__file__).parent.parent.parent / "tests" / "vectors" / "qldb" / "clean.jsonl.gz"
REPEATED = 70
"""Times the golden vectors are repeated: 27,440 revisions with 244 symbol tables."""
TARGETS = {"decode": (2, 8), "verify": (3, 10)}
PEER_SHARE = 10
"""The peer's verification is given one record in so many: it takes as many times longer."""


def vectors() -> tuple[list[bytes], list[bytes]]:
    """Revisions and blocks of the golden vectors, as often as a batch of 32 MiB has room for them."""
    lines = gzip.decompress(VECTORS.read_bytes()).splitlines()
    blobs = [b64decode(json.loads(line)["data"]) for line in lines]
    revisions = [b for b in blobs if b"REVISION_DETAILS" in b]
    return revisions * REPEATED, [b for b in blobs if b"BLOCK_SUMMARY" in b] * REPEATED


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def check(blobs: list[bytes], kind: str) -> None:
    """Both sides must tell the same, or the figures mean nothing."""
    array = pa.array(blobs, pa.binary())
    ours, theirs = decode_qldb(array), peer.verify(blobs, kind)
    assert all(verdict == "ok" for verdict in ours.verdicts["verdict"].to_pylist())
    table = ours.revisions if kind == "revisions" else ours.blocks
    for name, column in theirs.items():
        assert table[name].to_pylist() == column.to_pylist(), name


def measure(name: str, kind: str, blobs: list[bytes], rounds: int) -> dict[str, dict[str, list[float]]]:
    """CPU microseconds per record by task and side."""
    check(blobs[:200], kind)
    array = pa.array(blobs, pa.binary())
    some = blobs[::PEER_SHARE] or blobs
    sides: dict[str, dict[str, tuple[Callable[[], object], int]]] = {
        "decode": {
            "headpond": (lambda: decode_qldb(array, verify=False), len(blobs)),
            "amazon.ion": (lambda: peer.decode(blobs, kind), len(blobs)),
        },
        "verify": {
            "headpond": (lambda: decode_qldb(array, verify=True), len(blobs)),
            "amazon.ion": (lambda: peer.verify(some, kind), len(some)),
        },
    }
    times: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds + 1):
        for task, by_side in sides.items():
            for side, (work, count) in by_side.items():
                seconds = timed(work)
                if number:  # the first round warms up
                    times.setdefault(task, {}).setdefault(side, []).append(seconds / count * 1e6)
    print(f"\n{name}: {len(blobs)} {kind} of {sum(map(len, blobs)) // len(blobs)} bytes")
    for task, by_side in times.items():
        medians = {side: statistics.median(some) for side, some in by_side.items()}
        for side, median in medians.items():
            best = min(by_side[side])
            print(
                f"  {task:8}{side:12}{median:10.1f} µs median{best:10.1f} µs best{1e6 / median:12,.0f} rec/s"
            )
        ratio = medians["amazon.ion"] / medians["headpond"]
        least, aim = TARGETS[task]
        verdict = "aim" if ratio >= aim else "met" if ratio >= least else "MISSED"
        print(f"  {task:8}{ratio:.1f} times amazon.ion (at least {least}, aim {aim}): {verdict}")
    return times


def main() -> None:
    """Measure, print, and write the figures where asked to."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--count", type=int, default=4000)
    arguments.add_argument("--json", type=Path)
    chosen = arguments.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}; amazon.ion in C: {peer.C_EXTENSION}")
    print(f"CPU time of one thread, {chosen.rounds} rounds")
    made = records(chosen.count)
    odd_revisions, odd_blocks = vectors()
    figures = {
        "tables": measure("two tables, a shape each", "revisions", made.revisions, chosen.rounds),
        "blocks": measure("their blocks, 1 to 3 documents", "blocks", made.blocks, chosen.rounds),
        "odd": measure("golden vectors", "revisions", odd_revisions, chosen.rounds),
        "odd blocks": measure("golden vectors", "blocks", odd_blocks, chosen.rounds),
    }
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
