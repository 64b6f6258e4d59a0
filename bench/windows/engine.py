"""What does the join cost its engine in the conditions that are not ordinary? One process for each question.

    unequal   one input ten times as far ahead as the other: what is held costs, beside inputs in step
    hot       one key: as many candidates for pairs as records of both sides multiplied
    waiting   a left join's batch of 1,000 records, its manifest included, with 3M waiting, beside 0.1M: in a
              long grace, where a record may meet few of them, and in a window that holds all of them
    beyond    a state larger than the memory that a worker may have (RLIMIT_DATA), beside one without a cap

CPU time of the process; memory is its greatest resident size, of which mapped files are a part.

    python bench/windows/engine.py [--only beyond] [--records 4000000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headpond.kstreams.bytes.join_buffer import Side
from headpond.kstreams.join.alignment import Alignment, Delivered, Piece
from headpond.kstreams.join.arrivals import Arrivals
from headpond.kstreams.join.by_batch import BatchJoin, initial_state
from headpond.kstreams.join.chunk_codec import encode_manifest
from headpond.kstreams.join.pairs import Rows
from headpond.kstreams.join.rules import JoinRules, JoinWindows
from headpond.spark.join.at_hand import FileCache, MemoryCache

SCHEMA = pa.schema([(name, pa.binary()) for name in ("key", "headers", "value")])
SCHEMAS = {Side.LEFT: SCHEMA, Side.RIGHT: SCHEMA}
START_MS = 1_700_000_000_000
CAP_BYTES, AT_HAND_BYTES = 256 << 20, 64 << 20
STATUS = Path("/proc/self/status")
POOLS = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}


def records(keys: np.ndarray[Any, Any]) -> pa.RecordBatch:
    """Records of these keys with values of 100 bytes."""
    names = pa.array([b"key-%08d" % key for key in keys.tolist()], pa.binary())
    empty, values = (pa.array([each] * len(keys), pa.binary()) for each in (b"", bytes(100)))
    return pa.RecordBatch.from_arrays([names, empty, values], schema=SCHEMA)


def batch(chance: np.random.Generator, rows: int, start: int, keys: int) -> dict[Side, Arrivals]:
    """Records of both sides, one a millisecond, in the order of their times."""
    left = chance.integers(0, 2, rows).astype(bool)
    found = {}
    for side in (Side.LEFT, Side.RIGHT):
        at = np.flatnonzero(left == (side is Side.LEFT))
        found[side] = Arrivals(records(chance.integers(0, keys, len(at))), START_MS + start + at, at)
    return found


def run(join: BatchJoin, state: Any, arrivals: dict[Side, Arrivals]) -> tuple[Any, int]:
    results = 0
    for step in join.steps(state, arrivals):
        state = step.state
        results += sum(each.num_rows for each in step.results.batches())
    return state, results


def unequal(rows: int) -> dict[str, float]:
    """Time of records ten times as fast on the left; then the right input catches up."""
    found = {}
    for name, factor in (("in step", 1), ("unequal", 10)):
        chance = np.random.default_rng(1)
        join = BatchJoin(JoinRules("inner", JoinWindows(5_000, 5_000)), SCHEMAS)
        state = initial_state(join.rules)
        made = {side: chance.integers(0, 5_000, rows) for side in SCHEMAS}
        at = dict.fromkeys(SCHEMAS, 0)
        spent = held = results = 0.0
        resting = False
        while not resting:
            resting = all(at[side] == rows for side in SCHEMAS)  # in the last batch nobody waits
            delivered = {}
            for side, size in ((Side.LEFT, 10_000 * factor), (Side.RIGHT, 10_000)):
                keys = made[side][at[side] : at[side] + size]
                ts = np.arange(at[side], at[side] + len(keys)) + START_MS
                if len(keys):
                    pieces = [Piece((side.name,), (at[side],), int(ts[-1]))]
                    piece = np.zeros(len(ts), np.int64)
                    delivered[side] = [Delivered(records(keys), ts, ts, piece, pieces)]
                at[side] += len(ts)
            started = time.process_time()
            waiting = Alignment(state.inputs, join.schemas, 0, 0)
            waiting.take(delivered)
            for part in waiting.released():
                for step in join.steps(state, part.arrivals, 0, part.time):
                    state = step.state
                    results += sum(each.num_rows for each in step.results.batches())
            state = waiting.kept(state)
            spent += time.process_time() - started
            held = max(held, sum(each.rows for _, each in state.held()))
        found[f"{name}: µs a record"] = spent / (2 * rows) * 1e6
        found[f"{name}: most records held"] = held
        found[f"{name}: results"] = results
    return found


def hot(rows: int) -> dict[str, float]:
    side = rows // 2
    join = BatchJoin(JoinRules("inner", JoinWindows(rows, rows)), SCHEMAS)
    at = {Side.LEFT: np.arange(side), Side.RIGHT: np.arange(side, 2 * side)}
    one_key = records(np.zeros(side, np.int64))
    arrivals = {each: Arrivals(one_key, START_MS + place, place) for each, place in at.items()}
    started = time.process_time()
    _, results = run(join, initial_state(join.rules), arrivals)
    return {"records": rows, "results": results, "s of CPU": time.process_time() - started}


def waiting(rows: int) -> dict[str, float]:
    found = {}
    for name, count, windows in (
        (name, count, windows)
        for name, windows in (
            ("long grace", JoinWindows(10_000, 10_000, 4 * rows)),
            ("wide window", JoinWindows(4 * rows, 4 * rows)),
        )
        for count in (rows // 30, rows)
    ):
        chance = np.random.default_rng(1)
        join = BatchJoin(JoinRules("left", windows), SCHEMAS)
        state = initial_state(join.rules)
        for start in range(0, count, 100_000):
            ts = START_MS + np.arange(start, min(count, start + 100_000))
            alone = records(np.arange(start, start + len(ts)))
            state, _ = run(join, state, {Side.LEFT: Arrivals(alone, ts, np.arange(len(ts)))})
        spent = []
        for number in range(8):
            small = batch(chance, 1_000, count + number * 1_000, count)
            started = time.process_time()
            state, _ = run(join, state, small)
            encode_manifest(state, {})
            spent.append(time.process_time() - started)
        found[f"{name}, {count:,} waiting: ms a batch of 1,000"] = sorted(spent)[4] * 1e3
    return found


def beyond(rows: int, *, capped: bool) -> dict[str, float]:
    if capped:
        # What libraries have reserved by now, threads' stacks among it, is not the state's.
        there = next(int(line.split()[1]) for line in STATUS.open() if line.startswith("VmData:")) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (there + CAP_BYTES, there + CAP_BYTES))
    memory = MemoryCache(AT_HAND_BYTES if capped else 1 << 40)
    chance = np.random.default_rng(1)
    join = BatchJoin(JoinRules("inner", JoinWindows(4 * rows, 4 * rows)), SCHEMAS)
    state, spent = initial_state(join.rules), 0.0
    with tempfile.TemporaryDirectory(prefix="headpond-bench-") as folder:
        files = FileCache(Path(folder))
        stored: set[bytes] = set()

        def load(uid: bytes) -> Rows:
            rows = memory.get("", uid)
            if rows is None:
                rows = files.get(uid, SCHEMA)
                assert rows is not None
                memory.put("", uid, rows)
            return rows

        results = 0
        for start in range(0, rows, 20_000):
            arrivals = batch(chance, 20_000, start, 4 * rows)
            started = time.process_time()
            state, some = run(join, state, arrivals)
            for _, chunk in state.chunks():
                if chunk.uid not in stored:
                    stored.add(chunk.uid)
                    files.put(chunk.uid, chunk.data)
                    memory.put("", chunk.uid, chunk.data)
                    chunk.load = partial(load, chunk.uid)
            named = {chunk.uid for _, chunk in state.chunks()}
            memory.keep_only("", named)
            files.keep_only(named)
            spent += time.process_time() - started
            results += some
        size = sum(each.stat().st_size for each in Path(folder).iterdir())
    return {
        "MB of state in files": size / 1e6,
        "MB at hand": memory.bytes / 1e6,
        "µs a record": spent / rows * 1e6,
        "results": results,
    }


QUESTIONS = {
    "unequal": unequal,
    "hot": hot,
    "waiting": waiting,
    "beyond, no cap": partial(beyond, capped=False),
    "beyond, capped": partial(beyond, capped=True),
}
ROWS = {"unequal": 300_000, "hot": 20_000, "waiting": 3_000_000}


def measure(only: str = "", records: int = 4_000_000) -> dict[str, float]:
    """Answer all questions, or those whose names begin so, in processes of their own."""
    every: dict[str, float] = {}
    for name in QUESTIONS:
        if name.startswith(only):
            command = [sys.executable, __file__, "--ask", name, "--records", str(records)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ | POOLS)
            every |= {f"{name}: {what}": figure for what, figure in json.loads(done.stdout).items()}
    return every


def show(found: dict[str, float]) -> None:
    """Print figures."""
    for name, figure in found.items():
        print(f"{name:56}{figure:16,.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only")
    parser.add_argument("--records", type=int, default=4_000_000, help="of the state beyond memory")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.ask:
        found = QUESTIONS[chosen.ask](ROWS.get(chosen.ask, chosen.records))
        found["greatest MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(json.dumps(found))
        return
    every = measure(chosen.only or "", chosen.records)
    show(every)
    if chosen.json:
        chosen.json.write_text(json.dumps(every, indent=1))


if __name__ == "__main__":
    main()
