"""Decode change records to Arrow, beside the plain `json.loads` loop that makes no check.

Run: python bench/dsql/run.py [--records 60000] [--rounds 7]

One process, rounds interleaved, CPU time, the best round of each counts. Three tables; inserts, updates and
deletes mixed; columns that may be null are so in one of eight rows; one of eight texts holds quotes.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from headpond.changes.config import DsqlConfig, TableSpec
from headpond.changes.dsql import decode
from headpond.formats.dsql import parse
from headpond.formats.dsql_batch import decode_batch
from headpond.formats.rows import USER_RECORD_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

TABLES = {
    "orders": {
        "order_id": "bigint",
        "item_id": "integer",
        "quantity": "integer",
        "price": "numeric(12,2)",
        "note": "text",
    },
    "accounts": {
        "id": "bigint",
        "email": "varchar",
        "balance": "numeric",
        "active": "boolean",
        "created_at": "timestamptz",
    },
    "events": {
        "id": "uuid",
        "at": "timestamp",
        "payload": "json",
        "score": "double precision",
        "origin": "text",
    },
}
KEYS = {"orders": ("order_id", "item_id"), "accounts": ("id",), "events": ("id",)}


def value(kind: str, draw: random.Random, *, null: bool) -> object:  # noqa: PLR0911 - one per type
    if null:
        return None
    if kind in {"bigint", "integer"}:
        return draw.randrange(2**31)
    if kind.startswith("numeric"):
        return f"{draw.randrange(10**8) / 100:.2f}"
    if kind == "boolean":
        return draw.random() < 0.5
    if kind.startswith("timestamp"):
        return 1_783_600_000_000_000 + draw.randrange(10**12)
    if kind == "double precision":
        return draw.random()
    if kind == "uuid":
        return f"{draw.getrandbits(32):08x}-0000-4000-8000-{draw.getrandbits(48):012x}"
    if kind == "json":
        return json.dumps({"k": draw.randrange(1000), "tags": ["a", "b"]})
    text = "".join(draw.choices("abcdefghij klmnop", k=draw.randint(60, 280)))
    return f'{text} "q"' if draw.random() < 0.125 else text


def records(count: int) -> list[bytes]:
    draw = random.Random(12)
    found = []
    for number in range(count):
        table = draw.choice(list(TABLES))
        keys = KEYS[table]
        row = {
            c: value(k, draw, null=c not in keys and draw.random() < 0.125) for c, k in TABLES[table].items()
        }
        op = draw.choices("cud", (5, 4, 1))[0]
        ts_ns = 1_783_600_000_000_000_000 + number * 1000
        record = {
            "type": "full",
            "op": op,
            "before": {key: row[key] for key in keys} if op == "d" else None,
            "after": None if op == "d" else row,
            "source": {
                "version": "1.0",
                "ts_ms": ts_ns // 10**6,
                "ts_ns": ts_ns,
                "txId": "".join(draw.choices("abcdefghijklmnopqrstuvwxyz234567", k=26)),
                "schema": "public",
                "table": table,
                "db": "postgres",
                "cluster": "kmabugltfmjdaj2siqr2qbxgju",
            },
            "ts_ms": ts_ns // 10**6 + 5,
            "ts_ns": ts_ns + 5_000_000,
        }
        found.append(json.dumps(record, separators=(",", ":")).encode())
    return found


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
    options = parser.parse_args()
    data = records(options.records)
    array = pa.array(data, pa.binary())
    batch = user_records(data)
    config = DsqlConfig(
        tables=tuple(
            TableSpec(name=name, schema="public", table=name, keys=KEYS[name], columns=columns)
            for name, columns in TABLES.items()
        )
    )
    few = data[: max(options.records // 20, 1)]
    runs: dict[str, tuple[int, Callable[[], object]]] = {
        "json.loads loop, no checks": (len(data), lambda: [json.loads(record) for record in data]),
        "decode_batch, every check": (len(data), lambda: decode_batch(array)),
        "decode to typed tables": (len(data), lambda: decode(batch, config)),
        "scalar reader (the oracle)": (len(few), lambda: [parse(record) for record in few]),
    }
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(options.rounds):
        for name, (count, run) in runs.items():
            begun = time.process_time()
            run()
            best[name] = min(best[name], (time.process_time() - begun) / count)
    base = best["json.loads loop, no checks"]
    print(f"{len(data)} records of {sum(map(len, data)) // len(data)} bytes")
    for name, seconds in best.items():
        print(f"{name:30} {seconds * 1e6:8.2f} us/record   {base / seconds:5.2f} x the json.loads loop")


if __name__ == "__main__":
    main()
