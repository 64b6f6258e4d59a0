"""Decode change records to Arrow, beside the plain `json.loads` loop that makes no check.

Run: python bench/dsql/run.py [--records 60000] [--rounds 7] [--json FILE]

One process, rounds interleaved, CPU time, the best round of each counts.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from payloads import KEYS, TABLES, irregular, records

from headpond.core.schemas import USER_RECORD_SCHEMA
from headpond.dsql.batch import decode_batch
from headpond.dsql.config import TableSpec
from headpond.dsql.decode import DsqlConfig
from headpond.dsql.records import parse

if TYPE_CHECKING:
    from collections.abc import Callable


def user_records(data: list[bytes]) -> pa.RecordBatch:
    columns = {
        "stream": ["s"] * len(data),
        "shard_id": ["shardId-000000000000"] * len(data),
        "sequence_number": [str(10**55 + n) for n in range(len(data))],
        "sub_sequence_number": [0] * len(data),
        "aggregated": [False] * len(data),
        "data": data,
    }
    arrays = [pa.array(columns.get(f.name, [None] * len(data)), f.type) for f in USER_RECORD_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=USER_RECORD_SCHEMA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    data = list(records(options.records))
    array = pa.array(data, pa.binary())
    batch = user_records(data)
    config = DsqlConfig(
        tables=tuple(
            TableSpec(name=name, schema="public", table=name, keys=KEYS[name], columns=columns)
            for name, columns in TABLES.items()
        )
    )
    uneven = {
        "a fifth of 20 columns left out": pa.array(
            irregular(options.records // 3, nested=False), pa.binary()
        ),
        "a jsonb of varied depth": pa.array(irregular(options.records // 3, nested=True), pa.binary()),
    }
    few = data[: max(options.records // 20, 1)]
    runs: dict[str, tuple[int, Callable[[], object]]] = {
        "json.loads loop, no checks": (len(data), lambda: [json.loads(record) for record in data]),
        "decode_batch, every check": (len(data), lambda: decode_batch(array)),
        "decode to typed tables": (len(data), lambda: config.decode(batch)),
        "scalar reader (the oracle)": (len(few), lambda: [parse(record) for record in few]),
    }
    for name, odd in uneven.items():
        runs[f"decode_batch, {name}"] = (len(odd), partial(decode_batch, odd))
    seen: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, (count, run) in runs.items():
            begun = time.process_time()
            run()
            seen[name].append((time.process_time() - begun) / count)
    best = {name: min(rounds) for name, rounds in seen.items()}
    base = best["json.loads loop, no checks"]
    print(f"{len(data)} records of {sum(map(len, data)) // len(data)} bytes")
    for name, seconds in best.items():
        print(f"{name:45} {seconds * 1e6:8.2f} us/record   {base / seconds:5.2f} x the json.loads loop")
    if options.json:
        figures = {name: [seconds * 1e6 for seconds in rounds] for name, rounds in seen.items()}
        options.json.write_text(json.dumps({"decoding": figures}, indent=1))


if __name__ == "__main__":
    main()
