"""Time-lines for the tests of the join: Kafka Streams' scenarios, and random ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headpond.kstreams import (
    BufferFormat,
    Emit,
    HeadersOf,
    JoinRecord,
    JoinResult,
    JoinRules,
    JoinStores,
    JoinType,
    JoinWindows,
    Side,
    StreamJoin,
    ValueFormat,
)
from headpond.kstreams.join.scenario import read_scenario
from tests.kit.support import vector_json

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

RANDOM = [f"random-{kind}-{number}" for kind in ("inner", "left", "outer") for number in (0, 2, 4, 6)]
KINDS: dict[str, ValueFormat | None] = {"memory": None} | {each.value: each for each in ValueFormat}


def scenario_documents() -> dict[str, Any]:
    """Every scenario by its name."""
    each = [*vector_json("window-store/joins/scripted.json")]
    each += [vector_json(f"window-store/joins/{name}.json") for name in RANDOM]
    return {document["name"]: document for document in each}


def stores_of(
    rules: JoinRules,
    kind: ValueFormat | None,
    directory: Path,
    buffer_format: BufferFormat = BufferFormat.HEADERS,
) -> JoinStores:
    """Stores in memory (None), or on RocksDB in that format."""
    if kind is None:
        return JoinStores.build(rules, buffer_format=buffer_format, join="j")
    return JoinStores.build(rules, directory, store_format=kind, buffer_format=buffer_format, join="j")


def records_of(document: dict[str, Any]) -> list[JoinRecord]:
    """The records of a time-line, its clock steps left out."""
    return [each for each in read_scenario(document).steps if isinstance(each, JoinRecord)]


def run_all(join: StreamJoin, records: list[JoinRecord], wall_clock_ms: int = 0) -> list[list[JoinResult]]:
    """The results of each record; a millisecond of the wall clock passes with each."""
    return [join.process(record, wall_clock_ms + number) for number, record in enumerate(records)]


def random_rules(chance: Random, types: tuple[JoinType, ...] = tuple(JoinType)) -> JoinRules:
    """Rules with small windows, some of them one-sided or in the past."""
    before = chance.randint(-5, 12)
    after = chance.randint(max(-5, -before), 12)
    return JoinRules(
        chance.choice(types),
        JoinWindows(before, after, chance.choice([0, 0, 3, 20])),
        chance.choice(list(HeadersOf)),
        chance.choice(list(Emit)),
        chance.choice([0, 0, 5]),
    )


def random_records(chance: Random, rules: JoinRules, size: int = 60) -> list[JoinRecord]:
    """Records of two keys, many of them out of order; values tell them apart."""
    newest = chance.choice([0, 30])
    records = []
    for number in range(chance.randint(1, size)):
        newest += chance.choice([0, 0, 1, 1, 2, 5, 11, 40])
        now = max(0, newest - chance.choice([0, 0, 0, 1, 4, 8, 12, 18, 30]))
        side = Side.LEFT if rules.type is JoinType.SELF else chance.choice(list(Side))
        key = chance.choice([b"a", b"a", b"a", b"a", b"b", None])
        value = None if chance.random() < 0.1 else f"v{number}".encode()
        headers = (("n", str(number).encode()),) if chance.random() < 0.5 else ()
        records.append(JoinRecord(side, key, value, now, headers))
    return records
