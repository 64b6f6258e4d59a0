"""Apply a stream in batches and be killed by SIGKILL before a given write; started again, go on.

    python killed_child.py LAKE_FOLDER STAGE

What Spark's checkpoint is to a run is the file `done` here: the number of batches that were applied. STAGE
`-` is never met.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

from headpond.lake.apply import Chunks, apply_batch
from tests.kit.support import vector_bytes, vector_json, vector_lines
from tests.lake.lakes import decoded, lake_in, watched
from tests.lake.test_apply import tables_text

BATCHES = 4
EXPECTED = vector_json("dsql/stream.expected.json")


def pipeline() -> str:
    """Every kind of target: current, history, log, and one table that is not configured."""
    tables = EXPECTED["tables"] | {name: log | {"keys": []} for name, log in EXPECTED["append_logs"].items()}
    names = list(tables)
    text = tables_text({name: tables[name] for name in names[1:]})
    history = f"[tables.{json.dumps(names[1])}]\n"
    return 'unknown_tables = "log"\n' + text.replace(history, history + 'keep = "history"\n')


def lines(count: int = 700, seed: int = 2) -> list[bytes]:
    """A part of the stream, shuffled, with the records of every case that refuses one in between."""
    bad = [
        json.dumps(
            record | {"sequenceNumber": str(10**55 + 100 * number + at), "shard": "shardId-bad"}
        ).encode()
        for number, case in enumerate(vector_lines("dsql/cases.jsonl"))
        for at, record in enumerate(case["records"])
        if case["expect"]["quarantine"]
    ]
    draw = random.Random(seed)
    found = draw.sample(vector_bytes("dsql/stream.jsonl").splitlines(), count) + bad
    draw.shuffle(found)
    return found


def main(folder: Path, stage: str) -> None:
    """Apply what is not applied yet."""
    lake, config = lake_in(folder, pipeline())
    done = folder / "done"
    fed = lines()
    size = -(-len(fed) // BATCHES)

    def between(name: str) -> None:
        if name == stage:
            os.kill(os.getpid(), signal.SIGKILL)

    for number in range(int(done.read_text()) if done.exists() else 0, BATCHES):
        batch = decoded(config, fed[number * size : (number + 1) * size], first_line=number * size + 1)
        apply_batch(watched(lake, between), batch, chunks=Chunks(config), transaction=("run", number))
        done.with_suffix(".new").write_text(str(number + 1))
        done.with_suffix(".new").replace(done)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
