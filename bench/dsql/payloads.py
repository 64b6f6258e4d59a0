"""Change records of three tables, as a cluster would send them: made up, but with real names and sizes.

Inserts, updates and deletes mixed; columns that may be null are so in one of eight rows; one of eight texts
holds quotes.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def records(count: int, *, keys_per_table: int | None = None) -> Iterator[bytes]:
    """Make records in the order of their commits.

    Args:
        count: how many.
        keys_per_table: different keys a table has; null gives nearly every record a key of its own.
    """
    draw = random.Random(12)
    for number in range(count):
        table = draw.choice(list(TABLES))
        keys = KEYS[table]
        row = {
            c: value(k, draw, null=c not in keys and draw.random() < 0.125) for c, k in TABLES[table].items()
        }
        if keys_per_table is not None:
            chosen = random.Random(draw.randrange(keys_per_table))
            row |= {key: value(TABLES[table][key], chosen, null=False) for key in keys}
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
        yield json.dumps(record, separators=(",", ":")).encode()
