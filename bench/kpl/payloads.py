"""What is measured: aggregates of random user records, the same on every machine."""

from __future__ import annotations

import random
from typing import NamedTuple


class Workload(NamedTuple):
    """Aggregates of like shape."""

    name: str
    told: str
    aggregates: int
    records: int
    least_bytes: int
    greatest_bytes: int
    keys: int


WORKLOADS = (
    Workload("a", "400 aggregates of 400 records of 100 B, 10 keys", 400, 400, 100, 100, 10),
    Workload("b", "400 aggregates of 45 records of 1 KiB, 10 keys", 400, 45, 1024, 1024, 10),
    Workload("c", "20 aggregates of 400 records of 100 B, 10 keys", 20, 400, 100, 100, 10),
    # Beyond the three that have a target: what real streams look like.
    Workload("d", "as a, but records of 0 to 200 B", 400, 400, 0, 200, 10),
    Workload("e", "as a, but a key of its own for every record", 400, 400, 100, 100, 400),
)


def user_records(workload: Workload) -> list[list[tuple[str, bytes]]]:
    """Draw (partition key, data) pairs, a list for each aggregate."""
    draw = random.Random(workload.name)
    return [
        [
            (
                f"device-{position % workload.keys}",
                draw.randbytes(draw.randint(workload.least_bytes, workload.greatest_bytes)),
            )
            for position in range(workload.records)
        ]
        for _ in range(workload.aggregates)
    ]
