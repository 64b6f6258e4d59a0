"""Change records of three tables, as a cluster would send them: made up, but with real names and sizes.

Inserts, updates and deletes mixed; columns that may be null are so in one of eight rows; one of eight texts
holds quotes.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
MANY = tuple(f"{name}_{number:02}" for number in range(34) for name in TABLES)[:100]
"""A hundred tables: `orders_07` is like `orders`."""


def columns_of(table: str) -> dict[str, str]:
    return TABLES[table.partition("_")[0]]


def keys_of(table: str) -> tuple[str, ...]:
    return KEYS[table.partition("_")[0]]


def value(kind: str, draw: random.Random, *, null: bool) -> object:
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


def records(
    count: int,
    *,
    keys_per_table: int | None = None,
    tables: Sequence[str] = tuple(TABLES),
    weights: Sequence[int] = (5, 4, 1),
) -> Iterator[bytes]:
    """Make records in the order of their commits.

    Args:
        count: how many.
        keys_per_table: different keys a table has; null gives nearly every record a key of its own.
        tables: of which tables.
        weights: how many are inserts, updates, deletes.
    """
    draw = random.Random(12)
    for number in range(count):
        table = draw.choice(tables)
        keys, columns = keys_of(table), columns_of(table)
        row = {c: value(k, draw, null=c not in keys and draw.random() < 0.125) for c, k in columns.items()}
        if keys_per_table is not None:
            chosen = random.Random(draw.randrange(keys_per_table))
            row |= {key: value(columns[key], chosen, null=False) for key in keys}
        op = draw.choices("cud", weights)[0]
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


def irregular(count: int, *, nested: bool) -> list[bytes]:
    """Make records of a table of 20 columns that hardly ever look alike.

    Args:
        count: how many.
        nested: all columns are there, and one holds a document of varied depth; else a fifth of them is left
            out at random.
    """
    draw = random.Random(3)
    kinds = ("integer", "varchar", "boolean", "double precision", "timestamp")
    template = json.loads(next(records(1)))
    found = []
    for number in range(count):
        row: dict[str, object] = {"id": number}
        for column in range(19):
            kind = kinds[column % 5]
            if nested or draw.random() < 0.8:
                text = kind == "varchar"
                row[f"col_{column}"] = "t" * draw.randint(5, 20) if text else value(kind, draw, null=False)
        if nested:
            row["col_18"] = document(4, draw)
        template["source"] |= {"table": "wide", "ts_ns": 1_783_600_000_000_000_000 + number}
        change = template | {"op": "c", "before": None, "after": row}
        found.append(json.dumps(change, separators=(",", ":")).encode())
    return found


def document(depth: int, draw: random.Random) -> object:
    """Make a JSON value nested at most so deep."""
    if depth == 0 or draw.random() < 0.3:
        return draw.choice([1, 2.5, "a text", None, True])
    size = draw.randint(0, 4)
    if draw.random() < 0.5:
        return [document(depth - 1, draw) for _ in range(size)]
    return {f"k{number}": document(depth - 1, draw) for number in range(size)}
