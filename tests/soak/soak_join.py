"""The soak's two keyed streams, and every pair that their windowed join must give."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from headpond.kpl import Tag, UserRecord
from tests.soak.soak_join_job import AFTER_MS, BEFORE_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Pair = tuple[Any, ...]
START_MS = 1_783_600_000_000


@dataclass
class KeyedMaker:
    """Makes records of one side: partition key, bytes, explicit hash key, tags."""

    side: str
    seed: int
    keys: int = 12

    def __post_init__(self) -> None:
        self._draw = random.Random(f"{self.side} {self.seed}")
        self._now = START_MS
        self._made = 0

    def record(self) -> tuple[str, bytes, None, tuple[Tag, ...]]:
        """Make a record, in no strict order of times."""
        draw = self._draw
        self._now += draw.randint(0, 120)
        self._made += 1
        at = self._now - draw.choice((0, 0, 0, 50, 900))
        tags = (Tag("side", self.side), Tag("trace", None if draw.random() < 0.2 else f"{self._made}"))
        return f"key-{draw.randrange(self.keys)}", f"{at}|{self.side}{self._made}".encode(), None, tags


def expect(left: Iterable[UserRecord], right: Iterable[UserRecord]) -> Counter[Pair]:
    """Work out the pairs: right records from `BEFORE_MS` before a left one to `AFTER_MS` after it."""
    others: dict[str, list[tuple[int, UserRecord]]] = defaultdict(list)
    for record in right:
        others[record.partition_key].append((_time(record), record))
    found: Counter[Pair] = Counter()
    for record in left:
        at = _time(record)
        for other_at, other in others[record.partition_key]:
            if at - BEFORE_MS <= other_at <= at + AFTER_MS:
                headers = [(t.key, t.value and t.value.encode()) for t in (*record.tags, *other.tags)]
                found[record.partition_key, record.data, other.data, max(at, other_at), tuple(headers)] += 1
    return found


def results(folder: Path) -> Counter[Pair]:
    """Read what the join wrote: the files that Spark's own log of its sink names."""
    return Counter(pair for path in _committed(folder) for pair in _pairs(path))


def _committed(folder: Path) -> list[Path]:
    added: dict[str, None] = {}
    logs = folder / "_spark_metadata"
    for log in logs.iterdir() if logs.exists() else ():
        if log.name.partition(".")[0].isdecimal():
            for line in log.read_text().splitlines()[1:]:
                added[json.loads(line)["path"].rpartition("/")[2]] = None
    return [folder / name for name in added]


def _pairs(path: Path) -> Iterator[Pair]:
    for row in pq.read_table(path).to_pylist():
        headers = tuple((each["key"], each["value"]) for each in row["headers"])
        at = round(row["timestamp"].timestamp() * 1000)
        yield row["key"], row["left_value"], row["right_value"], at, headers


def _time(record: UserRecord) -> int:
    return int(record.data.partition(b"|")[0])
