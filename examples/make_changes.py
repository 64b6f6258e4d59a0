"""Print a small archive of Aurora DSQL change records: two changes, one of them twice, and a bad record."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

COMMIT_NS = 1_783_500_000_000_000_000


def change(op: str, after: dict[str, Any], *, commit: int) -> dict[str, Any]:
    """A change record of `public.orders` as the service writes it."""
    source = {
        "version": "1.0",
        "ts_ns": COMMIT_NS + commit,
        "txId": f"tx{commit}",
        "schema": "public",
        "table": "orders",
        "db": "postgres",
        "cluster": "example",
    }
    return {"type": "full", "op": op, "before": None, "after": after, "source": source}


def main() -> None:
    """Print the archive, one Kinesis record a line."""
    insert = change("c", {"id": 1, "item": "anchor", "quantity": 1}, commit=1)
    update = change("u", {"id": 1, "item": "anchor", "quantity": 2}, commit=2)
    records: list[dict[str, Any]] = [insert, update, insert, {"type": "sideways"}]
    for number, record in enumerate(records):
        line = {
            "shard": "shardId-000000000000",
            "sequenceNumber": str(49_600_000_000_000 + number),
            "data": base64.b64encode(json.dumps(record).encode()).decode(),
        }
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
